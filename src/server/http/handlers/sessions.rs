//! The endpoints of sessions: open, keep alive, show, end.
//!
//! JSON representations of sessions and their leases.
//!
//! Ends all that a client has: `DELETE /locks` releases every lock that the client holds, and
//! leaves every queue in which it waits; `DELETE /locks/{name}` of a client that only waits leaves
//! that queue.

use super::grant_response::serialized;
use crate::auth::permissions::{AccessRequest, Operation};
use crate::engine::values::lease::TOKEN_MAX;
use crate::engine::{
    ClientId, EndSession, Grace, LeaseKey, Leave, LeaveReason, LockName, LockView, Op, OpenSession,
    Outcome, Reason, Refusal, RefusalKind, Release, SessionEnd, SessionId, SessionView, Ticket,
    Token, Ttl,
};
use crate::server::http::bodies::options::{RequestOptions, request_id};
use crate::server::http::bodies::problem::{HandlerResult, Problem};
use crate::server::http::bodies::response::json;
use crate::server::http::handlers::grant_response;
use crate::server::http::handlers::grant_response::unexpected;
use crate::server::http::request_context::RequestContext;
use crate::service::ListedNames::InUse;
use crate::service::audit::refusal_log::CommandSubject;
use crate::service::{List, RequestError, Retry, scoped_views};
use crate::time::Time;
use axum::http::StatusCode;
use serde::Serialize;
use serde_json::{Value, json};

/// The response to a session keep-alive.
#[derive(Serialize)]
struct KeepAliveResponse {
    session: u64,
    expires_in_ms: Option<u64>,
    lost: Vec<Value>,
}

/// Returns the session id in the path of a request.
fn id_of(call: &RequestContext) -> HandlerResult<SessionId> {
    let part = call.head.uri.path().split('/').nth(2).unwrap_or_default();
    match part.parse() {
        Ok(number) if (1..=TOKEN_MAX).contains(&number) => Ok(SessionId::named(number)),
        _ => Err(Problem::invalid("a session is a number, as POST /sessions gives it")),
    }
}

/// Handles `POST /sessions`: opens a session.
pub(in crate::server::http) async fn open(mut call: RequestContext) -> HandlerResult {
    let options = RequestOptions::read(&mut call).await?;
    let client = options.client(&call)?;
    let request = request_id(&call, &options, &client)?;
    let ttl = options.ttl.unwrap_or(call.app.ttl);
    let grace = options.grace.unwrap_or(call.app.grace);
    let ask = OpenSession { client: client.clone(), ttl: Some(ttl), grace };
    match call.decide(Op::OpenSession(ask), request).await? {
        Outcome::SessionOpened(id) => {
            call.app.chronicle.open(id, client.clone());
            Ok(json(StatusCode::CREATED, &opened(id, &client, ttl, grace)))
        }
        Outcome::Replayed(first) => {
            Box::pin(grant_response::replayed_session(&call, &client, &first)).await
        }
        other => Err(unexpected(&other)),
    }
}

/// Handles `POST /sessions/{session}/keepalive`: keeps a session alive, and returns the leases that
/// it has lost.
pub(in crate::server::http) async fn keep_alive(mut call: RequestContext) -> HandlerResult {
    let id = id_of(&call)?;
    RequestOptions::read(&mut call).await?;
    match call.decide(Op::KeepAlive(id), None).await? {
        Outcome::KeptAlive(until) => {
            let left = until.since(call.app.locks.now()).as_millis();
            let lost = call.app.chronicle.losses(id);
            let kept = KeepAliveResponse {
                session: id.as_u64(),
                expires_in_ms: (until != Time::NEVER).then_some(left),
                lost: lost.iter().map(|(name, token)| pair(name, *token)).collect(),
            };
            Ok(serialized(StatusCode::OK, &kept))
        }
        other => Err(unexpected(&other)),
    }
}

