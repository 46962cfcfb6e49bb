//! The client's view of its session with a server, and the schedule of keep-alives.

use crate::engine::{ClientId, Grace, SessionId, Ttl};
use crate::service::Contact;
use crate::service::timer::Alarm;
use crate::time::{Span, Time};
use std::sync::atomic::{AtomicBool, Ordering};

/// The number of keep-alives that are sent in each ttl of the session.
const KEEPS_PER_TTL: u64 = 3;
/// How far the clocks of two machines may drift apart, per mille of the ttl.
const DRIFT_PER_MILLE: u64 = 1;
/// How much earlier a lease ends on the client than on the server: time to notify its holders.
const MARGIN: Span = Span::from_millis(50);

/// The parameters with which a session is opened.
#[derive(Debug, Clone)]
pub struct Terms {
    /// The client that owns the session.
    pub client: ClientId,
    /// How long the session lasts without a keep-alive.
    pub ttl: Ttl,
    /// The grace of the leases that are bound to the session, from its expiry on.
    pub grace: Grace,
}

/// The client's view of its session.
pub(super) struct SessionState {
    terms: Option<Terms>,
    pub(super) id: Option<SessionId>,
    /// The time until which the session is certainly alive.
    until: Time,
    /// When the last keep-alive that was answered was sent.
    kept_at: Time,
    /// Whether the last keep-alive has no answer, or none yet.
    pub(super) unanswered: bool,
    /// Sessions that this client has given up, and that may still be alive at the server.
    given_up: Vec<SessionId>,
}

/// The next step of the keep-alive thread.
pub(super) enum KeepAliveStep {
    Open(Terms, Vec<SessionId>),
    Keep(SessionId, Time),
    Lose(SessionId),
    Sleep(Time),
}

/// Returns the time until which a lease or session certainly lasts, if a request that was sent at
/// `asked_at` began or renewed it for `ttl`.
pub(super) fn surely_until(asked_at: Time, ttl: Ttl) -> Time {
    let ttl = ttl.span().as_nanos();
    asked_at + Span::from_nanos(ttl - ttl / 1_000 * DRIFT_PER_MILLE) - MARGIN
}

impl SessionState {
    pub(super) fn new(terms: Option<Terms>) -> Self {
        let (until, kept_at, given_up) = (Time::ZERO, Time::ZERO, Vec::new());
        Self { terms, id: None, until, kept_at, unanswered: false, given_up }
    }

    /// Whether this client has a session, or tries to open one.
    pub(super) const fn is_wanted(&self) -> bool {
        self.terms.is_some()
    }

    pub(super) fn contact(&self, now: Time) -> Contact {
        match self.id {
            _ if self.terms.is_none() => Contact::Connected,
            Some(_) if now < self.until && self.unanswered => Contact::Jeopardy,
            Some(_) if now < self.until => Contact::Connected,
            Some(_) | None => Contact::Lost,
        }
    }

    /// Returns the id of the session while it is certainly alive.
    pub(super) fn bond(&self, now: Time) -> Option<SessionId> {
        self.id.filter(|_| now < self.until)
    }

    /// Returns the time until which the session is certainly alive, or `None` once that has passed.
    pub(super) fn until(&self, now: Time) -> Option<Time> {
        self.bond(now).map(|_| self.until)
    }

    /// Returns the time until which the session with this id is certainly alive; [`Time::ZERO`] if
    /// it may be over.
    pub(super) fn surely_until(&self, session: SessionId, now: Time) -> Time {
        let is_alive = self.bond(now) == Some(session);
        if is_alive { self.until } else { Time::ZERO }
    }

    /// Whether the session has expired by the local clock, but is not given up yet: after a sleep
    /// of the machine, one more keep-alive is tried first.
    pub(super) fn is_unclear(&self, now: Time) -> bool {
        self.id.is_some() && now >= self.until
    }

    /// Whether this session was lost. False while that is undecided, as after a sleep of the
    /// machine.
    pub(super) fn is_over(&self, session: SessionId) -> bool {
        self.id != Some(session)
    }

    /// Gives up the session `lost`, if it is the current one, and returns its client.
    pub(super) fn lose(&mut self, lost: SessionId) -> Option<ClientId> {
        if self.id != Some(lost) {
            return None;
        }
        self.id = None;
        self.unanswered = true;
        self.given_up.push(lost);
        self.terms.as_ref().map(|terms| terms.client.clone())
    }

    /// Forgets the sessions that this client has given up, because the server has lost its state:
    /// it may use the numbers of these sessions for those of other clients.
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
    /// Wakes the keep-alive thread, which then determines its next step again.
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
    fn a_session_is_counted_from_before_its_request_was_sent() {
        let mut session = session();
        let at = Time::from_secs;
        assert_eq!((session.contact(at(0)), session.bond(at(0))), (Contact::Lost, None));
        let id = SessionId::named(4);
        session.opened(id, at(100));
        assert_eq!(session.contact(at(129)), Contact::Connected);
        assert_eq!(session.bond(at(129)), Some(id));
        // The session has a ttl of 30 s. The client counts 0.1 % less, because the clocks may drift
        // apart, and another 50 ms less, in which it notifies the holders.
        let end = at(100) + Span::from_millis(29_920);
        assert_eq!(session.surely_until(id, at(129)), end);
        assert_eq!(session.surely_until(SessionId::named(3), at(129)), Time::ZERO);
        assert_eq!(session.surely_until(id, end), Time::ZERO);
        assert_eq!((session.contact(end), session.bond(end)), (Contact::Lost, None));
        assert!(session.is_unclear(end) && !session.is_unclear(at(129)));
    }

    #[test]
    fn keep_alives_are_sent_three_times_in_a_ttl_and_at_once_after_a_failure() {
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
    fn a_session_is_lost_once() {
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
