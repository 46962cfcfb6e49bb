//! Opens, keeps alive and ends sessions (rule 8).
//!
//! Ends all leases and waits of a set of clients, for all locks in one step, or in one step for
//! each of several ranges of lock names.
//!
//! An administrator uses a reset when clients have left for good. Like a steal (rule 9), a reset
//! keeps each affected lock unusable for a time (the steal grace), so that the previous holders can
//! stop.

use crate::state::{Engine, EngineState};
use crate::time::Time;
use crate::values::command::{
    Answer, EndSession, Op, OpenSession, Outcome, Reset, ResetPart, ResetScope,
};
use crate::values::deadlines::{Due, Session};
use crate::values::event::{Event, EventKind, LeaveReason, SessionEnd, TenureEnd};
use crate::values::lease::{
    Grace, Lease, Lifetime, Ownership, SessionId, StealReason, TTL_DEFAULT, Ticket, Token,
};
use crate::values::lock::Lock;
use crate::values::name::{ClientId, LockName};
use crate::values::refusal::{Limit, Reason};
use std::iter::repeat_n;
use std::ops::Bound;
use std::sync::Arc;

impl Engine {
    pub(crate) fn open_session(&mut self, ask: &OpenSession, events: &mut Vec<Event>) -> Answer {
        let (open, max) = (self.state.sessions.len(), self.state.rules.sessions_max);
        self.state.limit(open, max, Limit::Sessions)?;
        self.state.tokens_left()?;
        let id = self.state.mint.session();
        let session = Session::new(ask.client.clone(), ask.ttl, ask.grace, self.state.clock);
        self.state.register_session(id, &session);
        self.state.sessions.insert(id, session);
        let opened = EventKind::SessionOpened { session: id, client: ask.client.clone() };
        self.state.emit(events, opened);
        Ok(Outcome::SessionOpened(id))
    }

    pub(crate) fn keep_alive(&mut self, id: SessionId, events: &mut Vec<Event>) -> Answer {
        let now = self.state.clock;
        let Some(session) = self.state.sessions.get_mut(&id) else {
            return Err(self.state.refuse(Reason::NoSession(id)));
        };
        if session.ttl.is_some() {
            self.state.agenda.remove(session.expires_at(), Due::Session(id));
            session.renewed_at = now;
            self.state.agenda.add(session.expires_at(), Due::Session(id));
        }
        let expires_at = session.expires_at();
        self.state.emit(events, EventKind::SessionKept { session: id });
        Ok(Outcome::KeptAlive(expires_at))
    }

    pub(crate) fn end_session(&mut self, ask: &EndSession, events: &mut Vec<Event>) -> Answer {
        let id = ask.session;
        self.state.tokens_left()?;
        let Some(session) = self.state.sessions.remove(&id) else {
            return Err(self.state.refuse(Reason::NoSession(id)));
        };
        if session.ttl.is_some() {
            self.state.agenda.remove(session.expires_at(), Due::Session(id));
        }
        match ask.end {
            SessionEnd::Closed => self.close_session(id, session, events),
            SessionEnd::Revoked => self.revoke_session(id, session, events),
            SessionEnd::Expired => {
                self.expire_session(id, session, events);
                // If the session has no grace, its leases end at once and do not enter a grace.
                self.settle(self.state.clock, events);
            }
        }
        Ok(Outcome::SessionEnded)
    }

    /// Closes a session: its waiters leave, its leases are released, and only then are waiters
    /// served.
    fn close_session(&mut self, id: SessionId, session: Session, events: &mut Vec<Event>) {
        self.unqueue_all(session.waiters.iter(), events);
        let ttl = session.ends().ttl;
        for (name, token) in &session.leases {
            self.state.end_by_session(name, *token);
            self.give_back(name, *token, ttl, events);
        }
        let end = SessionEnd::Closed;
        let over = EventKind::SessionOver { session: id, client: session.client, end };
        self.state.emit(events, over);
        let leases = session.leases.iter().map(|(name, _)| name);
        for name in leases.chain(session.waiters.iter().map(|(name, _)| name)) {
            self.serve(name, events);
        }
    }

