//! An endpoint: one method at a path, with its handler, its permission and its documentation.

use super::parameters::Param;
use super::request_context::{HandlerFuture, RequestContext};
use super::schema::Schema;
use crate::auth::permissions::Operation;
use axum::http::Method;

/// One method at a path: its handler, the operation whose permissions it needs, and its
/// documentation.
pub(super) struct Endpoint {
    pub(super) method: Method,
    pub(super) doc: EndpointDoc,
    /// The operation whose permissions a request needs.
    pub(super) operation: Operation,
    pub(super) run: fn(RequestContext) -> HandlerFuture,
}

/// The documentation of an endpoint in the `OpenAPI` document.
pub(super) struct EndpointDoc {
    pub(super) id: &'static str,
    pub(super) summary: &'static str,
    pub(super) params: &'static [Param],
    /// Status code of a successful response.
    pub(super) code: u16,
    pub(super) schema: Schema,
    /// Status codes of error responses; all of them carry a problem document.
    pub(super) problems: &'static [u16],
}

/// Builds an endpoint.
pub(super) const fn endpoint(
    method: Method,
    operation: Operation,
    run: fn(RequestContext) -> HandlerFuture,
    doc: EndpointDoc,
) -> Endpoint {
    Endpoint { method, doc, operation, run }
}

/// Builds the documentation of an endpoint.
pub(super) const fn doc(
    id: &'static str,
    summary: &'static str,
    params: &'static [Param],
    (code, schema): (u16, Schema),
    problems: &'static [u16],
) -> EndpointDoc {
    EndpointDoc { id, summary, params, code, schema, problems }
}
