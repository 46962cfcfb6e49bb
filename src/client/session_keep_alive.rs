//! The session of a remote client, and its keep-alive thread: with a connection of its own,
//! so that nothing else can hold it up, and on the boot clock, so that sleep counts.

use super::shared_state::Hub;
use super::transport::{Line, Trouble};
use crate::engine::{
    ClientId, EndSession, Grace, Op, OpenSession, Outcome, SessionEnd, SessionId, Ttl,
};
use crate::random::jittered;
use crate::service::batch_messages::{Ask, Batch, Reply, decode_told, encode_batch};
use crate::service::timer::Alarm;
use crate::service::{Contact, Unavailable};
use crate::time::{Span, Time, boot_now};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A session is kept alive so many times in each ttl.
const KEEPS_PER_TTL: u64 = 3;
/// By so much of a ttl the clocks of two machines may drift apart meanwhile.
const DRIFT_PER_MILLE: u64 = 1;
/// Between the end of a lease here and at the server: time to tell those who hold it.
const MARGIN: Span = Span::from_millis(50);
/// How soon a sign of life is tried again that was not answered.
const RETRY: Span = Span::from_millis(100);
/// How long one try may take: a try that hangs is worth less than a new one.
const PATIENCE_MAX: Span = Span::from_secs(1);
/// What a service may ask of the scheduler: before ordinary programs, behind the kernel's own.
const PRIORITY: libc::c_int = -10;

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

/// What is known of the session.
pub(super) struct Session {
    terms: Option<Terms>,
    id: Option<SessionId>,
    /// Until when it surely lives.
    until: Time,
    /// When the last sign of life that was answered was sent.
    kept_at: Time,
    /// The last sign of life has not been answered (yet).
    unanswered: bool,
    /// Sessions that were given up here, and may live on at the server.
    given_up: Vec<SessionId>,
}

/// Until when something surely lasts that was renewed by a request sent at `asked_at`.
pub(super) fn surely_until(asked_at: Time, ttl: Ttl) -> Time {
    let ttl = ttl.span().as_nanos();
    asked_at + Span::from_nanos(ttl - ttl / 1_000 * DRIFT_PER_MILLE) - MARGIN
}

impl Session {
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

    fn opened(&mut self, id: SessionId, asked_at: Time) {
        self.id = Some(id);
        self.given_up.clear();
        self.kept(asked_at);
    }

    fn kept(&mut self, asked_at: Time) {
        let Some(terms) = &self.terms else { return };
        self.until = surely_until(asked_at, terms.ttl);
        self.kept_at = asked_at;
        self.unanswered = false;
    }
}

/// The thread that keeps a session alive.
pub(super) struct Keeper {
    alarm: Alarm,
    stopped: AtomicBool,
}

/// What there is to do next.
enum Next {
    Open(Terms, Vec<SessionId>),
    Keep(SessionId, Time),
    Lose(SessionId),
    Sleep(Time),
}

impl Keeper {
    pub(super) fn start(
        hub: &Arc<Hub>,
    ) -> std::io::Result<(Arc<Self>, std::thread::JoinHandle<()>)> {
        let keeper = Arc::new(Self { alarm: Alarm::new()?, stopped: AtomicBool::new(false) });
        // A door has one keeper.
        let _ = hub.keeper.set(Arc::clone(&keeper));
        let (hub, keeping) = (Arc::clone(hub), Arc::clone(&keeper));
        let thread = std::thread::Builder::new().name("keeper".to_owned());
        let thread = thread.spawn(move || {
            be_first();
            keeping.keep(&hub);
        })?;
        Ok((keeper, thread))
    }

