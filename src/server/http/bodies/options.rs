//! The options of a request, parsed from its query and from a JSON or form body; also its lock name
//! and its Idempotency-Key.

use super::parameters::{IDEMPOTENCY_KEY, IF_MATCH as IF_MATCH_PARAM, Param, ParamPlace};
use super::problem::{HandlerResult, Problem};
use crate::engine::values::details::{HANDOVER_BYTES_MAX, NOTE_BYTES_MAX, REQUEST_KEY_BYTES_MAX};
use crate::engine::values::lease::TOKEN_MAX;
use crate::engine::values::lease::{TTL_MAX, parse_span};
use crate::engine::{
    ClientId, Digest, Grace, IdempotencyKey, LockName, Mode, NameError, RequestId, ResetScope,
    Seats, SessionId, StealReason, Token, Ttl,
};
use crate::server::http::request_context::{BODY_BYTES_MAX, FRONT_END, RequestContext};
use crate::time::Span;
use axum::body::{Bytes, HttpBody};
use axum::http::header::{CONTENT_TYPE, IF_MATCH};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use percent_encoding::{percent_decode, percent_decode_str};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use std::borrow::Cow;
use std::sync::Arc;

/// Maximum number of token checks in one request; each of them queries a lock under the engine's
/// mutex.
const CHECKS_MAX: usize = 1_000;

/// Maximum time that a request may wait for a lock: one day.
const WAIT_MAX: Span = TTL_MAX;

/// The parsed options of a request.
#[derive(Debug, Default)]
#[allow(clippy::struct_excessive_bools)] // each is an option that a request can set
pub(in crate::server::http) struct RequestOptions {
    pub(in crate::server::http) client: Option<ClientId>,
    pub(in crate::server::http) ttl: Option<Ttl>,
    pub(in crate::server::http) grace: Option<Grace>,
    pub(in crate::server::http) mode: Option<Mode>,
    pub(in crate::server::http) max: Option<Seats>,
    pub(in crate::server::http) note: Option<Arc<str>>,
    pub(in crate::server::http) token: Option<Token>,
    pub(in crate::server::http) acquisition: Option<u32>,
    pub(in crate::server::http) wait: Option<Span>,
    pub(in crate::server::http) reentrant: bool,
    pub(in crate::server::http) session: Option<SessionId>,
    pub(in crate::server::http) reason: Option<StealReason>,
    pub(in crate::server::http) name: Option<LockName>,
    pub(in crate::server::http) prefix: String,
    pub(in crate::server::http) after: Option<LockName>,
    pub(in crate::server::http) limit: Option<usize>,
    pub(in crate::server::http) consistency: Consistency,
    pub(in crate::server::http) since: Option<String>,
    pub(in crate::server::http) checks: Vec<(LockName, Token)>,
    pub(in crate::server::http) to: Option<u64>,
    pub(in crate::server::http) force: bool,
    pub(in crate::server::http) state: bool,
    pub(in crate::server::http) whose: Option<ResetScope>,
    pub(in crate::server::http) remember: bool,
    pub(in crate::server::http) remembered: bool,
    pub(in crate::server::http) now: bool,
    pub(in crate::server::http) handover_text: Option<Arc<str>>,
    pub(in crate::server::http) counter: Option<u64>,
    /// The name and value of each option as the client sent it, except the option `client`.
    /// Recorded only if the request has an Idempotency-Key.
    said: Vec<(String, String)>,
    is_keyed: bool,
}

/// The consistency that a read request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in crate::server::http) enum Consistency {
    /// The result reflects every command that was acknowledged before the read.
    #[default]
    Linearizable,
    /// The result is this node's applied state, however old: a stale read.
    Stale,
}

