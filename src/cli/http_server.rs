//! Start of the HTTP server of `serve` and of `mount --listen`, and its reload at SIGHUP.

use super::exit::{CliError, CliResult, Exit};
use super::output;
use crate::auth::Authenticator;
use crate::raft::PeerError;
use crate::server::http::{HttpConfig, HttpServer, HttpStartError, Listen};
use crate::service::{AdminAction, AuditEntry, Locks};
use std::sync::Arc;

/// Makes the server read its tokens and certificates again, also those for peers, and prints the
/// result on standard error.
pub(super) fn reload(server: &HttpServer, peers: impl FnOnce() -> Result<(), PeerError>) {
    let mut outcome = match server.reload() {
        Ok(()) => "tokens and certificates were read again".to_owned(),
        Err(error) => format!("all stays as it was: {error}"),
    };
    output::say(&outcome);
    if let Err(error) = peers() {
        let more = format!("the certificates for peers stay as they were: {error}");
        output::say(&more);
        outcome = format!("{outcome}; {more}");
    }
    server.audit(&AuditEntry::Act(AdminAction {
        what: "read credentials again",
        target: None,
        by: "SIGHUP",
        credential: "signal",
        address: "this machine",
        outcome: &outcome,
    }));
}

/// Reads all credential files of a server.
pub(super) fn authenticator(config: &HttpConfig) -> CliResult<Arc<Authenticator>> {
    config.authenticator().map_err(|error| refused(&error))
}

/// Starts the HTTP server, and prints the addresses on which it listens.
pub(super) fn start(
    locks: Locks,
    config: &HttpConfig,
    gate: Arc<Authenticator>,
) -> CliResult<HttpServer> {
    let server = HttpServer::start(locks, config, gate).map_err(|error| refused(&error))?;
    let (ttl, grace) = (config.ttl.span(), config.grace.span());
    for (listen, address) in config.listen.iter().zip(server.addresses()) {
        let scheme = match (listen, &config.credentials.tls) {
            (Listen::Unix(..), _) => "unix:",
            (Listen::Tcp(_), Some(_)) => "https://",
            (Listen::Tcp(_), None) => "http://",
        };
        output::announce(&format!(
            "latchfs: listening on {scheme}{address} (ttl {ttl}, grace {grace})"
        ))?;
    }
    Ok(server)
}

fn refused(error: &HttpStartError) -> CliError {
    let exit = match error {
        HttpStartError::Open(..) => Exit::Usage,
        HttpStartError::Listen(..) | HttpStartError::System(_) | HttpStartError::Credentials(_) => {
            Exit::Unavailable
        }
    };
    CliError::Said(exit, error.to_string())
}
