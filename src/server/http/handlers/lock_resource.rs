//! The endpoints at `/locks/{name}`: status, acquire, renew, release, steal.
//!
//! The single-lock API at `/lock`: acquire, release and show the lock `default`. Existing clients
//! depend on its exact fields, status codes and error messages. Identifiers in the code call this
//! API `seed`.

use super::grant_response::{serialized, tagged};
use super::list::aged;
use super::wait_for_lock;
use crate::engine::{
    Acquire, ClientId, Firm, Grace, Holder, IdempotencyKey, LeaseKey, LeaseTerms, Lifetime,
    LockName, Mode, Op, Outcome, Ownership, Patch, Phase, RefusalKind, Release, Renew, SessionId,
    Steal, Token, Ttl,
};
use crate::server::http::bodies::options::{Consistency, RequestOptions, name_in, request_id};
use crate::server::http::bodies::problem::{HandlerResult, LEFT_QUEUE, Problem};
use crate::server::http::bodies::response::json;
use crate::server::http::handlers::grant_response;
use crate::server::http::handlers::grant_response::granted;
use crate::server::http::handlers::grant_response::unexpected;
use crate::server::http::handlers::sessions::leave_queue;
use crate::server::http::request_context::RequestContext;
use crate::status::status_of;
use crate::time::{Span, Time};
use axum::http::StatusCode;
use serde::Serialize;
use serde_json::{Map, Value, json};

/// The path prefix before the name of a lock.
const BELOW: &str = "/locks/";

/// Path suffix of a POST that steals a lock. For a lock whose own name ends in `/steal`, the client
/// writes its last slash as `%2F`.
const STEAL: &str = "/steal";

/// Returns the name of the lock in the path of a request.
fn name_of(call: &RequestContext) -> HandlerResult<LockName> {
    name_in(call.head.uri.path().strip_prefix(BELOW).unwrap_or_default())
}

/// Handles `GET /locks/{name}`: returns the status of the lock, even if it is free.
pub(in crate::server::http) async fn get_lock(mut call: RequestContext) -> HandlerResult {
    let name = name_of(&call)?;
    let options = RequestOptions::read(&mut call).await?;
    if options.consistency == Consistency::Stale {
        let known = call.known(&name).await?;
        let status = status_of(&known.it, |at| call.app.locks.wall(at));
        return Ok(json(StatusCode::OK, &aged(status, known.age)));
    }
    let view = call.view(&name).await?;
    let response = json(StatusCode::OK, &status_of(&view, |at| call.app.locks.wall(at)));
    Ok(match view.holder() {
        Some(holder) => tagged(response, holder.lease.token),
        None => response,
    })
}

/// Returns the name of the lock in `path`, if it is the path of a steal.
pub(in crate::server::http) fn steal_of(path: &str) -> Option<&str> {
    let name = path.strip_prefix(BELOW)?.strip_suffix(STEAL)?;
    (!name.is_empty()).then_some(name)
}

/// Handles `PUT` and `POST` to `/locks/{name}`: acquires the lock, or waits for it if the request
/// says so. With a fencing token, the request only renews the lease that has that token.
///
/// A lock that the client itself holds is a conflict like the lock of another client, unless the
/// request names the session to which the lease is attached, or sets `reentrant`.
pub(in crate::server::http) async fn acquire(mut call: RequestContext) -> HandlerResult {
    let name = name_of(&call)?;
    let options = RequestOptions::read(&mut call).await?;
    let client = options.client(&call)?;
    let request = request_id(&call, &options, &client)?;
    if options.token.is_some() && options.remember {
        let detail = "'remember' is for an acquire, and a token renews; leave one of them out";
        return Err(Problem::invalid(detail));
    }
    if options.token.is_some() {
        return Box::pin(keep(&call, name, client, &options, request, true)).await;
    }
    let term = call.term(&options, options.ttl, options.grace);
    let patch = patch_of(&options);
    let hold = if options.reentrant { Ownership::Client } else { Ownership::Exclusive(None) };
    let mode = match (options.mode, options.max) {
        (Some(_), Some(_)) => {
            return Err(Problem::invalid("'max' is a mode of its own; leave 'mode' out"));
        }
        (None, Some(seats)) => Mode::Seats(seats),
        (mode, None) => mode.unwrap_or(Mode::Exclusive),
    };
    let remember = options.remember;
    let ask = Acquire { mode, hold, patch, remember, ..Acquire::new(name, client, term) };
    let answer = call.decide(Op::Acquire(ask.clone()), request.clone()).await;
    // The futures of rare cases are boxed, so that the future of the common case stays small.
    match answer {
        Ok(Outcome::Replayed(first)) if matches!(first.first, Outcome::Waiting { .. }) => {
            Box::pin(wait(&call, ask, &options, request)).await
        }
        Ok(Outcome::Replayed(first)) if matches!(first.first, Outcome::Settled) => {
            Err(Box::pin(wait_for_lock::refused_before(&call, &ask)).await)
        }
        Ok(outcome) => granted(&call, &ask.name, &ask.client, &outcome).await,
        Err(problem) if problem.reason().is_some() => {
            Box::pin(acquire_held(&call, ask, &options, request, problem)).await
        }
        Err(problem) => Err(problem),
    }
}

