//! The ids of requests, and the log lines of each request: access and refusals.

use super::request_context::RequestSubject;
use crate::base::random;
use crate::engine::RefusalKind;
use crate::server::http::bodies::problem::Problem;
use crate::server::http::bodies::response::Response;
use crate::server::http::handlers::list;
use crate::server::http::handlers::lock_resource::steal_of;
use crate::service::audit::refusal_log::{ACCESS_LOG, CommandSubject, RefusalLine, log_refusal};
use crate::time::Span;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method};
use percent_encoding::percent_decode_str;
use std::borrow::Cow;
use std::sync::Arc;

/// The header with the id of a request, and with the same id in its answer.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Maximum length of the id that a client gives to its request.
const REQUEST_ID_BYTES_MAX: usize = 64;

/// A request, for its log lines.
pub(super) struct LoggedRequest {
    id: HeaderValue,
    method: Method,
    path: String,
    subject: RequestSubject,
}

impl LoggedRequest {
    /// Returns a request with the id that its client gave it, or else a new one.
    pub(super) fn of(request: &Request) -> Self {
        Self {
            id: id_in(request.headers()).unwrap_or_else(new_id),
            method: request.method().clone(),
            path: request.uri().path().to_owned(),
            subject: RequestSubject::default(),
        }
    }

    /// Returns the place for the command that the request submits.
    pub(super) fn subject(&self) -> RequestSubject {
        Arc::clone(&self.subject)
    }

    fn id(&self) -> &str {
        self.id.to_str().unwrap_or_default()
    }

    /// Adds the id to a problem, and logs the problem if it is a refusal. `caller` is the name of
    /// its credential.
    pub(super) fn refused(&self, caller: Option<&str>, problem: Problem) -> Problem {
        if let Some(kind) = problem.kind().filter(|kind| *kind != RefusalKind::Invalid) {
            let subject = self.subject.get();
            let lock = problem.lock().or_else(|| subject?.lock()).map(Cow::from);
            let lock = lock.or_else(|| self.lock());
            log_refusal(&RefusalLine {
                lock: lock.as_deref(),
                client: subject.and_then(CommandSubject::client).or(caller),
                token: subject.and_then(CommandSubject::token),
                kind,
                reason: problem.detail(),
                request: Some(self.id()),
            });
        }
        problem.with("request_id", self.id())
    }

    /// Returns the lock in the path of the request.
    fn lock(&self) -> Option<Cow<'_, str>> {
        let stolen = steal_of(&self.path).filter(|_| self.method == Method::POST);
        let asked = list::lock_in(&self.path).filter(|_| list::is_meant(&self.method, &self.path));
        let name = stolen.or(asked).or_else(|| self.path.strip_prefix("/locks/"))?;
        Some(percent_decode_str(name).decode_utf8_lossy())
    }

    /// Adds the id to an answer, and logs the request.
    pub(super) fn answered(&self, response: &mut Response, caller: Option<&str>, took: Span) {
        response.headers_mut().insert(REQUEST_ID, self.id.clone());
        let (status, took_ms) = (response.status().as_u16(), took.as_millis());
        let (method, path) = (self.method.as_str(), &*self.path);
        let (client, request) = (self.subject.get().and_then(CommandSubject::client), self.id());
        log::debug!(target: ACCESS_LOG,
            method, path, status, took_ms, client, caller, request; "request answered");
    }
}

/// Returns the id that a client gave to its request, if it is short and only has letters, digits
/// and `-_.:`.
fn id_in(headers: &HeaderMap) -> Option<HeaderValue> {
    let id = headers.get(REQUEST_ID)?;
    let is_allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(byte);
    let is_id = (1..=REQUEST_ID_BYTES_MAX).contains(&id.len());
    (is_id && id.as_bytes().iter().all(is_allowed)).then(|| id.clone())
}

fn new_id() -> HeaderValue {
    let id = format!("{:016x}", random());
    HeaderValue::try_from(id).expect("digits are a header value")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_of_a_refused_request_is_the_one_it_concerns() {
        let lock = |method: &Method, path: &str| {
            let request = LoggedRequest {
                id: new_id(),
                method: method.clone(),
                path: path.to_owned(),
                subject: RequestSubject::default(),
            };
            request.lock().map(Cow::into_owned)
        };
        let named = |name: &str| Some(name.to_owned());
        assert_eq!(lock(&Method::POST, "/locks/a%20b/steal"), named("a b"));
        assert_eq!(lock(&Method::DELETE, "/locks/a/steal"), named("a/steal"));
        assert_eq!(lock(&Method::GET, "/locks/a/previous"), named("a"));
        assert_eq!(lock(&Method::PUT, "/locks/team/build"), named("team/build"));
        assert_eq!(lock(&Method::GET, "/status"), None);
    }

    #[test]
    fn only_short_plain_request_ids_are_taken_over() {
        let taken = |id: &[u8]| {
            let mut headers = HeaderMap::new();
            headers.insert(REQUEST_ID, HeaderValue::from_bytes(id).expect("a header value"));
            id_in(&headers).is_some()
        };
        assert!(taken(b"01J9-ab_c.d:e") && taken(&[b'a'; REQUEST_ID_BYTES_MAX]));
        assert!(!taken(b"") && !taken(b"a b") && !taken(b"a\"b") && !taken("ä".as_bytes()));
        assert!(!taken(&[b'a'; REQUEST_ID_BYTES_MAX + 1]));
        assert_ne!(new_id(), new_id());
    }
}