/// The value of an option: any JSON value from a JSON body, text from a query or a form.
#[derive(Clone, Copy)]
enum OptionValue<'a> {
    Text(&'a str),
    Json(&'a Value),
}

impl RequestOptions {
    /// Parses the options of a request; fails if one of them is unknown or invalid.
    pub(in crate::server::http) async fn read(call: &mut RequestContext) -> HandlerResult<Self> {
        let takes_body = call.params.iter().any(|param| param.place == ParamPlace::Option);
        let (body, _memory) = if takes_body && !call.body.get_mut().is_end_stream() {
            Box::pin(call.bytes(BODY_BYTES_MAX)).await?
        } else {
            (Bytes::new(), None)
        };
        Self::parse(call.params, &call.head, &body)
    }

    /// Parses the options in the head and the body of a request.
    pub(in crate::server::http) fn parse(
        params: &[Param],
        head: &Parts,
        body: &[u8],
    ) -> HandlerResult<Self> {
        let is_keyed = head.headers.contains_key(IDEMPOTENCY_KEY.name);
        let mut options = Self { is_keyed, ..Self::default() };
        options.read_body(params, &head.headers, body)?;
        if let Some(query) = head.uri.query() {
            options.read_form(params, query.as_bytes())?;
        }
        if let Some(tag) = head.headers.get(IF_MATCH)
            && params.iter().any(|param| param.name == IF_MATCH_PARAM.name)
        {
            let token = tag_of(tag.as_bytes())?;
            options.token = token.or(options.token);
            options.keep(IF_MATCH_PARAM.name, token.map_or(0, Token::as_u64).to_string());
        }
        Ok(options)
    }

    fn read_body(
        &mut self,
        params: &[Param],
        headers: &HeaderMap,
        body: &[u8],
    ) -> HandlerResult<()> {
        if body.is_empty() {
            return Ok(());
        }
        let kind = headers.get(CONTENT_TYPE).map_or("", |kind| kind.to_str().unwrap_or("?"));
        let kind = kind.split(';').next().unwrap_or_default().trim();
        match kind.to_ascii_lowercase().as_str() {
            "" | "application/json" => {}
            "application/x-www-form-urlencoded" => return self.read_form(params, body),
            _ => {
                let detail = "a body is application/json, or a form";
                return Err(Problem::plain(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail));
            }
        }
        let value: Value = serde_json::from_slice(body).map_err(|error| {
            Problem::invalid(format!("a body is a JSON object, and this is none: {error}"))
        })?;
        let Value::Object(members) = value else {
            return Err(Problem::invalid("a body is a JSON object such as {\"ttl\":\"30s\"}"));
        };
        members.iter().try_for_each(|(key, value)| match value {
            // An option whose JSON value is `null` counts as absent.
            Value::Null if is_known(params, key, true) => Ok(()),
            Value::String(text) => self.take(params, key, OptionValue::Text(text), true),
            value => self.take(params, key, OptionValue::Json(value), true),
        })
    }

    fn read_form(&mut self, params: &[Param], form: &[u8]) -> HandlerResult<()> {
        // The parser replaces what is not UTF-8, which would make one client of two.
        if percent_decode(form).decode_utf8().is_err() {
            return Err(Problem::invalid(
                "options are UTF-8, and these are not; percent-encode them",
            ));
        }
        form_urlencoded::parse(form)
            .try_for_each(|(key, value)| self.take(params, &key, OptionValue::Text(&value), false))
    }

    fn take(
        &mut self,
        params: &[Param],
        key: &str,
        said: OptionValue<'_>,
        in_body: bool,
    ) -> HandlerResult<()> {
        if !is_known(params, key, in_body) {
            let names: Vec<_> = params
                .iter()
                .filter(|param| matches!(param.place, ParamPlace::Option | ParamPlace::Query))
                .map(|param| param.name)
                .collect();
            let known = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            let key = short(key);
            let detail = format!("there is no option '{key}' here; there are: {known}");
            return Err(Problem::invalid(detail));
        }
        self.set(key, said).map_err(|why| Problem::invalid(format!("'{key}': {why}")))?;
        if key != "client" {
            self.keep(key, said.as_sent());
        }
        Ok(())
    }

    /// Records an option as it was sent, for the digest of the request.
    fn keep(&mut self, option: &str, value: String) {
        if self.is_keyed {
            self.said.push((option.to_owned(), value));
        }
    }

    fn set(&mut self, key: &str, said: OptionValue<'_>) -> Result<(), String> {
        match key {
            "client" => self.client = Some(client(said.text()?)?),
            "ttl" => self.ttl = Some(Ttl::parse(signed(said.text()?)).map_err(|e| e.to_string())?),
            "grace" => {
                self.grace = Some(Grace::parse(signed(said.text()?)).map_err(|e| e.to_string())?);
            }
            "mode" => self.mode = Some(mode(said.text()?)?),
            "max" => self.max = Some(Seats::new(said.number()?)?),
            "note" => self.note = Some(note(said.text()?)?),
            "token" => self.token = Some(Token::named(said.id()?)),
            "acquisition" => self.acquisition = Some(said.acquisition()?),
            "wait" => self.wait = Some(wait(said.text()?)?),
            "reentrant" => self.reentrant = said.flag()?,
            "session" => self.session = Some(SessionId::named(said.id()?)),
            "reason" => self.reason = Some(reason(said.text()?)?),
            "name" => self.name = Some(lock_name(said.text()?)?),
            "prefix" => said.text()?.clone_into(&mut self.prefix),
            "after" => self.after = Some(lock_name(said.text()?)?),
            "limit" => self.limit = Some(said.count()?),
            "consistency" => self.consistency = consistency(said.text()?)?,
            "since" => self.since = Some(said.text()?.to_owned()),
            "to" => self.to = Some(said.id()?),
            "force" => self.force = said.flag()?,
            "remember" => self.remember = said.flag()?,
            "remembered" => self.remembered = said.flag()?,
            "now" => self.now = said.flag()?,
            "handover" => self.handover_text = Some(handover(said.text()?)?),
            "counter" => self.counter = Some(said.counter()?),
            "state" => self.state = said.flag()?,
            "keep" => self.whose(ResetScope::AllBut(clients(said.text()?)?))?,
            "of" => self.whose(ResetScope::Of(client(said.text()?)?))?,
            "all" if said.flag()? => self.whose(ResetScope::AllBut(Vec::new()))?,
            "all" => {}
            "checks" => self.checks = said.pairs()?,
            _ => return Err("this is not read yet".to_owned()),
        }
        Ok(())
    }

    fn whose(&mut self, whose: ResetScope) -> Result<(), String> {
        match self.whose.replace(whose) {
            None => Ok(()),
            Some(_) => Err("of 'keep', 'of' and 'all' one is said".to_owned()),
        }
    }

    /// Returns the client on whose behalf the request is made: the one that it names, or the only
    /// one that the caller's credentials allow.
    pub(in crate::server::http) fn client(&self, call: &RequestContext) -> HandlerResult<ClientId> {
        if let Some(client) = &self.client {
            return Ok(client.clone());
        }
        let only = call.grant.only_client().map(ClientId::parse);
        only.and_then(Result::ok)
            .ok_or_else(|| Problem::invalid("the request names no client; add client=NAME"))
    }
}

impl<'a> OptionValue<'a> {
    fn as_sent(self) -> String {
        match self {
            Self::Text(text) => text.to_owned(),
            Self::Json(value) => value.to_string(),
        }
    }

    fn text(self) -> Result<&'a str, String> {
        match self {
            Self::Text(text) => Ok(text),
            Self::Json(other) => Err(format!("this is a text, not {}", shown(other))),
        }
    }

    fn number(self) -> Result<u64, String> {
        let number = match self {
            Self::Text(text) => text.parse().ok(),
            Self::Json(value) => value.as_u64(),
        };
        number.ok_or_else(|| "this is a whole number".to_owned())
    }

    fn id(self) -> Result<u64, String> {
        match self.number()? {
            0 => Err("numbers begin with 1".to_owned()),
            number if number > TOKEN_MAX => Err(format!("this is {TOKEN_MAX} at most")),
            number => Ok(number),
        }
    }

    fn counter(self) -> Result<u64, String> {
        let number = self.number()?;
        let is_exact = number <= TOKEN_MAX;
        is_exact.then_some(number).ok_or_else(|| format!("this is {TOKEN_MAX} at most"))
    }

    fn acquisition(self) -> Result<u32, String> {
        u32::try_from(self.number()?).map_err(|_| format!("this is {} at most", u32::MAX))
    }

    fn count(self) -> Result<usize, String> {
        match self.number()? {
            0 => Err("this is 1 at least".to_owned()),
            number => Ok(usize::try_from(number).unwrap_or(usize::MAX)),
        }
    }

    fn flag(self) -> Result<bool, String> {
        match self {
            Self::Text("true" | "1" | "") | Self::Json(Value::Bool(true)) => Ok(true),
            Self::Text("false" | "0") | Self::Json(Value::Bool(false)) => Ok(false),
            _ => Err("this is true or false".to_owned()),
        }
    }

    fn pairs(self) -> Result<Vec<(LockName, Token)>, String> {
        let Self::Json(Value::Array(items)) = self else {
            return Err("this is a list, in a body of JSON".to_owned());
        };
        if items.len() > CHECKS_MAX {
            return Err(format!("there are {CHECKS_MAX} at most"));
        }
        let pair = |item: &Value| {
            let members = item.as_object().filter(|members| members.len() == 2);
            let (Some(name), Some(token)) = (
                members.and_then(|members| members.get("name")?.as_str()),
                members.and_then(|members| members.get("token")),
            ) else {
                return Err("each is an object with a name and a token".to_owned());
            };
            Ok((lock_name(name)?, Token::named(OptionValue::Json(token).id()?)))
        };
        items.iter().map(pair).collect()
    }
}

