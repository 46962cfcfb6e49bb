//! What a client believes: its session and the locks that it holds, each until an end of its own.

use super::client::SimClient;
use super::client_history::{Belief, Lock, Sharing};
use super::sim_types::now;
use crate::engine::{Lifetime, Mode, Ownership, SessionId, Ttl};
use crate::time::{Span, Time};
use std::sync::Arc;

/// What a client takes off a ttl: clocks differ by so much, of a thousand, ...
const OFF_PER_MILLE: u64 = 1;
/// ... and a decision takes so long.
const OFF: Span = Span::from_millis(50);

/// A session.
pub(super) struct ClientSession {
    pub(super) id: SessionId,
    pub(super) ttl: Ttl,
    /// Until when it surely lasts, on the client's clock.
    pub(super) until: Time,
    pub(super) kept: Time,
}

/// A lock that it believes to hold.
#[derive(Clone)]
pub(super) struct ClientLease {
    pub(super) lock: Lock,
    pub(super) token: u64,
    pub(super) hold: Ownership,
    pub(super) mode: Mode,
    /// The acquire by which it holds, for its release to name.
    pub(super) acquisition: u32,
    /// When it was asked for, in virtual time.
    pub(super) asked: Time,
    /// Since when, in virtual time.
    pub(super) from: Time,
    /// Its own end, on the client's clock; `None`: that of the session.
    pub(super) until: Option<Time>,
    /// Whether it is neither renewed nor given back: it runs out.
    pub(super) runs_out: bool,
}

/// A ttl, less what clocks differ by and a decision takes.
pub(super) fn less(ttl: Span) -> Span {
    let off = Span::from_nanos(ttl.as_nanos() * OFF_PER_MILLE / 1_000 + OFF.as_nanos());
    Span::from_nanos(ttl.as_nanos().saturating_sub(off.as_nanos()))
}

/// A mode, in the words of the checker.
pub(super) const fn sharing(mode: Mode) -> Sharing {
    match mode {
        Mode::Exclusive => Sharing::Alone,
        Mode::Shared => Sharing::Shared,
    }
}

impl SimClient {
    /// Until when the session surely lasts, in virtual time, for whoever checks.
    pub(super) fn session_secured(&self) -> Time {
        let session = self.session.as_ref();
        session.map_or(Time::ZERO, |session| {
            self.clock.virtual_at(session.kept) + less(session.ttl.span())
        })
    }

    /// Whether a lease hangs on a session that this client has no longer: it believes nothing.
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

    /// What it believed of locks whose time is over.
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

    /// It believes no longer, or not longer than until its deadline.
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
