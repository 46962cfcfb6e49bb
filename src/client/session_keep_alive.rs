//! The keep-alive thread of a client's session. It has its own connection, so that no other request
//! can delay it, and runs on the boot clock, so that sleep counts.

use super::session_state::{KeepAliveStep, SessionKeepAlive, Terms};
use super::shared_state::ClientState;
use super::transport::{ServerConnection, TransportError};
use crate::engine::{
    EndSession, Op, OpenSession, Outcome, Refusal, RefusalKind, SessionEnd, SessionId,
};
use crate::random::jittered;
use crate::service::Unavailable;
use crate::service::batch_messages::{BatchItem, ItemReply, RequestBatch};
use crate::service::timer::Alarm;
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
                    Err(trouble) => {
                        hub.troubled("no session yet", &trouble);
                        boot_now() + jittered(RETRY)
                    }
                },
                KeepAliveStep::Keep(id, until) => match sign_of_life(hub, &mut *line, id, until) {
                    Ok(()) => continue,
                    Err(trouble) => {
                        hub.troubled("the session", &trouble);
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

/// Sends a batch on the thread's own connection. The batch has no number by which the server could
/// recognize a second copy, so it may be carried out twice: a second keep-alive does no harm, and a
/// second session expires.
fn ask(
    hub: &ClientState,
    line: &mut dyn ServerConnection,
    asks: Vec<BatchItem>,
    patience: Span,
) -> Result<Vec<ItemReply>, TransportError> {
    let engine = hub.introduce(line, patience)?;
    let batch = RequestBatch::repeatable(engine, asks);
    let asked_at = boot_now();
    let told = line.ask(&batch, patience).inspect_err(|trouble| {
        if let TransportError::Elsewhere(_) = trouble {
            hub.engine_gone(engine);
        }
    })?;
    let told = hub.able(line, told)?;
    hub.hear(asked_at, &told.stamp);
    Ok(told.replies)
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
    let mut replies = ask(hub, line, asks, PATIENCE_MAX)?;
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
    let answered = ask(hub, line, asks, patience);
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

/// Records that a keep-alive had no answer. Returns `Err` if the session has ended by now.
fn late(
    hub: &ClientState,
    until: Time,
    trouble: TransportError,
) -> Result<TransportError, TransportError> {
    hub.with_session(|session| session.unanswered = true);
    if boot_now() >= until { Err(trouble) } else { Ok(trouble) }
}

/// Ends the session when the client closes, which releases its leases at once.
fn end(hub: &ClientState, line: &mut dyn ServerConnection) {
    let Some(id) = hub.with_session(|session| session.id.take()) else { return };
    let asks = vec![BatchItem::Submit(end_of(id).into())];
    if let Err(trouble) = ask(hub, line, asks, PATIENCE_MAX) {
        log::warn!("session {id} could not be ended; it will expire: {trouble}");
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
