//! Error responses as problem+json (RFC 9457), and the only table that maps kinds of refusals to
//! status codes.

use super::response::Response;
use crate::auth::Denial;
use crate::engine::{Conflict, HoldOff, Reason, RefusalKind, Way};
use crate::service::{RequestError, Unavailable};
use crate::time::{Span, Time};
use axum::body::Body;
use axum::http::header::{ALLOW, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use serde_json::{Map, Value};

/// The error response to a failed request. Its content is boxed, because it is larger and rarer
/// than a success.
#[derive(Debug)]
pub(in crate::server::http) struct Problem(Box<ProblemParts>);

#[derive(Debug)]
struct ProblemParts {
    status: StatusCode,
    kind: Option<RefusalKind>,
    detail: String,
    /// Extension members of the problem document, besides those of RFC 9457.
    more: Map<String, Value>,
    headers: Vec<(HeaderName, HeaderValue)>,
    /// The engine time at which the lease in the way of the request expires.
    expires_at: Option<Time>,
}

/// The value of `reason` in the error for a request that has left the queue of its lock without
/// being granted it. Repeats of the request with the same Idempotency-Key are refused.
pub(in crate::server::http) const LEFT_QUEUE: &str = "left_queue";

/// The result of a request handler: a response, or a problem.
pub(in crate::server::http) type HandlerResult<T = Response> = Result<T, Problem>;

impl From<Unavailable> for Problem {
    fn from(why: Unavailable) -> Self {
        RequestError::Unavailable(why).into()
    }
}

/// Returns the status code of a kind of refusal. Two kinds have a second code:
/// [`RefusalKind::Denied`] is 401 for a caller without valid credentials, see [`Problem::unknown`];
/// [`RefusalKind::Invalid`] is 422 for an Idempotency-Key that was used before for another request.
pub(in crate::server::http) const fn status_of(kind: RefusalKind) -> StatusCode {
    match kind {
        RefusalKind::LockConflict => StatusCode::CONFLICT,
        RefusalKind::LockNotHeld | RefusalKind::Denied => StatusCode::FORBIDDEN,
        RefusalKind::LockExpired => StatusCode::GONE,
        RefusalKind::FencingMismatch => StatusCode::PRECONDITION_FAILED,
        RefusalKind::ClockSkewExceeded | RefusalKind::ConsistencyUnavailable => {
            StatusCode::SERVICE_UNAVAILABLE
        }
        RefusalKind::Invalid => StatusCode::BAD_REQUEST,
        RefusalKind::Limit => StatusCode::TOO_MANY_REQUESTS,
    }
}

/// Returns the title of a kind of problem: the same for every occurrence, as RFC 9457 asks.
const fn title_of(kind: RefusalKind) -> &'static str {
    match kind {
        RefusalKind::LockConflict => "The lock is not available",
        RefusalKind::LockNotHeld => "You do not hold the lock",
        RefusalKind::LockExpired => "The lease is over",
        RefusalKind::FencingMismatch => "Another tenure is the current one",
        RefusalKind::ClockSkewExceeded => "Clocks differ by too much",
        RefusalKind::ConsistencyUnavailable => "No consistent answer is available",
        RefusalKind::Invalid => "The request is wrong",
        RefusalKind::Limit => "Limit exceeded",
        RefusalKind::Denied => "You may not do this",
    }
}

/// Returns the machine-readable reason of a conflict, as the member `reason` shows it.
const fn way_of(way: Way) -> &'static str {
    match way {
        Way::Held => "held",
        Way::Grace => "grace",
        Way::Own => "own",
        Way::Behind => "behind",
        Way::StealGrace { .. } => "steal_grace",
    }
}

impl Problem {
    /// Returns a problem for a kind of refusal, with the explanation `detail`.
    pub(in crate::server::http) fn of(kind: RefusalKind, detail: impl Into<String>) -> Self {
        let mut problem = Self::plain(status_of(kind), detail);
        problem.0.kind = Some(kind);
        problem
    }

