//! Opens, keeps alive and ends sessions (rule 8).

use super::command::{Answer, EndSession, OpenSession, Outcome};
use super::deadlines::Due;
use super::event::{Event, EventKind, SessionEnd};
use super::lease::{Lifetime, SessionId};
use super::lease_terms::Grace;
use super::name::LockName;
use super::refusal::{Limit, Reason};
use super::session::Session;
use super::state::{Engine, EngineState};

impl Engine {
    pub(super) fn open_session(&mut self, ask: &OpenSession, events: &mut Vec<Event>) -> Answer {
        let (open, max) = (self.books.sessions.len(), self.books.rules.sessions_max);
        self.books.limit(open, max, Limit::Sessions)?;
        self.books.tokens_left()?;
        let id = self.books.mint.session();
        let session = Session::new(ask.client.clone(), ask.ttl, ask.grace, self.books.clock);
        self.books.book_session(id, &session);
        self.books.sessions.insert(id, session);
        let opened = EventKind::SessionOpened { session: id, client: ask.client.clone() };
        self.books.tell(events, opened);
        Ok(Outcome::SessionOpened(id))
    }

    pub(super) fn keep_alive(&mut self, id: SessionId, events: &mut Vec<Event>) -> Answer {
        let now = self.books.clock;
        let Some(session) = self.books.sessions.get_mut(&id) else {
            return Err(self.books.refuse(Reason::NoSession(id)));
        };
        if session.ttl.is_some() {
            self.books.agenda.remove(session.expires_at(), Due::Session(id));
            session.renewed_at = now;
            self.books.agenda.add(session.expires_at(), Due::Session(id));
        }
        let expires_at = session.expires_at();
        self.books.tell(events, EventKind::SessionKept { session: id });
        Ok(Outcome::KeptAlive(expires_at))
    }

    pub(super) fn end_session(&mut self, ask: &EndSession, events: &mut Vec<Event>) -> Answer {
        let id = ask.session;
        self.books.tokens_left()?;
        let Some(session) = self.books.sessions.remove(&id) else {
            return Err(self.books.refuse(Reason::NoSession(id)));
        };
        if session.ttl.is_some() {
            self.books.agenda.remove(session.expires_at(), Due::Session(id));
        }
        match ask.end {
            SessionEnd::Closed => self.close_session(id, session, events),
            SessionEnd::Revoked => self.revoke_session(id, session, events),
            SessionEnd::Expired => {
                self.expire_session(id, session, events);
                // If the session has no grace, its leases end at once and do not enter a grace.
                self.settle(self.books.clock, events);
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
            self.books.end_by_session(name, *token);
            self.give_back(name, *token, ttl, events);
        }
        let end = SessionEnd::Closed;
        let over = EventKind::SessionOver { session: id, client: session.client, end };
        self.books.tell(events, over);
        let leases = session.leases.iter().map(|(name, _)| name);
        for name in leases.chain(session.waiters.iter().map(|(name, _)| name)) {
            self.serve(name, events);
        }
    }

    /// Closes a session whose client may not hear of that: what others may count on stays with it
    /// until the session would have expired.
    fn revoke_session(&mut self, id: SessionId, mut session: Session, events: &mut Vec<Event>) {
        let ends = session.ends();
        if session.ttl.is_some() {
            let is_remembered = |name: &LockName| self.books.remembered.get(name).is_some();
            let kept = session.leases.iter().filter(|(name, _)| is_remembered(name));
            let kept: Vec<_> = kept.cloned().collect();
            for (name, token) in kept {
                session.leases.remove(&(name.clone(), token));
                let lock = self.locks.get_mut(&name).expect("a session's lease has its lock");
                let lease = lock.lease_mut(token).expect("a session's lease is there");
                let (ttl, expires_at) = (ends.ttl, ends.expires_at.max(lease.acquired_at));
                lease.life = Lifetime::Own { ttl, grace: Grace::NONE, expires_at };
                lease.renewed_at = lease.renewed_at.max(session.renewed_at);
                self.books.book(&name, lease);
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
        let expires_at = ends.expires_at.min(self.books.clock);
        let (ttl, grace) = (ends.ttl, ends.grace);
        let end = SessionEnd::Expired;
        let over = EventKind::SessionOver { session: id, client: session.client, end };
        self.books.tell(events, over);
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
            self.books.book(name, lease);
            if expires_at <= self.books.clock {
                let (name, token) = (name.clone(), *token);
                self.books.tell(events, EventKind::Expired { name, holder, token });
            }
        }
        for (name, _) in &session.waiters {
            self.serve(name, events);
        }
    }
}

impl EngineState {
    /// Registers the expiry of a session.
    pub(super) fn book_session(&mut self, id: SessionId, session: &Session) {
        if session.ttl.is_some() {
            self.agenda.add(session.expires_at(), Due::Session(id));
        }
    }
}
