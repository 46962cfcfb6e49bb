//! Mutual TLS between nodes. Either each node has a peer certificate of its own, all signed by the
//! same CA; or all nodes present the same certificate, whose key is their shared secret.

use crate::net::pem_files::{certificates, private_key, roots};
use crate::os_error::said;
use crate::raft::data_dir_error::PeerError;
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, ServerConfig};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio_rustls::{TlsAcceptor, TlsConnector};
use x509_parser::prelude::{FromDer, X509Certificate};

/// The files that TLS between nodes needs, all in PEM.
#[derive(Debug, Clone)]
pub struct PeerFiles {
    /// The file with this node's certificate.
    pub cert: PathBuf,
    /// The file with the private key of the node's certificate.
    pub key: PathBuf,
    /// The certificate of the CA that signed the certificates of all nodes.
    pub ca: PathBuf,
    /// The name in the certificate, if all nodes share one certificate.
    pub shared: Option<&'static str>,
}

impl PeerFiles {
    /// Returns the files for a shared certificate: `file` holds the certificate and its key, and
    /// `name` is the name in it.
    pub fn secret(file: PathBuf, name: &'static str) -> Self {
        Self { cert: file.clone(), key: file.clone(), ca: file, shared: Some(name) }
    }
}

/// The permission bits of group and others.
const OTHERS: u32 = 0o077;

/// The TLS configuration of a node, as server and as client.
#[derive(Clone)]
pub(in crate::raft) struct PeerTls {
    pub(super) accepts: TlsAcceptor,
    pub(super) connects: TlsConnector,
    shared: Option<ServerName<'static>>,
}

impl PeerTls {
    /// Loads the certificates and the key from the files.
    pub(in crate::raft) fn load(files: &PeerFiles) -> Result<Self, PeerError> {
        if files.shared.is_some() {
            refuse_exposed(&files.key)?;
        }
        let chain = certificates(&files.cert)?;
        let is_peers = chain.first().is_some_and(is_peers);
        if !is_peers {
            let why = "it is not one of a node; make one by 'latchfs cert peer'".to_owned();
            return Err(PeerError::File(files.cert.clone(), why));
        }
        let wrong = |error: rustls::Error| PeerError::File(files.cert.clone(), error.to_string());
        let (roots, provider) = (Arc::new(roots(&files.ca)?), Arc::new(ring::default_provider()));
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider))
                .build()
                .map_err(|error| PeerError::File(files.ca.clone(), error.to_string()))?;
        let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(wrong)?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain.clone(), private_key(&files.key)?)
            .map_err(wrong)?;
        let client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(wrong)?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, private_key(&files.key)?)
            .map_err(wrong)?;
        let accepts = TlsAcceptor::from(Arc::new(server));
        let shared = files.shared.and_then(|name| ServerName::try_from(name).ok());
        Ok(Self { accepts, connects: TlsConnector::from(Arc::new(client)), shared })
    }

    /// Returns the name for which the certificate of the node on `host` must be valid.
    pub(super) fn name(&self, host: &str) -> Option<ServerName<'static>> {
        self.shared.clone().or_else(|| ServerName::try_from(host.to_owned()).ok())
    }
}

/// Whether a certificate belongs to a node: its extended key usage has both server and client
/// authentication. Certificates for servers or clients have only one of these, so a lock client
/// can't act as a node.
pub(in crate::raft) fn is_peers(certificate: &CertificateDer<'_>) -> bool {
    let Ok((_, parsed)) = X509Certificate::from_der(certificate) else { return false };
    let usage = parsed.extended_key_usage().ok().flatten();
    usage.is_some_and(|usage| usage.value.server_auth && usage.value.client_auth)
}

/// Fails if users other than its owner have any permission on a file.
fn refuse_exposed(path: &Path) -> Result<(), PeerError> {
    let refused = |why| Err(PeerError::File(path.to_owned(), why));
    match path.metadata() {
        Ok(metadata) if metadata.mode() & OTHERS == 0 => Ok(()),
        Ok(_) => refused("others than its owner may read or write it; 'chmod 600' it".to_owned()),
        Err(error) => refused(format!("{}; make one by 'latchfs cert secret'", said(&error))),
    }
}
