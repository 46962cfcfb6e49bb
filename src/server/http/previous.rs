//! The endpoints at `/locks/{name}/previous`: what is remembered of the name of a lock beyond the
//! tenure.

use super::event_replay::{self, unexpected};
use super::options::{RequestOptions, name_in, request_id};
use super::problem::{HandlerResult, Problem};
use super::request_context::RequestContext;
use super::response::json;
use crate::engine::{Annotate, Forget, Handover, LeaseKey, LockName, Op, Outcome, Patch};
use crate::status::previous_of;
use axum::http::{Method, StatusCode};
use serde_json::json;

/// The suffix of these paths. For a lock whose own name ends in `/previous`, the client writes its
/// last slash as `%2F`.
const SUFFIX: &str = "/previous";

/// Returns the name of the lock in `path`, if it is the path of what is remembered of a name.
pub(super) fn lock_in(path: &str) -> Option<&str> {
    let name = path.strip_prefix("/locks/")?.strip_suffix(SUFFIX)?;
    (!name.is_empty()).then_some(name)
}

/// Whether a request concerns what is remembered of a name, and no lock.
pub(super) fn is_meant(method: &Method, path: &str) -> bool {
    let is_steal = *method == Method::POST && path.ends_with("/steal");
    lock_in(path).is_some() && !is_steal
}

fn name_of(call: &RequestContext) -> HandlerResult<LockName> {
    name_in(lock_in(call.head.uri.path()).unwrap_or_default())
}

/// Handles `GET /locks/{name}/previous`.
pub(super) async fn show(mut call: RequestContext) -> HandlerResult {
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
pub(super) async fn set(mut call: RequestContext) -> HandlerResult {
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
        Outcome::Replayed(_) => Box::pin(event_replay::of_lock(&call, &name, &shown)).await,
        other => Err(unexpected(&other)),
    }
}

/// Handles `DELETE /locks/{name}/previous`: has the name forgotten.
pub(super) async fn forget(mut call: RequestContext) -> HandlerResult {
    let name = name_of(&call)?;
    let options = RequestOptions::read(&mut call).await?;
    let by = options.client(&call)?;
    let request = request_id(&call, &options, &by)?;
    let shown = json!({ "name": name.as_str(), "remembered": false });
    match call.decide(Op::Forget(Forget { name: name.clone(), by }), request).await? {
        Outcome::Forgotten => Ok(json(StatusCode::OK, &shown)),
        Outcome::Replayed(_) => Box::pin(event_replay::of_lock(&call, &name, &shown)).await,
        other => Err(unexpected(&other)),
    }
}

impl RequestOptions {
    /// Returns the handover that the request sets, if it sets one.
    pub(super) fn handover(&self) -> HandlerResult<Option<Handover>> {
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
