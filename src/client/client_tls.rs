//! TLS of a client: the certificate authorities that verify the server, and the client's own
//! certificate.

use std::error::Error;
use std::sync::{Arc, OnceLock};
use std::{fmt, io};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{self, AlertDescription, CertificateError, ClientConfig, RootCertStore};

/// Returns the TLS configuration for the server at `host`, which the certificates in `ca` (PEM) or
/// those that this machine trusts verify. `identity` is the client's certificate and its key (PEM).
pub(super) fn tls_connector(
    ca: Option<&[u8]>,
    identity: Option<&(Vec<u8>, Vec<u8>)>,
    host: &str,
) -> Result<(TlsConnector, ServerName<'static>), String> {
    let unusable = |what: &str, why: &dyn fmt::Display| format!("{what}: {why}");
    let roots = match ca {
        None => machine_roots()?,
        Some(ca) => {
            let mut roots = RootCertStore::empty();
            for certificate in CertificateDer::pem_slice_iter(ca) {
                let certificate =
                    certificate.map_err(|why| unusable("the CA can't be read", &why))?;
                roots.add(certificate).map_err(|why| unusable("the CA can't be used", &why))?;
            }
            Arc::new(roots)
        }
    };
    let config = ClientConfig::builder().with_root_certificates(roots);
    let config = match identity {
        None => config.with_no_client_auth(),
        Some((certificate, key)) => {
            let certificates: Result<Vec<_>, _> =
                CertificateDer::pem_slice_iter(certificate).collect();
            let certificates =
                certificates.map_err(|why| unusable("the certificate can't be read", &why))?;
            let key = PrivateKeyDer::from_pem_slice(key)
                .map_err(|why| unusable("the key can't be read", &why))?;
            config
                .with_client_auth_cert(certificates, key)
                .map_err(|why| unusable("the certificate can't be used", &why))?
        }
    };
    let name = ServerName::try_from(host.to_owned())
        .map_err(|why| unusable("the server's name can't be checked", &why))?;
    Ok((TlsConnector::from(Arc::new(config)), name))
}

#[cfg(target_os = "linux")]
fn machine_certificates() -> Vec<CertificateDer<'static>> {
    rustls_native_certs::load_native_certs().certs
}

/// Returns the certificates of the file that macOS keeps for OpenSSL. The keychain has more, and a
/// program that is linked on another system can't read it.
#[cfg(not(target_os = "linux"))]
fn machine_certificates() -> Vec<CertificateDer<'static>> {
    let file = std::env::var_os("SSL_CERT_FILE").unwrap_or_else(|| "/etc/ssl/cert.pem".into());
    CertificateDer::pem_file_iter(file).into_iter().flatten().flatten().collect()
}

/// Returns the CA certificates that this machine trusts. They are read once per process.
fn machine_roots() -> Result<Arc<RootCertStore>, String> {
    static ROOTS: OnceLock<Arc<RootCertStore>> = OnceLock::new();
    let roots = ROOTS.get_or_init(|| {
        let mut roots = RootCertStore::empty();
        // A certificate that can't be used vouches for no server; the others still do.
        roots.add_parsable_certificates(machine_certificates());
        Arc::new(roots)
    });
    if roots.is_empty() {
        return Err(
            "this machine has no CA certificates that could verify an https server; name the \
             server's CA (PEM) by --ca FILE, or install the package ca-certificates"
                .to_owned(),
        );
    }
    Ok(Arc::clone(roots))
}

/// Whether a handshake failed because no known CA has signed the server's certificate.
pub(super) fn is_of_unknown_issuer(error: &io::Error) -> bool {
    let unknown = rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer);
    tls_error(error) == Some(&unknown)
}

fn tls_error(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref::<rustls::Error>()
}

/// Returns the TLS alert about the client's certificate that is among the causes of an error.
pub(super) fn certificate_alert(error: &(dyn Error + 'static)) -> Option<String> {
    let alert = match error.downcast_ref::<io::Error>().and_then(tls_error) {
        Some(rustls::Error::AlertReceived(alert)) => *alert,
        _ => return certificate_alert(error.source()?),
    };
    let is_about_certificate = matches!(
        alert,
        AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA
            | AlertDescription::AccessDenied
            | AlertDescription::DecryptError
            | AlertDescription::CertificateRequired
    );
    is_about_certificate.then(|| format!("{alert:?}"))
}
