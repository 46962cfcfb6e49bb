//! Whether the server lives, and whether it may be asked for locks.

use super::app_state::ShutdownPhase;
use super::problem::{HandlerResult, Problem};
use super::request_context::RequestContext;
use super::response::{Response, json};
use crate::service::RequestError;
use axum::http::StatusCode;
use serde_json::json;

/// It lives, or there would be no answer.
pub(super) fn alive() -> Response {
    json(StatusCode::OK, &json!({ "status": "alive" }))
}

/// It grants locks; or it says that it is on its way out, or that nobody knows yet who decides.
pub(super) fn ready(call: &RequestContext) -> HandlerResult<Response> {
    match call.app.phase() {
        ShutdownPhase::Serving => {
            call.app.locks.ready().map_err(RequestError::Unavailable)?;
            Ok(json(StatusCode::OK, &json!({ "status": "ready" })))
        }
        ShutdownPhase::Draining | ShutdownPhase::Closing => Err(Problem::closing()),
    }
}