/// Handles `GET /sessions/{session}`: returns the state of a session and its leases.
pub(in crate::server::http) async fn get_session(mut call: RequestContext) -> HandlerResult {
    let id = id_of(&call)?;
    RequestOptions::read(&mut call).await?;
    let Some(view) = call.session(id).await? else {
        let (at, reason) = (call.app.locks.now(), Box::new(Reason::NoSession(id)));
        return Err(RequestError::Refused(Refusal { at, reason }).into());
    };
    let request = AccessRequest::of_nothing(Operation::ShowSession);
    let owner = std::slice::from_ref(&view.client);
    call.grant.may(&request, owner).map_err(|denial| Problem::denied(&denial))?;
    Ok(json(StatusCode::OK, &shown(&call, id, &view)))
}

/// Handles `DELETE /sessions/{session}`: ends a session. The request does not say whether it comes
/// from the session's own program, which would go on with its locks if it did not.
pub(in crate::server::http) async fn end(mut call: RequestContext) -> HandlerResult {
    let id = id_of(&call)?;
    let options = RequestOptions::read(&mut call).await?;
    let end = if options.now { SessionEnd::Closed } else { SessionEnd::Revoked };
    let ask = EndSession { session: id, end };
    match call.decide(Op::EndSession(ask), None).await? {
        Outcome::SessionEnded => {
            Ok(json(StatusCode::OK, &json!({ "session": id.as_u64(), "ended": true })))
        }
        other => Err(unexpected(&other)),
    }
}

/// Returns the JSON of a newly opened session.
pub(in crate::server::http) fn opened(
    id: SessionId,
    client: &ClientId,
    ttl: Ttl,
    grace: Grace,
) -> Value {
    json!({
        "session": id.as_u64(),
        "client": client.as_str(),
        "expires_in_ms": ttl.span().as_millis(),
        "ttl_ms": ttl.span().as_millis(),
        "grace_ms": grace.span().as_millis(),
    })
}

/// Returns a lease as JSON: the name of its lock, and its token.
pub(in crate::server::http) fn pair(name: &LockName, token: Token) -> Value {
    json!({ "name": name.as_str(), "token": token.as_u64() })
}

/// Returns the current state of a session as JSON.
pub(in crate::server::http) fn shown(
    call: &RequestContext,
    id: SessionId,
    view: &SessionView,
) -> Value {
    let lasts = view.ends.expires_at != Time::NEVER;
    let left = view.ends.left(call.app.locks.now()).as_millis();
    json!({
        "session": id.as_u64(),
        "client": view.client.as_str(),
        "expires_in_ms": lasts.then_some(left),
        "ttl_ms": view.ends.ttl.span().as_millis(),
        "grace_ms": view.ends.grace.span().as_millis(),
        "held": view.leases.iter().map(|(name, token)| pair(name, *token)).collect::<Vec<_>>(),
        "held_in_all": view.held,
        "waiting": view.waiting,
    })
}

/// Number of locks on one page of the search for the locks of a client.
const PAGE: usize = 1_000;

/// Maximum number of searches. Another one is needed only if the client was granted a lock while
/// the one before ran.
const SEARCHES_MAX: usize = 8;

/// The number of tenures and places that have ended.
#[derive(Debug, Default)]
struct Ended {
    holds: usize,
    waits: usize,
    /// Tenures and places that were there when they were listed, and gone when they were to end.
    missed: usize,
    /// Whether the audit log has a record of this request. A request that ends nothing has none.
    is_audited: bool,
}

/// Handles `DELETE /locks`: ends all holds and waits of one client, exactly as it is named, in the
/// locks that the caller may see.
pub(in crate::server::http) async fn release_all(mut call: RequestContext) -> HandlerResult {
    let options = RequestOptions::read(&mut call).await?;
    let client = options.client(&call)?;
    call.name_subject(|| CommandSubject::of_client(&client));
    let request =
        AccessRequest { client: Some(&client), ..AccessRequest::of_nothing(Operation::ReleaseAll) };
    call.grant.may(&request, &[]).map_err(|denial| Problem::denied(&denial))?;
    let mut ended = Ended::default();
    for _ in 0..SEARCHES_MAX {
        ended.missed = 0;
        search(&call, &client, &mut ended).await?;
        if ended.missed == 0 {
            break;
        }
    }
    let done = json!({ "client": client.as_str(), "holds": ended.holds, "waits": ended.waits });
    Ok(json(StatusCode::OK, &done))
}

