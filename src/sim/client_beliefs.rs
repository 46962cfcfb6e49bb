//! The end of a client's belief that it holds a lock. A client drops a lease before another client
//! can get the lock, and records in the history how long it relied on the lease.

use super::client::SimClient;
use super::client_history::Belief;
use super::client_leases::{ClientLease, less, sharing};
use super::sim_types::now;
use crate::engine::Lifetime;
use crate::time::Time;
use std::sync::Arc;

impl SimClient {
    /// Returns the earliest time at which the client's session may expire, in virtual time, which
    /// the checks of the history use. The client itself only reads its own clock.
    pub(super) fn session_secured(&self) -> Time {
        let session = self.session.as_ref();
        session.map_or(Time::ZERO, |session| {
            self.clock.virtual_at(session.kept) + less(session.ttl.span())
        })
    }

    /// Whether a lease is tied to a session that is not the client's current one. The client does
    /// not rely on such a lease.
    pub(super) fn is_of_another_session(&self, life: &Lifetime) -> bool {
        let open = self.session.as_ref().map(|session| session.id);
        matches!(life, Lifetime::Session(id) if Some(*id) != open)
    }

    pub(super) fn lose_session(&mut self) {
        let lost: Vec<_> = self.held.extract_if(.., |held| held.until.is_none()).collect();
        for held in &lost {
            self.believed(held);
        }
        self.session = None;
    }

    /// Drops the expired leases and the expired session, and records the beliefs that end with
    /// them.
    pub(super) fn drop_the_late(&mut self) {
        let (clock, session) = (self.clock.read(), self.session.as_ref().map(|s| s.until));
        let is_late =
            |held: &ClientLease| held.until.or(session).is_none_or(|until| until <= clock);
        let late: Vec<_> = self.held.extract_if(.., |held| is_late(held)).collect();
        for held in &late {
            self.believed(held);
        }
        if session.is_some_and(|until| until <= clock) {
            self.lose_session();
        }
    }

    pub(super) fn lose(&mut self, token: u64) {
        let lost: Vec<_> = self.held.extract_if(.., |held| held.token == token).collect();
        for held in &lost {
            self.believed(held);
        }
    }

    pub(super) fn forget_all(&mut self) {
        let all = std::mem::take(&mut self.held);
        for held in &all {
            self.believed(held);
        }
    }

    /// Records the end of the client's belief that it holds a lease: now, or the deadline of the
    /// lease if that has passed.
    pub(super) fn believed(&self, held: &ClientLease) {
        let until = held.until.or(self.session.as_ref().map(|session| session.until));
        let until = until.map_or(held.from, |until| self.clock.virtual_at(until)).min(now());
        let ClientLease { lock, token, asked, from, mode, .. } = *held;
        let who = Arc::clone(&self.who);
        let mode = sharing(mode);
        let belief = Belief { lock, token, who, mode, asked, from, until };
        self.world.record.history(|history| history.believed(belief));
    }
}