    /// Closes a session whose client may not learn of the end: its locks with remembered names stay
    /// held until the session would have expired.
    fn revoke_session(&mut self, id: SessionId, mut session: Session, events: &mut Vec<Event>) {
        let ends = session.ends();
        if session.ttl.is_some() {
            let is_remembered = |name: &LockName| self.state.remembered.get(name).is_some();
            let kept = session.leases.iter().filter(|(name, _)| is_remembered(name));
            let kept: Vec<_> = kept.cloned().collect();
            for (name, token) in kept {
                session.leases.remove(&(name.clone(), token));
                let lock = self.locks.get_mut(&name).expect("a session's lease has its lock");
                let lease = lock.lease_mut(token).expect("a session's lease is there");
                let (ttl, expires_at) = (ends.ttl, ends.expires_at.max(lease.acquired_at));
                lease.life = Lifetime::Own { ttl, grace: Grace::NONE, expires_at };
                lease.renewed_at = lease.renewed_at.max(session.renewed_at);
                self.state.register_lease(&name, lease);
            }
        }
        self.close_session(id, session, events);
    }

    /// Expires a session that was not kept alive: its waiters leave, its leases enter their grace.
    pub(super) fn expire_session(
        &mut self,
        id: SessionId,
        session: Session,
        events: &mut Vec<Event>,
    ) {
        let ends = session.ends();
        let expires_at = ends.expires_at.min(self.state.clock);
        let (ttl, grace) = (ends.ttl, ends.grace);
        let end = SessionEnd::Expired;
        let over = EventKind::SessionOver { session: id, client: session.client, end };
        self.state.emit(events, over);
        self.unqueue_all(session.waiters.iter(), events);
        for (name, token) in &session.leases {
            let lock = self.locks.get_mut(name).expect("a session's lease has its lock");
            let lease = lock.lease_mut(*token).expect("a session's lease is there");
            // Rule 9: a stolen lock stays unusable until the lease of its new holder begins, so
            // this lease does not expire earlier.
            let expires_at = expires_at.max(lease.acquired_at);
            lease.life = Lifetime::Own { ttl, grace, expires_at };
            lease.renewed_at = lease.renewed_at.max(session.renewed_at);
            let holder = lease.holder.clone();
            self.state.register_lease(name, lease);
            if expires_at <= self.state.clock {
                let (name, token) = (name.clone(), *token);
                self.state.emit(events, EventKind::Expired { name, holder, token });
            }
        }
        for (name, _) in &session.waiters {
            self.serve(name, events);
        }
    }
}

impl EngineState {
    /// Registers the expiry of a session.
    pub(crate) fn register_session(&mut self, id: SessionId, session: &Session) {
        if session.ttl.is_some() {
            self.agenda.add(session.expires_at(), Due::Session(id));
        }
    }
}

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

impl Reset {
    /// Returns a reset of all locks in one step.
    pub const fn new(whose: ResetScope, by: ClientId, reason: StealReason) -> Self {
        Self { part: ResetPart::ALL, whose, by, reason }
    }
}

impl ResetPart {
    /// All locks, with no part carried out before.
    pub const ALL: Self = Self::Rest { holds: 0, waits: 0 };
}

