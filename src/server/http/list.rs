//! The endpoints about many locks: pages of locks, checks of fencing tokens, and recently ended
//! tenures.

use super::options::{Consistency, RequestOptions};
use super::problem::{HandlerResult, Problem};
use super::request_context::{RequestContext, told};
use super::response::json;
use crate::engine::{LockName, LockView, Phase, Token};
use crate::event_json::{kind_of_end, with_end};
use crate::service::ListedNames::{InUse, Remembered};
use crate::service::{List, ListPage, scoped_views};
use crate::status::status_of;
use crate::time::Span;
use axum::http::StatusCode;
use serde_json::{Value, json};
use tokio::sync::oneshot;

/// Maximum number of locks on one page, which makes about half a megabyte.
const PAGE_MAX: usize = 1_000;

/// Handles `GET /locks`: returns a page of locks.
pub(super) async fn list(mut call: RequestContext) -> HandlerResult {
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
        let (then, known) = oneshot::channel();
        locks.known_list(names, visible, query, |known| drop(then.send(known)));
        let known = told(known.await)?;
        return Ok(json(StatusCode::OK, &aged(shown(&known.it), known.age)));
    }
    let (then, page) = oneshot::channel();
    scoped_views::list_of(locks, names, visible, query, |page| drop(then.send(page)));
    Ok(json(StatusCode::OK, &shown(&told(page.await)?)))
}

/// Adds the maximum age of the returned state to the result of a stale read, as `age_ms`.
pub(super) fn aged(mut shown: Value, age: Option<Span>) -> Value {
    shown["age_ms"] = age.map(Span::as_millis).into();
    shown
}

/// Handles `POST /check`: checks whether fencing tokens are current.
pub(super) async fn check(mut call: RequestContext) -> HandlerResult {
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
pub(super) async fn history(mut call: RequestContext) -> HandlerResult {
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
