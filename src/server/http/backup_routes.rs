//! The endpoints of administrative operations on all locks: `/reset`, `/grant-now` and `/backup`.

use super::endpoint::{Endpoint, doc, endpoint};
use super::event_replay::{self, unexpected};
use super::options::{RequestOptions, request_id};
use super::parameters::{ALL, CLIENT, IDEMPOTENCY_KEY, KEEP, OF, REASON};
use super::problem::{HandlerResult, Problem};
use super::request_context::{RequestContext, told};
use super::response::{Response, json, text};
use super::schema::Schema;
use crate::auth::permissions::Operation;
use crate::engine::{EndHoldOff, Op, Outcome, Reset};
use crate::service::backup;
use crate::time::Wall;
use axum::http::{HeaderValue, Method, StatusCode};
use serde_json::json;
use tokio::sync::oneshot;

/// The endpoints at `/reset`.
pub(super) const RESET: &[Endpoint] = &[endpoint(
    Method::POST,
    Operation::Reset,
    |call| Box::pin(reset(call)),
    doc(
        "resetLocks",
        "Take from clients all that they hold and wait for: of `keep`, `of` and `all` one is said.",
        &[KEEP, OF, ALL, CLIENT, REASON, IDEMPOTENCY_KEY],
        (200, Schema::Reset),
        &[400, 403, 415, 429, 503],
    ),
)];

/// The endpoints at `/backup`.
pub(super) const BACKUP: &[Endpoint] = &[endpoint(
    Method::GET,
    Operation::BackUp,
    |call| Box::pin(back_up(call)),
    doc(
        "getBackup",
        "All that the server knows, as `latchfs cluster restore` takes it.",
        &[],
        (200, Schema::Text("application/octet-stream")),
        &[403, 404, 503],
    ),
)];

/// The endpoints at `/grant-now`.
pub(super) const GRANT_NOW: &[Endpoint] = &[endpoint(
    Method::POST,
    Operation::GrantNow,
    |call| Box::pin(grant_now(call)),
    doc(
        "endHoldOff",
        "Grant locks from now on, although the time is not over in which nothing is granted after \
         a start without state, a restore or a recovery.",
        &[CLIENT, REASON, IDEMPOTENCY_KEY],
        (200, Schema::Changed),
        &[400, 403, 415, 503],
    ),
)];

/// Handles `POST /grant-now`, which ends the hold-off.
async fn grant_now(mut call: RequestContext) -> HandlerResult {
    let options = RequestOptions::read(&mut call).await?;
    let by = options.client(&call)?;
    let request = request_id(&call, &options, &by)?;
    let Some(reason) = options.reason else {
        let detail = "say by 'reason' why no client can rely on an old lease any more";
        return Err(Problem::invalid(detail));
    };
    match call.decide(Op::EndHoldOff(EndHoldOff { by, reason }), request).await?.first() {
        Outcome::HoldOffEnded => Ok(json(StatusCode::OK, &json!({ "done": true }))),
        other => Err(unexpected(&other)),
    }
}

/// Handles `POST /reset`, which ends all leases, queues and sessions.
async fn reset(mut call: RequestContext) -> HandlerResult {
    let mut options = RequestOptions::read(&mut call).await?;
    let by = options.client(&call)?;
    let request = request_id(&call, &options, &by)?;
    let Some(whose) = options.whose.take() else {
        let detail = "a reset needs exactly one of keep=CLIENT,CLIENT (all others), of=CLIENT \
            and all=true";
        return Err(Problem::invalid(detail));
    };
    let Some(reason) = options.reason else {
        return Err(Problem::invalid("a reset needs a reason, which the holders will read"));
    };
    let outcome = call.decide(Op::Reset(Reset::new(whose, by, reason)), request).await?;
    let is_replay = matches!(outcome, Outcome::Replayed(_));
    match outcome.first() {
        Outcome::Reset { holds, waits } => {
            let done = json!({ "holds": holds, "waits": waits });
            let answer = || json(StatusCode::OK, &done);
            Ok(if is_replay { event_replay::marked(StatusCode::OK, &done, None) } else { answer() })
        }
        other => Err(unexpected(&other)),
    }
}

/// Handles `GET /backup`, which returns a backup of the engine's state.
async fn back_up(mut call: RequestContext) -> HandlerResult<Response> {
    RequestOptions::read(&mut call).await?;
    let (then, state) = oneshot::channel();
    call.app.locks.state(|state| drop(then.send(state)));
    let Some(state) = told(state.await)? else {
        let detail = "this server holds no lock state; send the request to the server that does";
        return Err(Problem::plain(StatusCode::NOT_FOUND, detail));
    };
    call.audited().acts(&call.app.locks, Operation::BackUp, None, "done").await;
    let kind = HeaderValue::from_static("application/octet-stream");
    Ok(text(StatusCode::OK, kind, backup::write(call.app.locks.engine_id(), Wall::now(), &state)))
}
