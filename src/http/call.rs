//! One request on its way to a handler, and what handlers read from it and answer with.

use super::access::Grant;
use super::app::App;
use super::problem::{Done, Problem};
use axum::body::Body;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde_json::Value;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

/// What is sent back.
pub(super) type Response = axum::http::Response<Body>;

/// A handler at work.
pub(super) type Answering = Pin<Box<dyn Future<Output = Done> + Send>>;

/// The longest body that makes sense: a note of 1 KiB, names and clients, several times over.
pub(super) const BODY_BYTES_MAX: usize = 64 << 10;

/// A body of that length comes within a moment on any line; who needs longer keeps a place that
/// another could have.
pub(super) const BODY_PATIENCE: Duration = Duration::from_secs(10);

/// One request.
pub(super) struct Call {
    pub(super) app: Arc<App>,
    /// What the caller may do.
    pub(super) grant: Arc<Grant>,
    pub(super) head: Parts,
    pub(super) body: Body,
}

impl Call {
    /// The whole body, if it is not too long and comes in time.
    pub(super) async fn bytes(&mut self, max: usize) -> Done<axum::body::Bytes> {
        let body = std::mem::take(&mut self.body);
        let whole = tokio::time::timeout(BODY_PATIENCE, Limited::new(body, max).collect());
        match whole.await {
            Ok(Ok(body)) => Ok(body.to_bytes()),
            Ok(Err(error)) if error.is::<LengthLimitError>() => Err(Problem::plain(
                StatusCode::PAYLOAD_TOO_LARGE,
                format!("a body has at most {max} bytes here"),
            )),
            Ok(Err(error)) => Err(Problem::invalid(format!("the body can't be read: {error}"))),
            Err(_) => Err(Problem::plain(
                StatusCode::REQUEST_TIMEOUT,
                format!("the body did not come within {} s", BODY_PATIENCE.as_secs()),
            )),
        }
    }
}

/// JSON with a status code.
pub(super) fn json(status: StatusCode, value: &Value) -> Response {
    text(status, HeaderValue::from_static("application/json"), format!("{value}\n"))
}

/// Text of some type, which nobody may keep: the next moment may show another.
pub(super) fn text(status: StatusCode, kind: HeaderValue, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
