//! Waiting in the queue of a lock while a request is open: the queue place is lost when the
//! connection closes.
//!
//! A request with an Idempotency-Key keeps its place when the connection closes: the key identifies
//! the place, and later the grant. The place is kept for [`KEPT`] after the last repeat of the
//! request.

use crate::engine::{
    Acquire, Holder, IdempotencyKey, LeaseTerms, LeaveReason, LockName, Op, Outcome, Ownership,
    QueuePolicy, Reason, Refusal, RefusalKind, Replay,
};
use crate::server::http::app_state::{ShutdownPhase, entered};
use crate::server::http::bodies::problem::{HandlerResult, Problem};
use crate::server::http::handlers::grant_response::unexpected;
use crate::server::http::handlers::grant_response::{granted, show_tenure};
use crate::server::http::request_context::{RequestContext, parent_check};
use crate::server::http::server_session::SessionUse;
use crate::service::RequestError;
use crate::service::queue_waits::{Entered, PlaceGuard, WaitEnd, WaitGrant};
use crate::status::why_of;
use crate::time::{Span, Time};
use std::pin::pin;
use std::time::Duration;
use tokio::sync::oneshot;

/// How long the queue place of a request with an Idempotency-Key is kept after the last repeat of
/// the request. A client that has lost its connection reaches another node within this time. If a
/// client is gone for good and is granted the lock meanwhile, it delays the waiters behind it by a
/// ttl at most.
const KEPT: Span = Span::from_secs(30);

/// Waits in the queue of the lock that `ask` names, and returns when the lock is granted or the
/// wait ends without it.
///
/// The queue place is attached to the server's session, so that the place is freed soon after the
/// server was killed. If that session ends although the server is alive, the request enters the
/// queue again.
pub(in crate::server::http) async fn wait(
    call: &RequestContext,
    mut ask: Acquire,
    patience: Span,
) -> HandlerResult {
    let _waiting = call.share(&call.app.waiting, 1)?;
    let until = call.app.locks.now() + patience;
    let in_use = call.app.session.in_use();
    let mut phase = call.app.follow_phase();
    let op = Op::Acquire(ask.clone());
    let mut revoked = pin!(call.revoked(&op));
    loop {
        call.grants()?;
        ask.line = QueuePolicy::Join(Some(until.since(call.app.locks.now())));
        if let Ownership::Exclusive(_) = ask.hold {
            ask.hold = Ownership::Exclusive(in_use.attempt().await?);
        }
        let (place, mut end) = match enter(call, &ask).await {
            Ok(QueueEntry::Waits(place, end)) => (place, end),
            Ok(QueueEntry::Decided(outcome)) => return served(call, &ask, &outcome).await,
            Err(RequestError::Refused(refusal)) if is_over(&in_use, &ask, &refusal) => continue,
            Err(failure) => return Err(failure.into()),
        };
        let end = tokio::select! {
            end = &mut end => end.unwrap_or(WaitEnd::Unknown),
            // Without a claim, the place is given back, and the lock if it was granted meanwhile.
            problem = &mut revoked => return Err(problem),
            () = entered(&mut phase, ShutdownPhase::Draining) => return Err(Problem::closing()),
        };
        match end {
            WaitEnd::Granted(grant) => {
                call.recheck(&op).await?;
                let shown = granted_response(call, &ask, grant).await;
                place.claim();
                return shown;
            }
            WaitEnd::Left(LeaveReason::SessionOver) => {
                place.claim();
                // The server's session is over, so the next attempt opens another. If the client's
                // own session is over instead, the next attempt is refused for that reason.
                ask.hold.open().inspect(|open| in_use.forget(open.session));
            }
            WaitEnd::Left(why) => {
                place.claim();
                return Err(in_vain(call, &ask, Some(why)).await);
            }
            WaitEnd::Unknown => {
                place.claim();
                // The outcome of the wait is unknown. A reentrant request can be repeated safely:
                // either the client already has the lock, or it enters the queue again.
                if ask.hold != Ownership::Client {
                    return Err(lost_sight(&ask.name));
                }
            }
        }
    }
}

/// The result of entering a lock's queue: a queue place, or an outcome at once, such as a grant.
enum QueueEntry {
    Waits(PlaceGuard, oneshot::Receiver<WaitEnd>),
    Decided(Outcome),
}

