//! Authenticates callers by bearer token, client certificate or Unix user, or admits anyone if the
//! server requires no credentials.

use super::grant::Grant;
use super::server_tls::{ClientCertPolicy, TlsError, TlsFiles};
use super::token_file::{Tokens, TokensError};
use parking_lot::RwLock;
use rustls::ServerConfig;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// Paths of the files from which a server reads its credentials.
#[derive(Debug, Clone, Default)]
pub struct Credentials {
    /// The file of bearer tokens; `None`: the server accepts no tokens.
    pub tokens: Option<PathBuf>,
    /// The server's certificate, and the CA of client certificates; `None`: no TLS.
    pub tls: Option<TlsFiles>,
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
}

/// Authenticates callers: by a bearer token, a client certificate, or the socket's user.
pub struct Authenticator {
    files: Credentials,
    /// The grant of callers without credentials, if the server requires none.
    anyone: Arc<Grant>,
    known: RwLock<LoadedCredentials>,
}

/// The token table and TLS configuration that were read last.
#[derive(Clone)]
struct LoadedCredentials {
    tokens: Option<Arc<Tokens>>,
    tls: Option<Arc<ServerConfig>>,
}

impl Authenticator {
    /// Reads and validates the credential files.
    pub fn new(files: Credentials) -> Result<Self, CredentialsError> {
        let known = RwLock::new(LoadedCredentials::load(&files)?);
        Ok(Self { files, anyone: Arc::new(Grant::everything()), known })
    }

    /// Reads all credential files again. If one is invalid, the credentials that were loaded before
    /// stay in force.
    pub fn reload(&self) -> Result<(), CredentialsError> {
        let known = LoadedCredentials::load(&self.files)?;
        if let Some(tokens) = &known.tokens {
            log::info!("{} tokens were read again", tokens.len());
        }
        *self.known.write() = known;
        Ok(())
    }

    /// Returns the TLS configuration of new connections; `None`: connections are not encrypted.
    pub fn tls(&self) -> Option<Arc<ServerConfig>> {
        self.known.read().tls.clone()
    }

    /// Returns the grant of a caller: that of its bearer token, or else that of its certificate or
    /// Unix user. If the server requires no credentials, tokens are ignored, and a caller without a
    /// certificate or Unix user may do everything.
    pub fn grant(
        &self,
        secret: Option<&[u8]>,
        certified: Option<&Arc<Grant>>,
    ) -> Result<Arc<Grant>, AuthenticationError> {
        if !self.files.identify() {
            return Ok(Arc::clone(certified.unwrap_or(&self.anyone)));
        }
        let tokens = self.known.read().tokens.clone();
        match (tokens, secret, certified) {
            (Some(tokens), Some(secret), _) => {
                tokens.grant(secret).ok_or(AuthenticationError::Token)
            }
            (_, _, Some(grant)) => Ok(Arc::clone(grant)),
            (Some(_), None, None) => Err(AuthenticationError::Nothing),
            (None, _, None) => Err(AuthenticationError::Certificate),
        }
    }

    /// Whether every caller is authenticated and every connection encrypted; see
    /// [`Credentials::close`].
    pub const fn closes(&self) -> bool {
        self.files.close()
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
        Ok(Self { tokens, tls })
    }
}
