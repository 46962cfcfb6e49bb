//! Who asks: by a bearer token, by a client's certificate, or anybody.

use super::access::Grant;
use super::problem::{Done, Problem};
use super::tls::{Certified, TlsError, TlsFiles};
use super::tokens::{Tokens, TokensError};
use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use parking_lot::RwLock;
use rustls::ServerConfig;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// Where credentials are kept.
#[derive(Debug, Clone, Default)]
pub struct Credentials {
    /// The file of bearer tokens.
    pub tokens: Option<PathBuf>,
    /// The server's certificate, and who signs those of clients.
    pub tls: Option<TlsFiles>,
}

/// Why credentials can't be used.
#[derive(Debug)]
pub enum CredentialsError {
    /// The file of tokens.
    Tokens(PathBuf, TokensError),
    /// The certificates.
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
    /// Whether a caller has to say who it is.
    pub const fn identify(&self) -> bool {
        self.tokens.is_some() || matches!(&self.tls, Some(TlsFiles { client_ca: Some(_), .. }))
    }
}

/// What is checked at the door of the server.
pub(super) struct Gate {
    files: Credentials,
    /// Whoever has no credentials, where none are wanted.
    anyone: Arc<Grant>,
    known: RwLock<Known>,
}

#[derive(Clone)]
struct Known {
    tokens: Option<Arc<Tokens>>,
    tls: Option<Arc<ServerConfig>>,
}

impl Gate {
    pub(super) fn new(files: Credentials) -> Result<Self, CredentialsError> {
        let known = RwLock::new(Known::load(&files)?);
        Ok(Self { files, anyone: Arc::new(Grant::everything()), known })
    }

    /// Reads all files again. If one is wrong, all stays as it was.
    pub(super) fn reload(&self) -> Result<(), CredentialsError> {
        let known = Known::load(&self.files)?;
        if let Some(tokens) = &known.tokens {
            log::info!("{} tokens were read again", tokens.len());
        }
        *self.known.write() = known;
        Ok(())
    }

    /// How connections are to be encrypted.
    pub(super) fn tls(&self) -> Option<Arc<ServerConfig>> {
        self.known.read().tls.clone()
    }

    /// What a caller may do, by its headers or its certificate.
    pub(super) fn grant(
        &self,
        headers: &HeaderMap,
        certified: Option<&Arc<Grant>>,
    ) -> Done<Arc<Grant>> {
        if !self.files.identify() {
            return Ok(Arc::clone(&self.anyone));
        }
        let tokens = self.known.read().tokens.clone();
        match (tokens, headers.get(AUTHORIZATION), certified) {
            (Some(tokens), Some(header), _) => {
                let secret = secret_of(header.as_bytes()).ok_or_else(|| {
                    Problem::unknown("credentials are sent as 'Authorization: Bearer TOKEN'")
                })?;
                tokens.grant(secret).ok_or_else(|| {
                    Problem::unknown("this token is not known; ask whoever runs the server")
                })
            }
            (_, _, Some(grant)) => Ok(Arc::clone(grant)),
            (Some(_), None, None) => {
                Err(Problem::unknown("say who asks by a header 'Authorization: Bearer TOKEN'"))
            }
            (None, _, None) => Err(Problem::unknown("say who asks by a client certificate")),
        }
    }
}

impl Known {
    fn load(files: &Credentials) -> Result<Self, CredentialsError> {
        let tokens = match &files.tokens {
            None => None,
            Some(path) => {
                let refused = |error| CredentialsError::Tokens(path.clone(), error);
                Some(Arc::new(Tokens::read(path).map_err(refused)?))
            }
        };
        let certified = if tokens.is_some() { Certified::OrToken } else { Certified::Always };
        let tls = match &files.tls {
            None => None,
            Some(files) => Some(files.load(certified).map_err(CredentialsError::Tls)?),
        };
        Ok(Self { tokens, tls })
    }
}

/// The token in an Authorization header.
fn secret_of(header: &[u8]) -> Option<&[u8]> {
    let (scheme, secret) = header.split_at_checked(b"bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| secret.trim_ascii())
}