/// Handles an acquire of a lock that is held: renews the client's lease if it is attached to the
/// session that the request names, waits if the request says so, or refuses.
async fn acquire_held(
    call: &RequestContext,
    ask: Acquire,
    options: &RequestOptions,
    request: Option<IdempotencyKey>,
    problem: Problem,
) -> HandlerResult {
    if problem.reason() == Some(LEFT_QUEUE) {
        return Err(problem);
    }
    if let Some(session) = options.session
        && let Some(token) = held_by_session(call, &ask, session).await?
    {
        let key =
            LeaseKey { name: ask.name.clone(), client: ask.client.clone(), token: Some(token) };
        let patch = ask.patch.clone();
        let renewal = Renew { key, term: None, firm: Firm::Keep, patch, acquires: true };
        // Only an acquire can have a name remembered.
        let renewal_op = if ask.remember {
            Op::Acquire(Acquire { hold: Ownership::Client, ..ask.clone() })
        } else {
            Op::Renew(renewal)
        };
        let outcome = call.decide(renewal_op, request).await?;
        return granted(call, &ask.name, &ask.client, &outcome).await;
    }
    match (options.wait, request) {
        (None | Some(Span::ZERO), Some(request)) => {
            wait_for_lock::refuse_for_good(call, &ask, request, problem).await
        }
        (None, _) => Err(problem),
        (Some(_), request) => wait(call, ask, options, request).await,
    }
}

/// Returns the token of the client's lease that is attached to `session`, if it holds the lock in
/// the requested mode.
async fn held_by_session(
    call: &RequestContext,
    ask: &Acquire,
    session: SessionId,
) -> HandlerResult<Option<Token>> {
    let view = call.view(&ask.name).await?;
    let of_session = |holder: &&Holder| {
        holder.lease.holder == ask.client && holder.lease.life == Lifetime::Session(session)
    };
    let own = view.holders.iter().find(of_session).filter(|_| view.mode == ask.mode);
    Ok(own.map(|own| own.lease.token))
}

async fn wait(
    call: &RequestContext,
    ask: Acquire,
    options: &RequestOptions,
    request: Option<IdempotencyKey>,
) -> HandlerResult {
    let patience = options.wait.unwrap_or_default();
    match request {
        Some(request) => wait_for_lock::wait_by_id(call, ask, patience, request).await,
        None => wait_for_lock::wait(call, ask, patience).await,
    }
}

/// Handles `PATCH /locks/{name}`: renews a lease, and never acquires the lock.
pub(in crate::server::http) async fn renew(mut call: RequestContext) -> HandlerResult {
    let name = name_of(&call)?;
    let options = RequestOptions::read(&mut call).await?;
    let client = options.client(&call)?;
    let request = request_id(&call, &options, &client)?;
    keep(&call, name, client, &options, request, false).await
}

async fn keep(
    call: &RequestContext,
    name: LockName,
    client: ClientId,
    options: &RequestOptions,
    request: Option<IdempotencyKey>,
    acquires: bool,
) -> HandlerResult {
    let term = match (options.session, options.ttl, options.grace) {
        (None, None, None) => None,
        (None, ttl, grace) => {
            let (ttl, grace) = missing(call, &name, &client, ttl, grace).await?;
            Some(LeaseTerms::Own(ttl, grace))
        }
        (Some(session), ..) => Some(LeaseTerms::Session(session)),
    };
    let (lock, owner) = (name.clone(), client.clone());
    let key = LeaseKey { name, client, token: options.token };
    let ask = Renew { key, term, firm: Firm::Keep, patch: patch_of(options), acquires };
    let outcome = call.decide(Op::Renew(ask), request).await?;
    granted(call, &lock, &owner, &outcome).await
}