fn is_known(params: &[Param], key: &str, in_body: bool) -> bool {
    params.iter().any(|param| {
        param.name == key
            && match param.place {
                ParamPlace::Option => true,
                ParamPlace::Query => !in_body,
                ParamPlace::Path | ParamPlace::Header => false,
            }
    })
}

fn client(text: &str) -> Result<ClientId, String> {
    ClientId::parse(text).map_err(|error| error.to_string())
}

/// Parses a comma-separated list of client names.
fn clients(text: &str) -> Result<Vec<ClientId>, String> {
    text.split(',').map(|one| client(one.trim())).collect()
}

fn mode(text: &str) -> Result<Mode, String> {
    match text {
        "exclusive" => Ok(Mode::Exclusive),
        "shared" => Ok(Mode::Shared),
        other => Err(format!("this is exclusive or shared, not '{}'", short(other))),
    }
}

fn consistency(text: &str) -> Result<Consistency, String> {
    match text {
        // `consistency=local` is the former spelling of `consistency=stale`.
        "stale" | "local" => Ok(Consistency::Stale),
        "linearizable" => Ok(Consistency::Linearizable),
        other => Err(format!("this is linearizable or stale, not '{}'", short(other))),
    }
}

fn note(text: &str) -> Result<Arc<str>, String> {
    if text.len() > NOTE_BYTES_MAX {
        return Err(format!("a note has at most {NOTE_BYTES_MAX} bytes"));
    }
    Ok(text.into())
}

