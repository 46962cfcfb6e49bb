//! Joins a server by a code: makes a key, proves that this machine knows the code, and has the
//! server prove the same, before anything of the server is believed.
//!
//! The TLS connection cannot be verified when it begins, because this machine does not know the CA
//! of the server yet. Both confirmations cover the certificate of the CA and a value that only the
//! two ends of this one connection have, so that a relay or another server is found out.
//!
//! A code is used for one exchange only: a hostile server has one guess for each code that a person
//! types.

use super::api_request::json_of;
use super::http_transport::{TransportError, broken, runtime, tls_connector};
use crate::home::invitations::{INVITATION_SPAN, InvitationKind};
use crate::home::join_code::{
    EXPORTER_BYTES, EXPORTER_LABEL, Exchange, JoinCode, JoinRole, SharedKey, Transcript,
};
use crate::home::messages::{
    CONFIRM, ConfirmRequest, ConfirmResponse, JOIN, JoinRequest, JoinResponse, NodeSecrets,
};
use crate::net::connections::{HttpSender, dial, encrypt, start_http};
use crate::time::Span;
use http_body_util::Full;
use hyper::Request;
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HOST};
use rand_core::OsRng;
use rcgen::{CertificateParams, KeyPair};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::{
    ClientConfig, DigitallySignedStruct, Error as TlsError, RootCertStore, SignatureScheme, version,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Display;
use std::sync::Arc;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

/// How long all of it may take, but for the person who allows a node.
const PATIENCE: Span = Span::from_secs(30);

/// A machine that has joined a server.
pub(crate) struct JoinedServer {
    /// The name that this machine has at the server.
    pub(crate) name: String,
    /// The certificate of the server's CA (PEM).
    pub(crate) ca: String,
    pub(crate) joined: JoinedAs,
}

/// What this machine has become.
pub(crate) enum JoinedAs {
    /// A device.
    Device {
        /// Its key and its certificate (PEM).
        identity: String,
        /// The URLs of all nodes of the server.
        servers: Vec<String>,
    },
    /// A node.
    Node(NodeSecrets),
}

/// Why this machine has not joined.
#[derive(Debug)]
pub(crate) enum JoinError {
    /// The server can't be reached.
    Unreachable(String),
    /// The server refuses this machine, for this reason.
    Refused(String),
    /// The server has not proved that it knows the code, or that it has the address: this reason.
    Unproved(String),
}

impl From<TransportError> for JoinError {
    fn from(error: TransportError) -> Self {
        Self::Unreachable(error.to_string())
    }
}

/// Joins the server at `host` and `port` as `name`.
pub(crate) fn join(
    host: &str,
    port: u16,
    code: &JoinCode,
    name: &str,
    kind: InvitationKind,
) -> Result<JoinedServer, JoinError> {
    let patience = match kind {
        InvitationKind::Device => PATIENCE,
        InvitationKind::Node => PATIENCE + INVITATION_SPAN,
    };
    let runtime = runtime()?;
    let joined = runtime.block_on(async {
        let joined = timeout(patience.as_duration(), join_by(host, port, code, name, kind)).await;
        let late = |_| Err(JoinError::Unreachable(format!("no answer within {patience}")));
        joined.unwrap_or_else(late)
    });
    // A look-up of the server's name may take longer than that.
    runtime.shutdown_background();
    joined
}

async fn join_by(
    host: &str,
    port: u16,
    code: &JoinCode,
    name: &str,
    kind: InvitationKind,
) -> Result<JoinedServer, JoinError> {
    let key = KeyPair::generate().map_err(local)?;
    let request = certificate_request(&key).map_err(local)?;
    let mut connection = JoinConnection::open(host, port).await?;
    let (exchange, own) = Exchange::begin(JoinRole::Device, &code.secret, &mut OsRng);
    let hello = JoinRequest {
        slot: code.slot,
        name: name.to_owned(),
        request: request.clone(),
        message: own.clone(),
    };
    let answer: JoinResponse = connection.send(JOIN, &hello).await?;
    let ca = answer.ca;
    // The address is checked before the code is used.
    connection.check_server(&ca)?;
    let malformed = || JoinError::Unproved("its answer is none of a latchfs server".to_owned());
    let shared: SharedKey = exchange.end(&answer.message).ok_or_else(malformed)?;
    let exporter = connection.exporter;
    let transcript = Transcript {
        kind: kind.as_str(),
        slot: code.slot,
        name,
        ca: &ca,
        request: &request,
        messages: [&own, &answer.message],
        exporter: &exporter,
    };
    let confirmation = shared.confirmation(JoinRole::Device, &transcript);
    let confirm = ConfirmRequest { slot: code.slot, attempt: answer.attempt, confirmation };
    let joined: ConfirmResponse = connection.send(CONFIRM, &confirm).await?;
    let transcript = Transcript { name: &joined.name, ..transcript };
    if !shared.accepts(JoinRole::Server, &transcript, &joined.confirmation) {
        return Err(JoinError::Unproved("it does not know the code".to_owned()));
    }
    let name = joined.name;
    if let (InvitationKind::Node, Some(node)) = (kind, joined.node) {
        return Ok(JoinedServer { name, ca, joined: JoinedAs::Node(node) });
    }
    let (key, certificate) = (key.serialize_pem(), joined.certificate.unwrap_or_default());
    check_certificate(&ca, &certificate, &key)
        .map_err(|why| JoinError::Unproved(format!("its certificate can't be used: {why}")))?;
    let (identity, servers) = (key + &certificate, joined.servers);
    Ok(JoinedServer { name, ca, joined: JoinedAs::Device { identity, servers } })
}

fn local(error: impl Display) -> JoinError {
    JoinError::Unreachable(format!("no key can be made: {error}"))
}

/// Returns a certificate request (PEM), of which the server takes the key alone.
pub(crate) fn certificate_request(key: &KeyPair) -> Result<String, rcgen::Error> {
    CertificateParams::new(Vec::new())?.serialize_request(key)?.pem()
}

fn roots(ca: &str) -> Result<Arc<RootCertStore>, String> {
    let mut roots = RootCertStore::empty();
    let ca = CertificateDer::from_pem_slice(ca.as_bytes()).map_err(|error| error.to_string())?;
    roots.add(ca).map_err(|error| error.to_string())?;
    Ok(Arc::new(roots))
}

/// Checks that the CA has signed a client certificate, and that it belongs to `key`.
pub(crate) fn check_certificate(ca: &str, certificate: &str, key: &str) -> Result<(), String> {
    let said = |error: &dyn Display| error.to_string();
    let chain = CertificateDer::from_pem_slice(certificate.as_bytes()).map_err(|e| said(&e))?;
    let provider = Arc::new(ring::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(roots(ca)?, provider);
    let verifier = verifier.build().map_err(|error| said(&error))?;
    let checked = verifier.verify_client_cert(&chain, &[], UnixTime::now());
    checked.map_err(|error| said(&error))?;
    let identity = (certificate.as_bytes().to_vec(), key.as_bytes().to_vec());
    tls_connector(Some(ca.as_bytes()), Some(&identity), "localhost").map(drop)
}

/// One TLS connection, whose server is not verified yet.
struct JoinConnection {
    sender: HttpSender,
    host: String,
    server: ServerName<'static>,
    certificate: CertificateDer<'static>,
    exporter: [u8; EXPORTER_BYTES],
}

impl JoinConnection {
    async fn open(host: &str, port: u16) -> Result<Self, JoinError> {
        let unreachable = |error: &dyn Display| JoinError::Unreachable(error.to_string());
        let server = ServerName::try_from(host.to_owned()).map_err(|error| unreachable(&error))?;
        let provider = Arc::new(ring::default_provider());
        let config = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&version::TLS13])
            .map_err(|error| unreachable(&error))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Unverified(provider)))
            .with_no_client_auth();
        let stream = dial(host, port).await.map_err(|error| broken(&error))?;
        let connector = TlsConnector::from(Arc::new(config));
        let stream = encrypt(stream, &connector, server.clone()).await;
        let stream = stream.map_err(|error| broken(&error))?;
        let session = stream.get_ref().1;
        let certificate = session.peer_certificates().and_then(|chain| chain.first());
        let certificate = certificate.ok_or_else(|| unreachable(&"it has no certificate"))?;
        let certificate = certificate.clone().into_owned();
        let exporter = session
            .export_keying_material([0; EXPORTER_BYTES], EXPORTER_LABEL, None)
            .map_err(|error| unreachable(&error))?;
        let sender = start_http(stream).await.map_err(|error| broken(&error))?;
        Ok(Self { sender, host: host.to_owned(), server, certificate, exporter })
    }

    /// Checks that the certificate of this connection is for the host, and that `ca` has signed it.
    fn check_server(&self, ca: &str) -> Result<(), JoinError> {
        let provider = Arc::new(ring::default_provider());
        let checked = roots(ca).and_then(|roots| {
            let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider).build();
            let verifier = verifier.map_err(|error| error.to_string())?;
            let (server, now) = (&self.server, UnixTime::now());
            let checked = verifier.verify_server_cert(&self.certificate, &[], server, &[], now);
            checked.map(drop).map_err(|error| error.to_string())
        });
        checked.map_err(|why| {
            let host = &self.host;
            JoinError::Unproved(format!(
                "its certificate is not one for '{host}' ({why}); use a name of the server, or \
                 start it with --name {host}"
            ))
        })
    }

    async fn send<T: DeserializeOwned>(
        &mut self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, JoinError> {
        let body = serde_json::to_vec(body).map_err(|error| broken(&error))?;
        let request = Request::post(path)
            .header(HOST, &self.host)
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| broken(&error))?;
        self.sender.ready().await.map_err(|error| broken(&error))?;
        let response = self.sender.send_request(request).await.map_err(|error| broken(&error))?;
        let (code, answer) = json_of(response).await?;
        if code == 200
            && let Ok(answer) = serde_json::from_value(answer.clone())
        {
            return Ok(answer);
        }
        let said = answer["detail"].as_str().map(str::to_owned);
        Err(JoinError::Refused(said.unwrap_or_else(|| {
            format!("it answers {code}, as no latchfs server does that machines join")
        })))
    }
}

/// Accepts any certificate of a server, which must prove only that it has the key of it.
#[derive(Debug)]
struct Unverified(Arc<CryptoProvider>);

impl ServerCertVerifier for Unverified {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, TlsError> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
