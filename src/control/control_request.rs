//! Parsed control requests: JSON objects whose field `do` names the request.
//!
//! The kinds of control requests, and the permission that each needs.
//!
//! The interface between control requests and the front end that received them: a mount, or a
//! command with `--server`.
//!
//! The options of a lease, which control requests and writes to lock files share.

use crate::auth::Denial;
use crate::auth::permissions::Operation;
use crate::control::control_executor;
use crate::engine::values::details::{HANDOVER_BYTES_MAX, NOTE_BYTES_MAX};
use crate::engine::values::lease::TOKEN_MAX;
use crate::engine::values::lease::parse_span;
use crate::engine::{
    Acquire, ClientId, Grace, LeaseKey, LeaseTerms, LeaveReason, Lifetime, LockName, LockView,
    Mode, Op, Outcome, Patch, Process, QueuePolicy, RefusalKind, Seats, StealReason, Tenure, Token,
    Ttl,
};
use crate::service::{List, ListPage, RequestError, Unavailable};
use crate::time::{Span, Time, Wall};
use serde_json::{Map, Value, json};
use std::future::Future;
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

impl AcquireRequest {
    /// Returns a request that neither waits nor renews.
    pub(crate) fn new(name: &LockName, options: LeaseOptions) -> Self {
        Self {
            name: name.clone(),
            options,
            reentrant: false,
            for_parent: false,
            queue: QueuePolicy::Skip,
            remember: false,
        }
    }
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
    /// Whether the new lease begins although the holder of a remembered name may not have heard of
    /// the steal.
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

    /// Returns a request to renew a lease.
    pub(crate) fn renewal(name: &LockName, options: LeaseOptions) -> Self {
        Self::Renew(RenewRequest { name: name.clone(), options, unbinds: false })
    }

    /// Returns a request to release the lease `token`.
    pub(crate) fn end_of(name: &LockName, token: Token) -> Self {
        Self::Release(ReleaseRequest { name: name.clone(), token: Some(token), handover: None })
    }

    /// Returns the request as [`ControlRequest::of`] parses it.
    pub(crate) fn to_json(&self) -> Value {
        let (name, options, mut fields) = match self {
            Self::About => (None, None, json!({})),
            Self::List(List { prefix, after, limit }) => {
                let after = after.as_ref().map(LockName::as_str);
                (None, None, json!({"prefix": prefix, "after": after, "limit": limit}))
            }
            Self::Status(name) => (Some(name), None, json!({})),
            Self::Acquire(ask) => {
                let wait = match ask.queue {
                    QueuePolicy::Skip => Value::Null,
                    QueuePolicy::Join(None) => true.into(),
                    QueuePolicy::Join(Some(patience)) => exact(patience),
                };
                let fields = json!({
                    "reentrant": ask.reentrant, "parent": ask.for_parent, "wait": wait,
                    "remember": ask.remember,
                });
                (Some(&ask.name), Some(&ask.options), fields)
            }
            Self::Renew(ask) => {
                (Some(&ask.name), Some(&ask.options), json!({"unbind": ask.unbinds}))
            }
            Self::Release(ask) => {
                let token = ask.token.map(Token::as_u64);
                (
                    Some(&ask.name),
                    None,
                    json!({"token": token, "handover": ask.handover.as_deref()}),
                )
            }
            Self::Steal(ask) => {
                let fields = json!({
                    "reason": ask.reason.as_str(), "parent": ask.for_parent, "now": ask.at_once,
                });
                (Some(&ask.name), Some(&ask.options), fields)
            }
        };
        fields["do"] = self.kind().as_str().into();
        if let Some(name) = name {
            fields["name"] = name.as_str().into();
        }
        if let Some(options) = options {
            options.add_to(&mut fields);
        }
        fields
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
            ControlKind::List => Self::List(control_executor::query(fields)?),
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
                reason: checked_reason(text(fields, "reason")?.unwrap_or_default())?,
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

/// The kind of a control request, which its field `do` names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ControlKind {
    /// Describe the mount, or the connection to the server.
    About,
    /// List locks, one page at a time.
    List,
    /// Show the status of one lock.
    Status,
    /// Acquire a lock, or wait for it.
    Acquire,
    /// Renew a lease.
    Renew,
    /// Release a lock.
    Release,
    /// Take a live lock from its holder.
    Steal,
}

impl ControlKind {
    /// All kinds of requests, in the order in which error messages list them.
    pub(crate) const ALL: [Self; 7] = [
        Self::About,
        Self::List,
        Self::Status,
        Self::Acquire,
        Self::Renew,
        Self::Release,
        Self::Steal,
    ];

