//! Authenticates callers by bearer token, client certificate or Unix user, or admits anyone if the
//! server requires no credentials.

use super::browser_checks::AllowedHosts;
use super::certificate_rights::CertificateRights;
use super::grant::Grant;
use super::server_tls::{CertifiedCaller, ClientCertPolicy, TlsError, TlsFiles};
use super::token_file::{Tokens, TokensError};
use crate::net::refused_serials::RefusedSerials;
use parking_lot::RwLock;
use rustls::ServerConfig;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Delay of the answer to a request with a wrong token: a client that guesses has few guesses.
pub(crate) const WRONG_TOKEN_DELAY: Duration = Duration::from_millis(250);

/// Paths of the files from which a server reads its credentials.
#[derive(Debug, Clone, Default)]
pub struct Credentials {
    /// The file of bearer tokens; `None`: the server accepts no tokens.
    pub tokens: Option<PathBuf>,
    /// The server's certificate, and the CA of client certificates; `None`: no TLS.
    pub tls: Option<TlsFiles>,
    /// The file of the rights of client certificates; `None`: each certificate sees all locks.
    pub rights: Option<PathBuf>,
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
    /// The file of the rights of certificates at this path is unreadable or invalid.
    Rights(PathBuf, TokensError),
    /// A certificate or key is unreadable or invalid.
    Tls(TlsError),
}

impl fmt::Display for CredentialsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tokens(path, error) => write!(f, "the tokens in {}: {error}", path.display()),
            Self::Rights(path, error) => {
                write!(f, "the rights of certificates in {}: {error}", path.display())
            }
            Self::Tls(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for CredentialsError {}

impl Credentials {
    /// Returns what a server with these credentials lacks that accepts connections from other
    /// machines, apart from what the operator has permitted it to lack.
    pub const fn lack(&self, permitted: OpenTo) -> OpenTo {
        OpenTo {
            readers: self.tls.is_none() && !permitted.readers,
            callers: !self.identify() && !permitted.callers,
        }
    }

    /// Whether callers must authenticate, by a token or by a client certificate.
    pub const fn identify(&self) -> bool {
        self.tokens.is_some() || matches!(&self.tls, Some(TlsFiles { client_ca: Some(_), .. }))
    }
}

/// To whom a server on a network is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OpenTo {
    /// Connections are not encrypted, so others on the network can read them.
    pub readers: bool,
    /// Callers need no credentials.
    pub callers: bool,
}

impl OpenTo {
    /// Whether the server is open to nobody.
    pub const fn is_nobody(self) -> bool {
        !self.readers && !self.callers
    }
}

impl fmt::Display for OpenTo {
    /// Writes the remedy, as the end of a sentence.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.callers, self.readers) {
            (true, false) => {
                "say who may ask by --tokens or --client-ca, or leave it open to everybody by \
                 --insecure=no-credentials"
            }
            (false, true) => {
                "encrypt by --tls-cert and --tls-key, or let others on the network read it by \
                 --insecure=no-tls"
            }
            _ => {
                "say who may ask by --tokens or --client-ca, and encrypt by --tls-cert and \
                 --tls-key; or leave it open to everybody by --insecure"
            }
        })
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
    /// The file of the rights of certificates has no entry for the certificate of the connection.
    Unlisted,
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
    rights: Option<Arc<CertificateRights>>,
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
        if let Some(rights) = &known.rights {
            log::info!("the rights of {} certificates were read again", rights.len());
        }
        *self.known.write() = known;
        self.reloads.send_modify(|count| *count += 1);
        Ok(())
    }

    /// Returns a receiver that is notified when the credentials were read again: each grant that
    /// `grant` has returned may have changed.
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
        let LoadedCredentials { tokens, rights, refused, .. } = self.known.read().clone();
        match (tokens, secret, certified) {
            (Some(tokens), Some(secret), _) => {
                tokens.grant(secret).ok_or(AuthenticationError::Token)
            }
            (_, _, Some(CertifiedCaller { serial: Some(serial), .. }))
                if refused.contain(serial) =>
            {
                Err(AuthenticationError::Refused)
            }
            (_, _, Some(CertifiedCaller { grant, serial })) => match rights {
                Some(rights) if serial.is_some() => {
                    rights.grant(&grant.name).ok_or(AuthenticationError::Unlisted)
                }
                _ => Ok(Arc::clone(grant)),
            },
            (Some(_), None, None) => Err(AuthenticationError::Nothing),
            (None, _, None) => Err(AuthenticationError::Certificate),
        }
    }

    /// Returns what the server lacks on a network: see [`Credentials::lack`].
    pub const fn lacks(&self, permitted: OpenTo) -> OpenTo {
        self.files.lack(permitted)
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
        let rights = match &files.rights {
            None => None,
            Some(path) => {
                let refused = |error| CredentialsError::Rights(path.clone(), error);
                Some(Arc::new(CertificateRights::read(path).map_err(refused)?))
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
        Ok(Self { tokens, rights, tls, refused: Arc::new(refused) })
    }
}
