//! The state of a session with a server, and when it is due to be kept alive.

use crate::engine::{ClientId, Grace, SessionId, Ttl};
use crate::service::Contact;
use crate::service::timer::Alarm;
use crate::time::{Span, Time};
use std::sync::atomic::{AtomicBool, Ordering};

/// A session is kept alive so many times in each ttl.
const KEEPS_PER_TTL: u64 = 3;
/// By so much of a ttl the clocks of two machines may drift apart meanwhile.
const DRIFT_PER_MILLE: u64 = 1;
/// Between the end of a lease here and at the server: time to tell those who hold it.
const MARGIN: Span = Span::from_millis(50);

/// How a session is opened.
#[derive(Debug, Clone)]
pub struct Terms {
    /// In whose name.
    pub client: ClientId,
    /// How long it lasts unrenewed.
    pub ttl: Ttl,
    /// How long what hung on it is in grace then.
    pub grace: Grace,
}

/// The client's view of its session.
pub(super) struct SessionState {
    terms: Option<Terms>,
    pub(super) id: Option<SessionId>,
    /// Until when it surely lives.
    until: Time,
    /// When the last sign of life that was answered was sent.
    kept_at: Time,
    /// The last sign of life has not been answered (yet).
    pub(super) unanswered: bool,
    /// Sessions that were given up here, and may live on at the server.
    given_up: Vec<SessionId>,
}

/// The next step of the keep-alive thread.
pub(super) enum KeepAliveStep {
    Open(Terms, Vec<SessionId>),
    Keep(SessionId, Time),
    Lose(SessionId),
    Sleep(Time),
}

/// Until when something surely lasts that was renewed by a request sent at `asked_at`.
pub(super) fn surely_until(asked_at: Time, ttl: Ttl) -> Time {
    let ttl = ttl.span().as_nanos();
    asked_at + Span::from_nanos(ttl - ttl / 1_000 * DRIFT_PER_MILLE) - MARGIN
}

impl SessionState {
    pub(super) fn new(terms: Option<Terms>) -> Self {
        let (until, kept_at, given_up) = (Time::ZERO, Time::ZERO, Vec::new());
        Self { terms, id: None, until, kept_at, unanswered: false, given_up }
    }

    pub(super) fn contact(&self, now: Time) -> Contact {
        match self.id {
            _ if self.terms.is_none() => Contact::Connected,
            Some(_) if now < self.until && self.unanswered => Contact::Jeopardy,
            Some(_) if now < self.until => Contact::Connected,
            Some(_) | None => Contact::Lost,
        }
    }

    /// The session, while it surely lives.
    pub(super) fn bond(&self, now: Time) -> Option<SessionId> {
        self.id.filter(|_| now < self.until)
    }

    /// Until when it surely lives, while it does.
    pub(super) fn until(&self, now: Time) -> Option<Time> {
        self.bond(now).map(|_| self.until)
    }

    /// Its time is over here, and nobody has decided yet what that means: we slept.
    pub(super) fn is_unclear(&self, now: Time) -> bool {
        self.id.is_some() && now >= self.until
    }

    /// Whether this session was lost. After a sleep, when that is not known yet, it was not.
    pub(super) fn is_over(&self, session: SessionId) -> bool {
        self.id != Some(session)
    }

    /// It is over; gives whose it was, if it was this one.
    pub(super) fn lose(&mut self, lost: SessionId) -> Option<ClientId> {
        if self.id != Some(lost) {
            return None;
        }
        self.id = None;
        self.unanswered = true;
        self.given_up.push(lost);
        self.terms.as_ref().map(|terms| terms.client.clone())
    }

    /// The server has forgotten all: what it may give this number to is another's.
    pub(super) fn forget(&mut self) {
        self.given_up.clear();
    }

    pub(super) fn opened(&mut self, id: SessionId, asked_at: Time) {
        self.id = Some(id);
        self.given_up.clear();
        self.kept(asked_at);
    }

