//! Parsed control requests: JSON objects whose field `do` names the request.

use super::control_kind::ControlKind;
use super::lease_options::{LeaseOptions, checked_handover, options_of, short};
use super::lock_page;
use crate::engine::lease_terms::parse_span;
use crate::engine::{LockName, QueuePolicy, RefusalKind, StealReason, Token};
use crate::service::List;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// Maximum size in bytes of a control request: a few names, and a note of 1 KiB.
#[cfg_attr(not(target_os = "linux"), allow(dead_code))]
pub(crate) const REQUEST_BYTES_MAX: usize = 8_192;

/// A control request that has been parsed and validated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ControlRequest {
    /// Describe the daemon or the server.
    About,
    /// Show a page of locks.
    List(List),
    /// Show one lock.
    Status(LockName),
    /// Acquire a lock, or wait for it.
    Acquire(AcquireRequest),
    /// Renew a lock.
    Renew(RenewRequest),
    /// Release a lock.
    Release(ReleaseRequest),
    /// Take a live lock from its holder.
    Steal(StealRequest),
}

/// A request to acquire a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AcquireRequest {
    /// The name of the lock.
    pub(crate) name: LockName,
    /// The ttl, note and other options of the new lease.
    pub(crate) options: LeaseOptions,
    /// Whether a lock that the client holds already is renewed. If false, the request is refused
    /// like a request for a lock that another client holds.
    pub(crate) reentrant: bool,
    /// Whether the lease is for the parent process of the caller, which is a shell.
    pub(crate) for_parent: bool,
    /// Whether, and how long, to wait in the lock's queue.
    pub(crate) queue: QueuePolicy,
    /// Whether the name is remembered from now on.
    pub(crate) remember: bool,
}

/// A request to renew a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RenewRequest {
    /// The name of the lock.
    pub(crate) name: LockName,
    /// The ttl, note and other options to change.
    pub(crate) options: LeaseOptions,
    /// Whether to unbind the lease from its process, so that the lease outlives the process.
    /// `latchfs run --slot` requests this when its command has succeeded: the lock then stays held
    /// for its ttl, so that no other host runs the command again.
    pub(crate) unbinds: bool,
}

/// A request to release a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ReleaseRequest {
    /// The name of the lock.
    pub(crate) name: LockName,
    /// The fencing token of the lease: it is released only if the caller still holds it under this
    /// token.
    pub(crate) token: Option<Token>,
    /// The text of the handover to set.
    pub(crate) handover: Option<Arc<str>>,
}

/// A request to steal a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StealRequest {
    /// The name of the lock.
    pub(crate) name: LockName,
    /// The options of the new lease.
    pub(crate) options: LeaseOptions,
    /// The reason for the steal, shown to the holder and in the audit log.
    pub(crate) reason: StealReason,
    /// Whether the lease is for the parent process of the caller, which is a shell.
    pub(crate) for_parent: bool,
    /// Whether it begins although the holder of a remembered name may not have heard of the steal.
    pub(crate) at_once: bool,
}

impl ControlRequest {
    /// Returns the kind of the request.
    pub(crate) const fn kind(&self) -> ControlKind {
        match self {
            Self::About => ControlKind::About,
            Self::List(_) => ControlKind::List,
            Self::Status(_) => ControlKind::Status,
            Self::Acquire(_) => ControlKind::Acquire,
            Self::Renew(_) => ControlKind::Renew,
            Self::Release(_) => ControlKind::Release,
            Self::Steal(_) => ControlKind::Steal,
        }
    }

    /// Whether the request may wait in a queue, so that its answer may take long.
    pub(crate) const fn waits(&self) -> bool {
        matches!(self, Self::Acquire(AcquireRequest { queue: QueuePolicy::Join(_), .. }))
    }

    /// Parses a request from a JSON value. The error is a sentence that says why the value is no
    /// request.
    pub(crate) fn of(value: &Value) -> Result<Self, String> {
        let Value::Object(fields) = value else {
            return Err("a request is a JSON object such as {\"do\":\"about\"}".to_owned());
        };
        let what = text(fields, "do")?.ok_or("a request says in 'do' what to do")?;
        let kind = ControlKind::named(what).ok_or_else(|| {
            let known = ControlKind::ALL.map(ControlKind::as_str).join(", ");
            format!("there is no request '{}'; the requests are {known}", short(what))
        })?;
        Ok(match kind {
            ControlKind::About => Self::About,
            ControlKind::List => Self::List(lock_page::query(fields)?),
            ControlKind::Status => Self::Status(name(fields)?),
            ControlKind::Acquire => Self::Acquire(AcquireRequest {
                name: name(fields)?,
                options: options_of(fields)?,
                reentrant: flag(fields, "reentrant")?,
                for_parent: flag(fields, "parent")?,
                queue: queue(fields)?,
                remember: flag(fields, "remember")?,
            }),
            ControlKind::Renew => Self::Renew(RenewRequest {
                name: name(fields)?,
                options: options_of(fields)?,
                unbinds: flag(fields, "unbind")?,
            }),
            ControlKind::Release => Self::Release(ReleaseRequest {
                name: name(fields)?,
                token: options_of(fields)?.token,
                handover: text(fields, "handover")?.map(checked_handover).transpose()?,
            }),
            ControlKind::Steal => Self::Steal(StealRequest {
                name: name(fields)?,
                options: options_of(fields)?,
                reason: text(fields, "reason")?
                    .and_then(StealReason::parse)
                    .ok_or("a steal needs a short 'reason', which is shown to the holder")?,
                for_parent: flag(fields, "parent")?,
                at_once: flag(fields, "now")?,
            }),
        })
    }
}

