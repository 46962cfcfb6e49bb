//! The transport over HTTP: one connection per requesting thread, kept open between requests.
//!
//! Each connection has its own event loop, which runs only while its thread waits, so that no
//! connection can delay another.
//!
//! The transport between a client and its servers: the interface that the rest of the client needs.
//!
//! TLS of a client: the certificate authorities that verify the server, and the client's own
//! certificate.

use crate::net::connections::{ByteStream, HttpSender, dial, encrypt, start_http, with_causes};
use crate::service::batch::batch_messages::{
    ANSWER_BYTES_MAX, BatchResponse, PROTOCOL_PARAMETER, RequestBatch, decode_response,
    encode_batch, protocol,
};
use crate::service::event_log::EventPlace;
use crate::time::Span;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{AUTHORIZATION, HOST, HeaderValue};
use hyper::http::uri::Scheme;
use hyper::{Method, Request, Response, StatusCode, Uri};
use parking_lot::RwLock;
use std::error::Error;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::{fmt, io};
use tokio::net::UnixStream;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{AlertDescription, CertificateError, ClientConfig, RootCertStore};
use tokio_rustls::{TlsConnector, rustls};

/// The maximum number of bytes read from an error response.
const COMPLAINT_BYTES_MAX: usize = 16 << 10;

/// The address of a server and the credentials for it.
#[derive(Debug, Clone, Default)]
pub struct ServerAccess {
    /// The URL of the server: `http://host:port`, `https://host:port` or `unix:PATH`.
    pub url: String,
    /// The bearer token of the client: the content of a token file.
    pub token: Option<String>,
    /// CA certificate (PEM) that verifies the server.
    pub ca: Option<Vec<u8>>,
    /// Client certificate and its key (PEM).
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
    /// The file with both, if the client has the server renew the certificate in time.
    pub renewed_in: Option<PathBuf>,
}

/// Why no server can be reached with this [`ServerAccess`]: the URL or a credential is invalid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unusable(String);

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for Unusable {}

/// A server that is reached over HTTP.
pub struct Http(pub(super) Arc<HttpTarget>);

/// The parsed address of a server, its TLS configuration and the headers of each request.
pub(super) struct HttpTarget {
    url: String,
    host: String,
    port: u16,
    /// The path of the server's Unix socket, which takes the place of the host.
    socket: Option<PathBuf>,
    authority: HeaderValue,
    keys: RwLock<HttpKeys>,
}

/// The credentials for a server that were read last.
#[derive(Clone)]
struct HttpKeys {
    token: Option<HeaderValue>,
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

impl HttpKeys {
    fn new(access: &ServerAccess, host: &str, is_tls: bool) -> Result<Self, Unusable> {
        let token = access.token.as_ref().map(|token| {
            let token = HeaderValue::from_str(&format!("Bearer {}", token.trim()));
            token.map_err(|_| Unusable("the token contains invalid characters".to_owned()))
        });
        let identity = access.identity.as_ref();
        let tls = is_tls.then(|| tls_connector(access.ca.as_deref(), identity, host)).transpose();
        Ok(Self { token: token.transpose()?, tls: tls.map_err(Unusable)? })
    }
}

impl Http {
    /// Returns the transport for the server that `access` names.
    pub fn new(access: &ServerAccess) -> Result<Self, Unusable> {
        let url = access.url.trim_end_matches('/');
        if let Some(path) = url.strip_prefix("unix:") {
            return Self::at_socket(access, url, path);
        }
        let wrong = |why: &str| {
            Unusable(format!("'{url}' {why}; expected a URL such as http://box.local:8080"))
        };
        let uri: Uri = url.parse().map_err(|_| wrong("is no URL"))?;
        let authority = uri.authority().ok_or_else(|| wrong("names no host"))?;
        let (is_tls, port) = match uri.scheme_str() {
            Some("http") => (false, 80),
            Some("https") => (true, 443),
            _ => return Err(wrong("is neither http nor https")),
        };
        if authority.as_str().contains('@') {
            // The credential is not repeated in the message.
            return Err(Unusable(
                "the server's URL has a user or password before the '@', which latchfs does not \
                 send; leave them out, and name a file with the token by --token-file"
                    .to_owned(),
            ));
        }
        if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
            return Err(wrong("has a path"));
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let keys = RwLock::new(HttpKeys::new(access, &host, is_tls)?);
        Ok(Self(Arc::new(HttpTarget {
            url: url.to_owned(),
            port: authority.port_u16().unwrap_or(port),
            authority: HeaderValue::from_str(authority.as_str())
                .map_err(|_| wrong("names no host"))?,
            host,
            socket: None,
            keys,
        })))
    }

