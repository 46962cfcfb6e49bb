//! The options of a lease, which control requests and writes to lock files share.

use crate::engine::lease::TOKEN_MAX;
use crate::engine::limits::{HANDOVER_BYTES_MAX, NOTE_BYTES_MAX};
use crate::engine::{Grace, Mode, Token, Ttl};
use serde_json::{Map, Value};
use std::sync::Arc;

/// The options of a lease, parsed from a JSON object or from words such as `60s` and `pid=123`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct LeaseOptions {
    /// The ttl of the lease from now on.
    pub(crate) ttl: Option<Ttl>,
    /// The grace period of the lease from now on.
    pub(crate) grace: Option<Grace>,
    /// The note shown to other clients.
    pub(crate) note: Option<Arc<str>>,
    /// The fencing token of the only lease to which the request applies.
    pub(crate) token: Option<Token>,
    /// The process to which the lease is bound.
    pub(crate) pid: Option<u32>,
    /// Whether the lock is exclusive or shared.
    pub(crate) mode: Option<Mode>,
}

/// Returns the error message for an invalid process id.
pub(crate) fn wrong_pid(text: &str) -> String {
    format!("'{}' is no process id; write pid=$$", short(text))
}

/// Returns `pid` if it is a valid process id.
pub(crate) fn checked_pid(pid: u32) -> Result<u32, String> {
    // A pid that is too large for `pid_t` is refused, and 0 too: kill(2) takes 0 as the caller's
    // process group. The kernel's own limit, 2^22, is lower.
    if pid == 0 || pid > i32::MAX as u32 { Err(wrong_pid(&pid.to_string())) } else { Ok(pid) }
}

/// Parses the options in a JSON object and ignores its other keys; `null` counts as absent.
pub(crate) fn options_of(object: &Map<String, Value>) -> Result<LeaseOptions, String> {
    let text_of = |key: &str| match object.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.as_str())),
        Some(other) => Err(format!("'{key}' is a text such as \"60s\", not {other}")),
    };
    let number_of = |key: &str| match object.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => value
            .as_u64()
            .map(Some)
            .ok_or_else(|| format!("'{key}' is a whole number, not {value}")),
    };
    let mut options = LeaseOptions::default();
    if let Some(text) = text_of("ttl")? {
        options.ttl = Some(Ttl::parse(text).map_err(|error| format!("'ttl': {error}"))?);
    }
    if let Some(text) = text_of("grace")? {
        options.grace = Some(Grace::parse(text).map_err(|error| format!("'grace': {error}"))?);
    }
    if let Some(text) = text_of("note")? {
        options.note = Some(checked_note(text)?);
    }
    if let Some(number) = number_of("token")? {
        if number > TOKEN_MAX {
            return Err(format!("'token': {number} is more than any token"));
        }
        options.token = Some(Token::named(number));
    }
    if let Some(number) = number_of("pid")? {
        let pid = u32::try_from(number).map_err(|_| wrong_pid(&number.to_string()))?;
        options.pid = Some(checked_pid(pid)?);
    }
    options.mode = match text_of("mode")? {
        None => None,
        Some("exclusive") => Some(Mode::Exclusive),
        Some("shared") => Some(Mode::Shared),
        Some(other) => {
            return Err(format!("'mode' is exclusive or shared, not '{}'", short(other)));
        }
    };
    Ok(options)
}

/// Returns the note `text` if it is not too long.
pub(crate) fn checked_note(text: &str) -> Result<Arc<str>, String> {
    if text.len() > NOTE_BYTES_MAX {
        return Err(format!("a note has at most {NOTE_BYTES_MAX} bytes, this one {}", text.len()));
    }
    Ok(text.into())
}

/// Returns the handover `text` if it is not too long.
pub(crate) fn checked_handover(text: &str) -> Result<Arc<str>, String> {
    if text.len() > HANDOVER_BYTES_MAX {
        let length = text.len();
        return Err(format!(
            "a handover has at most {HANDOVER_BYTES_MAX} bytes, this one {length}"
        ));
    }
    Ok(text.into())
}

/// Returns the first characters of a text, for an error message.
pub(crate) fn short(text: &str) -> String {
    const SHOWN: usize = 40;
    let mut shown: String = text.chars().take(SHOWN).collect();
    if shown.len() < text.len() {
        shown.push_str("...");
    }
    shown
}
