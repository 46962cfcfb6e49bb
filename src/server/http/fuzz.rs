//! The parsers of requests, for the fuzzer in `tests/fuzz`. Not a part of the library's interface.

use crate::server::http::bodies::options::{RequestOptions, name_in};
use crate::server::http::bodies::parameters::ParamPlace;
use crate::server::http::bodies::problem::{HandlerResult, Problem};
use crate::server::http::routes::route_table::endpoints;
use axum::http::{Request, StatusCode};

/// Returns the number of endpoints.
pub fn endpoint_count() -> usize {
    endpoints().count()
}

/// Returns the names of the options of the endpoint with this index, in a query or a body.
pub fn parameters(endpoint: usize) -> Vec<&'static str> {
    let of = endpoints().nth(endpoint).map_or(&[][..], |(_, endpoint)| endpoint.doc.params);
    let options = of.iter().filter(|param| param.place == ParamPlace::Option);
    options.map(|param| param.name).collect()
}

/// Parses the options of a request to the endpoint with this index. Returns them as text, or the
/// status code of the refusal; `None` if a query or a header of these bytes can't be received.
pub fn options(
    endpoint: usize,
    query: &[u8],
    headers: &[(&str, &[u8])],
    body: &[u8],
) -> Option<Result<String, u16>> {
    let (_, endpoint) = endpoints().nth(endpoint)?;
    let mut request = Request::builder().uri([b"/?", query].concat().as_slice());
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let (head, ()) = request.body(()).ok()?.into_parts();
    let parsed = RequestOptions::parse(endpoint.doc.params, &head, body);
    Some(shown(parsed.map(|options| format!("{options:?}"))))
}

/// Parses the name of a lock in a path. Returns it, or the status code of the refusal.
pub fn name(path: &str) -> Result<String, u16> {
    shown(name_in(path).map(|name| name.as_str().to_owned()))
}

fn shown(parsed: HandlerResult<String>) -> Result<String, u16> {
    parsed.map_err(|problem: Problem| StatusCode::as_u16(&problem.into_response().status()))
}
