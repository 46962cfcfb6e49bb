//! Ends all leases and waits of a set of clients, for all locks in one step.
//!
//! An administrator uses a reset when clients have left for good. Like a steal (rule 9), a reset
//! keeps each affected lock unusable for a time (the steal grace), so that the previous holders can
//! stop.

use super::command::{Answer, Outcome, Reset, ResetScope};
use super::event::{Event, EventKind, LeaveReason, TenureEnd};
use super::lease::{Lease, Lifetime, Mode, Ownership, Ticket, Token};
use super::lease_terms::{Grace, TTL_DEFAULT};
use super::lock::Lock;
use super::name::{ClientId, LockName};
use super::refusal::{Limit, Reason};
use super::state::{Engine, EngineState};
use crate::time::Time;
use std::sync::Arc;

impl ResetScope {
    /// Whether the reset applies to this client. The scope `laptop1` includes its users, such as
    /// `laptop1:alice`.
    pub fn means(&self, client: &ClientId) -> bool {
        match self {
            Self::AllBut(kept) => !kept.iter().any(|kept| client.belongs_to(kept)),
            Self::Of(one) => client.belongs_to(one),
        }
    }
}

/// The leases and waiters of one lock that a reset removes.
struct Swept {
    name: LockName,
    leases: Vec<Token>,
    places: Vec<Ticket>,
}

impl Engine {
    /// Removes the clients to which the reset applies from all queues and ends their leases; then
    /// grants locks to the next waiters.
    pub(super) fn reset(&mut self, ask: &Reset, events: &mut Vec<Event>) -> Answer {
        let swept = self.swept(&ask.whose);
        let robbed = swept.iter().filter(|lock| !lock.leases.is_empty()).count() as u64;
        // A reset needs one token for each lock that it keeps unusable, and one for each waiter
        // that it may serve.
        if self.books.mint.left() <= self.books.waiting as u64 + robbed + 1 {
            return Err(self.books.refuse(Reason::Limit(Limit::Tokens)));
        }
        // Waiters are removed first: a waiter of a client that is reset could otherwise be granted
        // a lock when a lease of another client ends.
        for lock in &swept {
            for ticket in &lock.places {
                self.unqueue(&lock.name, *ticket, LeaveReason::Reset, events);
            }
        }
        for lock in swept.iter().filter(|lock| !lock.leases.is_empty()) {
            self.rob(lock, ask, events);
        }
        for lock in &swept {
            self.serve(&lock.name, events);
        }
        let holds = swept.iter().map(|lock| lock.leases.len()).sum();
        let waits = swept.iter().map(|lock| lock.places.len()).sum();
        Ok(Outcome::Reset { holds, waits })
    }

    /// Returns, by name, the locks that have leases or waiters of clients to which the reset
    /// applies.
    fn swept(&self, whose: &ResetScope) -> Vec<Swept> {
        let of_lock = |name: &LockName, lock: &Lock| {
            let held = lock.leases().iter().filter(|lease| !self.books.is_kept_from_all(lease));
            let held = held.filter(|lease| whose.means(&lease.holder));
            let leases: Vec<_> = held.map(|lease| lease.token).collect();
            let waits = lock.line.iter().filter(|(_, waiter)| whose.means(&waiter.client));
            let places: Vec<_> = waits.map(|(ticket, _)| *ticket).collect();
            let is_meant = !leases.is_empty() || !places.is_empty();
            is_meant.then(|| Swept { name: name.clone(), leases, places })
        };
        self.locks.iter().filter_map(|(name, lock)| of_lock(name, lock)).collect()
    }

    /// Ends the leases that a reset takes from one lock, and keeps the lock unusable for the steal
    /// grace, so that the previous holders can stop.
    fn rob(&mut self, swept: &Swept, ask: &Reset, events: &mut Vec<Event>) {
        let name = &swept.name;
        let lock = self.locks.get_mut(name).expect("a swept lock is there");
        for token in &swept.leases {
            let lease = lock.lease_mut(*token).expect("a swept lock is held");
            self.books.unbook(name, lease);
            let end = TenureEnd::Stolen { by: ask.by.clone(), reason: ask.reason.clone() };
            self.books.finish(lock, name, *token, end, events);
        }
        let begins = self.books.clock + self.books.rules.steal_grace;
        if begins == self.books.clock {
            return;
        }
        let mode = if lock.leases().is_empty() { Mode::Exclusive } else { lock.mode() };
        self.books.keep_from_all(lock, (name, mode), &ask.by, begins, events);
    }
}

impl EngineState {
    /// Keeps a lock unusable until `begins`, as if `by` had stolen it and released it at once.
    pub(super) fn keep_from_all(
        &mut self,
        lock: &mut Lock,
        (name, mode): (&LockName, Mode),
        by: &ClientId,
        begins: Time,
        events: &mut Vec<Event>,
    ) {
        let lease = Lease {
            holder: by.clone(),
            token: self.mint.token(),
            hold: Ownership::Exclusive(None),
            life: Lifetime::Own { ttl: TTL_DEFAULT, grace: Grace::NONE, expires_at: begins },
            acquired_at: begins,
            renewed_at: begins,
            acquisition: 0,
            details: Arc::default(),
        };
        self.book(name, &lease);
        let (holder, token, hold) = (by.clone(), lease.token, lease.hold);
        let name = name.clone();
        self.tell(events, EventKind::Granted { name, holder, token, mode, hold, waited: None });
        lock.admit(mode, lease);
    }

    /// Whether a lease is a placeholder that belongs to no client, and keeps a lock unusable for a
    /// time after it was taken from its holders.
    fn is_kept_from_all(&self, lease: &Lease) -> bool {
        lease.acquired_at > self.clock && self.ends(lease.life).grace_until == lease.acquired_at
    }
}
