//! The endpoints about many locks: pages of locks, checks of fencing tokens, and recently ended
//! tenures.
//!
//! The endpoints at `/locks/{name}/previous`: what is remembered of the name of a lock beyond the
//! tenure.

use crate::engine::{
    Annotate, Forget, Handover, LeaseKey, LockName, LockView, Op, Outcome, Patch, Phase, Token,
};
use crate::server::http::bodies::options::{Consistency, RequestOptions, name_in, request_id};
use crate::server::http::bodies::problem::{HandlerResult, Problem};
use crate::server::http::bodies::response::json;
use crate::server::http::handlers::grant_response;
use crate::server::http::handlers::grant_response::unexpected;
use crate::server::http::request_context::RequestContext;
use crate::service::ListedNames::{InUse, Remembered};
use crate::service::{List, ListPage, scoped_views};
use crate::status::{kind_of_end, previous_of, status_of, with_end};
use crate::time::Span;
use axum::http::{Method, StatusCode};
use serde_json::{Value, json};

/// Maximum number of locks on one page, which makes about half a megabyte.
const PAGE_MAX: usize = 1_000;

/// Handles `GET /locks`: returns a page of locks.
pub(in crate::server::http) async fn list(mut call: RequestContext) -> HandlerResult {
    let options = RequestOptions::read(&mut call).await?;
    let limit = options.limit.unwrap_or(PAGE_MAX).min(PAGE_MAX);
    let query = List { prefix: options.prefix, after: options.after, limit };
    let names = if options.remembered { Remembered } else { InUse };
    let (locks, visible) = (&call.app.locks, call.grant.narrowed(&query.prefix));
    let shown = |page: &ListPage<LockView>| {
        let shown = page.items.iter().map(|view| status_of(view, |at| locks.wall(at)));
        json!({ "locks": shown.collect::<Vec<_>>(), "next": page.next })
    };
    if options.consistency == Consistency::Stale {
        let known = scoped_views::known_list(&**locks, names, visible, query).await?;
        return Ok(json(StatusCode::OK, &aged(shown(&known.it), known.age)));
    }
    let page = scoped_views::list(&**locks, names, visible, query).await?;
    Ok(json(StatusCode::OK, &shown(&page)))
}

/// Adds the maximum age of the returned state to the result of a stale read, as `age_ms`.
pub(super) fn aged(mut shown: Value, age: Option<Span>) -> Value {
    shown["age_ms"] = age.map(Span::as_millis).into();
    shown
}

/// Handles `POST /check`: checks whether fencing tokens are current.
pub(in crate::server::http) async fn check(mut call: RequestContext) -> HandlerResult {
    let options = RequestOptions::read(&mut call).await?;
    match (options.name, options.token, options.checks) {
        (Some(name), Some(token), checks) if checks.is_empty() => {
            let checked = check_one(&call, name, token).await?;
            Ok(json(StatusCode::OK, &checked))
        }
        (None, None, checks) if !checks.is_empty() => {
            let mut checked = Vec::with_capacity(checks.len());
            for (name, token) in checks {
                checked.push(check_one(&call, name, token).await?);
            }
            Ok(json(StatusCode::OK, &json!({ "checks": checked })))
        }
        _ => Err(Problem::invalid(
            "say either name and token, or checks, a list of objects with a name and a token",
        )),
    }
}

async fn check_one(call: &RequestContext, name: LockName, token: Token) -> HandlerResult<Value> {
    let view = call.view(&name).await?;
    let current = view.holders.iter().find(|holder| holder.lease.token == token);
    let phase = current.map_or(Phase::Free, |holder| holder.ends.phase(view.at));
    let newest = view.holders.iter().map(|holder| holder.lease.token).max();
    Ok(json!({
        "name": name.as_str(),
        "token": token.as_u64(),
        "current": current.is_some(),
        "phase": current.map(|_| phase.as_str()),
        "current_token": newest.map(Token::as_u64),
    }))
}

/// Handles `GET /history`: returns recently ended tenures.
pub(in crate::server::http) async fn history(mut call: RequestContext) -> HandlerResult {
    let options = RequestOptions::read(&mut call).await?;
    let now = call.app.locks.now();
    let ended = call.app.chronicle.tenures(now);
    let visible = ended.iter().filter(|tenure| {
        let name = tenure.name.as_str();
        name.starts_with(&options.prefix) && call.grant.may_see(name)
    });
    let tenures: Vec<Value> = visible
        .map(|tenure| {
            let line = json!({
                "name": tenure.name.as_str(),
                "holder": tenure.holder.as_str(),
                "token": tenure.token.as_u64(),
                "ended_ms_ago": now.since(tenure.ended_at).as_millis(),
                "end": kind_of_end(&tenure.end),
            });
            with_end(line, tenure.held, &tenure.end)
        })
        .collect();
    Ok(json(StatusCode::OK, &json!({ "tenures": tenures })))
}

