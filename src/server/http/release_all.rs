//! Ends all that a client has: `DELETE /locks` releases every lock that the client holds, and
//! leaves every queue in which it waits; `DELETE /locks/{name}` of a client that only waits leaves
//! that queue.

use super::options::RequestOptions;
use super::problem::{HandlerResult, Problem};
use super::request_context::{RequestContext, told};
use super::response::json;
use crate::auth::permissions::{AccessRequest, Operation};
use crate::engine::{
    ClientId, LeaseKey, Leave, LeaveReason, LockName, LockView, Op, RefusalKind, Release, Ticket,
    Token,
};
use crate::service::refusal_log::CommandSubject;
use crate::service::{List, RequestError, scoped_views};
use axum::http::StatusCode;
use serde_json::json;
use tokio::sync::oneshot;

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
pub(super) async fn release_all(mut call: RequestContext) -> HandlerResult {
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
        let (then, page) = oneshot::channel();
        let visible = call.grant.narrowed("");
        scoped_views::list(&call.app.locks, visible, query, |page| drop(then.send(page)));
        let page = told(page.await)?;
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
    was_there(end(call, client, Op::Release(Release::of(key))).await)
}

/// Leaves one place of the client in a queue. Returns whether it was still there.
async fn leave(
    call: &RequestContext,
    client: &ClientId,
    name: &LockName,
    ticket: Ticket,
) -> HandlerResult<bool> {
    let leave = Leave { name: name.clone(), ticket, why: LeaveReason::Asked };
    was_there(end(call, client, Op::Leave(leave)).await)
}

/// Submits a command that ends a tenure or a place of `client`, if the caller may. The view that
/// showed it has also shown its owner, so no other query is needed to find it.
async fn end(call: &RequestContext, client: &ClientId, op: Op) -> HandlerResult<()> {
    let owners = [client.clone()];
    call.grant.may_submit(&op, &owners).map_err(|denial| Problem::denied(&denial))?;
    let (then, answer) = oneshot::channel();
    call.app.locks.submit(op, |answer| drop(then.send(answer)));
    told(answer.await)?.map(drop).map_err(|refusal| RequestError::Refused(refusal).into())
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
