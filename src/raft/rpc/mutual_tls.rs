//! Mutual TLS between nodes. Either each node has a peer certificate of its own, all signed by the
//! same CA; or all nodes present the same certificate, whose key is their shared secret.
//!
//! The header by which calls and answers between nodes tell the name of the sender's cluster.

use crate::base::said;
use crate::net::certificates::{CertSerial, RefusedSerials, certificates, private_key, roots};
use crate::raft::node_environment::{ClusterName, host_and_port};
use crate::raft::store::data_dir::PeerError;
use hyper::header::{HeaderMap, HeaderValue};
use parking_lot::RwLock;
use rustls::client::verify_server_name;
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
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
    /// The list of refused certificates; `None`: the CA alone decides.
    pub refused: Option<PathBuf>,
}

impl PeerFiles {
    /// Returns the files for a shared certificate: `file` holds the certificate and its key, and
    /// `name` is the name in it.
    pub fn secret(file: PathBuf, name: &'static str) -> Self {
        let (cert, key) = (file.clone(), file.clone());
        Self { cert, key, ca: file, shared: Some(name), refused: None }
    }
}

/// The permission bits of group and others.
const OTHERS: u32 = 0o077;

/// The TLS configuration of a node, as server and as client. Clones share it, so that all of them
/// use the files that were read last.
#[derive(Clone)]
pub(in crate::raft) struct PeerTls {
    files: Arc<PeerFiles>,
    current: Arc<RwLock<LoadedPeerTls>>,
}

/// The certificates that were read last.
#[derive(Clone)]
struct LoadedPeerTls {
    accepts: TlsAcceptor,
    connects: TlsConnector,
    refused: Arc<RefusedSerials>,
}

impl PeerTls {
    /// Loads the certificates and the key from the files.
    pub(in crate::raft) fn load(files: &PeerFiles) -> Result<Self, PeerError> {
        let current = Arc::new(RwLock::new(LoadedPeerTls::load(files)?));
        Ok(Self { files: Arc::new(files.clone()), current })
    }

    /// Reads all files again. If one is invalid, what was read before stays in force. Open
    /// connections last, except those of certificates that are refused now.
    pub(in crate::raft) fn reload(&self) -> Result<(), PeerError> {
        let loaded = LoadedPeerTls::load(&self.files)?;
        *self.current.write() = loaded;
        Ok(())
    }

    pub(super) fn accepts(&self) -> TlsAcceptor {
        self.current.read().accepts.clone()
    }

    pub(super) fn connects(&self) -> TlsConnector {
        self.current.read().connects.clone()
    }

    /// Checks the certificate of a peer. The error is the reason for which it is refused.
    pub(super) fn check(
        &self,
        chain: Option<&[CertificateDer<'_>]>,
    ) -> Result<PeerCertificate, &'static str> {
        let certificate = chain.and_then(<[_]>::first).filter(|first| is_peers(first));
        let certificate = certificate.ok_or("the certificate is not that of a node")?;
        let serial = CertSerial::of(certificate).ok_or("the certificate has no serial number")?;
        let der = certificate.clone().into_owned();
        let certificate = PeerCertificate { tls: self.clone(), der, serial };
        if certificate.is_refused() {
            return Err("the certificate is on the list of refused ones");
        }
        Ok(certificate)
    }

    /// Returns the name for which the certificate of the node on `host` must be valid.
    pub(super) fn name(&self, host: &str) -> Option<ServerName<'static>> {
        let shared = self.files.shared.and_then(|name| ServerName::try_from(name).ok());
        shared.or_else(|| ServerName::try_from(host.to_owned()).ok())
    }
}

/// The certificate of a connected peer.
#[derive(Clone)]
pub(in crate::raft) struct PeerCertificate {
    tls: PeerTls,
    der: CertificateDer<'static>,
    serial: CertSerial,
}

impl PeerCertificate {
    /// Whether the certificate is on the list of refused ones by now.
    pub(super) fn is_refused(&self) -> bool {
        self.tls.current.read().refused.contain(&self.serial)
    }

    /// Whether the certificate belongs to the node at this `HOST:PORT`. A secret that all nodes
    /// share belongs to each of them.
    pub(in crate::raft) fn is_of(&self, address: &str) -> bool {
        if self.tls.files.shared.is_some() {
            return true;
        }
        let name =
            host_and_port(address).and_then(|(host, _)| ServerName::try_from(host.to_owned()).ok());
        let parsed = ParsedCertificate::try_from(&self.der).ok();
        parsed.zip(name).is_some_and(|(parsed, name)| verify_server_name(&parsed, &name).is_ok())
    }
}

impl LoadedPeerTls {
    fn load(files: &PeerFiles) -> Result<Self, PeerError> {
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
        let connects = TlsConnector::from(Arc::new(client));
        let refused = files.refused.as_deref().map(RefusedSerials::read).transpose()?;
        Ok(Self { accepts, connects, refused: Arc::new(refused.unwrap_or_default()) })
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

const NAME_HEADER: &str = "latchfs-cluster";

/// Returns the name in the headers of a call or an answer.
pub(super) fn named_in(headers: &HeaderMap) -> Option<ClusterName> {
    ClusterName::parse(headers.get(NAME_HEADER)?.to_str().ok()?)
}

/// Puts the name, if there is one, into the headers of a call or an answer.
pub(super) fn put_name(headers: &mut HeaderMap, name: Option<&ClusterName>) {
    // A name has only characters that a header may have.
    if let Some(value) = name.and_then(|name| HeaderValue::from_str(&name.to_string()).ok()) {
        headers.insert(NAME_HEADER, value);
    }
}
