//! The liveness and readiness probes, `/healthz` and `/readyz`.

use super::app_state::ShutdownPhase;
use super::problem::{HandlerResult, Problem};
use super::request_context::RequestContext;
use super::response::{Response, json};
use crate::engine::{HoldOff, RefusalKind};
use crate::service::{Locks, RequestError};
use axum::http::StatusCode;
use serde_json::json;

/// Handles `GET /healthz`: always succeeds, because a process that responds is alive.
pub(super) fn alive() -> Response {
    json(StatusCode::OK, &json!({ "status": "alive" }))
}

/// Handles `GET /readyz`: succeeds if the server grants locks, and fails while it shuts down, while
/// the lock service is unavailable, for example without a leader, or during the hold-off.
pub(super) fn ready(call: &RequestContext) -> HandlerResult<Response> {
    match call.app.phase() {
        ShutdownPhase::Serving => {
            let locks = &call.app.locks;
            locks.grants().map_err(RequestError::Unavailable)?;
            if let Some(hold_off) = locks.hold_off() {
                return Err(held_off(&hold_off, locks));
            }
            Ok(json(StatusCode::OK, &json!({ "status": "ready" })))
        }
        ShutdownPhase::Draining | ShutdownPhase::Closing => Err(Problem::closing()),
    }
}

/// Returns the problem of a server that grants nothing yet.
fn held_off(hold_off: &HoldOff, locks: &Locks) -> Problem {
    let until = locks.wall(hold_off.until);
    let said = hold_off.sentence(until);
    let detail = format!(
        "{said}; requests that wait are queued, and POST /grant-now?reason=WHY ends that if no \
         client can rely on an old lease any more"
    );
    let problem = Problem::of(RefusalKind::ConsistencyUnavailable, detail);
    problem.not_before(hold_off, locks.now()).with("until", until.to_string())
}