    /// Returns the transport for the server at a Unix socket.
    fn at_socket(access: &ServerAccess, url: &str, path: &str) -> Result<Self, Unusable> {
        let host = "localhost".to_owned();
        let keys = RwLock::new(HttpKeys::new(access, &host, false)?);
        Ok(Self(Arc::new(HttpTarget {
            url: url.to_owned(),
            port: 0,
            authority: HeaderValue::from_static("localhost"),
            host,
            socket: Some(path.into()),
            keys,
        })))
    }
}

/// Whether a client of the server at `known` may also use the node at `url`, whose URL that server
/// reported. The credentials are sent there too, so the scheme must be the same, and a URL on this
/// machine is accepted only if the known server is on it as well. Over https, the certificate must
/// be valid for the host of `url`.
pub fn may_learn(known: &str, url: &str) -> bool {
    let (Ok(known), Ok(url)) = (known.parse::<Uri>(), url.parse::<Uri>()) else { return false };
    let (Some(from), Some(to)) = (known.host(), url.host()) else { return false };
    let is_nowhere = address_of(to).is_some_and(|ip| ip.is_unspecified());
    known.scheme() == url.scheme() && !is_nowhere && (is_here(from) || !is_here(to))
}

/// Whether the bytes that a client sends to the server at `url` leave this machine without
/// encryption.
pub fn is_exposed(url: &str) -> bool {
    let Ok(url) = url.parse::<Uri>() else { return false };
    url.scheme() == Some(&Scheme::HTTP) && !url.host().is_some_and(is_here)
}

/// Whether the server at `url` is on this machine.
pub fn is_on_this_machine(url: &str) -> bool {
    let is_at_host = || url.parse::<Uri>().is_ok_and(|url| url.host().is_some_and(is_here));
    url.starts_with("unix:") || is_at_host()
}

/// Whether a host of a URL is this machine.
fn is_here(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost") || address_of(host).is_some_and(|ip| ip.is_loopback())
}

fn address_of(host: &str) -> Option<IpAddr> {
    host.trim_matches(['[', ']']).parse().ok()
}

impl Transport for Http {
    fn renew_keys(&self, access: &ServerAccess) -> Result<(), Unusable> {
        let is_tls = self.0.keys.read().tls.is_some();
        let keys = HttpKeys::new(access, &self.0.host, is_tls)?;
        *self.0.keys.write() = keys;
        Ok(())
    }

    fn name(&self) -> &str {
        &self.0.url
    }

    fn line(&self) -> Box<dyn ServerConnection> {
        Box::new(HttpConnection { target: Arc::clone(&self.0), runtime: None, sender: None })
    }

    fn follow(
        &self,
        from: &StreamPosition,
        patience: Span,
    ) -> Result<Box<dyn FrameStream>, TransportError> {
        let StreamPosition { start, next, place, engine } = *from;
        let after =
            place.map_or_else(String::new, |place| format!("&after={}", place.id_in(engine)));
        let path = format!(
            "/door/v1/events?start={start}&since={next}{after}&{PROTOCOL_PARAMETER}={}",
            protocol()
        );
        Ok(Box::new(self.stream(&path, patience)?))
    }
}

impl Http {
    /// Requests `path`, and returns the body of the answer, which may have no end.
    pub(super) fn stream(
        &self,
        path: &str,
        patience: Span,
    ) -> Result<ResponseBody, TransportError> {
        let runtime = runtime()?;
        let body = runtime.block_on(async {
            let opened = async {
                let (_sender, response) = self.0.begin(Method::GET, path, Bytes::new()).await?;
                understood(response).await
            };
            timeout(patience.as_duration(), opened).await.map_err(|_| silent())?
        });
        match body {
            Ok(body) => Ok(ResponseBody { runtime, body }),
            Err(error) => {
                // A look-up of the server's name may take longer than the patience. Dropping the
                // runtime would wait for the end of the look-up.
                runtime.shutdown_background();
                Err(error)
            }
        }
    }
}

impl HttpTarget {
    pub(super) async fn connect(&self) -> Result<HttpSender, TransportError> {
        let stream = self.reach().await.map_err(|error| broken(&error))?;
        self.speak(stream).await
    }