/// Acquires a lock that is free, or enters the queue of one that is held.
async fn enter(call: &RequestContext, ask: &Acquire) -> Result<QueueEntry, RequestError> {
    let op = Op::Acquire(ask.clone());
    let permit = call.admit(&op, None).map_err(RequestError::Refused)?;
    let check = parent_check(&call.grant, &op);
    let (on_end, end) = oneshot::channel();
    let on_end = |end| {
        // The send fails only if the client has closed the connection, which drops the request and
        // its receiver.
        let _ = on_end.send(end);
    };
    let entered = call.app.waits.enter(ask.clone(), check, on_end).keeping(permit);
    match entered.await.map_err(RequestError::Unavailable)? {
        Ok(Entered::Waits(place)) => Ok(QueueEntry::Waits(place, end)),
        Ok(Entered::Decided(outcome)) => Ok(QueueEntry::Decided(outcome)),
        Err(refusal) => Err(RequestError::Refused(refusal)),
    }
}

/// Whether a request was refused because the server's session is over. If so, forgets the session.
fn is_over(in_use: &SessionUse, ask: &Acquire, refusal: &Refusal) -> bool {
    let (Reason::NoSession(over), Some(open)) = (&*refusal.reason, ask.hold.open()) else {
        return false;
    };
    if *over == open.session {
        in_use.forget(*over);
    }
    *over == open.session
}

/// Makes the refusal of an acquire final for its Idempotency-Key, and returns the refusal.
///
/// The engine remembers the outcomes of commands that changed its state, but a refusal changes
/// nothing. If a suspended node or the network delivered an earlier attempt of the request late,
/// the engine would decide it anew after the client has seen the refusal, and the client would not
/// learn of the grant. So a command that has no other effect (`Settle`) is submitted under the key,
/// and uses the key up. If an earlier attempt was granted in between, that grant is the response.
pub(super) async fn refuse_for_good(
    call: &RequestContext,
    ask: &Acquire,
    request: IdempotencyKey,
    refusal: Problem,
) -> HandlerResult {
    match call.decide(Op::Settle, Some(request)).await? {
        Outcome::Settled => Err(refusal),
        Outcome::Replayed(replay) if matches!(replay.first, Outcome::Settled) => Err(refusal),
        outcome => granted(call, &ask.name, &ask.client, &outcome).await,
    }
}

/// Waits for the lock on behalf of the request with the Idempotency-Key `request`, whose queue
/// place outlives the connection.
pub(super) async fn wait_by_id(
    call: &RequestContext,
    mut ask: Acquire,
    patience: Span,
    request: IdempotencyKey,
) -> HandlerResult {
    let _waiting = call.share(&call.app.waiting, 1)?;
    let until = call.app.locks.now() + patience;
    let mut phase = call.app.follow_phase();
    let op = Op::Acquire(ask.clone());
    let mut revoked = pin!(call.revoked(&op));
    let mut has_waited = false;
    loop {
        call.grants()?;
        let left = until.since(call.app.locks.now());
        ask.line = QueuePolicy::Join(Some(left.min(KEPT)));
        let mut before = call.app.locks.subscribe(None);
        let outcome = call.decide(Op::Acquire(ask.clone()), Some(request.clone())).await;
        let ticket = match outcome {
            Ok(Outcome::Waiting { ticket, .. }) => ticket,
            Ok(Outcome::Replayed(replay)) => match replay.first {
                Outcome::Waiting { ticket, .. } => ticket,
                Outcome::Settled => return Err(refused_before(call, &ask).await),
                first if has_waited => return served(call, &ask, &first).await,
                first => {
                    let outcome = Outcome::Replayed(Box::new(Replay { first, ..*replay }));
                    return granted(call, &ask.name, &ask.client, &outcome).await;
                }
            },
            Ok(outcome) => return served(call, &ask, &outcome).await,
            Err(problem) if has_waited && problem.is(RefusalKind::LockExpired) => {
                return Err(in_vain(call, &ask, late(call, until)).await);
            }
            // The deadline passed before the request could enter the queue.
            Err(problem) if problem.is(RefusalKind::LockConflict) => {
                return refuse_for_good(call, &ask, request, problem).await;
            }
            Err(problem) => return Err(problem),
        };
        has_waited = true;
        let (on_end, mut end) = oneshot::channel();
        let on_end = |end| {
            // The send fails only if the client has closed the connection, which drops the request
            // and its receiver.
            let _ = on_end.send(end);
        };
        let place = call.app.waits.follow(&ask, ticket, &mut before, on_end);
        let place = KeptPlace(Some(place));
        drop(before);
        let half_kept = Duration::from_nanos(KEPT.as_nanos() / 2);
        let end = tokio::select! {
            end = &mut end => end.unwrap_or(WaitEnd::Unknown),
            () = tokio::time::sleep(half_kept), if left > KEPT => WaitEnd::Unknown,
            problem = &mut revoked => {
                place.give_back();
                return Err(problem);
            }
            () = entered(&mut phase, ShutdownPhase::Draining) => return Err(Problem::closing()),
        };
        match end {
            WaitEnd::Granted(grant) => {
                if let Err(problem) = call.recheck(&op).await {
                    place.give_back();
                    return Err(problem);
                }
                return granted_response(call, &ask, grant).await;
            }
            WaitEnd::Left(why) => return Err(in_vain(call, &ask, Some(why)).await),
            WaitEnd::Unknown => {}
        }
    }
}

