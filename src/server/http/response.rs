//! Responses: JSON or text, which no cache may keep.

use axum::body::Body;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderValue, StatusCode};
use serde_json::Value;

/// A response.
pub(super) type Response = axum::http::Response<Body>;

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
