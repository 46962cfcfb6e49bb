//! A request to the control file, as it is written: a JSON object that says in `do` what to do.

use crate::engine::lease_terms::parse_span;
use crate::engine::{LockName, QueuePolicy, RefusalKind};
use crate::fuse::control_files::requests::CtlRequest;
use crate::fuse::write_message::{Options, options_of, short};
use serde_json::{Map, Value, json};

/// A request is a few names and a note of 1 KiB.
pub(crate) const REQUEST_BYTES_MAX: usize = 8_192;
/// Waiters shown in the answer to a request that waited: the answers to all who wait for one lock
/// must not take the square of their number.
pub(crate) const WAITERS_SHOWN_MAX: usize = 16;

/// A request, before its parts are looked at.
pub(crate) struct WrittenRequest {
    /// The text of `do`.
    pub(crate) what: String,
    /// All fields.
    pub(crate) fields: Map<String, Value>,
}

impl WrittenRequest {
    /// Returns a field that is a text.
    pub(crate) fn text(&self, key: &str) -> Result<Option<&str>, String> {
        match self.fields.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(format!("'{key}' is a text, not {other}")),
        }
    }

    /// Returns a field that is true or false.
    pub(crate) fn flag(&self, key: &str) -> Result<bool, String> {
        match self.fields.get(key) {
            None | Some(Value::Null) => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(other) => Err(format!("'{key}' is true or false, not {other}")),
        }
    }

    /// Whether the answer may take as long as the line is.
    pub(crate) fn waits(&self) -> bool {
        self.what == CtlRequest::Acquire.as_str() && matches!(self.line(), Ok(QueuePolicy::Join(_)))
    }

    /// How long to wait in line: not at all, for ever, or so long.
    fn line(&self) -> Result<QueuePolicy, String> {
        match self.fields.get("wait") {
            None | Some(Value::Null | Value::Bool(false)) => Ok(QueuePolicy::Skip),
            Some(Value::Bool(true)) => Ok(QueuePolicy::Join(None)),
            Some(Value::String(text)) => match parse_span(text) {
                Ok(span) => Ok(QueuePolicy::Join(Some(span))),
                Err(error) => Err(format!("'wait': {error}")),
            },
            Some(other) => Err(format!("'wait' is true or a duration, not {other}")),
        }
    }

    /// Returns the lock that it names.
    pub(crate) fn name(&self) -> Result<LockName, String> {
        let text = self.text("name")?.ok_or("the request lacks a 'name'")?;
        LockName::parse(text).map_err(|error| {
            let shown = short(&text.escape_debug().to_string());
            format!("'{shown}' can't be the name of a lock: {error}")
        })
    }
}

/// Takes a request apart.
pub(crate) fn parse(data: &[u8]) -> Result<WrittenRequest, String> {
    if data.len() > REQUEST_BYTES_MAX {
        return Err(format!("a request has at most {REQUEST_BYTES_MAX} bytes"));
    }
    let value: Value = serde_json::from_slice(data)
        .map_err(|error| format!("a request is a JSON object, and this is none: {error}"))?;
    let Value::Object(fields) = value else {
        return Err("a request is a JSON object such as {\"do\":\"about\"}".to_owned());
    };
    match fields.get("do") {
        Some(Value::String(what)) => Ok(WrittenRequest { what: what.clone(), fields }),
        _ => Err("a request says in 'do' what to do".to_owned()),
    }
}

/// Returns the answer that refuses a request.
pub(crate) fn wrong(kind: RefusalKind, sentence: &str) -> Value {
    json!({ "ok": false, "kind": kind.as_str(), "message": sentence })
}

/// The request of an `acquire` line. Whether a reentrant one renews is known only when the lock has
/// been looked at; any other is granted only what nobody holds.
pub(crate) struct Acquiring {
    /// The lock.
    pub(crate) name: LockName,
    /// The other options of the request.
    pub(crate) options: Options,
    /// Whether an own lease is renewed.
    pub(crate) reentrant: bool,
    /// The lease is for the process above the caller, which is a shell.
    pub(crate) for_parent: bool,
    /// Whether to wait.
    pub(crate) line: QueuePolicy,
}

/// Takes the request of an `acquire` line apart.
pub(crate) fn acquiring(request: &WrittenRequest) -> Result<Acquiring, String> {
    let (name, options) = (request.name()?, options_of(&request.fields)?);
    let reentrant = request.flag("reentrant")?;
    let for_parent = request.flag("parent")?;
    Ok(Acquiring { name, options, reentrant, for_parent, line: request.line()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_request_is_told() {
        let long = format!("{{\"do\":\"{}\"}}", "x".repeat(REQUEST_BYTES_MAX));
        for wrong in ["", "about", "[]", "{}", "{\"do\":1}", "{\"do\":\"about\"", &long] {
            assert!(parse(wrong.as_bytes()).is_err(), "{wrong}");
        }
        assert_eq!(parse(b"{\"do\":\"about\"}\n").map(|request| request.what), Ok("about".into()));
    }
}
