//! Responses to requests that were granted or renewed a lock. They are frequent, so they are built
//! from the tenure (the answer's token, expiry and other data of the grant), without a query for
//! the lock where possible.
//!
//! Responses to repeated requests with the same Idempotency-Key: the first response as it was,
//! marked as a replay, and the current state beside it. The tenure in the first response may be
//! over, so the first response alone would not tell the current state.

use crate::engine::{
    ClientId, Ends, Lifetime, LockName, LockView, Outcome, Reason, Refusal, Replay, Tenure, Token,
};
use crate::server::http::bodies::problem::{HandlerResult, Problem};
use crate::server::http::bodies::response::{Response, json, text};
use crate::server::http::handlers::sessions;
use crate::server::http::request_context::RequestContext;
use crate::service::{LockService, RequestError};
use crate::status::{previous_of, status_of};
use crate::time::Time;
use axum::http::header::ETAG;
use axum::http::{HeaderName, HeaderValue, StatusCode};
use serde::Serialize;
use serde_json::Value;
use std::sync::Arc;

/// The response body for a tenure that was granted or renewed; the fields that the single-lock API
/// has too come first.
#[derive(Debug, Serialize)]
pub(in crate::server::http) struct GrantResponse<'a> {
    name: &'a str,
    holder: &'a str,
    expires_at: Option<String>,
    grace_until: Option<String>,
    phase: &'static str,
    token: u64,
    acquisition: u32,
    /// The number of the holder's seat; missing if the lock has no seats.
    #[serde(skip_serializing_if = "Option::is_none")]
    seat: Option<u16>,
    expires_in_ms: Option<u64>,
    /// After a steal: the time until the new tenure begins. Before that time no client may use the
    /// lock.
    #[serde(skip_serializing_if = "Option::is_none")]
    begins_in_ms: Option<u64>,
    ttl_ms: u64,
    grace_ms: u64,
    renewed: bool,
    /// The memory of the name at the grant; missing if the name is not remembered.
    #[serde(skip_serializing_if = "Option::is_none")]
    previous: Option<Value>,
    #[serde(skip)]
    tag: Token,
}

impl<'a> GrantResponse<'a> {
    /// Builds the response from the tenure, which the lock service returns for a grant or renewal,
    /// without a query for the lock. Returns `None` if the lease is attached to a session, because
    /// the tenure does not tell when the session ends.
    pub(in crate::server::http) fn of(
        locks: &Arc<dyn LockService>,
        name: &'a LockName,
        client: &'a ClientId,
        tenure: &Tenure,
        renewed: bool,
    ) -> Option<Self> {
        let Lifetime::Own { ttl, grace, expires_at } = tenure.life else { return None };
        let ends = Ends { expires_at, grace_until: expires_at + grace.span(), ttl, grace };
        Some(Self::ending(locks, name, client, tenure, &ends, renewed, locks.now()))
    }

    /// Builds the response from the state of the lock. Returns `None` if the tenure is no longer
    /// among the lock's holders.
    pub(super) fn in_view(
        locks: &Arc<dyn LockService>,
        view: &'a LockView,
        tenure: &Tenure,
        renewed: bool,
    ) -> Option<Self> {
        let holder = view.holders.iter().find(|holder| holder.lease.token == tenure.token)?;
        let (name, client) = (&view.name, &holder.lease.holder);
        let shown = Self::ending(locks, name, client, tenure, &holder.ends, renewed, locks.now());
        // A waiter learns only its token from the event of its grant.
        let seen = view.previous.as_ref().filter(|_| tenure.previous.is_none());
        let seen = seen.map(|known| previous_of(known, |at| locks.wall(at)));
        Some(Self { previous: shown.previous.or(seen), seat: holder.lease.seat, ..shown })
    }

