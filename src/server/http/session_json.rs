//! JSON representations of sessions and their leases.

use super::request_context::RequestContext;
use crate::engine::{ClientId, Grace, LockName, SessionId, SessionView, Token, Ttl};
use crate::time::Time;
use serde_json::{Value, json};

/// Returns the JSON of a newly opened session.
pub(super) fn opened(id: SessionId, client: &ClientId, ttl: Ttl, grace: Grace) -> Value {
    json!({
        "session": id.as_u64(),
        "client": client.as_str(),
        "expires_in_ms": ttl.span().as_millis(),
        "ttl_ms": ttl.span().as_millis(),
        "grace_ms": grace.span().as_millis(),
    })
}

/// Returns a lease as JSON: the name of its lock, and its token.
pub(super) fn pair((name, token): &(LockName, Token)) -> Value {
    json!({ "name": name.as_str(), "token": token.as_u64() })
}

/// Returns the current state of a session as JSON.
pub(super) fn shown(call: &RequestContext, id: SessionId, view: &SessionView) -> Value {
    let lasts = view.ends.expires_at != Time::NEVER;
    let left = view.ends.left(call.app.locks.now()).as_millis();
    json!({
        "session": id.as_u64(),
        "client": view.client.as_str(),
        "expires_in_ms": lasts.then_some(left),
        "ttl_ms": view.ends.ttl.span().as_millis(),
        "grace_ms": view.ends.grace.span().as_millis(),
        "held": view.leases.iter().map(pair).collect::<Vec<_>>(),
        "held_in_all": view.held,
        "waiting": view.waiting,
    })
}
