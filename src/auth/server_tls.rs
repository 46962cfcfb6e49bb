//! The TLS configuration of servers, and the grants of client certificates.
//!
//! The file of the rights of client certificates: the clients and lock prefixes of each, by name.

use super::grant::{ClientPattern, Credential, Grant, all_or_none};
use super::permissions::PeerUser;
use crate::base::said;
use crate::net::certificates::{CertSerial, PemError, certificates, private_key, roots};
use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::server::{ServerConfig, WebPkiClientVerifier};
use serde::Deserialize;
use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fmt, io};
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
    /// A client without a certificate may send a bearer token, or join by a code.
    Optional,
}

impl TlsFiles {
    /// Returns the DNS names in the server's certificate.
    pub(super) fn names(&self) -> Result<Vec<String>, TlsError> {
        let chain = certificates(&self.cert)?;
        let parsed = chain.first().and_then(|first| X509Certificate::from_der(first).ok());
        let names = parsed.map(|(_, parsed)| dns_names(&parsed));
        Ok(names.unwrap_or_default())
    }

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
                    ClientCertPolicy::Optional => verifier.allow_unauthenticated(),
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
    /// The user at the other end of a Unix socket.
    pub(crate) user: Option<PeerUser>,
}

/// Returns the caller that a client certificate identifies. `None`: the certificate is malformed or
/// has no name.
pub(crate) fn caller_of(certificate: &CertificateDer<'_>) -> Option<CertifiedCaller> {
    let grant = Arc::new(grant_of(certificate)?);
    Some(CertifiedCaller { grant, serial: Some(CertSerial::of(certificate)?), user: None })
}

/// Returns the name in the first certificate of a PEM file: the common name, or the first DNS name.
pub fn name_in_certificate(pem: &[u8]) -> Option<String> {
    let certificate = CertificateDer::from_pem_slice(pem).ok()?;
    Some(grant_of(&certificate)?.name)
}

/// How long before its end the end of a certificate is told.
pub(crate) const EXPIRY_NOTICE_SECS: i64 = 30 * 86_400;

/// Returns from when until when the first certificate of a PEM file is valid, in seconds since
/// 1970.
pub(crate) fn validity_of_certificate(pem: &[u8]) -> Option<(i64, i64)> {
    let certificate = CertificateDer::from_pem_slice(pem).ok()?;
    let (_, parsed) = X509Certificate::from_der(&certificate).ok()?;
    let validity = parsed.validity();
    Some((validity.not_before.timestamp(), validity.not_after.timestamp()))
}

/// Returns the grant of a client certificate: to act for each host named in its common name or DNS
/// names, and for the users of that host. `None`: the certificate is malformed or has no name.
pub fn grant_of(certificate: &CertificateDer<'_>) -> Option<Grant> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let mut names = Vec::new();
    for name in parsed.subject().iter_common_name() {
        names.extend(name.as_str().ok().map(str::to_owned));
    }
    names.extend(dns_names(&parsed));
    names.retain(|name| !name.is_empty());
    names.dedup();
    let name = names.first()?.clone();
    let users = names.iter().map(|name| ClientPattern::Beginning(format!("{name}:")));
    // The names in the certificate become exact patterns besides the patterns for their users: a
    // request with a certificate that has just one name may then leave its client out.
    let clients = names.iter().cloned().map(ClientPattern::Exactly).chain(users).collect();
    let (credential, prefixes) = (Credential::Certificate, vec![String::new()]);
    Some(Grant { credential, name, clients, prefixes, ..Grant::nothing() })
}

/// Maximum length of a token's name, which is part of audit records and of the idempotency keys
/// that the engine stores.
pub(super) const NAME_BYTES_MAX: usize = 255;

/// Maximum number of lock prefixes of one token, because a listing looks up each of them.
pub(super) const PREFIXES_MAX: usize = 256;

