//! A small certificate authority: one CA key, which signs the certificates of servers, clients and
//! nodes (`latchfs cert`).

use crate::auth::TlsFiles;
use crate::base::said;
use crate::home::devices::IssuedCertificate;
use crate::home::messages::NodeSecrets;
use crate::net::certificates::CertSerial;
use crate::time::Wall;
use rand_core::{OsRng, RngCore};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, SerialNumber,
};
use std::fmt;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use time::{Duration, OffsetDateTime};

/// Validity of the CA certificate: long, because its replacement must be copied to every machine.
const AUTHORITY_DAYS: i64 = 3_650;

/// Validity of the certificates of servers, clients and peers: the maximum that browsers and phones
/// accept.
const CERTIFICATE_DAYS: i64 = 825;

/// Validity of the certificate of a device, which renews it when a third of this is left.
const DEVICE_DAYS: i64 = 365;

/// Length of the serial number of a device's certificate.
const SERIAL_BYTES: usize = 16;

/// Validity of the certificate that all nodes of a cluster share: a thousand years, which every
/// parser accepts.
const SECRET_DAYS: i64 = 365 * 1_000;

/// How far a certificate's validity begins in the past, so that machines whose clocks are behind
/// accept it.
const BEFORE: Duration = Duration::days(1);

/// File name of the CA certificate and key, without the extension.
pub const AUTHORITY: &str = "ca";

/// File name of the secret that all nodes of a cluster share.
pub(crate) const SECRET: &str = "peers.pem";

/// File name of the mark of a server that was never started.
pub(crate) const BEGINS: &str = "begins";

/// File name of the addresses where a node finds the others.
const SEEDS: &str = "seeds";

/// The DNS name in the certificate that all nodes of a cluster share.
pub const NODES: &str = "nodes.latchfs.internal";

/// The holder for which a certificate is created.
#[derive(Debug, Clone)]
pub enum CertSubject {
    /// The certificate authority itself.
    Authority,
    /// A server with these names and addresses.
    Server(Vec<String>),
    /// A client; the name is the one for which it may act.
    Client(String),
    /// A cluster node with these names and addresses: valid for both ends of a connection.
    Peer(Vec<String>),
}

/// Paths of a certificate and its key.
#[derive(Debug)]
pub struct CertFiles {
    /// The path of the certificate (PEM).
    pub cert: PathBuf,
    /// The path of the private key (PEM).
    pub key: PathBuf,
}

/// Why a certificate could not be created.
#[derive(Debug)]
pub enum CaError {
    /// A file of the certificate authority can't be read or written.
    File(PathBuf, io::Error),
    /// The key or the certificate can't be generated.
    Make(rcgen::Error),
}

impl fmt::Display for CaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path, error) if error.kind() == io::ErrorKind::AlreadyExists => write!(
                f,
                "{} is there already, and is not overwritten; remove it first",
                path.display()
            ),
            Self::File(path, error)
                if error.kind() == io::ErrorKind::NotFound && path.ends_with("ca.key") =>
            {
                write!(f, "there is no {}; begin with 'latchfs cert ca'", path.display())
            }
            Self::File(path, error) => write!(f, "{}: {}", path.display(), said(error)),
            Self::Make(error) => write!(f, "the certificate can't be made: {error}"),
        }
    }
}

impl std::error::Error for CaError {}

impl From<rcgen::Error> for CaError {
    fn from(error: rcgen::Error) -> Self {
        Self::Make(error)
    }
}