    /// Returns the value of the field `do` for this kind.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::About => "about",
            Self::List => "list",
            Self::Status => "status",
            Self::Acquire => "acquire",
            Self::Renew => "renew",
            Self::Release => "release",
            Self::Steal => "steal",
        }
    }

    /// Returns the kind whose name in the field `do` is `text`.
    pub(crate) fn named(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|request| request.as_str() == text)
    }

    /// Returns the operation whose permissions a request of this kind needs.
    pub(crate) const fn operation(self) -> Operation {
        match self {
            Self::About => Operation::ShowCounts,
            Self::List => Operation::ListLocks,
            Self::Status => Operation::ShowLock,
            Self::Acquire => Operation::Acquire,
            Self::Renew => Operation::Renew,
            Self::Release => Operation::Release,
            Self::Steal => Operation::Steal,
        }
    }
}

/// Returns the message of a denial to a user of a mount. Such a user has no credentials but a uid.
#[cfg_attr(not(target_os = "linux"), allow(dead_code))]
pub(crate) fn why_denied(denial: &Denial) -> String {
    match denial {
        Denial::Steal => {
            "only root and the user who mounted may steal a lock; ask one of them".to_owned()
        }
        other => other.to_string(),
    }
}

/// The result of a wait in a queue.
#[derive(Debug)]
pub(crate) enum ControlWaitEnd {
    /// The lock was granted to the waiting request.
    Granted(Tenure),
    /// The lock service refused the request, or did not answer.
    Failed(RequestError),
    /// The front end itself refused the request; holds the answer to send.
    Refused(Value),
    /// The request left the queue; `None` if it is not known why.
    Left(Option<LeaveReason>),
    /// The program that sent the request is gone, so no answer is needed.
    Abandoned,
}

/// The front end that executes a control request, on behalf of one client.
pub(crate) trait ControlHost: Sync {
    /// A process to which a lease can be bound.
    type Process: Send + Sync;

    /// Returns the client that sent the request.
    fn client(&self) -> &ClientId;
    /// Checks whether the caller may request this operation on any lock. The error is a sentence
    /// that says why the caller may not.
    fn allows(&self, operation: Operation) -> Result<(), String>;
    /// Returns a description of the daemon, or of the connection to the server.
    fn about(&self) -> Map<String, Value>;
    /// Converts an engine time to wall-clock time.
    fn wall(&self, at: Time) -> Wall;
    /// Returns the process `pid`, or an answer with the reason why the caller may not bind leases
    /// to it.
    fn process(&self, name: &LockName, pid: u32) -> Result<Self::Process, Value>;
    /// Returns the process to which a lease is bound if its request names no process; `None` if the
    /// front end binds no such leases.
    fn default_process(&self) -> Option<Self::Process>;
    /// Returns the form of `process` that is stored in the details of a lease, if the daemon must
    /// find the process again after a restart.
    fn detail_of(&self, process: &Self::Process) -> Option<Process>;
    /// Returns the ttl and grace, or the session, of a lease that is bound to `process`, or to no
    /// process.
    fn terms(&self, options: &LeaseOptions, process: Option<&Self::Process>) -> LeaseTerms;
    /// Returns the details of a new lease, which name the caller or its parent process as the
    /// holder.
    fn details(&self, options: &LeaseOptions, for_parent: bool) -> Patch;
    /// Binds a lease to a process, so that the lease ends with the process.
    fn bind(&self, key: LeaseKey, life: Lifetime, process: &Self::Process);
    /// Unbinds a lease from its process, so that the lease outlives the process. Returns the new
    /// ttl and grace of the lease, if they change.
    fn unbind(&self, token: Token) -> Option<LeaseTerms>;
    /// Records that a client which held the lock `name` still holds it after a renewal, under the
    /// new fencing token `token`.
    fn continued(&self, name: &LockName, token: Token);
    /// Records that a request about the lock `name` failed.
    fn failed(&self, name: &LockName, failure: RequestError);