/// Why a token file can't be used.
#[derive(Debug)]
pub enum TokensError {
    /// The file can't be read.
    Read(io::Error),
    /// Users other than the owner may read or write the file. The number is the mode of the file.
    Exposed(u32),
    /// Users other than the owner may write the file. The number is the mode of the file.
    Writable(u32),
    /// The content of the file is invalid; a description of the error.
    Wrong(String),
}

impl fmt::Display for TokensError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read(error) => write!(f, "it can't be read: {}", said(error)),
            Self::Exposed(mode) => write!(
                f,
                "others than its owner may read or write it (mode {mode:03o}); 'chmod 600' it"
            ),
            Self::Writable(mode) => {
                write!(f, "others than its owner may write it (mode {mode:03o}); 'chmod go-w' it")
            }
            Self::Wrong(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for TokensError {}

fn dns_names(certificate: &X509Certificate<'_>) -> Vec<String> {
    let Ok(Some(names)) = certificate.subject_alternative_name() else { return Vec::new() };
    let names = names.value.general_names.iter().filter_map(|name| match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        _ => None,
    });
    names.collect()
}

/// Maximum number of certificates in the file.
const CERTIFICATES_MAX: usize = 10_000;

/// Maximum length of the file in bytes.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// The write permissions of all users but the owner of the file.
const OTHERS_WRITE: u32 = 0o022;

/// The grant of each certificate that the file names.
pub(super) struct CertificateRights(HashMap<String, Arc<Grant>>);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RightsFile {
    #[serde(default)]
    certificate: Vec<RightsEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RightsEntry {
    name: String,
    clients: Option<Vec<String>>,
    locks: Vec<String>,
    #[serde(default)]
    steal: bool,
    #[serde(default)]
    cluster: bool,
}

impl CertificateRights {
    /// Reads the file at `path`, which no user but its owner may be able to change.
    pub(super) fn read(path: &Path) -> Result<Self, TokensError> {
        let (text, _) = read_rights(path)?;
        Self::parse(&text).map_err(TokensError::Wrong)
    }

    fn parse(text: &str) -> Result<Self, String> {
        let whole: RightsFile = toml::from_str(text).map_err(|error| error.message().to_owned())?;
        if whole.certificate.len() > CERTIFICATES_MAX {
            return Err(format!("there are more than {CERTIFICATES_MAX} certificates in it"));
        }
        let mut grants = HashMap::with_capacity(whole.certificate.len());
        for entry in whole.certificate {
            let name = entry.name.clone();
            let wrong = |why: String| format!("certificate '{name}': {why}");
            let grant = Arc::new(entry.grant().map_err(wrong)?);
            if grants.insert(name.clone(), grant).is_some() {
                return Err(wrong("it has two entries".to_owned()));
            }
        }
        Ok(Self(grants))
    }

    /// Returns the number of certificates.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the grant of the certificate with this name, if the file has an entry for it.
    pub(super) fn grant(&self, name: &str) -> Option<Arc<Grant>> {
        self.0.get(name).cloned()
    }
}

impl RightsEntry {
    fn grant(self) -> Result<Grant, String> {
        let Self { name, clients, locks: prefixes, steal, cluster } = self;
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            return Err(format!("a name has 1 to {NAME_BYTES_MAX} bytes"));
        }
        if prefixes.len() > PREFIXES_MAX {
            return Err(format!("locks names at most {PREFIXES_MAX} beginnings of names"));
        }
        let clients = clients.unwrap_or_else(|| vec![name.clone(), format!("{name}:*")]);
        if clients.is_empty() || clients.iter().any(String::is_empty) {
            return Err("clients names at least one, such as \"laptop1:*\"".to_owned());
        }
        let clients = clients.iter().map(|text| ClientPattern::parse(text)).collect();
        let credential = Credential::Certificate;
        let steals = all_or_none(steal);
        Ok(Grant { credential, name, clients, prefixes, steals, cluster, ..Grant::nothing() })
    }
}