/// Returns the ttl and grace of a renewal: those of the request, or else those that the lease has.
async fn missing(
    call: &RequestContext,
    name: &LockName,
    client: &ClientId,
    ttl: Option<Ttl>,
    grace: Option<Grace>,
) -> HandlerResult<(Ttl, Grace)> {
    if let (Some(ttl), Some(grace)) = (ttl, grace) {
        return Ok((ttl, grace));
    }
    let view = call.view(name).await?;
    let (own_ttl, own_grace) = match view.held_by(client) {
        Some(own) => (own.ends.ttl, own.ends.grace),
        None => (call.app.ttl, call.app.grace),
    };
    Ok((ttl.unwrap_or(own_ttl), grace.unwrap_or(own_grace)))
}

/// Handles `DELETE /locks/{name}`: releases the lock, or leaves its queue if the client only waits.
pub(in crate::server::http) async fn release(mut call: RequestContext) -> HandlerResult {
    let name = name_of(&call)?;
    let options = RequestOptions::read(&mut call).await?;
    let client = options.client(&call)?;
    let request = request_id(&call, &options, &client)?;
    let key = LeaseKey { name: name.clone(), client: client.clone(), token: options.token };
    let (acquisition, handover) = (options.acquisition, options.handover()?);
    let release = Release { acquisition, handover, ..Release::of(key) };
    let outcome = match call.decide(Op::Release(release), request).await {
        Err(problem) if problem.is(RefusalKind::LockNotHeld) && options.token.is_none() => {
            return match Box::pin(leave_queue(&call, &name, &client)).await? {
                0 => Err(problem),
                left => {
                    let left = json!({ "name": name.as_str(), "released": false, "left": left });
                    Ok(json(StatusCode::OK, &left))
                }
            };
        }
        // A job that releases twice, such as at its end and in a trap, has not failed.
        Err(problem) if problem.is(RefusalKind::LockExpired) => {
            let chronicle = &call.app.chronicle;
            let again = |token| chronicle.was_released(&name, &client, token);
            if !options.token.is_some_and(again) {
                return Err(problem);
            }
            let again = json!({ "name": name.as_str(), "released": false });
            return Ok(json(StatusCode::OK, &again));
        }
        outcome => outcome?,
    };
    let released = json!({ "name": name.as_str(), "released": true });
    match outcome {
        Outcome::Released => Ok(json(StatusCode::OK, &released)),
        Outcome::Replayed(_) => {
            Box::pin(grant_response::replayed_on_lock(&call, &name, &released)).await
        }
        other => Err(unexpected(&other)),
    }
}

/// Handles `POST /locks/{name}/steal`: takes the lock from its holder.
pub(in crate::server::http) async fn steal(mut call: RequestContext) -> HandlerResult {
    let name = name_in(steal_of(call.head.uri.path()).unwrap_or_default())?;
    let options = RequestOptions::read(&mut call).await?;
    let client = options.client(&call)?;
    let request = request_id(&call, &options, &client)?;
    let Some(reason) = options.reason.clone() else {
        let detail = "a steal needs a reason; add reason=WORDS";
        return Err(Problem::invalid(detail));
    };
    let term = call.term(&options, options.ttl, options.grace);
    let (lock, owner) = (name.clone(), client.clone());
    let (patch, at_once, only) = (patch_of(&options), options.now, options.token);
    let ask = Steal { name, only, client, reason, term, patch, at_once };
    let outcome = call.decide(Op::Steal(ask), request).await?;
    granted(&call, &lock, &owner, &outcome).await
}

fn patch_of(options: &RequestOptions) -> Patch {
    Patch { note: options.note.clone(), ..Patch::default() }
}

impl RequestContext {
    /// Returns what keeps a new lease alive: the session that the request names, or renewals within
    /// its own ttl.
    pub(in crate::server::http) fn term(
        &self,
        options: &RequestOptions,
        ttl: Option<Ttl>,
        grace: Option<Grace>,
    ) -> LeaseTerms {
        match options.session {
            Some(session) => LeaseTerms::Session(session),
            None => LeaseTerms::Own(ttl.unwrap_or(self.app.ttl), grace.unwrap_or(self.app.grace)),
        }
    }
}

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
pub(in crate::server::http) async fn acquire_default(mut call: RequestContext) -> HandlerResult {
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

/// Adds the fields of the single-lock API to the problem of a conflict. `expires_at` is null if no
/// deadline ends the lease in the way.
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
pub(in crate::server::http) async fn show_default(mut call: RequestContext) -> HandlerResult {
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
pub(in crate::server::http) async fn release_default(mut call: RequestContext) -> HandlerResult {
    let options = RequestOptions::read(&mut call).await?;
    let client = options.client(&call)?;
    let key = LeaseKey { name: default_lock(), client, token: None };
    match call.decide(Op::Release(Release::of(key)), None).await? {
        Outcome::Released => Ok(json(StatusCode::OK, &json!({ "released": true }))),
        other => Err(unexpected(&other)),
    }
}
