//! The single-lock API at `/lock`: acquire, release and show the lock `default`. Existing clients
//! depend on its exact fields, status codes and error messages. Identifiers in the code call this
//! API `seed`.

use super::event_replay::unexpected;
use super::grant_response::{serialized, tagged};
use super::options::RequestOptions;
use super::problem::{HandlerResult, Problem};
use super::request_context::RequestContext;
use super::response::json;
use crate::engine::{
    Acquire, LeaseKey, LeaseTerms, Lifetime, LockName, Op, Outcome, Phase, Release,
};
use crate::status::status_of;
use crate::time::Time;
use axum::http::StatusCode;
use serde::Serialize;
use serde_json::{Map, Value, json};

/// The name of the only lock of the single-lock API.
const DEFAULT: &str = "default";

/// Error message for a lock that is in its grace period.
const IN_GRACE: &str = "grace period active";

/// Error message for every conflict outside the grace period.
const HELD: &str = "lock is held by another client";

/// The fields of a status in the single-lock API, in order.
const FIELDS: [&str; 5] = ["holder", "expires_at", "is_expired", "grace_until", "token"];

#[derive(Serialize)]
struct Acquired<'a> {
    holder: &'a str,
    expires_at: Option<String>,
    token: u64,
}

fn default_lock() -> LockName {
    LockName::parse(DEFAULT).expect("it is a name")
}

/// Handles `POST /lock`: acquires the lock `default`.
pub(super) async fn acquire(mut call: RequestContext) -> HandlerResult {
    let options = RequestOptions::read(&mut call).await?;
    let client = options.client(&call)?;
    let term = LeaseTerms::Own(options.ttl.unwrap_or(call.app.ttl), call.app.grace);
    let ask = Acquire::new(default_lock(), client.clone(), term);
    let outcome = call.decide(Op::Acquire(ask), None).await;
    let outcome = outcome.map_err(|problem| in_seeds_words(&call, problem))?;
    let (Outcome::Granted(tenure) | Outcome::Renewed(tenure)) = outcome else {
        return Err(unexpected(&outcome));
    };
    let expires_at = match tenure.life {
        Lifetime::Own { expires_at, .. } => Some(call.app.locks.wall(expires_at).to_string()),
        Lifetime::Session(_) => None,
    };
    let token = tenure.token.as_u64();
    let acquired = Acquired { holder: client.as_str(), expires_at, token };
    Ok(tagged(serialized(StatusCode::OK, &acquired), tenure.token))
}

/// Adds the seed's fields to the problem of a conflict. `expires_at` is null if no deadline ends
/// the lease in the way.
fn in_seeds_words(call: &RequestContext, problem: Problem) -> Problem {
    let message = match problem.reason() {
        Some("grace") => IN_GRACE,
        Some(_) => HELD,
        None => return problem,
    };
    let ends = problem.expires_at().filter(|at| *at != Time::NEVER);
    let expires_at = ends.map(|at| call.app.locks.wall(at).to_string());
    problem.with("message", message).with("expires_at", expires_at)
}

/// Handles `GET /lock`: returns the status of the lock `default`.
pub(super) async fn show(mut call: RequestContext) -> HandlerResult {
    RequestOptions::read(&mut call).await?;
    let view = call.view(&default_lock()).await?;
    let Value::Object(status) = status_of(&view, |at| call.app.locks.wall(at)) else {
        unreachable!("a status is an object");
    };
    debug_assert!(status["phase"] != Phase::Free.as_str() || status["holder"] == "");
    let kept = status.into_iter().filter(|(key, _)| FIELDS.contains(&key.as_str()));
    let response = json(StatusCode::OK, &Value::Object(kept.collect::<Map<_, _>>()));
    Ok(match view.holder() {
        Some(holder) => tagged(response, holder.lease.token),
        None => response,
    })
}

/// Handles `DELETE /lock`: releases the lock `default`.
pub(super) async fn release(mut call: RequestContext) -> HandlerResult {
    let options = RequestOptions::read(&mut call).await?;
    let client = options.client(&call)?;
    let key = LeaseKey { name: default_lock(), client, token: None };
    match call.decide(Op::Release(Release::of(key)), None).await? {
        Outcome::Released => Ok(json(StatusCode::OK, &json!({ "released": true }))),
        other => Err(unexpected(&other)),
    }
}