    /// Opens a connection to the server's address or socket.
    pub(super) async fn reach(&self) -> io::Result<Box<dyn ByteStream>> {
        match &self.socket {
            Some(path) => Ok(Box::new(UnixStream::connect(path).await?)),
            None => Ok(Box::new(dial(&self.host, self.port).await?)),
        }
    }

    /// Performs the TLS and HTTP handshakes.
    pub(super) async fn speak(
        &self,
        stream: Box<dyn ByteStream>,
    ) -> Result<HttpSender, TransportError> {
        let tls = self.keys.read().tls.clone();
        let started = match &tls {
            None => start_http(stream).await,
            Some((connector, name)) => {
                let stream = encrypt(stream, connector, name.clone()).await.map_err(|error| {
                    // A failed TLS handshake counts as an unreachable server: the peer has not
                    // proved that it is the server, so its response must not decide anything.
                    let (url, why) = (&self.url, with_causes(&error));
                    let next = if is_of_unknown_issuer(&error) {
                        "; name the CA that signed it by --ca FILE"
                    } else {
                        ""
                    };
                    TransportError::Silent(format!("no TLS with {url}: {why}{next}"))
                })?;
                start_http(stream).await
            }
        };
        started.map_err(|error| broken(&error))
    }

    pub(super) fn request(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<Request<Full<Bytes>>, TransportError> {
        let mut request = Request::builder().method(method).uri(path);
        if let Some(headers) = request.headers_mut() {
            headers.insert(HOST, self.authority.clone());
            if let Some(token) = &self.keys.read().token {
                headers.insert(AUTHORIZATION, token.clone());
            }
        }
        request.body(Full::new(body)).map_err(|error| broken(&error))
    }
}

impl HttpTarget {
    /// Sends a request on a new connection, which lasts as long as the returned sender.
    pub(super) async fn begin(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<(HttpSender, Response<Incoming>), TransportError> {
        let mut sender = self.connect().await?;
        let request = self.request(method, path, body)?;
        let response = sender.send_request(request).await.map_err(|error| broken(&error))?;
        Ok((sender, response))
    }
}

/// One connection, and the event loop that runs it while its thread waits.
pub(super) struct HttpConnection {
    pub(super) target: Arc<HttpTarget>,
    pub(super) runtime: Option<Runtime>,
    pub(super) sender: Option<HttpSender>,
}

impl ServerConnection for HttpConnection {
    fn send_batch(
        &mut self,
        batch: &RequestBatch,
        patience: Span,
    ) -> Result<BatchResponse, TransportError> {
        let runtime = match self.runtime.take() {
            Some(runtime) => runtime,
            None => runtime()?,
        };
        let answer = runtime.block_on(async {
            let asked = self.exchange(encode_batch(batch).into());
            timeout(patience.as_duration(), asked).await.unwrap_or_else(|_| Err(silent()))
        });
        let answer = answer.and_then(|bytes| decode_reply(&bytes));
        if matches!(answer, Err(TransportError::Silent(_))) {
            // A late response must not answer the next request, so the connection is given up.
            self.sender = None;
        }
        self.runtime = Some(runtime);
        answer
    }
}

impl Drop for HttpConnection {
    fn drop(&mut self) {
        // Dropping the runtime would wait for the end of a look-up of the server's name.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl HttpConnection {
    async fn exchange(&mut self, batch: Bytes) -> Result<Vec<u8>, TransportError> {
        // The server may have closed an idle connection, which the client notices only when it
        // sends on the connection.
        if let Some(sender) = self.sender.take()
            && !sender.is_closed()
            && let Ok(answer) = self.exchange_on(sender, batch.clone()).await
        {
            return answer;
        }
        let sender = self.target.connect().await?;
        self.exchange_on(sender, batch).await?
    }

    /// Sends a batch on an open connection. The outer error is that of the connection, the inner
    /// one the server's.
    async fn exchange_on(
        &mut self,
        mut sender: HttpSender,
        batch: Bytes,
    ) -> Result<Result<Vec<u8>, TransportError>, TransportError> {
        sender.ready().await.map_err(|error| broken(&error))?;
        let request = self.target.request(Method::POST, "/door/v1/ask", batch)?;
        let response = sender.send_request(request).await.map_err(|error| broken(&error))?;
        let body = match understood(response).await {
            Ok(body) => body,
            Err(error) => return Ok(Err(error)),
        };
        let whole = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
        let whole = whole
            .map_err(|error| TransportError::Silent(format!("incomplete response: {error}")))?;
        self.sender = Some(sender);
        Ok(Ok(whole.to_bytes().into()))
    }
}

/// Decodes the answer to a batch.
fn decode_reply(bytes: &[u8]) -> Result<BatchResponse, TransportError> {
    decode_response(bytes).map_err(|error| TransportError::Foreign(error.to_string()))
}

/// Returns the body of a successful response, or the error that the status stands for.
pub(super) async fn understood(response: Response<Incoming>) -> Result<Incoming, TransportError> {
    let (head, body) = response.into_parts();
    if head.status == StatusCode::OK {
        return Ok(body);
    }
    let complaint = Limited::new(body, COMPLAINT_BYTES_MAX).collect().await;
    let complaint = complaint.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let said = serde_json::from_slice::<serde_json::Value>(&complaint).ok();
    let said = said.as_ref().and_then(|problem| problem["detail"].as_str());
    let status = head.status;
    let said = said.map_or_else(|| format!("the server answered {status}"), str::to_owned);
    Err(match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => TransportError::Denied(said),
        StatusCode::PRECONDITION_FAILED => TransportError::Elsewhere(said),
        StatusCode::UPGRADE_REQUIRED => TransportError::Foreign(said),
        // The server is overloaded, shutting down or cannot serve the request: a retry may succeed.
        StatusCode::TOO_MANY_REQUESTS | StatusCode::MISDIRECTED_REQUEST => {
            TransportError::Silent(said)
        }
        // Another kind of server knows no such request; a proxy answers otherwise.
        status if status.is_server_error() && status != StatusCode::NOT_IMPLEMENTED => {
            TransportError::Silent(said)
        }
        _ => TransportError::Foreign(format!(
            "{said}; check that it is a latchfs server of the same version"
        )),
    })
}

/// The body of a response that may have no end.
pub(super) struct ResponseBody {
    runtime: Runtime,
    body: Incoming,
}

impl ResponseBody {
    /// Appends received bytes to `bytes`; waits for at most `patience` if there are none. Returns
    /// whether there were any.
    pub(super) fn wait(
        &mut self,
        bytes: &mut Vec<u8>,
        patience: Span,
    ) -> Result<bool, TransportError> {
        let frame = self
            .runtime
            .block_on(async { timeout(patience.as_duration(), self.body.frame()).await });
        let Ok(frame) = frame else { return Ok(false) };
        let frame =
            frame.ok_or_else(|| TransportError::Silent("the stream has ended".to_owned()))?;
        if let Some(data) = frame.map_err(|error| broken(&error))?.data_ref() {
            bytes.extend_from_slice(data);
        }
        Ok(true)
    }
}

impl FrameStream for ResponseBody {
    fn read(&mut self, bytes: &mut Vec<u8>, patience: Span) -> Result<(), TransportError> {
        if self.wait(bytes, patience)? { Ok(()) } else { Err(silent()) }
    }
}

pub(super) fn runtime() -> Result<Runtime, TransportError> {
    Builder::new_current_thread().enable_all().build().map_err(|error| broken(&error))
}

/// Returns the error of a broken connection. A server that refuses the client's certificate, or
/// misses one, says so by an alert in a connection whose server is verified already.
pub(super) fn broken(error: &(dyn Error + 'static)) -> TransportError {
    match certificate_alert(error) {
        Some(why) => TransportError::Denied(format!(
            "the server refuses the client's certificate, or misses one ({why})"
        )),
        None if error.downcast_ref().is_some_and(hyper::Error::is_parse) => TransportError::Silent(
            "its answer is no HTTP; if it expects TLS, write https:// in its URL".to_owned(),
        ),
        None => TransportError::Silent(with_causes(error)),
    }
}

pub(super) fn silent() -> TransportError {
    TransportError::Silent("no answer in time".to_owned())
}

/// Why a server has given no usable answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TransportError {
    /// No answer arrived in time, or the connection broke: the outcome is unknown.
    Silent(String),
    /// The server refuses the credentials, for this reason.
    Denied(String),
    /// The peer answers, but is not a latchfs server of a version that this client supports.
    /// Contains the peer's message.
    Foreign(String),
    /// The server has another engine than the client has used so far. The server reports this, and
    /// did not execute the request.
    Elsewhere(String),
}

impl TransportError {
    /// Whether the server refuses the credentials.
    pub(super) const fn is_denial(&self) -> bool {
        matches!(self, Self::Denied(_))
    }
}

impl fmt::Display for TransportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Silent(why) | Self::Denied(why) | Self::Foreign(why) | Self::Elsewhere(why)) =
            self;
        f.write_str(why)
    }
}