    /// Builds the response from the tenure and from its expiry `ends`, with remaining times counted
    /// from `now`.
    pub(in crate::server::http) fn ending(
        locks: &Arc<dyn LockService>,
        name: &'a LockName,
        client: &'a ClientId,
        tenure: &Tenure,
        ends: &Ends,
        renewed: bool,
        now: Time,
    ) -> Self {
        let shown = |at: Time| (at != Time::NEVER).then(|| locks.wall(at).to_string());
        let early = tenure.acquired_at.since(now).as_millis();
        let lasts = ends.expires_at != Time::NEVER;
        Self {
            name: name.as_str(),
            holder: client.as_str(),
            expires_at: shown(ends.expires_at),
            grace_until: shown(ends.grace_until),
            phase: ends.phase(now).as_str(),
            token: tenure.token.as_u64(),
            acquisition: tenure.acquisition,
            seat: tenure.seat,
            expires_in_ms: lasts.then(|| ends.left(now).as_millis()),
            begins_in_ms: (early > 0).then_some(early),
            ttl_ms: ends.ttl.span().as_millis(),
            grace_ms: ends.grace.span().as_millis(),
            renewed,
            previous: tenure.previous.as_ref().map(|known| previous_of(known, |at| locks.wall(at))),
            tag: tenure.token,
        }
    }

    /// Serializes the response, with the fencing token as its entity tag.
    pub(in crate::server::http) fn into_response(self) -> Response {
        tagged(serialized(StatusCode::OK, &self), self.tag)
    }
}

/// Returns a JSON response. Serialization of the value must not fail.
pub(in crate::server::http) fn serialized(status: StatusCode, value: &impl Serialize) -> Response {
    let mut body = serde_json::to_vec(value).expect("keys are texts, and nothing fails to write");
    body.push(b'\n');
    text(status, HeaderValue::from_static("application/json"), body)
}

/// Sets the entity tag of a response to the fencing token.
pub(in crate::server::http) fn tagged(mut response: Response, token: Token) -> Response {
    let tag = format!("\"{token}\"");
    let tag = HeaderValue::try_from(tag).expect("digits in quotes are a header value");
    response.headers_mut().insert(ETAG, tag);
    response
}

/// Returns the response to a request whose lock was granted, renewed or stolen, or to a repeat of
/// such a request by its Idempotency-Key.
pub(in crate::server::http) async fn granted(
    call: &RequestContext,
    name: &LockName,
    client: &ClientId,
    outcome: &Outcome,
) -> HandlerResult {
    let (tenure, renewed) = match outcome {
        Outcome::Granted(tenure) | Outcome::Stolen(tenure) => (tenure, false),
        Outcome::Renewed(tenure) => (tenure, true),
        Outcome::Replayed(first) => {
            return Box::pin(replayed_grant(call, name, client, first)).await;
        }
        other => return Err(unexpected(other)),
    };
    match GrantResponse::of(&call.app.locks, name, client, tenure, renewed) {
        Some(granted) => Ok(granted.into_response()),
        // The lease is attached to a session. Only the engine knows when that session ends, so the
        // response needs a query.
        None => Box::pin(show_tenure(call, name, tenure, renewed)).await,
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

/// The header that marks a response as a replay.
pub(in crate::server::http) const REPLAYED: HeaderName =
    HeaderName::from_static("idempotent-replayed");

/// Returns the response to a repeated acquire, renewal or steal: the first response, with the
/// current state of the lock.
pub(in crate::server::http) async fn replayed_grant(
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
pub(in crate::server::http) async fn replayed_on_lock(
    call: &RequestContext,
    name: &LockName,
    first: &Value,
) -> HandlerResult {
    Ok(marked(StatusCode::OK, first, Some(lock_now(call, name).await?)))
}

/// Returns the response to a repeated request that opened a session. The current state is null if
/// the session is over.
pub(in crate::server::http) async fn replayed_session(
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
pub(in crate::server::http) fn marked(
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
pub(in crate::server::http) fn unexpected(outcome: &Outcome) -> Problem {
    log::error!("a request came to an outcome of another kind: {outcome:?}");
    let detail = "the engine gave an answer of another kind; look at the lock before you go on";
    Problem::plain(StatusCode::INTERNAL_SERVER_ERROR, detail)
}