/// Creates a key and a certificate in `dir`; existing files are never overwritten.
pub fn make(dir: &Path, whose: &CertSubject) -> Result<CertFiles, CaError> {
    let (name, params) = match whose {
        CertSubject::Authority => (AUTHORITY, authority()?),
        CertSubject::Server(names) => ("server", server(names)?),
        CertSubject::Client(name) => (name.as_str(), client(name)?),
        CertSubject::Peer(names) => (names.first().map_or("peer", String::as_str), peer(names)?),
    };
    let key = KeyPair::generate()?;
    let cert = match whose {
        CertSubject::Authority => params.self_signed(&key)?,
        CertSubject::Server(_) | CertSubject::Client(_) | CertSubject::Peer(_) => {
            params.signed_by(&key, &issuer(dir)?)?
        }
    };
    make_dir(dir)?;
    let made =
        CertFiles { cert: dir.join(format!("{name}.pem")), key: dir.join(format!("{name}.key")) };
    // The key is written before the certificate, because a certificate without its key is useless.
    write(&made.key, &key.serialize_pem(), 0o600)?;
    write(&made.cert, &cert.pem(), 0o644)?;
    Ok(made)
}

/// Creates the secret that all nodes of a cluster share: a file with a key, and with a self-signed
/// certificate for the key. The certificate is valid for a thousand years, because its expiry would
/// stop the cluster.
pub fn make_secret(dir: &Path) -> Result<PathBuf, CaError> {
    let mut params = peer(&[NODES.to_owned()])?;
    params.use_authority_key_identifier_extension = false;
    params.not_before = OffsetDateTime::UNIX_EPOCH;
    params.not_after = OffsetDateTime::UNIX_EPOCH + Duration::days(SECRET_DAYS);
    let key = KeyPair::generate()?;
    let cert = params.self_signed(&key)?;
    let path = dir.join(SECRET);
    make_dir(dir)?;
    write(&path, &format!("{}{}", key.serialize_pem(), cert.pem()), 0o600)?;
    Ok(path)
}

/// Makes what is missing in the directory of a server that devices join: a CA, the secret of its
/// nodes, and the certificate of the server for its names, which each start makes anew.
pub(crate) fn make_home(dir: &Path, names: &[String]) -> Result<TlsFiles, CaError> {
    let remove = |name: &str| remove(dir.join(name));
    if !dir.join("ca.pem").exists() {
        // A key without its certificate has signed nothing.
        remove("ca.key")?;
        remove(BEGINS)?;
        make_dir(dir)?;
        write(&dir.join(BEGINS), "", 0o600)?;
        make(dir, &CertSubject::Authority)?;
    }
    if !dir.join(SECRET).exists() {
        make_secret(dir)?;
    }
    remove("server.pem")?;
    remove("server.key")?;
    let CertFiles { cert, key } = make(dir, &CertSubject::Server(names.to_vec()))?;
    Ok(TlsFiles { cert, key, client_ca: Some(dir.join("ca.pem")) })
}

/// Signs a certificate for the device `name`. Of its certificate request (PEM), only the key is
/// used.
pub(crate) fn sign_device(
    dir: &Path,
    name: &str,
    request: &str,
) -> Result<IssuedCertificate, CaError> {
    let mut serial = [0; SERIAL_BYTES];
    OsRng.fill_bytes(&mut serial);
    // A serial number is positive and has no leading zeros.
    serial[0] = serial[0] & 0x7f | 0x40;
    let mut signed = CertificateSigningRequestParams::from_pem(request)?;
    signed.params = valid(client(name)?, DEVICE_DAYS);
    signed.params.distinguished_name.push(DnType::CommonName, name);
    signed.params.serial_number = Some(SerialNumber::from_slice(&serial));
    let until = signed.params.not_after.unix_timestamp();
    let certificate = signed.signed_by(&issuer(dir)?)?;
    let serial = CertSerial::of(certificate.der())
        .ok_or(CaError::Make(rcgen::Error::CouldNotParseCertificate))?;
    Ok(IssuedCertificate { pem: certificate.pem(), serial, until })
}

/// Notes that the server has data: if that is lost, the server must not begin anew beside others.
pub(crate) fn home_has_begun(dir: &Path) -> Result<(), CaError> {
    remove(dir.join(BEGINS))
}

