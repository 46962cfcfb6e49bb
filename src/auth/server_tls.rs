//! The TLS configuration of servers, and the grants of client certificates.

use super::grant::{ClientPattern, Credential, Grant};
use crate::net::pem_files::{PemError, certificates, private_key, roots};
use crate::net::refused_serials::CertSerial;
use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::server::{ServerConfig, WebPkiClientVerifier};
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Paths of the files from which the TLS configuration is loaded.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    /// The server's certificate chain (PEM).
    pub cert: PathBuf,
    /// The private key of the certificate (PEM).
    pub key: PathBuf,
    /// The CA certificates (PEM) that verify client certificates, if clients may present one.
    pub client_ca: Option<PathBuf>,
}

/// Why the TLS configuration can't be loaded.
#[derive(Debug)]
pub enum TlsError {
    /// A file can't be read, or is not PEM.
    File(PemError),
    /// The certificates and keys can't be used together, or one of them is invalid.
    Wrong(String),
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(error) => error.fmt(f),
            Self::Wrong(why) => write!(f, "the certificate can't be used: {why}"),
        }
    }
}

impl std::error::Error for TlsError {}

impl From<PemError> for TlsError {
    fn from(error: PemError) -> Self {
        Self::File(error)
    }
}

/// Whether a client must present a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClientCertPolicy {
    /// Every client must present a certificate.
    Always,
    /// A client without a certificate may send a bearer token.
    OrToken,
}

impl TlsFiles {
    /// Reads the files and builds the rustls configuration.
    pub(super) fn load(&self, certified: ClientCertPolicy) -> Result<Arc<ServerConfig>, TlsError> {
        let chain = certificates(&self.cert)?;
        let key = private_key(&self.key)?;
        let wrong = |error: rustls::Error| TlsError::Wrong(error.to_string());
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(wrong)?;
        let builder = match &self.client_ca {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let roots = Arc::new(roots(path)?);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider);
                let verifier = match certified {
                    ClientCertPolicy::Always => verifier,
                    ClientCertPolicy::OrToken => verifier.allow_unauthenticated(),
                };
                let verifier =
                    verifier.build().map_err(|error| TlsError::Wrong(error.to_string()))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let mut config = builder.with_single_cert(chain, key).map_err(wrong)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}

/// Returns why a handshake failed if the server has refused the certificate of the client, or
/// missed one.
pub(crate) fn foreign_certificate(error: &io::Error) -> Option<String> {
    let error = error.get_ref()?.downcast_ref::<rustls::Error>()?;
    match error {
        rustls::Error::InvalidCertificate(_) | rustls::Error::NoCertificatesPresented => {
            Some(error.to_string())
        }
        _ => None,
    }
}

/// A caller that its connection has identified.
#[derive(Debug, Clone)]
pub(crate) struct CertifiedCaller {
    /// The grant of the client certificate, or of the Unix user at the other end of the socket.
    pub(crate) grant: Arc<Grant>,
    /// The serial number of the certificate.
    pub(crate) serial: Option<CertSerial>,
}

/// Returns the caller that a client certificate identifies. `None`: the certificate is malformed or
/// has no name.
pub(crate) fn caller_of(certificate: &CertificateDer<'_>) -> Option<CertifiedCaller> {
    let grant = Arc::new(grant_of(certificate)?);
    Some(CertifiedCaller { grant, serial: Some(CertSerial::of(certificate)?) })
}

/// Returns the name in the first certificate of a PEM file: the common name, or the first DNS name.
pub fn name_in_certificate(pem: &[u8]) -> Option<String> {
    let certificate = CertificateDer::from_pem_slice(pem).ok()?;
    Some(grant_of(&certificate)?.name)
}

/// Returns the grant of a client certificate: to act for each host named in its common name or DNS
/// names, and for the users of that host. `None`: the certificate is malformed or has no name.
pub fn grant_of(certificate: &CertificateDer<'_>) -> Option<Grant> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let mut names = Vec::new();
    for name in parsed.subject().iter_common_name() {
        names.extend(name.as_str().ok().map(str::to_owned));
    }
    if let Ok(Some(others)) = parsed.subject_alternative_name() {
        names.extend(others.value.general_names.iter().filter_map(|name| match name {
            GeneralName::DNSName(name) => Some((*name).to_owned()),
            _ => None,
        }));
    }
    names.retain(|name| !name.is_empty());
    names.dedup();
    let name = names.first()?.clone();
    let users = names.iter().map(|name| ClientPattern::Beginning(format!("{name}:")));
    // The names in the certificate become exact patterns besides the patterns for their users: a
    // request with a certificate that has just one name may then leave its client out.
    let clients = names.iter().cloned().map(ClientPattern::Exactly).chain(users).collect();
    let (credential, prefixes) = (Credential::Certificate, vec![String::new()]);
    Some(Grant { credential, name, clients, prefixes, steal: false, cluster: false, user: None })
}
