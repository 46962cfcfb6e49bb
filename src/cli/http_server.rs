//! Start of the HTTP server of `serve` and of `mount --listen`, and its reload at SIGHUP.

use super::exit::{CliError, CliResult, Exit};
use super::output;
use crate::raft::PeerError;
use crate::server::http::{HttpConfig, HttpServer, HttpStartError, Listen};
use crate::service::Locks;

/// Makes the server read its tokens and certificates again, also those for peers, and prints the
/// result on standard error.
pub(super) fn reload(server: &HttpServer, peers: impl FnOnce() -> Result<(), PeerError>) {
    match server.reload() {
        Ok(()) => output::say("tokens and certificates were read again"),
        Err(error) => output::say(&format!("all stays as it was: {error}")),
    }
    if let Err(error) = peers() {
        output::say(&format!("the certificates for peers stay as they were: {error}"));
    }
}

/// Starts the HTTP server, and prints the address on which it listens.
pub(super) fn start(locks: Locks, config: &HttpConfig) -> CliResult<HttpServer> {
    let server = HttpServer::start(locks, config).map_err(|error| refused(&error))?;
    let (ttl, grace) = (config.ttl.span(), config.grace.span());
    let scheme = match (&config.listen, &config.credentials.tls) {
        (Listen::Unix(..), _) => "unix:",
        (Listen::Tcp(_), Some(_)) => "https://",
        (Listen::Tcp(_), None) => "http://",
    };
    let address = server.address();
    output::line(&format!("latchfs: listening on {scheme}{address} (ttl {ttl}, grace {grace})"))?;
    Ok(server)
}

fn refused(error: &HttpStartError) -> CliError {
    let exit = match error {
        HttpStartError::Open(_) => Exit::Usage,
        HttpStartError::Listen(..) | HttpStartError::System(_) | HttpStartError::Credentials(_) => {
            Exit::Unavailable
        }
    };
    CliError::Said(exit, error.to_string())
}