/// Returns why a place in a queue is gone whose end nobody has seen, if its time is over.
fn late(call: &RequestContext, until: Time) -> Option<LeaveReason> {
    (call.app.locks.now() >= until).then_some(LeaveReason::TimedOut)
}

/// A place in a queue that is kept when the connection closes: a retry of the request finds it, or
/// the grant.
struct KeptPlace(Option<PlaceGuard>);

impl KeptPlace {
    /// Gives back the place, or the lock if it was granted meanwhile.
    fn give_back(mut self) {
        drop(self.0.take());
    }
}

impl Drop for KeptPlace {
    fn drop(&mut self) {
        self.0.iter().for_each(PlaceGuard::claim);
    }
}

/// Returns the error for a repeat of a request that was refused before: the repeat is refused too.
pub(super) async fn refused_before(call: &RequestContext, ask: &Acquire) -> Problem {
    let why = "a request with this Idempotency-Key was refused, and so are its repeats; send a \
               new key to ask again";
    refused_now(call, ask, "refused_before", why).await
}

/// Returns the error for a wait with an unknown outcome: the queue place is gone, and the event
/// that tells whether the lock was granted was lost.
fn lost_sight(name: &LockName) -> Problem {
    let detail = format!(
        "lock '{name}': this server has lost the events of the wait, so it is unknown whether the \
         lock was granted; see which client holds it, and next time send an Idempotency-Key, which \
         makes a wait safe to repeat"
    );
    Problem::of(RefusalKind::ConsistencyUnavailable, detail)
}

async fn served(call: &RequestContext, ask: &Acquire, outcome: &Outcome) -> HandlerResult {
    match outcome {
        Outcome::Granted(tenure) => show_tenure(call, &ask.name, tenure, false).await,
        Outcome::Renewed(tenure) => show_tenure(call, &ask.name, tenure, true).await,
        other => Err(unexpected(other)),
    }
}

/// Returns the response for a waiter that was granted the lock.
async fn granted_response(call: &RequestContext, ask: &Acquire, grant: WaitGrant) -> HandlerResult {
    show_tenure(call, &ask.name, &grant.tenure(ask.term), false).await
}

/// Returns the error for a wait that ended without the lock. `why` is `None` if the place in the
/// queue is gone and nobody has seen why.
async fn in_vain(call: &RequestContext, ask: &Acquire, why: Option<LeaveReason>) -> Problem {
    let session = match ask.term {
        LeaseTerms::Session(id) if why == Some(LeaveReason::SessionOver) => Some(id),
        _ => None,
    };
    if let Some(id) = session {
        let reason = Box::new(Reason::NoSession(id));
        let at = call.app.locks.now();
        return RequestError::Refused(Refusal { at, reason }).into();
    }
    let lost =
        "the place in its queue is lost; ask again, under a new request key if there was one";
    let problem =
        refused_now(call, ask, "waited_in_vain", why.map_or(lost, LeaveReason::sentence)).await;
    match why {
        Some(why) => problem.with("why", why_of(why)),
        None => problem,
    }
}

/// Returns a conflict with the given `reason` and explanation, and with the current holder of the
/// lock.
async fn refused_now(call: &RequestContext, ask: &Acquire, reason: &str, why: &str) -> Problem {
    let now = match call.view(&ask.name).await {
        Ok(view) => view,
        Err(problem) => return problem,
    };
    let problem = Problem::of(RefusalKind::LockConflict, format!("lock '{}': {why}", ask.name));
    let problem = problem.with("reason", reason).with("name", ask.name.as_str());
    let problem = call.with_previous(now.previous.as_deref(), problem);
    match now.holder() {
        Some(Holder { lease, .. }) => {
            let problem = problem
                .with("holder", lease.holder.as_str())
                .with("token", lease.token.as_u64())
                .with("waiting", now.waiters.len());
            call.with_request_of(lease.token, problem)
        }
        None => problem,
    }
}
