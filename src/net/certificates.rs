//! Reads certificates and keys from PEM files.
//!
//! The list of certificates that are refused although their CA has signed them.

use crate::base::said;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem};
use std::collections::HashSet;
use std::fmt;
use std::path::{Path, PathBuf};
use x509_parser::prelude::{FromDer, X509Certificate};

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

/// Maximum length of the file in bytes: some 25,000 serial numbers.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The serial number of a certificate, in lower-case hex without leading zeros.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct CertSerial(Box<str>);

/// The serial numbers of refused certificates.
#[derive(Debug, Clone, Default)]
pub(crate) struct RefusedSerials(HashSet<CertSerial>);

impl CertSerial {
    /// Returns the serial number of a certificate, or `None` if it is malformed.
    pub(crate) fn of(certificate: &CertificateDer<'_>) -> Option<Self> {
        let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
        Self::parse(&parsed.raw_serial_as_string())
    }

    /// Returns the digits.
    pub(crate) fn text(&self) -> &str {
        &self.0
    }

    /// Parses hex digits, which colons may separate, as `openssl x509 -serial` prints them.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let text = text.strip_prefix("serial=").unwrap_or(text);
        let digits: String = text.chars().filter(|c| *c != ':').collect();
        let is_hex = !digits.is_empty() && digits.chars().all(|c| c.is_ascii_hexdigit());
        let digits = digits.trim_start_matches('0').to_ascii_lowercase();
        is_hex.then(|| Self(digits.into()))
    }
}

impl RefusedSerials {
    /// Reads a list with one serial number on each line; empty lines and lines that begin with `#`
    /// mean nothing.
    pub(crate) fn read(path: &Path) -> Result<Self, PemError> {
        let wrong = |why: String| PemError::new(path, why);
        let length = path.metadata().map_err(|error| wrong(said(&error)))?.len();
        if length > FILE_BYTES_MAX {
            return Err(wrong(format!("it is longer than {FILE_BYTES_MAX} bytes")));
        }
        let text = std::fs::read_to_string(path).map_err(|error| wrong(said(&error)))?;
        let mut serials = HashSet::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let serial = CertSerial::parse(line).ok_or_else(|| {
                let number = number + 1;
                wrong(format!("line {number} is no serial number in hex, such as 4f:03:a1"))
            })?;
            serials.insert(serial);
        }
        Ok(Self(serials))
    }

    /// Whether the certificate with this serial number is refused.
    pub(crate) fn contain(&self, serial: &CertSerial) -> bool {
        self.0.contains(serial)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serial_numbers_are_read_in_each_usual_form() {
        let parse = |text| CertSerial::parse(text).map(|serial| serial.0.into_string());
        for text in ["4F03A1", "serial=4f03a1", "00:4f:03:a1", "04f03a1"] {
            assert_eq!(parse(text).as_deref(), Some("4f03a1"), "{text}");
        }
        for text in ["", ":", "4g", "-1", "serial="] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn the_file_has_a_longest_length() {
        let path = std::env::temp_dir().join(format!("latchfs-serials-{}", std::process::id()));
        for (length, is_read) in [(FILE_BYTES_MAX, true), (FILE_BYTES_MAX + 1, false)] {
            let text = "#".repeat(length as usize);
            std::fs::write(&path, text).expect("the temporary directory can be written");
            assert_eq!(RefusedSerials::read(&path).is_ok(), is_read, "{length} bytes");
        }
        let _ = std::fs::remove_file(&path);
    }
}