fn handover(text: &str) -> Result<Arc<str>, String> {
    if text.len() > HANDOVER_BYTES_MAX {
        return Err(format!("a handover has at most {HANDOVER_BYTES_MAX} bytes"));
    }
    Ok(text.into())
}

fn reason(text: &str) -> Result<StealReason, String> {
    StealReason::parse(text).ok_or_else(|| {
        format!("a reason is a line of words, {NOTE_BYTES_MAX} bytes at most, and not nothing")
    })
}

/// Returns a duration without the space as which the plus sign of `ttl=+5s` in a query arrives.
fn signed(text: &str) -> &str {
    text.strip_prefix(' ').unwrap_or(text)
}

fn wait(text: &str) -> Result<Span, String> {
    match parse_span(signed(text)) {
        Ok(span) if span > WAIT_MAX => Err(format!("a wait is {WAIT_MAX} at most")),
        Ok(span) => Ok(span),
        Err(error) => Err(error.to_string()),
    }
}

fn lock_name(text: &str) -> Result<LockName, String> {
    LockName::parse(text).map_err(|error: NameError| error.to_string())
}

/// Parses the percent-encoded name of a lock in a URL path.
pub(in crate::server::http) fn name_in(path: &str) -> HandlerResult<LockName> {
    let bytes: Cow<'_, [u8]> = percent_decode_str(path).into();
    LockName::parse_bytes(&bytes).map_err(|error| {
        let shown = short(&String::from_utf8_lossy(&bytes));
        Problem::invalid(format!("'{shown}' can't be the name of a lock: {error}"))
    })
}