    pub(super) fn kept(&mut self, asked_at: Time) {
        let Some(terms) = &self.terms else { return };
        self.until = surely_until(asked_at, terms.ttl);
        self.kept_at = asked_at;
        self.unanswered = false;
    }

    pub(super) fn next(&self, now: Time) -> KeepAliveStep {
        let Some(terms) = &self.terms else { return KeepAliveStep::Sleep(Time::NEVER) };
        let Some(id) = self.id else {
            return KeepAliveStep::Open(terms.clone(), self.given_up.clone());
        };
        let every = Span::from_nanos(terms.ttl.span().as_nanos() / KEEPS_PER_TTL);
        let due = self.kept_at + every;
        match now {
            // The last keep-alive had no answer by the session's end. After a sleep of the
            // machine none has failed yet, so one is sent before the session is given up.
            _ if now >= self.until && self.unanswered => KeepAliveStep::Lose(id),
            _ if now < due && !self.unanswered => KeepAliveStep::Sleep(due),
            _ => KeepAliveStep::Keep(id, self.until),
        }
    }
}

/// The handle on the thread that keeps a session alive.
pub(super) struct SessionKeepAlive {
    pub(super) alarm: Alarm,
    pub(super) stopped: AtomicBool,
}

impl SessionKeepAlive {
    /// There may be something to do now.
    pub(super) fn call(&self) {
        self.alarm.set(Time::ZERO);
    }

    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.alarm.stop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session() -> SessionState {
        let client = ClientId::parse("laptop1").expect("valid");
        let (ttl, grace) = (Ttl::parse("30s").expect("valid"), Grace::NONE);
        SessionState::new(Some(Terms { client, ttl, grace }))
    }

    #[test]
    fn it_lasts_from_before_the_request_was_sent() {
        let mut session = session();
        let at = Time::from_secs;
        assert_eq!((session.contact(at(0)), session.bond(at(0))), (Contact::Lost, None));
        let id = SessionId::named(4);
        session.opened(id, at(100));
        assert_eq!(session.contact(at(129)), Contact::Connected);
        assert_eq!(session.bond(at(129)), Some(id));
        // 30 s less 0.1 % and the margin.
        let end = at(100) + Span::from_millis(29_920);
        assert_eq!(session.until, end);
        assert_eq!((session.contact(end), session.bond(end)), (Contact::Lost, None));
        assert!(session.is_unclear(end) && !session.is_unclear(at(129)));
    }

    #[test]
    fn it_is_kept_alive_three_times_in_a_ttl_and_at_once_after_a_failure() {
        let mut session = session();
        assert!(matches!(session.next(Time::ZERO), KeepAliveStep::Open(..)));
        session.opened(SessionId::named(4), Time::from_secs(100));
        let due = Time::from_secs(110);
        assert!(
            matches!(session.next(Time::from_secs(105)), KeepAliveStep::Sleep(at) if at == due)
        );
        assert!(matches!(session.next(due), KeepAliveStep::Keep(..)));
        session.unanswered = true;
        assert!(matches!(session.next(Time::from_secs(105)), KeepAliveStep::Keep(..)));
        assert_eq!(session.contact(Time::from_secs(105)), Contact::Jeopardy);
    }

    #[test]
    fn it_is_lost_once() {
        let mut session = session();
        session.opened(SessionId::named(4), Time::from_secs(100));
        assert_eq!(session.lose(SessionId::named(3)), None);
        assert!(session.lose(SessionId::named(4)).is_some());
        assert_eq!(session.lose(SessionId::named(4)), None);
        assert!(!session.is_unclear(Time::from_secs(999)), "it is clear: it is over");
        let KeepAliveStep::Open(_, old) = session.next(Time::from_secs(101)) else {
            panic!("a new one")
        };
        assert_eq!(old, [SessionId::named(4)]);
    }
}
