//! Tests of the lock table with lost answers and events, and with the queries for the state of a
//! lock that follow a loss.

use crate::engine::{LeaseKey, LockView, Ownership};
use crate::fuse::posix_locks::table::tests_async::named;
use crate::fuse::posix_locks::table::tests_async::run;
use crate::fuse::posix_locks::table::tests_async::{Far, MOVES_FROM, Recall, SEEDS};
use crate::fuse::posix_locks::table::{Found, Table};

/// The number of random runs with lost answers and events; none may leave a program waiting.
pub(crate) const LOSSES: u64 = 2_000;
/// The number of random runs in which the engine is behind a server and `mv` moves locks.
const MOVES: u64 = 2_000;

impl Far {
    /// Returns the engine's reply to a query: the lease with the lease number of the query, and the
    /// waiters of its lock.
    pub(crate) fn found(&self, Recall { number, name, .. }: &Recall) -> Found {
        let mut all = self.on_session().into_iter();
        let lease = all.find(|(of, key)| of == number && key.name == *name);
        let tickets = self.view(name).waiters.iter().map(|waiter| waiter.ticket).collect();
        Found { lease: lease.map(|(_, key)| key), tickets }
    }

    /// Returns all leases of the session with their lease numbers.
    pub(crate) fn on_session(&self) -> Vec<(u64, LeaseKey)> {
        let views = [self.view(&named("f")), self.view(&named("g"))];
        let of_lock = |view: &LockView| {
            let holds = view.holders.iter().filter_map(|holder| {
                let Ownership::OpenFile(open) = holder.lease.hold else { return None };
                let (name, client) = (view.name.clone(), holder.lease.holder.clone());
                Some((open.number, LeaseKey { name, client, token: Some(holder.lease.token) }))
            });
            holds.collect::<Vec<_>>()
        };
        views.iter().flat_map(of_lock).collect()
    }

    /// Interrupts the stream of events, and drops the events that are under way.
    pub(crate) fn lose_events(&mut self) {
        self.say(format_args!("events are lost: {:?}", self.events));
        self.events.clear();
        self.decide(Table::missed);
    }
}

#[test]
fn lost_answers_and_events_leave_nobody_waiting_and_nothing_held() {
    (SEEDS..SEEDS + LOSSES).for_each(|seed| run(seed, false));
}

#[test]
fn moves_behind_a_server_leave_nothing_held() {
    (MOVES_FROM..MOVES_FROM + MOVES).for_each(|seed| run(seed, false));
}