fn remove(path: PathBuf) -> Result<(), CaError> {
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(CaError::File(path, error)),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Reads what another node gets: it finds the others at `seeds`.
pub(crate) fn node_secrets(dir: &Path, seeds: Vec<String>) -> Result<NodeSecrets, CaError> {
    let [ca_key, peers] = [read(dir.join("ca.key"))?, read(dir.join(SECRET))?];
    Ok(NodeSecrets { ca_key, peers, seeds })
}

/// Makes the directory of a server that is to be a node of others, whose CA has the certificate
/// `ca`. It is there as a whole, or not at all.
pub(crate) fn place_home(dir: &Path, ca: &str, node: &NodeSecrets) -> Result<(), CaError> {
    let new = dir.with_extension("new");
    match fs::remove_dir_all(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(CaError::File(new, error));
        }
        Ok(()) | Err(_) => {}
    }
    make_dir(&new)?;
    write(&new.join("ca.pem"), ca, 0o644)?;
    write(&new.join("ca.key"), &node.ca_key, 0o600)?;
    write(&new.join(SECRET), &node.peers, 0o600)?;
    write(&new.join(SEEDS), &(node.seeds.join("\n") + "\n"), 0o600)?;
    issuer(&new)?;
    fs::rename(&new, dir).map_err(|error| CaError::File(dir.to_owned(), error))
}

/// Returns where a node finds the others; none if it is the first one.
pub(crate) fn seeds(dir: &Path) -> Result<Vec<String>, CaError> {
    let path = dir.join(SEEDS);
    if !path.exists() {
        return Ok(Vec::new());
    }
    Ok(read(path)?.lines().map(str::to_owned).collect())
}

fn read(path: PathBuf) -> Result<String, CaError> {
    fs::read_to_string(&path).map_err(|error| CaError::File(path, error))
}

fn make_dir(dir: &Path) -> Result<(), CaError> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.map_err(|error| CaError::File(dir.to_owned(), error))
}

fn issuer(dir: &Path) -> Result<Issuer<'static, KeyPair>, CaError> {
    let key = KeyPair::from_pem(&read(dir.join("ca.key"))?)?;
    Ok(Issuer::from_ca_cert_pem(&read(dir.join("ca.pem"))?, key)?)
}

fn authority() -> Result<CertificateParams, CaError> {
    let mut params = valid(CertificateParams::new(Vec::new())?, AUTHORITY_DAYS);
    params.distinguished_name.push(DnType::CommonName, "latchfs CA");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(params)
}

fn server(names: &[String]) -> Result<CertificateParams, CaError> {
    let mut params = valid(CertificateParams::new(names)?, CERTIFICATE_DAYS);
    let first = names.first().map_or("latchfs", String::as_str);
    params.distinguished_name.push(DnType::CommonName, first);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    Ok(params)
}

fn peer(names: &[String]) -> Result<CertificateParams, CaError> {
    let mut params = server(names)?;
    params.extended_key_usages.push(ExtendedKeyUsagePurpose::ClientAuth);
    Ok(params)
}

fn client(name: &str) -> Result<CertificateParams, CaError> {
    let mut params = valid(CertificateParams::new(Vec::new())?, CERTIFICATE_DAYS);
    params.distinguished_name.push(DnType::CommonName, name);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params.use_authority_key_identifier_extension = true;
    Ok(params)
}

fn valid(mut params: CertificateParams, days: i64) -> CertificateParams {
    let now =
        OffsetDateTime::from_unix_timestamp(Wall::now().secs).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.not_before = now - BEFORE;
    params.not_after = now + Duration::days(days);
    params
}

fn write(path: &Path, text: &str, mode: u32) -> Result<(), CaError> {
    let failed = |error| CaError::File(path.to_owned(), error);
    let mut file =
        OpenOptions::new().write(true).create_new(true).mode(mode).open(path).map_err(failed)?;
    file.write_all(text.as_bytes()).map_err(failed)
}