    /// Returns a problem that is no refusal of the lock service, but concerns HTTP only.
    pub(in crate::server::http) fn plain(status: StatusCode, detail: impl Into<String>) -> Self {
        let (kind, more, headers, expires_at) = (None, Map::new(), Vec::new(), None);
        let detail = detail.into();
        Self(Box::new(ProblemParts { status, kind, detail, more, headers, expires_at }))
    }

    /// Returns the problem of an invalid request (400).
    pub(in crate::server::http) fn invalid(detail: impl Into<String>) -> Self {
        Self::of(RefusalKind::Invalid, detail)
    }

    /// Replaces the status code of the response.
    fn under(mut self, status: StatusCode) -> Self {
        self.0.status = status;
        self
    }

    /// Returns the problem of missing or unknown credentials (401).
    pub(in crate::server::http) fn unknown(detail: impl Into<String>) -> Self {
        let problem = Self::of(RefusalKind::Denied, detail).under(StatusCode::UNAUTHORIZED);
        problem.header(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"latchfs\""))
    }

    /// Returns the problem of an authenticated caller without the necessary rights (403).
    pub(in crate::server::http) fn denied(denial: &Denial) -> Self {
        Self::of(RefusalKind::Denied, denial.to_string())
    }

    /// Returns the problem of a path that does not exist (404).
    pub(in crate::server::http) fn no_such_path(path: &str) -> Self {
        let path: String = path.chars().take(80).collect();
        let detail = format!("there is nothing at {path}; /openapi.json says what there is");
        Self::plain(StatusCode::NOT_FOUND, detail)
    }

    /// Returns the problem of a method that the path does not support (405).
    pub(in crate::server::http) fn wrong_method(method: &str, allowed: &str) -> Self {
        let method: String = method.chars().take(20).collect();
        let detail = format!("{method} has no meaning here; there are {allowed}");
        let allow = HeaderValue::from_str(allowed).expect("names of methods are header values");
        Self::plain(StatusCode::METHOD_NOT_ALLOWED, detail).header(ALLOW, allow)
    }

    /// Returns the problem of a server that is shutting down (503).
    pub(in crate::server::http) fn closing() -> Self {
        Self::from_failure(&RequestError::Unavailable(Unavailable::Closing))
            .header(RETRY_AFTER, HeaderValue::from_static("1"))
    }

    /// Converts an error of the lock service to a problem.
    pub(in crate::server::http) fn from_failure(failure: &RequestError) -> Self {
        let refusal = match failure {
            RequestError::Refused(refusal) => refusal,
            RequestError::Unavailable(why) => {
                let problem = Self::of(failure.kind(), failure.to_string());
                return if why.is_no_majority() {
                    problem.with("reason", "no_majority")
                } else {
                    problem
                };
            }
        };
        let problem = Self::of(failure.kind(), refusal.for_http());
        match &*refusal.reason {
            Reason::Conflict(conflict) => problem.about(conflict, refusal.at),
            Reason::HoldOff { name, hold_off, waiting } => problem
                .not_before(hold_off, refusal.at)
                .with("name", name.as_str())
                .with("waiting", *waiting),
            Reason::NotHeld { holder: Some(holder), .. } => problem.with("holder", holder.as_str()),
            Reason::StaleToken { current, .. }
            | Reason::NothingToSteal { current: Some(current), .. } => {
                problem.with("token", current.as_u64())
            }
            Reason::AcquiredAgain { current, .. } => problem.with("acquisition", *current),
            Reason::NotInLine(_) => problem.with("reason", LEFT_QUEUE),
            Reason::KeyReused(_) => problem.under(StatusCode::UNPROCESSABLE_ENTITY),
            _ => problem,
        }
    }

    /// Adds the conflicting holder, and the time after which the client should retry.
    fn about(self, conflict: &Conflict, now: Time) -> Self {
        let free_at = match conflict.way {
            Way::StealGrace { until } => until,
            _ => conflict.ends.grace_until,
        };
        let mut problem = self
            .with("reason", way_of(conflict.way))
            .with("name", conflict.name.as_str())
            .with("holder", conflict.holder.as_str())
            .with("token", conflict.token.as_u64())
            .with("waiting", conflict.waiting);
        problem.0.expires_at = Some(conflict.ends.expires_at);
        if conflict.ends.expires_at != Time::NEVER {
            problem = problem.with("expires_in_ms", conflict.ends.left(now).as_millis());
        }
        if free_at != Time::NEVER {
            problem = problem.come_again_in(free_at.since(now));
        }
        problem
    }

    /// Adds that nothing is granted before the end of a hold-off, and why.
    pub(in crate::server::http) fn not_before(self, hold_off: &HoldOff, now: Time) -> Self {
        self.with("reason", "hold_off")
            .with("because", hold_off.cause.as_str())
            .come_again_in(hold_off.until.since(now))
    }

    fn come_again_in(self, span: Span) -> Self {
        let seconds = span.as_millis().div_ceil(1_000);
        self.with("retry_after_ms", span.as_millis()).header(RETRY_AFTER, seconds.into())
    }

    /// Adds an extension member to the problem document.
    pub(in crate::server::http) fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.0.more.insert(key.to_owned(), value.into());
        self
    }

    fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.0.headers.push((name, value));
        self
    }

    /// Returns the explanation of the problem if it is a denial; `None` for any other problem.
    pub(in crate::server::http) fn denial(&self) -> Option<&str> {
        (self.0.kind == Some(RefusalKind::Denied)).then_some(&*self.0.detail)
    }

    /// Returns the kind of refusal that the problem is, if it is one.
    pub(in crate::server::http) fn kind(&self) -> Option<RefusalKind> {
        self.0.kind
    }

    /// Returns the explanation of the problem.
    pub(in crate::server::http) fn detail(&self) -> &str {
        &self.0.detail
    }

    /// Returns the lock of a conflict.
    pub(in crate::server::http) fn lock(&self) -> Option<&str> {
        self.0.more.get("name").and_then(Value::as_str)
    }

    /// Whether the problem is a refusal of the kind `kind`.
    pub(in crate::server::http) fn is(&self, kind: RefusalKind) -> bool {
        self.0.kind == Some(kind)
    }

    /// Returns the machine-readable reason of the problem, if it is a conflict with one.
    pub(in crate::server::http) fn reason(&self) -> Option<&str> {
        self.0.more.get("reason").and_then(Value::as_str)
    }

    /// Returns the engine time at which the lease in the way expires, if the problem is a conflict.
    pub(in crate::server::http) fn expires_at(&self) -> Option<Time> {
        self.0.expires_at
    }

    /// Converts the problem to a response with the content type `application/problem+json`.
    pub(in crate::server::http) fn into_response(self) -> Response {
        let ProblemParts { status, kind, detail, more, headers, expires_at: _ } = *self.0;
        let mut body = Map::with_capacity(8);
        let mut put = |key: &str, value: Value| body.insert(key.to_owned(), value);
        if let Some(kind) = kind {
            put("type", format!("urn:latchfs:{}", kind.as_str()).into());
            put("title", title_of(kind).into());
        } else {
            put("type", "about:blank".into());
            put("title", status.canonical_reason().unwrap_or("Error").into());
        }
        put("status", status.as_u16().into());
        put("detail", detail.into());
        if let Some(kind) = kind {
            put("kind", kind.as_str().into());
        }
        body.extend(more);
        let mut response = Response::new(Body::from(format!("{}\n", Value::Object(body))));
        *response.status_mut() = status;
        let sent = response.headers_mut();
        sent.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        sent.extend(headers);
        response
    }
}

impl From<RequestError> for Problem {
    fn from(failure: RequestError) -> Self {
        Problem::from_failure(&failure)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal_kinds_have_documented_status_codes() {
        let codes = RefusalKind::ALL.map(|kind| (kind.as_str(), status_of(kind).as_u16()));
        assert_eq!(
            codes,
            [
                ("E_LOCK_CONFLICT", 409),
                ("E_LOCK_NOT_HELD", 403),
                ("E_LOCK_EXPIRED", 410),
                ("E_FENCING_MISMATCH", 412),
                ("E_CLOCK_SKEW_EXCEEDED", 503),
                ("E_CONSISTENCY_UNAVAILABLE", 503),
                ("E_INVALID", 400),
                ("E_LIMIT", 429),
                ("E_DENIED", 403),
            ]
        );
    }
}