impl Error for TransportError {}

/// One connection, on which one thread sends requests one after the other. Reconnects by itself.
pub trait ServerConnection: Send {
    /// Sends a batch, and waits for the answer for at most `patience`.
    fn send_batch(
        &mut self,
        batch: &RequestBatch,
        patience: Span,
    ) -> Result<BatchResponse, TransportError>;
    /// Reports that the server that answered last could not serve the request: the next request
    /// goes to another server, if there is one.
    fn pass_over(&mut self, _why: &TransportError) {}
    /// Restricts all further requests to the server that answered last.
    fn stay(&mut self) {}
}

/// A server's event stream that is open for reading.
pub trait FrameStream: Send {
    /// Appends received bytes to `bytes`; waits for at most `patience` if there are none.
    fn read(&mut self, bytes: &mut Vec<u8>, patience: Span) -> Result<(), TransportError>;
}

/// A server, or several of one cluster, to which a client can connect.
pub trait Transport: Send + Sync {
    /// The name of the server that is shown to users.
    fn name(&self) -> &str;
    /// Whether there are several servers, any of which can serve a request.
    fn is_several(&self) -> bool {
        false
    }
    /// Reports that the current server is unsuitable: the next request goes to another server, if
    /// there is one.
    fn pass_over(&self, _why: &TransportError) {}
    /// Returns why a server refused the credentials, if none has answered a request since. A user
    /// must know it even if another server can't be reached, which could accept them.
    fn denial(&self) -> Option<String> {
        None
    }
    /// Records the URLs of all nodes of the cluster, as a server reported them.
    fn learn(&self, _urls: &[String]) {}
    /// Uses these credentials from now on: the token for each request, and the certificates for new
    /// connections. If they can't be used, those before stay in force.
    fn renew_keys(&self, _access: &ServerAccess) -> Result<(), Unusable> {
        Ok(())
    }
    /// Returns a connection on which requests can be sent.
    fn line(&self) -> Box<dyn ServerConnection>;
    /// Opens the event stream at a position, if the server knows it, or else at the next event.
    fn follow(
        &self,
        from: &StreamPosition,
        patience: Span,
    ) -> Result<Box<dyn FrameStream>, TransportError>;
}

