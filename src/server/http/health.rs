//! The liveness and readiness probes, `/healthz` and `/readyz`.

use super::app_state::ShutdownPhase;
use super::problem::{HandlerResult, Problem};
use super::request_context::RequestContext;
use super::response::{Response, json};
use crate::service::RequestError;
use axum::http::StatusCode;
use serde_json::json;

/// Handles `GET /healthz`: always succeeds, because a process that responds is alive.
pub(super) fn alive() -> Response {
    json(StatusCode::OK, &json!({ "status": "alive" }))
}

/// Handles `GET /readyz`: succeeds if the server grants locks, and fails while it shuts down or
/// while the lock service is unavailable, for example without a leader.
pub(super) fn ready(call: &RequestContext) -> HandlerResult<Response> {
    match call.app.phase() {
        ShutdownPhase::Serving => {
            call.app.locks.grants().map_err(RequestError::Unavailable)?;
            Ok(json(StatusCode::OK, &json!({ "status": "ready" })))
        }
        ShutdownPhase::Draining | ShutdownPhase::Closing => Err(Problem::closing()),
    }
}