/// Parses the fencing token in an entity tag; `None` for `*`, which matches every token.
fn tag_of(tag: &[u8]) -> HandlerResult<Option<Token>> {
    let text = std::str::from_utf8(tag).unwrap_or("?").trim();
    if text == "*" {
        return Ok(None);
    }
    let number = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text);
    match number.parse() {
        Ok(number) if (1..=TOKEN_MAX).contains(&number) => Ok(Some(Token::named(number))),
        _ => Err(Problem::invalid("If-Match is a token in quotes such as \"7\", or *")),
    }
}

/// Returns the Idempotency-Key of a request, if it has one, with a digest of the request.
pub(in crate::server::http) fn request_id(
    call: &RequestContext,
    options: &RequestOptions,
    client: &ClientId,
) -> HandlerResult<Option<IdempotencyKey>> {
    let Some(key) = call.head.headers.get(IDEMPOTENCY_KEY.name) else {
        return Ok(None);
    };
    match key.to_str() {
        Ok(key) if (1..=REQUEST_KEY_BYTES_MAX).contains(&key.len()) => {
            let id = RequestId { caller: call.grant.caller(FRONT_END), key: key.into() };
            Ok(Some(IdempotencyKey { id, digest: digest_of(&call.head, options, client) }))
        }
        _ => Err(Problem::invalid(format!(
            "an Idempotency-Key is 1 to {REQUEST_KEY_BYTES_MAX} characters of ASCII"
        ))),
    }
}

/// Returns a digest of a request: its method, its path, the client, and each option as it was sent.
/// Defaults that the server adds are left out, because they may have changed when the request is
/// repeated.
fn digest_of(head: &Parts, options: &RequestOptions, client: &ClientId) -> Digest {
    let mut hash = Sha256::new();
    let mut put = |part: &str| {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    };
    put(head.method.as_str());
    put(head.uri.path());
    put(client.as_str());
    let mut said: Vec<_> = options.said.iter().collect();
    // The sort is stable, because the order of values matters for an option that is sent twice: the
    // last one counts.
    said.sort_by(|one, other| one.0.cmp(&other.0));
    for (option, value) in said {
        put(option);
        put(value);
    }
    let hash = hash.finalize();
    Digest(u128::from_le_bytes(hash[..16].try_into().expect("16 bytes of 32")))
}

/// Returns the first characters of a text, escaped, for an error message.
fn short(text: &str) -> String {
    const SHOWN: usize = 40;
    let shown: String = text.chars().take(SHOWN).flat_map(char::escape_debug).collect();
    if text.chars().nth(SHOWN).is_some() { shown + "..." } else { shown }
}

fn shown(value: &Value) -> &'static str {
    match value {
        Value::Null => "nothing",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
