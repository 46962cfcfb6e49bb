//! The answer that shows a granted lock: from its tenure alone, or after a look at the lock.

use super::event_replay::{self, unexpected};
use super::grant_response::GrantResponse;
use super::problem::{HandlerResult, Problem};
use super::request_context::RequestContext;
use crate::engine::{ClientId, Lifetime, LockName, Outcome, Reason, Refusal, Tenure};
use crate::service::RequestError;

/// The answer to a lock that was granted, renewed or stolen.
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
        // It hangs on a session, whose end only the engine knows.
        None => Box::pin(show_tenure(call, of.0, tenure, renewed)).await,
    }
}

/// Shows a tenure as it stands now.
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

/// It was granted, and is over already.
fn over(name: &LockName, tenure: &Tenure) -> Problem {
    let (name, token) = (name.clone(), tenure.token);
    let reason = Box::new(Reason::Expired { name, token });
    let at = tenure.acquired_at;
    Problem::from_failure(&RequestError::Refused(Refusal { at, reason }))
}
