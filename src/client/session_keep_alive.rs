//! The keep-alive thread of a client's session. It has its own connection, so that no other request
//! can delay it, and runs on the boot clock, so that sleep counts.
//!
//! The client's view of its session with a server, and the schedule of keep-alives.

use super::shared_state::ClientState;
use crate::base::jittered;
use crate::client::http_transport::{ServerConnection, TransportError};
use crate::engine::{
    ClientId, EndSession, Grace, Op, OpenSession, Outcome, Refusal, RefusalKind, SessionEnd,
    SessionId, Ttl,
};
use crate::service::batch::batch_messages::{BatchItem, ItemReply, RequestBatch};
use crate::service::timer::Alarm;
use crate::service::{Contact, Unavailable};
use crate::time::{Span, Time, boot_now};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The pause before a keep-alive without an answer is retried.
const RETRY: Span = Span::from_millis(100);
/// The timeout of one keep-alive: a new try is worth more than one that hangs.
const PATIENCE_MAX: Span = Span::from_secs(1);
/// The nice value of the keep-alive thread, which gives it priority over ordinary programs.
const PRIORITY: libc::c_int = -10;

impl SessionKeepAlive {
    pub(super) fn start(
        hub: &Arc<ClientState>,
    ) -> std::io::Result<(Arc<Self>, std::thread::JoinHandle<()>)> {
        let keeper = Arc::new(Self { alarm: Alarm::new()?, stopped: AtomicBool::new(false) });
        // `set` fails only if the cell already has a value, and each client calls this function
        // once.
        let _ = hub.keeper.set(Arc::clone(&keeper));
        let (hub, keeping) = (Arc::clone(hub), Arc::clone(&keeper));
        let thread = std::thread::Builder::new().name("keeper".to_owned());
        let thread = thread.spawn(move || {
            be_first();
            keeping.keep(&hub);
        })?;
        Ok((keeper, thread))
    }

    fn keep(&self, hub: &Arc<ClientState>) {
        let mut line = hub.server.line();
        loop {
            if self.stopped.load(Ordering::Acquire) {
                return end(hub, &mut *line);
            }
            let wakes = match hub.with_session(|session| session.next(boot_now())) {
                KeepAliveStep::Sleep(until) => until,
                KeepAliveStep::Lose(id) => {
                    hub.lose_session(id);
                    continue;
                }
                KeepAliveStep::Open(terms, old) => match open(hub, &mut *line, &terms, &old) {
                    Ok(()) => continue,
                    Err(error) => {
                        hub.record_error("no session yet", &error);
                        boot_now() + jittered(RETRY)
                    }
                },
                KeepAliveStep::Keep(id, until) => match sign_of_life(hub, &mut *line, id, until) {
                    Ok(()) => continue,
                    Err(error) => {
                        hub.record_error("the session", &error);
                        // The thread wakes no later than the end of the session, since another
                        // client may acquire the locks of this client then.
                        (boot_now() + jittered(RETRY)).min(until)
                    }
                },
            };
            self.alarm.clear();
            self.alarm.set(wakes);
            if !self.alarm.wait() {
                return end(hub, &mut *line);
            }
        }
    }
}

/// Sends a batch on the thread's own connection. Its commands have no ids by which the server could
/// recognize a second copy, so they may be carried out twice: a second keep-alive does no harm, and
/// a second session expires.
fn send_items(
    hub: &ClientState,
    line: &mut dyn ServerConnection,
    asks: Vec<BatchItem>,
    patience: Span,
) -> Result<Vec<ItemReply>, TransportError> {
    let engine = hub.introduce(line, patience)?;
    let batch = RequestBatch::new(engine, asks);
    let asked_at = boot_now();
    let response = line.send_batch(&batch, patience).inspect_err(|error| {
        if let TransportError::Elsewhere(_) = error {
            hub.engine_gone(engine);
        }
    })?;
    let response = hub.able(line, response)?;
    hub.observe_stamp(asked_at, &response.stamp);
    Ok(response.replies)
}

