//! Responses to repeated requests with the same Idempotency-Key: the first response as it was,
//! marked as a replay, and the current state beside it. The tenure in the first response may be
//! over, so the first response alone would not tell the current state.

use super::request_context::RequestContext;
use crate::engine::{ClientId, LockName, Outcome, Replay};
use crate::server::http::bodies::problem::{HandlerResult, Problem};
use crate::server::http::bodies::response::{Response, json};
use crate::server::http::handlers::grant_response::{GrantResponse, tagged};
use crate::server::http::handlers::sessions;
use crate::status::status_of;
use axum::http::{HeaderName, HeaderValue, StatusCode};
use serde::Serialize;
use serde_json::Value;

/// The header that marks a response as a replay.
pub(super) const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// Returns the response to a repeated acquire, renewal or steal: the first response, with the
/// current state of the lock.
pub(super) async fn granted(
    call: &RequestContext,
    name: &LockName,
    client: &ClientId,
    replay: &Replay,
) -> HandlerResult {
    let (Some(tenure), Some(ends)) = (replay.first.tenure(), &replay.ends) else {
        return Err(unexpected(&replay.first));
    };
    let renewed = matches!(replay.first, Outcome::Renewed(_));
    let first =
        GrantResponse::ending(&call.app.locks, name, client, tenure, ends, renewed, replay.at);
    let response = marked(StatusCode::OK, &first, Some(lock_now(call, name).await?));
    Ok(tagged(response, tenure.token))
}

/// Returns the response to a repeated request about a lock that granted nothing, such as a release.
pub(super) async fn of_lock(
    call: &RequestContext,
    name: &LockName,
    first: &Value,
) -> HandlerResult {
    Ok(marked(StatusCode::OK, first, Some(lock_now(call, name).await?)))
}

/// Returns the response to a repeated request that opened a session. The current state is null if
/// the session is over.
pub(super) async fn opened(
    call: &RequestContext,
    client: &ClientId,
    replay: &Replay,
) -> HandlerResult {
    let (Outcome::SessionOpened(id), Some(ends)) = (&replay.first, &replay.ends) else {
        return Err(unexpected(&replay.first));
    };
    let first = sessions::opened(*id, client, ends.ttl, ends.grace);
    let current = call.session(*id).await?.map(|view| sessions::shown(call, *id, &view));
    Ok(marked(StatusCode::CREATED, &first, Some(current.unwrap_or_default())))
}

/// Returns the response `first`, marked as a replay, with the current state if there is any.
pub(super) fn marked(
    status: StatusCode,
    first: &impl Serialize,
    current: Option<Value>,
) -> Response {
    let mut body = serde_json::to_value(first).expect("keys are texts, and nothing fails to write");
    if let Some(current) = current {
        body["current"] = current;
    }
    let mut response = json(status, &body);
    response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    response
}

async fn lock_now(call: &RequestContext, name: &LockName) -> HandlerResult<Value> {
    let view = call.view(name).await?;
    Ok(status_of(&view, |at| call.app.locks.wall(at)))
}

/// Logs an outcome that does not match the kind of the command, and returns a 500 response.
pub(super) fn unexpected(outcome: &Outcome) -> Problem {
    log::error!("a request came to an outcome of another kind: {outcome:?}");
    let detail = "the engine gave an answer of another kind; look at the lock before you go on";
    Problem::plain(StatusCode::INTERNAL_SERVER_ERROR, detail)
}
