//! The options for access control and TLS of a server.

use super::environment::absolute;
use super::exit::CliResult;
use crate::auth::{AllowedHosts, Credentials, OpenTo, TlsFiles};
use crate::engine::{Grace, Ttl};
use crate::server::http::{HttpConfig, Listen};
use crate::shares::{LoweredLimits, SharePercent};
use clap::ValueEnum;
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
    /// The rights of client certificates, in TOML, without which a certificate has none; read again
    /// at SIGHUP
    #[arg(long, value_name = "FILE", requires = "client_ca")]
    certificate_rights: Option<PathBuf>,
    /// Refuse the certificates with these serial numbers, one a line in hex; read again at SIGHUP
    #[arg(long, value_name = "FILE")]
    pub(super) refuse_serials: Option<PathBuf>,
    /// A name by which clients call a server without tokens and certificates
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    allow_host: Vec<String>,
    /// Be open to a network without tokens, without TLS, or without both
    #[arg(long, value_name = "WITHOUT", value_enum, num_args = 0..=1, require_equals = true,
        default_missing_value = "both")]
    insecure: Option<Insecure>,
    /// The most of each limited table that one credential, or one address without any, may take
    #[arg(long, value_name = "PERCENT", default_value = "50", value_parser = SharePercent::parse)]
    share: SharePercent,
}

/// The value of `--insecure`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Insecure {
    /// Callers need credentials, but others on the network can read them
    NoTls,
    /// Connections are encrypted, but everybody on the network may do everything
    NoCredentials,
    /// Neither
    Both,
}

impl AccessArgs {
    /// Returns the part of each limited table that one identity may take.
    pub(super) const fn share(&self) -> SharePercent {
        self.share
    }

    /// Whether callers must authenticate.
    pub(super) const fn identifies(&self) -> bool {
        self.tokens.is_some() || self.client_ca.is_some()
    }

    /// Returns the access configuration of a server that listens at `listen`. Its paths are
    /// absolute, because a daemon may change its working directory.
    pub(super) fn config(
        &self,
        listen: Vec<Listen>,
        (ttl, grace): (Ttl, Grace),
    ) -> CliResult<HttpConfig> {
        let whole = |path: &Option<PathBuf>| path.as_deref().map(absolute).transpose();
        let tls = match (whole(&self.tls_cert)?, whole(&self.tls_key)?) {
            (Some(cert), Some(key)) => {
                Some(TlsFiles { cert, key, client_ca: whole(&self.client_ca)? })
            }
            _ => None,
        };
        let refused = whole(&self.refuse_serials)?;
        let hosts = AllowedHosts(self.allow_host.clone());
        let (tokens, rights) = (whole(&self.tokens)?, whole(&self.certificate_rights)?);
        let credentials = Credentials { tokens, tls, rights, refused, hosts };
        let share = self.share;
        let insecure = OpenTo {
            readers: matches!(self.insecure, Some(Insecure::NoTls | Insecure::Both)),
            callers: matches!(self.insecure, Some(Insecure::NoCredentials | Insecure::Both)),
        };
        Ok(HttpConfig {
            listen,
            ttl,
            grace,
            credentials,
            insecure,
            share,
            limits: LoweredLimits::default(),
            release_on_node_removal: false,
        })
    }
}
