//! Sessions as JSON: one that was opened, and one as it is now.

use super::request_context::RequestContext;
use crate::engine::{ClientId, Grace, LockName, SessionId, SessionView, Token, Ttl};
use crate::time::Time;
use serde_json::{Value, json};

/// A session that was just opened.
pub(super) fn opened(id: SessionId, client: &ClientId, ttl: Ttl, grace: Grace) -> Value {
    json!({
        "session": id.as_u64(),
        "client": client.as_str(),
        "expires_in_ms": ttl.span().as_millis(),
        "ttl_ms": ttl.span().as_millis(),
        "grace_ms": grace.span().as_millis(),
    })
}

/// A lease as its lock and token.
pub(super) fn pair((name, token): &(LockName, Token)) -> Value {
    json!({ "name": name.as_str(), "token": token.as_u64() })
}

/// A session as it is now.
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