    /// Submits a command to the lock service.
    fn decide(&self, op: Op) -> impl Future<Output = Result<Outcome, RequestError>> + Send;
    /// Returns the state of a lock.
    fn view(&self, name: &LockName) -> impl Future<Output = Result<LockView, Unavailable>> + Send;
    /// Returns a page of locks.
    fn list(
        &self,
        query: List,
    ) -> impl Future<Output = Result<ListPage<LockView>, Unavailable>> + Send;
    /// Acquires a lock, or waits for it in its queue.
    fn wait(
        &self,
        ask: Acquire,
        patience: Option<Span>,
    ) -> impl Future<Output = ControlWaitEnd> + Send;
}

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
    /// Whether the lock is exclusive or shared, or how many seats it has.
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
    options.token = number_of("token")?.map(checked_token).transpose()?;
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
    if let Some(max) = number_of("max")? {
        if options.mode.is_some() {
            return Err("'max' is a mode of its own; leave 'mode' out".to_owned());
        }
        options.mode = Some(Mode::Seats(Seats::new(max)?));
    }
    Ok(options)
}

/// Formats a duration exactly, unlike the display of a [`Span`], which rounds for people.
fn exact(span: Span) -> Value {
    format!("{}ms", span.as_millis()).into()
}

impl LeaseOptions {
    /// Adds the options to a request.
    fn add_to(&self, request: &mut Value) {
        let (mode, seats) = match self.mode {
            None => (None, None),
            Some(Mode::Exclusive) => (Some("exclusive"), None),
            Some(Mode::Shared) => (Some("shared"), None),
            Some(Mode::Seats(seats)) => (None, Some(seats.get())),
        };
        request["ttl"] = self.ttl.map(|ttl| exact(ttl.span())).into();
        request["grace"] = self.grace.map(|grace| exact(grace.span())).into();
        request["note"] = self.note.as_deref().into();
        request["token"] = self.token.map(Token::as_u64).into();
        request["pid"] = self.pid.into();
        request["mode"] = mode.into();
        request["max"] = seats.into();
    }
}

/// Returns the token `number` if there can be one.
pub(crate) fn checked_token(number: u64) -> Result<Token, String> {
    if number > TOKEN_MAX {
        return Err(format!("'token': {number} is more than any token"));
    }
    Ok(Token::named(number))
}

/// Returns the reason of a steal.
pub(crate) fn checked_reason(text: &str) -> Result<StealReason, String> {
    StealReason::parse(text)
        .ok_or_else(|| "a steal needs a short 'reason', which is shown to the holder".to_owned())
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
            r#"{"do":"acquire","name":"a","max":0}"#,
            r#"{"do":"acquire","name":"a","max":2,"mode":"shared"}"#,
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
            for request in [
                json!({"do": what, "name": "a", "reason": "why"}),
                json!({"do": what, "name": "a/b", "reason": "why", "ttl": "90500ms",
                    "grace": "0ms", "note": "n", "token": 7, "pid": 123, "mode": "shared",
                    "wait": "1500ms", "reentrant": true, "parent": true, "remember": true,
                    "handover": "h", "unbind": true, "now": true, "prefix": "p", "after": "q",
                    "limit": 3}),
                json!({"do": what, "name": "a", "reason": "why", "max": 3, "wait": true}),
            ] {
                let parsed = ControlRequest::of(&request).expect("valid");
                assert_eq!(ControlRequest::of(&parsed.to_json()), Ok(parsed));
            }
            let request = json!({ "do": what, "name": "a", "reason": "why", "wait": true });
            assert_eq!(ControlRequest::of(&request).expect("valid").kind(), kind);
            assert_eq!(
                ControlRequest::of(&request).expect("valid").waits(),
                kind == ControlKind::Acquire
            );
        }
    }
}
