//! Tests of the lock table with lost answers and events, and with the queries for the state of a
//! lock that follow a loss.
//!
//! A random run of a test: its random number generator, its seed, and its kind.

use crate::engine::{LeaseKey, LockView, Ownership};
use crate::fuse::posix_locks::table::tests_async::{Far, MOVES_FROM, Recall, SEEDS, named, run};
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

/// A random number generator with a seed.
pub(super) struct Dice(pub(super) u64);

impl Dice {
    pub(super) fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (self.0 >> 33) as usize % limit
    }
}

/// A seed that is printed if the test panics before this value is dropped.
pub(super) struct Seed(pub(super) u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("LATCHFS_SEED={} repeats it, and tells it", self.0);
        }
    }
}

/// The operations and faults that a random run contains besides locking whole files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Whole,
    /// Programs also lock parts of the file.
    Parts,
    /// Other programs move the lock to another name and back, whichever program holds it. Then a
    /// program that locks the first name does not conflict with one that locks the second.
    Moves,
    /// Events and answers are lost. The remaining answers come in order, as from a server.
    Losses,
    /// Other programs move the lock as in [`Kind::Moves`], and the engine is behind a server.
    ServerMoves,
}

impl Kind {
    /// Whether the engine is behind a server, so that events and answers may be lost and answers
    /// come in order.
    pub(super) fn is_remote(self) -> bool {
        matches!(self, Self::Losses | Self::ServerMoves)
    }

    pub(super) fn has_moves(self) -> bool {
        matches!(self, Self::Moves | Self::ServerMoves)
    }
}