/// Ends what the client has in all locks, page by page.
async fn search(call: &RequestContext, client: &ClientId, ended: &mut Ended) -> HandlerResult<()> {
    let mut after = None;
    loop {
        let query = List { prefix: String::new(), after, limit: PAGE };
        let visible = call.grant.narrowed("");
        let page = scoped_views::list(&*call.app.locks, InUse, visible, query).await?;
        for view in &page.items {
            end_in(call, client, view, ended).await?;
        }
        let Some(next) = page.next else { return Ok(()) };
        after = LockName::parse(&next).ok();
    }
}

/// Ends what the client has in one lock. The places end first: a waiter could otherwise be served
/// when the client's own lease ends.
async fn end_in(
    call: &RequestContext,
    client: &ClientId,
    view: &LockView,
    ended: &mut Ended,
) -> HandlerResult<()> {
    let has_place = view.waiters.iter().any(|waiter| waiter.client == *client);
    let has_hold = view.holders.iter().any(|holder| holder.lease.holder == *client);
    if (has_place || has_hold) && !ended.is_audited {
        ended.is_audited = true;
        call.audited().ends_all_of(&call.app.locks, client).await;
    }
    for waiter in view.waiters.iter().filter(|waiter| waiter.client == *client) {
        if leave(call, client, &view.name, waiter.ticket).await? {
            ended.waits += 1;
        } else {
            ended.missed += 1;
        }
    }
    for holder in view.holders.iter().filter(|holder| holder.lease.holder == *client) {
        if release(call, client, &view.name, holder.lease.token).await? {
            ended.holds += 1;
        } else {
            ended.missed += 1;
        }
    }
    Ok(())
}

/// Releases one tenure of the client. Returns whether it was still there.
async fn release(
    call: &RequestContext,
    client: &ClientId,
    name: &LockName,
    token: Token,
) -> HandlerResult<bool> {
    let key = LeaseKey { name: name.clone(), client: client.clone(), token: Some(token) };
    was_there(end_all(call, client, Op::Release(Release::of(key))).await)
}

/// Leaves one place of the client in a queue. Returns whether it was still there.
async fn leave(
    call: &RequestContext,
    client: &ClientId,
    name: &LockName,
    ticket: Ticket,
) -> HandlerResult<bool> {
    let leave = Leave { name: name.clone(), ticket, why: LeaveReason::Asked };
    was_there(end_all(call, client, Op::Leave(leave)).await)
}

/// Submits a command that ends a tenure or a place of `client`, if the caller may. The view that
/// showed it has also shown its owner, so no other query is needed to find it.
async fn end_all(call: &RequestContext, client: &ClientId, op: Op) -> HandlerResult<()> {
    let owners = [client.clone()];
    call.grant.may_submit(&op, &owners).map_err(|denial| Problem::denied(&denial))?;
    call.app.locks.submit(op.into(), Retry::Never).outcome().await?;
    Ok(())
}

fn was_there(ended: HandlerResult<()>) -> HandlerResult<bool> {
    let is_over = |problem: &Problem| {
        let kinds =
            [RefusalKind::LockNotHeld, RefusalKind::LockExpired, RefusalKind::FencingMismatch];
        kinds.into_iter().any(|kind| problem.is(kind))
    };
    match ended {
        Ok(()) => Ok(true),
        Err(problem) if is_over(&problem) => Ok(false),
        Err(problem) => Err(problem),
    }
}

/// Leaves the queue of one lock at all places of the client. Returns the number of those places.
pub(super) async fn leave_queue(
    call: &RequestContext,
    name: &LockName,
    client: &ClientId,
) -> HandlerResult<usize> {
    call.name_subject(|| CommandSubject::of_client(client));
    let view = call.view(name).await?;
    let mut left = 0;
    for waiter in view.waiters.iter().filter(|waiter| waiter.client == *client) {
        left += usize::from(leave(call, client, name, waiter.ticket).await?);
    }
    Ok(left)
}