/// Parses the bytes of a request. The error is a sentence that says why they are no request.
#[cfg_attr(not(target_os = "linux"), allow(dead_code))]
pub(crate) fn parse(data: &[u8]) -> Result<ControlRequest, String> {
    if data.len() > REQUEST_BYTES_MAX {
        return Err(format!("a request has at most {REQUEST_BYTES_MAX} bytes"));
    }
    let value: Value = serde_json::from_slice(data)
        .map_err(|error| format!("a request is a JSON object, and this is none: {error}"))?;
    ControlRequest::of(&value)
}

/// Returns the answer to a refused request.
pub(crate) fn refusal(kind: RefusalKind, sentence: &str) -> Value {
    json!({ "ok": false, "kind": kind.as_str(), "message": sentence })
}

/// Returns the value of an optional string field of a request.
pub(super) fn text<'a>(
    fields: &'a Map<String, Value>,
    key: &str,
) -> Result<Option<&'a str>, String> {
    match fields.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(other) => Err(format!("'{key}' is a text, not {other}")),
    }
}

/// Returns the value of an optional boolean field of a request, which is false by default.
fn flag(fields: &Map<String, Value>, key: &str) -> Result<bool, String> {
    match fields.get(key) {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(flag)) => Ok(*flag),
        Some(other) => Err(format!("'{key}' is true or false, not {other}")),
    }
}

/// Parses the field `wait` of a request: no wait, a wait without limit, or a wait of limited
/// duration.
fn queue(fields: &Map<String, Value>) -> Result<QueuePolicy, String> {
    match fields.get("wait") {
        None | Some(Value::Null | Value::Bool(false)) => Ok(QueuePolicy::Skip),
        Some(Value::Bool(true)) => Ok(QueuePolicy::Join(None)),
        Some(Value::String(text)) => match parse_span(text) {
            Ok(span) => Ok(QueuePolicy::Join(Some(span))),
            Err(error) => Err(format!("'wait': {error}")),
        },
        Some(other) => Err(format!("'wait' is true or a duration, not {other}")),
    }
}

/// Parses the required field `name` of a request: the name of a lock.
fn name(fields: &Map<String, Value>) -> Result<LockName, String> {
    let text = text(fields, "name")?.ok_or("the request lacks a 'name'")?;
    LockName::parse(text).map_err(|error| {
        let shown = short(&text.escape_debug().to_string());
        format!("'{shown}' can't be the name of a lock: {error}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_request_is_explained() {
        let long = format!("{{\"do\":\"{}\"}}", "x".repeat(REQUEST_BYTES_MAX));
        for wrong in ["", "about", "[]", "{}", "{\"do\":1}", "{\"do\":\"about\"", &long] {
            assert!(parse(wrong.as_bytes()).is_err(), "{wrong}");
        }
        let unknown = parse(br#"{"do":"sing"}"#).expect_err("it is unknown");
        assert!(unknown.contains("'sing'") && unknown.contains("about, list"), "{unknown}");
        for wrong in [
            r#"{"do":"status"}"#,
            r#"{"do":"status","name":"a//b"}"#,
            r#"{"do":"acquire","name":"a","wait":7}"#,
            r#"{"do":"acquire","name":"a","ttl":"500ms"}"#,
            r#"{"do":"steal","name":"a"}"#,
            r#"{"do":"renew","name":"a","unbind":"yes"}"#,
            r#"{"do":"acquire","name":"a","remember":1}"#,
            r#"{"do":"release","name":"a","handover":1}"#,
            &format!("{{\"do\":\"release\",\"name\":\"a\",\"handover\":\"{}\"}}", "x".repeat(257)),
        ] {
            assert!(parse(wrong.as_bytes()).is_err(), "{wrong}");
        }
        assert_eq!(parse(b"{\"do\":\"about\"}\n"), Ok(ControlRequest::About));
    }

    #[test]
    fn every_kind_of_request_is_parsed() {
        for kind in ControlKind::ALL {
            let what = kind.as_str();
            let request = json!({ "do": what, "name": "a", "reason": "why", "wait": true });
            assert_eq!(ControlRequest::of(&request).expect("valid").kind(), kind);
            assert_eq!(
                ControlRequest::of(&request).expect("valid").waits(),
                kind == ControlKind::Acquire
            );
        }
    }
}
