//! Reads certificates and keys from PEM files.

use crate::os_error::said;
use rustls::RootCertStore;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::fmt;
use std::path::{Path, PathBuf};

/// A PEM file that can't be used, and the reason.
#[derive(Debug)]
pub struct PemError {
    /// The path of the file.
    pub path: PathBuf,
    /// The reason, as a sentence without the file's name.
    pub why: String,
}

impl fmt::Display for PemError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.why)
    }
}

impl std::error::Error for PemError {}

impl PemError {
    /// Returns an error that says why the file at `path` can't be used.
    pub(crate) fn new(path: &Path, why: impl Into<String>) -> Self {
        Self { path: path.to_owned(), why: why.into() }
    }
}

/// Reads all certificates of a file; a file without a certificate is an error.
pub(crate) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, PemError> {
    let read = CertificateDer::pem_file_iter(path).map_err(|error| unread(path, &error))?;
    let all: Vec<_> = read.collect::<Result<_, _>>().map_err(|error| unread(path, &error))?;
    if all.is_empty() {
        return Err(PemError::new(path, "it contains no certificate"));
    }
    Ok(all)
}

/// Reads the private key of a file.
pub(crate) fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, PemError> {
    PrivateKeyDer::from_pem_file(path).map_err(|error| unread(path, &error))
}

/// Reads the CA certificates of a file.
pub(crate) fn roots(path: &Path) -> Result<RootCertStore, PemError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|error| PemError::new(path, error.to_string()))?;
    }
    Ok(roots)
}

fn unread(path: &Path, error: &pem::Error) -> PemError {
    let why = match error {
        pem::Error::Io(error) => format!("it can't be read: {}", said(error)),
        pem::Error::NoItemsFound => "there is no key or certificate in it".to_owned(),
        other => format!("it is not PEM: {other}"),
    };
    PemError::new(path, why)
}
