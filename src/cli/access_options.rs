//! The options for access control and TLS of a server.

use super::environment::absolute;
use super::exit::CliResult;
use crate::auth::{Credentials, TlsFiles};
use crate::engine::{Grace, Ttl};
use crate::server::http::{HttpConfig, Listen};
use std::path::PathBuf;

/// The options for access control and TLS of a server.
#[derive(Debug, clap::Args)]
pub(super) struct AccessArgs {
    /// Bearer tokens and what each may do, in TOML; read again at SIGHUP
    #[arg(long, value_name = "FILE")]
    tokens: Option<PathBuf>,
    /// Encrypt by this certificate, in PEM; read again at SIGHUP
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The key of the certificate, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Let clients show certificates that this one has signed
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    client_ca: Option<PathBuf>,
    /// Be open to a network without tokens or without TLS
    #[arg(long)]
    insecure: bool,
}

impl AccessArgs {
    /// Returns the access configuration of a server that listens at `listen`. Its paths are
    /// absolute, because a daemon may change its working directory.
    pub(super) fn config(
        &self,
        listen: Listen,
        (ttl, grace): (Ttl, Grace),
    ) -> CliResult<HttpConfig> {
        let whole = |path: &Option<PathBuf>| path.as_deref().map(absolute).transpose();
        let tls = match (whole(&self.tls_cert)?, whole(&self.tls_key)?) {
            (Some(cert), Some(key)) => {
                Some(TlsFiles { cert, key, client_ca: whole(&self.client_ca)? })
            }
            _ => None,
        };
        let credentials = Credentials { tokens: whole(&self.tokens)?, tls };
        Ok(HttpConfig {
            listen,
            ttl,
            grace,
            credentials,
            insecure: self.insecure,
            release_on_node_removal: false,
        })
    }
}
