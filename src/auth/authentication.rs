//! Authenticates callers by bearer token, client certificate or Unix user, or admits anyone if the
//! server requires no credentials.

use super::browser_checks::AllowedHosts;
use super::grant::Grant;
use super::server_tls::{CertifiedCaller, ClientCertPolicy, TlsError, TlsFiles};
use super::token_file::{Tokens, TokensError};
use crate::net::refused_serials::RefusedSerials;
use parking_lot::RwLock;
use rustls::ServerConfig;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::watch;

/// Paths of the files from which a server reads its credentials.
#[derive(Debug, Clone, Default)]
pub struct Credentials {
    /// The file of bearer tokens; `None`: the server accepts no tokens.
    pub tokens: Option<PathBuf>,
    /// The server's certificate, and the CA of client certificates; `None`: no TLS.
    pub tls: Option<TlsFiles>,
    /// The list of refused client certificates; `None`: the CA alone decides.
    pub refused: Option<PathBuf>,
    /// The host names by which a server that authenticates nobody may be called.
    pub hosts: AllowedHosts,
}

/// Why a credential file can't be used.
#[derive(Debug)]
pub enum CredentialsError {
    /// The token file at this path is unreadable or invalid.
    Tokens(PathBuf, TokensError),
    /// A certificate or key is unreadable or invalid.
    Tls(TlsError),
}

impl fmt::Display for CredentialsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tokens(path, error) => write!(f, "the tokens in {}: {error}", path.display()),
            Self::Tls(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for CredentialsError {}

impl Credentials {
    /// Whether the server authenticates every caller and encrypts every connection, so that it may
    /// accept connections from other machines.
    pub const fn close(&self) -> bool {
        self.identify() && self.tls.is_some()
    }

    /// Whether callers must authenticate, by a token or by a client certificate.
    pub const fn identify(&self) -> bool {
        self.tokens.is_some() || matches!(&self.tls, Some(TlsFiles { client_ca: Some(_), .. }))
    }
}

/// Why a caller could not be authenticated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuthenticationError {
    /// The request carries no credentials.
    Nothing,
    /// The request carries a token that is not in the token file.
    Token,
    /// The server accepts client certificates only, and the connection has none.
    Certificate,
    /// The certificate of the connection is on the list of refused ones.
    Refused,
}

/// Authenticates callers: by a bearer token, a client certificate, or the socket's user.
pub struct Authenticator {
    files: Credentials,
    /// The grant of callers without credentials, if the server requires none.
    anyone: Arc<Grant>,
    known: RwLock<LoadedCredentials>,
    /// Counts the times that the credentials were read again.
    reloads: watch::Sender<u64>,
}

/// The token table and TLS configuration that were read last.
#[derive(Clone)]
struct LoadedCredentials {
    tokens: Option<Arc<Tokens>>,
    tls: Option<Arc<ServerConfig>>,
    refused: Arc<RefusedSerials>,
}

impl Authenticator {
    /// Reads and validates the credential files.
    pub fn new(files: Credentials) -> Result<Self, CredentialsError> {
        let known = RwLock::new(LoadedCredentials::load(&files)?);
        let (anyone, reloads) = (Arc::new(Grant::everything()), watch::channel(0).0);
        Ok(Self { files, anyone, known, reloads })
    }

    /// Reads all credential files again. If one is invalid, the credentials that were loaded before
    /// stay in force.
    pub fn reload(&self) -> Result<(), CredentialsError> {
        let known = LoadedCredentials::load(&self.files)?;
        if let Some(tokens) = &known.tokens {
            log::info!("{} tokens were read again", tokens.len());
        }
        *self.known.write() = known;
        self.reloads.send_modify(|count| *count += 1);
        Ok(())
    }

    /// Returns a receiver that is notified when the credentials were read again: each grant that
    /// [`Self::grant`] has returned may have changed.
    pub fn follow_reloads(&self) -> watch::Receiver<u64> {
        self.reloads.subscribe()
    }

    /// Returns the TLS configuration of new connections; `None`: connections are not encrypted.
    pub fn tls(&self) -> Option<Arc<ServerConfig>> {
        self.known.read().tls.clone()
    }

    /// Returns the grant of a caller: that of its bearer token, or else that of its certificate or
    /// Unix user. If the server requires no credentials, tokens are ignored, and a caller without a
    /// certificate or Unix user may do everything.
    pub(crate) fn grant(
        &self,
        secret: Option<&[u8]>,
        certified: Option<&CertifiedCaller>,
    ) -> Result<Arc<Grant>, AuthenticationError> {
        if !self.files.identify() {
            return Ok(Arc::clone(certified.map_or(&self.anyone, |caller| &caller.grant)));
        }
        let LoadedCredentials { tokens, refused, .. } = self.known.read().clone();
        match (tokens, secret, certified) {
            (Some(tokens), Some(secret), _) => {
                tokens.grant(secret).ok_or(AuthenticationError::Token)
            }
            (_, _, Some(CertifiedCaller { serial: Some(serial), .. }))
                if refused.contain(serial) =>
            {
                Err(AuthenticationError::Refused)
            }
            (_, _, Some(caller)) => Ok(Arc::clone(&caller.grant)),
            (Some(_), None, None) => Err(AuthenticationError::Nothing),
            (None, _, None) => Err(AuthenticationError::Certificate),
        }
    }

    /// Whether every caller is authenticated and every connection encrypted; see
    /// [`Credentials::close`].
    pub const fn closes(&self) -> bool {
        self.files.close()
    }

    /// Whether a request with this `Host` may be meant for this server. A server that authenticates
    /// its callers may have any name: a page has no credentials of the user.
    pub(crate) fn admits_host(&self, host: Option<&str>) -> bool {
        self.files.identify() || self.files.hosts.admit(host)
    }

    /// Whether the server accepts bearer tokens.
    pub fn knows_tokens(&self) -> bool {
        self.known.read().tokens.is_some()
    }
}

impl LoadedCredentials {
    fn load(files: &Credentials) -> Result<Self, CredentialsError> {
        let tokens = match &files.tokens {
            None => None,
            Some(path) => {
                let refused = |error| CredentialsError::Tokens(path.clone(), error);
                Some(Arc::new(Tokens::read(path).map_err(refused)?))
            }
        };
        let certified =
            if tokens.is_some() { ClientCertPolicy::OrToken } else { ClientCertPolicy::Always };
        let tls = match &files.tls {
            None => None,
            Some(files) => Some(files.load(certified).map_err(CredentialsError::Tls)?),
        };
        let refused = match &files.refused {
            None => RefusedSerials::default(),
            Some(path) => {
                RefusedSerials::read(path).map_err(|error| CredentialsError::Tls(error.into()))?
            }
        };
        Ok(Self { tokens, tls, refused: Arc::new(refused) })
    }
}
