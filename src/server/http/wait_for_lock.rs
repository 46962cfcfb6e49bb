//! Waiting in the queue of a lock while a request is open: the place is lost when the connection
//! closes.
//!
//! A request with an Idempotency-Key keeps its place when the connection closes: the key names
//! the place, and later the grant. The place is kept for [`KEPT`] after the last repeat.

use super::app_state::{ShutdownPhase, entered};
use super::event_replay::unexpected;
use super::lock_grant::{granted, show_tenure};
use super::problem::{HandlerResult, Problem};
use super::queue_places::{EnterOutcome, PlaceOutcome, WAITING_MAX};
use super::request_context::{RequestContext, parent_check, told};
use crate::engine::{
    Acquire, IdempotencyKey, LeaseTerms, LeaveReason, LockName, Op, Outcome, Ownership,
    QueuePolicy, Reason, Refusal, RefusalKind, Replay, Tenure, Ticket, Token,
};
use crate::service::RequestError;
use crate::time::Span;
use std::time::Duration;

/// For how long the place of a request with an id is kept after its last repeat. A client that
/// has lost its connection finds another node within this time; who is gone for good costs those
/// behind it nothing but the ttl, if it is served meanwhile.
const KEPT: Span = Span::from_secs(30);

/// Waits in line for what `ask` asks for, and answers when it is there or the wait is over.
pub(super) async fn wait(call: &RequestContext, mut ask: Acquire, patience: Span) -> HandlerResult {
    let places = &call.app.places;
    let Some(_counted) = places.count() else {
        let detail = format!("{WAITING_MAX} requests wait, which is the limit; try again later");
        return Err(Problem::of(RefusalKind::Limit, detail));
    };
    ask.line = QueuePolicy::Join(Some(patience));
    let mut phase = call.app.follow_phase();
    let mut place = None;
    loop {
        call.grants()?;
        let mut waiter = if let Some(waiter) = place.take() {
            waiter
        } else {
            let check = parent_check(&call.grant, &Op::Acquire(ask.clone()));
            let entered = told(places.enter(&ask, check).await)?;
            match entered.map_err(RequestError::Refused)? {
                EnterOutcome::Waits(waiter) => waiter,
                EnterOutcome::Decided(outcome) => return served(call, &ask, &outcome).await,
            }
        };
        let fate = tokio::select! {
            fate = &mut waiter.told => fate.unwrap_or(PlaceOutcome::Unknown),
            () = entered(&mut phase, ShutdownPhase::Draining) => return Err(Problem::closing()),
        };
        match fate {
            PlaceOutcome::Served(token) => {
                let shown = show(call, &waiter.ask, token).await;
                waiter.take();
                return shown;
            }
            PlaceOutcome::Gone(why) => {
                waiter.take();
                return Err(in_vain(call, &waiter.ask, why).await);
            }
            PlaceOutcome::Unknown => {
                let mut before = call.app.locks.subscribe(None);
                if waits(call, &ask.name, waiter.ticket).await? {
                    place = Some(Box::new(places.follow(&ask, waiter.ticket, &mut before)));
                }
                waiter.take();
                // Another request of the client could be meant by what is held now.
                if place.is_none() && ask.hold != Ownership::Client {
                    return Err(lost_sight(&ask.name));
                }
            }
        }
    }
}

/// Makes the refusal of an acquire final under its id.
///
/// The engine remembers what was done, and a refusal does nothing. An earlier try of the request,
/// which a stopped node or the network delivers late, would be decided anew after the client has
/// been told of the refusal, and the client would not learn of its grant. So the id is spent on a
/// command that changes nothing. If an earlier try was granted in between, that is the answer.
pub(super) async fn refuse_for_good(
    call: &RequestContext,
    ask: &Acquire,
    request: IdempotencyKey,
    refusal: Problem,
) -> HandlerResult {
    match call.decide(Op::Settle, Some(request)).await? {
        Outcome::Settled => Err(refusal),
        Outcome::Replayed(replay) if matches!(replay.first, Outcome::Settled) => Err(refusal),
        outcome => granted(call, (&ask.name, &ask.client), &outcome).await,
    }
}

