//! Builders of responses with JSON or text, all with `Cache-Control: no-store`.

use axum::body::Body;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderValue, StatusCode};
use serde_json::Value;

/// The response type of all handlers.
pub(super) type Response = axum::http::Response<Body>;

/// Returns a response with a JSON body.
pub(super) fn json(status: StatusCode, value: &Value) -> Response {
    text(status, HeaderValue::from_static("application/json"), format!("{value}\n"))
}

/// Returns a response with this content type. It must not be cached, because the state may change
/// at any moment.
pub(super) fn text(status: StatusCode, kind: HeaderValue, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