/// The suffix of the paths for what is remembered of a name. For a lock whose own name ends in
/// `/previous`, the client writes its last slash as `%2F`.
const SUFFIX: &str = "/previous";

/// Returns the name of the lock in `path`, if it is the path of what is remembered of a name.
pub(in crate::server::http) fn lock_in(path: &str) -> Option<&str> {
    let name = path.strip_prefix("/locks/")?.strip_suffix(SUFFIX)?;
    (!name.is_empty()).then_some(name)
}

/// Whether a request concerns what is remembered of a name, and no lock.
pub(in crate::server::http) fn is_meant(method: &Method, path: &str) -> bool {
    let is_steal = *method == Method::POST && path.ends_with("/steal");
    lock_in(path).is_some() && !is_steal
}

fn name_of(call: &RequestContext) -> HandlerResult<LockName> {
    name_in(lock_in(call.head.uri.path()).unwrap_or_default())
}

/// Handles `GET /locks/{name}/previous`.
pub(in crate::server::http) async fn get_previous(mut call: RequestContext) -> HandlerResult {
    let name = name_of(&call)?;
    RequestOptions::read(&mut call).await?;
    let view = call.view(&name).await?;
    let mut shown = json!({ "name": name.as_str() });
    if let Some(previous) = &view.previous {
        shown["previous"] = previous_of(previous, |at| call.app.locks.wall(at));
    }
    Ok(json(StatusCode::OK, &shown))
}

/// Handles `PATCH /locks/{name}/previous`: sets the handover of the tenure that holds the lock.
pub(in crate::server::http) async fn set(mut call: RequestContext) -> HandlerResult {
    let name = name_of(&call)?;
    let options = RequestOptions::read(&mut call).await?;
    let client = options.client(&call)?;
    let request = request_id(&call, &options, &client)?;
    let handover = options.handover()?.ok_or_else(|| {
        Problem::invalid("a handover has a text and a counter; add handover=TEXT and counter=N")
    })?;
    let shown = json!({
        "name": name.as_str(),
        "handover": &*handover.text,
        "counter": handover.counter,
    });
    let key = LeaseKey { name: name.clone(), client, token: options.token };
    let annotate = Annotate { key, patch: Patch::default(), handover: Some(handover) };
    match call.decide(Op::Annotate(annotate), request).await? {
        Outcome::Annotated => Ok(json(StatusCode::OK, &shown)),
        Outcome::Replayed(_) => {
            Box::pin(grant_response::replayed_on_lock(&call, &name, &shown)).await
        }
        other => Err(unexpected(&other)),
    }
}

/// Handles `DELETE /locks/{name}/previous`: has the name forgotten.
pub(in crate::server::http) async fn forget(mut call: RequestContext) -> HandlerResult {
    let name = name_of(&call)?;
    let options = RequestOptions::read(&mut call).await?;
    let by = options.client(&call)?;
    let request = request_id(&call, &options, &by)?;
    let shown = json!({ "name": name.as_str(), "remembered": false });
    match call.decide(Op::Forget(Forget { name: name.clone(), by }), request).await? {
        Outcome::Forgotten => Ok(json(StatusCode::OK, &shown)),
        Outcome::Replayed(_) => {
            Box::pin(grant_response::replayed_on_lock(&call, &name, &shown)).await
        }
        other => Err(unexpected(&other)),
    }
}

impl RequestOptions {
    /// Returns the handover that the request sets, if it sets one.
    pub(in crate::server::http) fn handover(&self) -> HandlerResult<Option<Handover>> {
        match (&self.handover_text, self.counter) {
            (None, None) => Ok(None),
            (Some(text), Some(counter)) => Ok(Some(Handover { text: text.clone(), counter })),
            (Some(_), None) => {
                Err(Problem::invalid("a handover has a number in its tenure; add counter=N"))
            }
            (None, Some(_)) => Err(Problem::invalid(
                "'counter' is the number of a handover, and there is none; add handover=TEXT",
            )),
        }
    }
}