/// A position in the events of a server, or of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StreamPosition {
    /// The id of the server's start; 0 before the first stream.
    pub start: u64,
    /// The number of the next event since that start of the server.
    pub next: u64,
    /// The place in the cluster's log of the event before the next one, if that place is known.
    pub place: Option<EventPlace>,
    /// The id of the engine, by which the servers of a cluster are told from others.
    pub engine: u64,
}

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

#[cfg(test)]
mod tests {
    use super::*;

    fn why(url: &str) -> String {
        match Http::new(&ServerAccess { url: url.to_owned(), ..ServerAccess::default() }) {
            Ok(_) => String::new(),
            Err(why) => why.to_string(),
        }
    }

    #[test]
    fn credentials_go_to_a_learned_server_only_where_they_are_as_safe() {
        let may = [
            ("http://a:1", "http://b:2"),
            ("https://a:1", "https://b:2"),
            ("http://127.0.0.1:1", "http://127.0.0.1:2"),
            ("http://localhost:1", "http://[::1]:2"),
        ];
        for (known, url) in may {
            assert!(may_learn(known, url), "{known} {url}");
        }
        let may_not = [
            ("https://a:1", "http://b:2"),
            ("http://a:1", "https://b:2"),
            ("http://a:1", "http://127.0.0.1:2"),
            ("http://a:1", "http://localhost:2"),
            ("http://a:1", "http://0.0.0.0:2"),
            ("http://a:1", "b:2"),
        ];
        for (known, url) in may_not {
            assert!(!may_learn(known, url), "{known} {url}");
        }
    }

    #[test]
    fn the_name_of_a_server_is_scheme_host_and_port() {
        for good in ["http://box", "http://10.0.0.1:8080/", "http://[::1]:80"] {
            assert_eq!(why(good), "", "{good}");
        }
        assert!(why("box:8080").contains("names no host") || why("box:8080").contains("neither"));
        assert!(why("ftp://box").contains("neither"), "{}", why("ftp://box"));
        assert!(why("http://box/path").contains("has a path"));
        let secret = why("https://me:secret@box");
        assert!(secret.contains("--token-file") && !secret.contains("secret"), "{secret}");
        assert_eq!(why("https://box"), "");
        assert_eq!(why("unix:/run/latchfs.sock"), "");
    }
}