impl Op {
    /// Whether the operation is one part of a reset, and not the one that answers the request.
    pub const fn is_part(&self) -> bool {
        matches!(self, Self::Reset(Reset { part: ResetPart::Names(..), .. }))
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
    pub(crate) fn reset(&mut self, ask: &Reset, events: &mut Vec<Event>) -> Answer {
        let swept = self.swept(ask);
        let robbed = swept.iter().map(|lock| lock.leases.len() as u64).sum::<u64>();
        // A reset needs at most one token for each lease that it takes, to keep its lock or its
        // seat unusable, and one for each waiter that it may serve.
        if self.state.mint.left() <= self.state.waiting as u64 + robbed + 1 {
            return Err(self.state.refuse(Reason::Limit(Limit::Tokens)));
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
        let holds: usize = swept.iter().map(|lock| lock.leases.len()).sum();
        let waits: usize = swept.iter().map(|lock| lock.places.len()).sum();
        Ok(match ask.part {
            ResetPart::Names(..) => Outcome::ResetPart { holds, waits },
            ResetPart::Rest { holds: before, waits: left } => Outcome::Reset {
                holds: before.saturating_add(holds),
                waits: left.saturating_add(waits),
            },
        })
    }

    /// Splits a reset into parts that each end about `max` leases and queue places, or those of one
    /// lock. Returns no part if the whole reset ends at most `max`.
    pub fn reset_parts(&self, whose: &ResetScope, max: usize) -> Vec<ResetPart> {
        let ends =
            |lock: &Lock| self.held_by(lock, whose).count() + waiting_of(lock, whose).count();
        // The list has the name of a lock once for each of its leases and queue places. A lock may
        // be in two parts: its second reset ends nothing.
        let of_locks = self.locks.iter().map(|(name, lock)| repeat_n(name, ends(lock)));
        let names: Vec<&LockName> = of_locks.flatten().collect();
        let parts = names.chunks(max).filter_map(|part| part.first().zip(part.last()));
        let parts = parts.map(|(first, last)| ResetPart::Names((*first).clone(), (*last).clone()));
        if names.len() > max { parts.collect() } else { Vec::new() }
    }

    /// Returns, by name, the locks that have leases or waiters of clients to which the reset
    /// applies, among those that belong to its part.
    fn swept(&self, ask: &Reset) -> Vec<Swept> {
        let of_lock = |name: &LockName, lock: &Lock| {
            let leases: Vec<_> = self.held_by(lock, &ask.whose).collect();
            let places: Vec<_> = waiting_of(lock, &ask.whose).collect();
            let is_meant = !leases.is_empty() || !places.is_empty();
            is_meant.then(|| Swept { name: name.clone(), leases, places })
        };
        let (from, to) = match &ask.part {
            ResetPart::Names(from, to) => (Bound::Included(from), Some(to)),
            ResetPart::Rest { .. } => (Bound::Unbounded, None),
        };
        let locks = self.locks.range::<LockName, _>((from, Bound::Unbounded));
        let locks = locks.take_while(|(name, _)| to.is_none_or(|to| *name <= to));
        locks.filter_map(|(name, lock)| of_lock(name, lock)).collect()
    }

    /// Returns the tokens of the leases of one lock that a reset ends.
    fn held_by(&self, lock: &Lock, whose: &ResetScope) -> impl Iterator<Item = Token> {
        let held = lock.leases().iter().filter(|lease| !self.state.is_kept_from_all(lease));
        held.filter(|lease| whose.means(&lease.holder)).map(|lease| lease.token)
    }

    /// Ends the leases that a reset takes from one lock, and keeps the lock unusable for the steal
    /// grace, so that the previous holders can stop.
    fn rob(&mut self, swept: &Swept, ask: &Reset, events: &mut Vec<Event>) {
        let name = &swept.name;
        let lock = self.locks.get_mut(name).expect("a swept lock is there");
        let last = self.state.last_tenure(name, lock);
        let others_until = self.state.may_continue_until(name, lock);
        let mut seats = Vec::with_capacity(swept.leases.len());
        for token in &swept.leases {
            let lease = lock.lease_mut(*token).expect("a swept lock is held");
            seats.push(lease.seat);
            self.state.unregister_lease(name, lease);
            let end = TenureEnd::Stolen { by: ask.by.clone(), reason: ask.reason.clone() };
            self.state.finish(lock, name, *token, end, events);
        }
        let begins = (self.state.clock + self.state.rules.steal_grace).max(others_until);
        if begins == self.state.clock {
            return;
        }
        // Other holders may go on: each seat that was taken is kept unusable by itself.
        if lock.mode().seats().is_none() {
            seats = vec![None];
        }
        for seat in seats {
            self.state.keep_from_all(lock, name, seat, &ask.by, begins, events);
        }
        self.state.note_stolen(name, last);
    }
}

/// Returns the tickets of the waiters of one lock that a reset removes.
fn waiting_of(lock: &Lock, whose: &ResetScope) -> impl Iterator<Item = Ticket> {
    let waits = lock.line.iter().filter(|(_, waiter)| whose.means(&waiter.client));
    waits.map(|(ticket, _)| *ticket)
}

impl EngineState {
    /// Keeps a lock, or a seat of it, unusable until `begins`, as if `by` had stolen it and
    /// released it at once.
    pub(super) fn keep_from_all(
        &mut self,
        lock: &mut Lock,
        name: &LockName,
        seat: Option<u16>,
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
            seat,
            details: Arc::default(),
        };
        self.register_lease(name, &lease);
        let (holder, token, hold) = (by.clone(), lease.token, lease.hold);
        let mode = lock.mode();
        let name = name.clone();
        self.emit(events, EventKind::Granted { name, holder, token, mode, hold, waited: None });
        lock.admit(mode, lease);
    }

    /// Whether a lease is a placeholder that belongs to no client, and keeps a lock unusable for a
    /// time after it was taken from its holders.
    fn is_kept_from_all(&self, lease: &Lease) -> bool {
        lease.acquired_at > self.clock && self.ends(lease.life).grace_until == lease.acquired_at
    }
}
