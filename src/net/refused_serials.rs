//! The list of certificates that are refused although their CA has signed them.

use super::pem_files::PemError;
use crate::os_error::said;
use rustls::pki_types::CertificateDer;
use std::collections::HashSet;
use std::path::Path;
use x509_parser::prelude::{FromDer, X509Certificate};

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

    /// Parses hex digits, which colons may separate, as `openssl x509 -serial` prints them.
    fn parse(text: &str) -> Option<Self> {
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
