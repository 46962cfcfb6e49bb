//! The endpoints of sessions: open, keep alive, show, end.

use super::event_replay::{self, unexpected};
use super::grant_response::serialized;
use super::options::{RequestOptions, request_id};
use super::problem::{HandlerResult, Problem};
use super::request_context::RequestContext;
use super::response::json;
use super::session_json::{opened, pair, shown};
use crate::auth::permissions::{AccessRequest, Operation};
use crate::engine::lease::TOKEN_MAX;
use crate::engine::{EndSession, Op, OpenSession, Outcome, Reason, Refusal, SessionEnd, SessionId};
use crate::service::RequestError;
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
pub(super) async fn open(mut call: RequestContext) -> HandlerResult {
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
        Outcome::Replayed(first) => Box::pin(event_replay::opened(&call, &client, &first)).await,
        other => Err(unexpected(&other)),
    }
}

/// Handles `POST /sessions/{session}/keepalive`: keeps a session alive, and returns the leases that
/// it has lost.
pub(super) async fn keep_alive(mut call: RequestContext) -> HandlerResult {
    let id = id_of(&call)?;
    RequestOptions::read(&mut call).await?;
    match call.decide(Op::KeepAlive(id), None).await? {
        Outcome::KeptAlive(until) => {
            let left = until.since(call.app.locks.now()).as_millis();
            let lost = call.app.chronicle.losses(id);
            let kept = KeepAliveResponse {
                session: id.as_u64(),
                expires_in_ms: (until != Time::NEVER).then_some(left),
                lost: lost.iter().map(pair).collect(),
            };
            Ok(serialized(StatusCode::OK, &kept))
        }
        other => Err(unexpected(&other)),
    }
}

/// Handles `GET /sessions/{session}`: returns the state of a session and its leases.
pub(super) async fn show(mut call: RequestContext) -> HandlerResult {
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
pub(super) async fn end(mut call: RequestContext) -> HandlerResult {
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
