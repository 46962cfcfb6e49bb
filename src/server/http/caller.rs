//! Authenticates the caller of a request by the bearer token in its headers or by its client
//! certificate, or admits it as anonymous; again and again for a request that lasts.

use super::problem::{HandlerResult, Problem};
use crate::auth::connection_limits::ConnectionOrigin;
use crate::auth::{AuthenticationError, Authenticator, Grant};
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, HeaderValue};
use std::sync::Arc;

/// The proof of its identity that a caller has sent.
#[derive(Clone)]
pub(super) struct Caller {
    authorization: Option<HeaderValue>,
    pub(super) origin: Arc<ConnectionOrigin>,
}

impl Caller {
    /// Returns the caller that sent these headers.
    pub(super) fn of(headers: &HeaderMap, origin: Arc<ConnectionOrigin>) -> Self {
        Self { authorization: headers.get(AUTHORIZATION).cloned(), origin }
    }

    /// Whether the caller has sent any credentials with the request.
    pub(super) const fn has_sent(&self) -> bool {
        self.authorization.is_some()
    }

    /// Returns the grant that the caller has now.
    pub(super) fn grant(&self, gate: &Authenticator) -> HandlerResult<Arc<Grant>> {
        grant_of(gate, self)
    }
}

/// Returns the permissions (grant) of a caller: by its bearer token, by its certificate, or as
/// anonymous.
fn grant_of(gate: &Authenticator, caller: &Caller) -> HandlerResult<Arc<Grant>> {
    let certified = caller.origin.certified.as_ref();
    let secret = match &caller.authorization {
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
            AuthenticationError::Unlisted => {
                "this client certificate has no rights here; ask the operator of the server for an \
                entry in the file of --certificate-rights"
            }
            AuthenticationError::Refused => {
                "this client certificate is refused; ask the operator of the server for another"
            }
        })
    })
}

/// Returns the token in an Authorization header, if its scheme is `Bearer`.
fn secret_of(header: &[u8]) -> Option<&[u8]> {
    let (scheme, secret) = header.split_at_checked(b"bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| secret.trim_ascii())
}