/// Waits for what the request `request` asks for. Its place outlives this connection.
pub(super) async fn wait_by_id(
    call: &RequestContext,
    mut ask: Acquire,
    patience: Span,
    request: IdempotencyKey,
) -> HandlerResult {
    let places = &call.app.places;
    let Some(_counted) = places.count() else {
        let detail = format!("{WAITING_MAX} requests wait, which is the limit; try again later");
        return Err(Problem::of(RefusalKind::Limit, detail));
    };
    let until = call.app.locks.now() + patience;
    let mut phase = call.app.follow_phase();
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
                    return granted(call, (&ask.name, &ask.client), &outcome).await;
                }
            },
            Ok(outcome) => return served(call, &ask, &outcome).await,
            Err(problem) if has_waited && problem.is(RefusalKind::LockExpired) => {
                return Err(in_vain(call, &ask, LeaveReason::TimedOut).await);
            }
            // No time was left to enter the queue.
            Err(problem) if problem.is(RefusalKind::LockConflict) => {
                return refuse_for_good(call, &ask, request, problem).await;
            }
            Err(problem) => return Err(problem),
        };
        has_waited = true;
        let mut waiter = places.follow(&ask, ticket, &mut before);
        drop(before);
        // A retry of the request finds its place, or the grant.
        waiter.take();
        let half_kept = Duration::from_nanos(KEPT.as_nanos() / 2);
        let fate = tokio::select! {
            fate = &mut waiter.told => fate.unwrap_or(PlaceOutcome::Unknown),
            () = tokio::time::sleep(half_kept), if left > KEPT => PlaceOutcome::Unknown,
            () = entered(&mut phase, ShutdownPhase::Draining) => return Err(Problem::closing()),
        };
        match fate {
            PlaceOutcome::Served(token) => return show(call, &ask, token).await,
            PlaceOutcome::Gone(why) => return Err(in_vain(call, &ask, why).await),
            PlaceOutcome::Unknown => {}
        }
    }
}

/// Returns the answer to a repeat of a request that was refused before: it stays refused.
pub(super) async fn refused_before(call: &RequestContext, ask: &Acquire) -> Problem {
    let why = "a request with this Idempotency-Key was refused, and so are its repeats; send a \
               new key to ask again";
    refused_now(call, ask, ("refused_before", why)).await
}

/// Whether the place `ticket` is still in the queue of a lock.
async fn waits(call: &RequestContext, name: &LockName, ticket: Ticket) -> HandlerResult<bool> {
    let view = call.view(name).await?;
    Ok(view.waiters.iter().any(|waiter| waiter.ticket == ticket))
}

/// The place is gone, and the event that says whether it was served was lost.
fn lost_sight(name: &LockName) -> Problem {
    let detail = format!(
        "lock '{name}': this server has lost sight of the wait, so it is unknown whether the lock \
         was granted; look who holds it, and next time send an Idempotency-Key, which makes a wait \
         safe to repeat"
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

/// Shows what a place was served with.
async fn show(call: &RequestContext, ask: &Acquire, token: Token) -> HandlerResult {
    let now = call.app.locks.now();
    let life = ask.term.begin(now);
    let tenure = Tenure { token, life, acquired_at: now, acquisition: 0 };
    show_tenure(call, &ask.name, &tenure, false).await
}

/// Why there is no lock at the end of a wait.
async fn in_vain(call: &RequestContext, ask: &Acquire, why: LeaveReason) -> Problem {
    let session = match ask.term {
        LeaseTerms::Session(id) if why == LeaveReason::SessionOver => Some(id),
        _ => None,
    };
    if let Some(id) = session {
        let reason = Box::new(Reason::NoSession(id));
        let at = call.app.locks.now();
        return RequestError::Refused(Refusal { at, reason }).into();
    }
    refused_now(call, ask, ("waited_in_vain", "the wait is over, and the lock was not to be had"))
        .await
}

/// A conflict for this reason, with the holder of now.
async fn refused_now(call: &RequestContext, ask: &Acquire, (reason, why): (&str, &str)) -> Problem {
    let now = match call.view(&ask.name).await {
        Ok(view) => view,
        Err(problem) => return problem,
    };
    let problem = Problem::of(RefusalKind::LockConflict, format!("lock '{}': {why}", ask.name));
    let problem = problem.with("reason", reason).with("name", ask.name.as_str());
    match now.holder() {
        Some(holder) => problem
            .with("holder", holder.lease.holder.as_str())
            .with("token", holder.lease.token.as_u64())
            .with("waiting", now.waiters.len()),
        None => problem,
    }
}
