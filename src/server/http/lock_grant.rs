//! Responses that show a granted lock: built from the tenure alone, or after a query for the lock.

use super::event_replay::{self, unexpected};
use super::grant_response::GrantResponse;
use super::problem::{HandlerResult, Problem};
use super::request_context::RequestContext;
use crate::engine::{ClientId, Lifetime, LockName, Outcome, Reason, Refusal, Tenure};
use crate::service::RequestError;

/// Returns the response to a request whose lock was granted, renewed or stolen, or to a repeat of
/// such a request by its Idempotency-Key.
pub(super) async fn granted(
    call: &RequestContext,
    of: (&LockName, &ClientId),
    outcome: &Outcome,
) -> HandlerResult {
    let (tenure, renewed) = match outcome {
        Outcome::Granted(tenure) | Outcome::Stolen(tenure) => (tenure, false),
        Outcome::Renewed(tenure) => (tenure, true),
        Outcome::Replayed(first) => return Box::pin(event_replay::granted(call, of, first)).await,
        other => return Err(unexpected(other)),
    };
    match GrantResponse::of(&call.app.locks, of, tenure, renewed) {
        Some(granted) => Ok(granted.into_response()),
        // The lease is attached to a session. Only the engine knows when that session ends, so the
        // response needs a query.
        None => Box::pin(show_tenure(call, of.0, tenure, renewed)).await,
    }
}

/// Queries the lock, and returns the response with the current state of the tenure.
pub(super) async fn show_tenure(
    call: &RequestContext,
    name: &LockName,
    tenure: &Tenure,
    renewed: bool,
) -> HandlerResult {
    if let Lifetime::Session(id) = tenure.life {
        call.app.chronicle.hang(id, tenure.token);
    }
    let view = call.view(name).await?;
    let granted = GrantResponse::in_view(&call.app.locks, &view, tenure, renewed);
    granted.map(GrantResponse::into_response).ok_or_else(|| over(name, tenure))
}

/// Returns the error for a lease that was granted but has ended since.
fn over(name: &LockName, tenure: &Tenure) -> Problem {
    let (name, token) = (name.clone(), tenure.token);
    let reason = Box::new(Reason::Expired { name, token });
    let at = tenure.acquired_at;
    Problem::from_failure(&RequestError::Refused(Refusal { at, reason }))
}
