//! Mutual TLS between nodes: each shows a certificate that is one of a peer, and that the same
//! authority has signed; or all show the same one, whose key is the secret that they share.

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

/// Which files TLS between nodes needs, all in PEM.
#[derive(Debug, Clone)]
pub struct PeerFiles {
    /// This node's certificate.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// The certificate of the authority that signed this and all other nodes' certificates.
    pub ca: PathBuf,
    /// The name that every node's certificate has, if all nodes share one.
    pub shared: Option<&'static str>,
}

impl PeerFiles {
    /// The file with the key and the certificate that all nodes share, under this name.
    pub fn secret(file: PathBuf, name: &'static str) -> Self {
        Self { cert: file.clone(), key: file.clone(), ca: file, shared: Some(name) }
    }
}

/// Permissions of anybody but the owner.
const OTHERS: u32 = 0o077;

/// Both ends of TLS between nodes.
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

    /// The name by which a host is checked.
    pub(super) fn name(&self, host: &str) -> Option<ServerName<'static>> {
        self.shared.clone().or_else(|| ServerName::try_from(host.to_owned()).ok())
    }
}

/// Whether a certificate is one of a node: good for both ends of a connection. Those of servers
/// and of clients are good for one, so a client that may ask for locks can't act as a node.
pub(super) fn is_peers(certificate: &CertificateDer<'_>) -> bool {
    let Ok((_, parsed)) = X509Certificate::from_der(certificate) else { return false };
    let usage = parsed.extended_key_usage().ok().flatten();
    usage.is_some_and(|usage| usage.value.server_auth && usage.value.client_auth)
}

/// Fails if others than its owner may read or write a file.
fn refuse_exposed(path: &Path) -> Result<(), PeerError> {
    let refused = |why| Err(PeerError::File(path.to_owned(), why));
    match path.metadata() {
        Ok(metadata) if metadata.mode() & OTHERS == 0 => Ok(()),
        Ok(_) => refused("others than its owner may read or write it; 'chmod 600' it".to_owned()),
        Err(error) => refused(format!("{}; make one by 'latchfs cert secret'", said(&error))),
    }
}
