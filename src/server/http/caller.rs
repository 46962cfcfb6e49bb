//! Authenticates the caller of a request by the bearer token in its headers or by its client
//! certificate, or admits it as anonymous.

use super::problem::{HandlerResult, Problem};
use crate::auth::{AuthenticationError, Authenticator, Grant};
use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use std::sync::Arc;

/// Returns the permissions (grant) of a request's caller: by the bearer token in `headers`, by
/// `certified` (the grant of its certificate), or as anonymous.
pub(super) fn grant_of(
    gate: &Authenticator,
    headers: &HeaderMap,
    certified: Option<&Arc<Grant>>,
) -> HandlerResult<Arc<Grant>> {
    let secret = match headers.get(AUTHORIZATION) {
        Some(header) if gate.knows_tokens() => {
            Some(secret_of(header.as_bytes()).ok_or_else(|| {
                Problem::unknown("credentials are sent as 'Authorization: Bearer TOKEN'")
            })?)
        }
        Some(_) | None => None,
    };
    gate.grant(secret, certified).map_err(|unknown| {
        Problem::unknown(match unknown {
            AuthenticationError::Token => {
                "this token is unknown; ask the operator of the server \
                for one"
            }
            AuthenticationError::Nothing => "send a header 'Authorization: Bearer TOKEN'",
            AuthenticationError::Certificate => "use a client certificate",
        })
    })
}

/// Returns the token in an Authorization header, if its scheme is `Bearer`.
fn secret_of(header: &[u8]) -> Option<&[u8]> {
    let (scheme, secret) = header.split_at_checked(b"bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| secret.trim_ascii())
}