fn open(
    hub: &ClientState,
    line: &mut dyn ServerConnection,
    terms: &Terms,
    given_up: &[SessionId],
) -> Result<(), TransportError> {
    let Terms { client, ttl, grace } = terms.clone();
    let op = |op: Op| BatchItem::Submit(op.into());
    // This client has already given up the locks of its old sessions. The server can end these
    // sessions now, so that no client has to wait until they expire.
    let mut asks: Vec<_> = given_up.iter().map(|old| op(end_of(*old))).collect();
    asks.extend([BatchItem::Urls, BatchItem::About]);
    asks.push(op(Op::OpenSession(OpenSession { client, ttl: Some(ttl), grace })));
    let asked_at = boot_now();
    let mut replies = send_items(hub, line, asks, PATIENCE_MAX)?;
    let opened = replies.pop();
    if let Some(ItemReply::About(about)) = replies.pop() {
        hub.set_about(about);
    }
    if let Some(ItemReply::Urls(urls)) = replies.pop() {
        hub.learn(&urls);
    }
    match opened {
        Some(ItemReply::Answered(Ok(Outcome::SessionOpened(id)))) => {
            hub.with_session(|session| session.opened(id, asked_at));
            Ok(())
        }
        Some(ItemReply::Answered(Err(refusal))) => Err(error_of(&refusal)),
        Some(ItemReply::Unavailable(Unavailable::Denied { why })) => {
            Err(TransportError::Denied(why.to_string()))
        }
        Some(ItemReply::Unavailable(why)) => Err(TransportError::Silent(why.to_string())),
        _ => Err(TransportError::Foreign("the server does not know sessions".to_owned())),
    }
}

/// Returns the error for a server that refuses to open or to keep a session.
fn error_of(refusal: &Refusal) -> TransportError {
    match refusal.kind() {
        RefusalKind::Denied => TransportError::Denied(refusal.to_string()),
        _ => TransportError::Silent(refusal.to_string()),
    }
}

fn end_of(session: SessionId) -> Op {
    Op::EndSession(EndSession { session, end: SessionEnd::Closed })
}

/// Sends one keep-alive. If the machine slept past the end of the session, one more keep-alive is
/// tried before the session is given up.
fn sign_of_life(
    hub: &ClientState,
    line: &mut dyn ServerConnection,
    id: SessionId,
    until: Time,
) -> Result<(), TransportError> {
    let asked_at = boot_now();
    let left = until.since(asked_at);
    let slept = left == Span::ZERO;
    let patience = if slept { PATIENCE_MAX } else { left.min(PATIENCE_MAX) };
    let asks = vec![BatchItem::Submit(Op::KeepAlive(id).into()), BatchItem::About, BatchItem::Urls];
    let answered = send_items(hub, line, asks, patience);
    let over = match answered {
        Ok(replies) => {
            let mut replies = replies.into_iter();
            let kept = replies.next();
            if let Some(ItemReply::About(about)) = replies.next() {
                hub.set_about(about);
            }
            if let Some(ItemReply::Urls(urls)) = replies.next() {
                hub.learn(&urls);
            }
            match kept {
                Some(ItemReply::Answered(Ok(Outcome::KeptAlive(_)))) => {
                    hub.with_session(|session| session.kept(asked_at));
                    return Ok(());
                }
                Some(ItemReply::Answered(Err(refusal))) => Err(error_of(&refusal)),
                // The server has answered, but could not execute the keep-alive, for example
                // because its disk is full. The session may still be alive.
                _ => {
                    let why = "the server did not keep the session";
                    late(hub, until, TransportError::Silent(why.to_owned()))
                }
            }
        }
        Err(error) => late(hub, until, error),
    };
    match over {
        Ok(error) => Err(error),
        Err(error) => {
            hub.lose_session(id);
            Err(error)
        }
    }
}

/// Records that a keep-alive had no answer. Returns `Err` if the session has ended by now.
fn late(
    hub: &ClientState,
    until: Time,
    error: TransportError,
) -> Result<TransportError, TransportError> {
    hub.with_session(|session| session.unanswered = true);
    if boot_now() >= until { Err(error) } else { Ok(error) }
}

/// Ends the session when the client closes, which releases its leases at once.
fn end(hub: &ClientState, line: &mut dyn ServerConnection) {
    let Some(id) = hub.with_session(|session| session.id.take()) else { return };
    let asks = vec![BatchItem::Submit(end_of(id).into())];
    if let Err(error) = send_items(hub, line, asks, PATIENCE_MAX) {
        log::warn!("session {id} could not be ended; it will expire: {error}");
    }
}

/// Raises the priority of the keep-alive thread, if permitted: a machine under load must not lose
/// its locks.
#[allow(unsafe_code)]
fn be_first() {
    // SAFETY: takes no pointers; 0 is the calling thread.
    let done = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, PRIORITY) };
    if done != 0 {
        log::debug!("the priority of the keep-alive thread could not be raised");
    }
}

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