    /// There may be something to do now.
    pub(super) fn call(&self) {
        self.alarm.set(Time::ZERO);
    }

    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.alarm.stop();
    }

    fn keep(&self, hub: &Arc<Hub>) {
        let mut line = hub.server.line();
        loop {
            if self.stopped.load(Ordering::Acquire) {
                return end(hub, &mut *line);
            }
            let wakes = match hub.with_session(|session| session.next(boot_now())) {
                Next::Sleep(until) => until,
                Next::Lose(id) => {
                    hub.lose_session(id);
                    continue;
                }
                Next::Open(terms, old) => match open(hub, &mut *line, &terms, &old) {
                    Ok(()) => continue,
                    Err(trouble) => {
                        hub.troubled("no session yet", &trouble);
                        boot_now() + jittered(RETRY)
                    }
                },
                Next::Keep(id, until) => match sign_of_life(hub, &mut *line, id, until) {
                    Ok(()) => continue,
                    Err(trouble) => {
                        hub.troubled("the session", &trouble);
                        // Not a moment later: what hangs on it may be another's then.
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

impl Session {
    fn next(&self, now: Time) -> Next {
        let Some(terms) = &self.terms else { return Next::Sleep(Time::NEVER) };
        let Some(id) = self.id else { return Next::Open(terms.clone(), self.given_up.clone()) };
        let every = Span::from_nanos(terms.ttl.span().as_nanos() / KEEPS_PER_TTL);
        let due = self.kept_at + every;
        match now {
            // It was asked for in vain until now. Who slept so long asks once before giving up.
            _ if now >= self.until && self.unanswered => Next::Lose(id),
            _ if now < due && !self.unanswered => Next::Sleep(due),
            _ => Next::Keep(id, self.until),
        }
    }
}

/// Asks on the keeper's own connection. It may be carried out again: keeping alive twice does no
/// harm, and a session that was opened twice runs out.
fn ask(
    hub: &Hub,
    line: &mut dyn Line,
    asks: Vec<Ask>,
    patience: Span,
) -> Result<Vec<Reply>, Trouble> {
    let engine = hub.introduce(line, patience)?;
    let batch = encode_batch(&Batch { engine, from: 0, number: 0, asks });
    let asked_at = boot_now();
    let told = line.ask(&batch, patience).inspect_err(|trouble| {
        if let Trouble::Elsewhere(_) = trouble {
            hub.engine_gone(engine);
        }
    })?;
    let told = decode_told(&told).map_err(|error| Trouble::Foreign(error.to_string()))?;
    let told = hub.able(line, told)?;
    hub.hear(asked_at, &told.stamp);
    Ok(told.replies)
}

fn open(
    hub: &Hub,
    line: &mut dyn Line,
    terms: &Terms,
    given_up: &[SessionId],
) -> Result<(), Trouble> {
    let Terms { client, ttl, grace } = terms.clone();
    let op = |op: Op| Ask::Submit(op.into());
    // What hung on it was lost here, so nobody needs to wait for its end there.
    let mut asks: Vec<_> = given_up.iter().map(|old| op(end_of(*old))).collect();
    asks.extend([Ask::Urls, Ask::About]);
    asks.push(op(Op::OpenSession(OpenSession { client, ttl: Some(ttl), grace })));
    let asked_at = boot_now();
    let mut replies = ask(hub, line, asks, PATIENCE_MAX)?;
    let opened = replies.pop();
    if let Some(Reply::About(about)) = replies.pop() {
        hub.set_about(about);
    }
    if let Some(Reply::Urls(urls)) = replies.pop() {
        hub.learn(&urls);
    }
    match opened {
        Some(Reply::Answered(Ok(Outcome::SessionOpened(id)))) => {
            hub.with_session(|session| session.opened(id, asked_at));
            Ok(())
        }
        Some(Reply::Answered(Err(refusal))) => Err(Trouble::Silent(refusal.to_string())),
        Some(Reply::Unavailable(Unavailable::Denied { why })) => {
            Err(Trouble::Denied(why.to_string()))
        }
        Some(Reply::Unavailable(why)) => Err(Trouble::Silent(why.to_string())),
        _ => Err(Trouble::Foreign("the server does not know sessions".to_owned())),
    }
}

fn end_of(session: SessionId) -> Op {
    Op::EndSession(EndSession { session, end: SessionEnd::Closed })
}

/// One sign of life. Whoever slept past the session's time asks once before it is given up.
fn sign_of_life(hub: &Hub, line: &mut dyn Line, id: SessionId, until: Time) -> Result<(), Trouble> {
    let asked_at = boot_now();
    let left = until.since(asked_at);
    let slept = left == Span::ZERO;
    let patience = if slept { PATIENCE_MAX } else { left.min(PATIENCE_MAX) };
    let asks = vec![Ask::Submit(Op::KeepAlive(id).into()), Ask::About, Ask::Urls];
    let answered = ask(hub, line, asks, patience);
    let over = match answered {
        Ok(replies) => {
            let mut replies = replies.into_iter();
            let kept = replies.next();
            if let Some(Reply::About(about)) = replies.next() {
                hub.set_about(about);
            }
            if let Some(Reply::Urls(urls)) = replies.next() {
                hub.learn(&urls);
            }
            match kept {
                Some(Reply::Answered(Ok(Outcome::KeptAlive(_)))) => {
                    hub.with_session(|session| session.kept(asked_at));
                    return Ok(());
                }
                Some(Reply::Answered(Err(refusal))) => Err(Trouble::Denied(refusal.to_string())),
                // The state can't be written: the session may still live on.
                _ => {
                    let why = "the server did not keep the session";
                    late(hub, until, Trouble::Silent(why.to_owned()))
                }
            }
        }
        Err(trouble) => late(hub, until, trouble),
    };
    match over {
        Ok(trouble) => Err(trouble),
        Err(trouble) => {
            hub.lose_session(id);
            Err(trouble)
        }
    }
}

/// There was no answer: `Err` when by now it is too late for one.
fn late(hub: &Hub, until: Time, trouble: Trouble) -> Result<Trouble, Trouble> {
    hub.with_session(|session| session.unanswered = true);
    if boot_now() >= until { Err(trouble) } else { Ok(trouble) }
}

/// The last thing: all that hangs on the session is free at once.
fn end(hub: &Hub, line: &mut dyn Line) {
    let Some(id) = hub.with_session(|session| session.id.take()) else { return };
    let asks = vec![Ask::Submit(end_of(id).into())];
    if let Err(trouble) = ask(hub, line, asks, PATIENCE_MAX) {
        log::warn!("session {id} could not be ended, and runs out by itself: {trouble}");
    }
}

/// Before ordinary programs, where that is allowed: a machine under load must not lose its locks.
#[allow(unsafe_code)]
fn be_first() {
    // SAFETY: takes no pointers; 0 is the calling thread.
    let done = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, PRIORITY) };
    if done != 0 {
        log::debug!("the keeper of the session has no higher priority than others");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session() -> Session {
        let client = ClientId::parse("laptop1").expect("valid");
        let (ttl, grace) = (Ttl::parse("30s").expect("valid"), Grace::NONE);
        Session::new(Some(Terms { client, ttl, grace }))
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
        assert!(matches!(session.next(Time::ZERO), Next::Open(..)));
        session.opened(SessionId::named(4), Time::from_secs(100));
        let due = Time::from_secs(110);
        assert!(matches!(session.next(Time::from_secs(105)), Next::Sleep(at) if at == due));
        assert!(matches!(session.next(due), Next::Keep(..)));
        session.unanswered = true;
        assert!(matches!(session.next(Time::from_secs(105)), Next::Keep(..)));
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
        let Next::Open(_, old) = session.next(Time::from_secs(101)) else { panic!("a new one") };
        assert_eq!(old, [SessionId::named(4)]);
    }
}