/// Reads a file of rights, which no user but its owner may be able to change. Returns its text and
/// its owner.
pub(super) fn read_rights(path: &Path) -> Result<(String, u32), TokensError> {
    let file = File::open(path).map_err(TokensError::Read)?;
    let found = file.metadata().map_err(TokensError::Read)?;
    let mode = found.mode() & 0o777;
    if mode & OTHERS_WRITE != 0 {
        return Err(TokensError::Writable(mode));
    }
    let mut text = String::new();
    let whole = file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text);
    if whole.map_err(TokensError::Read)? as u64 > FILE_BYTES_MAX {
        return Err(TokensError::Wrong(format!("it is longer than {FILE_BYTES_MAX} bytes")));
    }
    Ok((text, found.uid()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{ClientId, LockName};

    #[test]
    fn an_entry_limits_a_certificate() {
        let text = "[[certificate]]\nname = \"laptop1\"\nlocks = [\"team/\"]\n";
        let rights = CertificateRights::parse(text).expect("well formed");
        let grant = rights.grant("laptop1").expect("it has an entry");
        let client = |text| ClientId::parse(text).expect("valid");
        let lock = |text| LockName::parse(text).expect("valid");
        assert!(grant.may_speak_as(&client("laptop1:ann")).is_ok());
        assert!(grant.may_speak_as(&client("laptop2")).is_err());
        assert!(grant.may_touch(&lock("team/x")).is_ok());
        assert!(grant.may_touch(&lock("other")).is_err());
        assert!(grant.steals.is_empty() && !grant.cluster);
        assert!(rights.grant("laptop2").is_none());
    }

    #[test]
    fn the_number_of_certificates_is_limited() {
        let entry = |number| format!("[[certificate]]\nname = \"n{number}\"\nlocks = [\"a/\"]\n");
        let text: String = (0..CERTIFICATES_MAX).map(entry).collect();
        assert_eq!(
            CertificateRights::parse(&text).map(|rights| rights.len()),
            Ok(CERTIFICATES_MAX)
        );
        let why = CertificateRights::parse(&(text + &entry(CERTIFICATES_MAX))).err();
        assert!(why.is_some_and(|why| why.contains("more than 10000")));
    }

    #[test]
    fn the_file_of_rights_has_a_longest_length() {
        use std::os::unix::fs::PermissionsExt;
        let path = std::env::temp_dir().join(format!("latchfs-rights-{}", std::process::id()));
        let entry = "[[certificate]]\nname = \"a\"\nlocks = []\n#";
        let read = |bytes: u64| {
            let text = entry.to_owned() + &"x".repeat(bytes as usize - entry.len());
            std::fs::write(&path, text).expect("it is written");
            let private = std::fs::Permissions::from_mode(0o600);
            std::fs::set_permissions(&path, private).expect("it is ours");
            CertificateRights::read(&path).map(|rights| rights.len())
        };
        assert_eq!(read(FILE_BYTES_MAX).ok(), Some(1));
        let why = read(FILE_BYTES_MAX + 1).expect_err("one byte more").to_string();
        assert!(why.contains("longer than 16777216 bytes"), "{why}");
        let _ = std::fs::remove_file(&path);
    }

    #[test]
    fn invalid_file_is_explained() {
        for (text, says) in [
            ("[[certificate]]\nname = \"a\"\n", "locks"),
            ("[[certificate]]\nname = \"\"\nlocks = []\n", "1 to 255"),
            ("[[certificate]]\nname = \"a\"\nlocks = []\nclients = []\n", "at least one"),
            ("[[certificate]]\nname = \"a\"\nlocks = []\nstael = true\n", "stael"),
            (
                "[[certificate]]\nname = \"a\"\nlocks = []\n[[certificate]]\nname = \"a\"\n\
                 locks = []\n",
                "two entries",
            ),
        ] {
            let why = CertificateRights::parse(text).err().unwrap_or_default();
            assert!(why.contains(says), "{text}: {why}");
        }
    }
}
