//! Serves one connection: detects the HTTP version, enforces timeouts and limits, and shuts down
//! gracefully.
//!
//! Listening sockets of the HTTP server: a TCP address, or a Unix socket whose peers the kernel
//! identifies.

use super::app_state::{AppState, ShutdownPhase, entered};
use crate::auth::connection_limits::{ConnectionOrigin, PeerIdentity};
use crate::auth::permissions::Operation;
use crate::auth::server_tls::CertifiedCaller;
use crate::auth::{Grant, PeerUser, server_tls};
use crate::home::join_code::{EXPORTER_BYTES, EXPORTER_LABEL};
use crate::net::connections::{Acceptor, listen};
use crate::server::lock_log::AuditedCaller;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::response::Response;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::{http1, http2};
use hyper::service::Service;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use nix::sys::socket::{UnixAddr, getsockname};
use rustls::{ProtocolVersion, ServerConnection};
use std::convert::Infallible;
use std::fs::Metadata;
use std::future::{pending, poll_fn};
use std::net::SocketAddr;
#[cfg(target_os = "linux")]
use std::os::fd::AsRawFd;
use std::os::fd::{BorrowedFd, RawFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use std::{fmt, io};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

/// Timeout for the head of a request, counted from the end of the previous request, so that it is
/// also the idle timeout of a connection. A client that renews a lease every 10 s keeps its
/// connection.
pub(super) const HEAD_PATIENCE: Duration = Duration::from_secs(30);

/// Timeout for the TLS handshake, which takes one or two round trips.
const HANDSHAKE_PATIENCE: Duration = Duration::from_secs(10);

/// Maximum size of a request head: enough for a lock name of 1 KiB, percent-encoded, with a note of
/// 1 KiB in the query.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// Maximum number of header lines in a request; browsers send about twenty.
const HEADERS_MAX: usize = 64;

/// Maximum number of concurrent requests on one HTTP/2 connection: as many as a browser or a script
/// sends at most, and few enough that one connection can't starve others.
const STREAMS_MAX: u32 = 256;

/// Interval of HTTP/2 pings on a silent connection.
const PING_EVERY: Duration = Duration::from_secs(15);

/// Timeout for the answer to an HTTP/2 ping.
const PING_PATIENCE: Duration = Duration::from_secs(10);

/// The HTTP/2 connection preface, which identifies HTTP/2 where ALPN has not negotiated a protocol.
const H2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Response to a client that did not send a complete request head within the timeout.
const TOO_SLOW: &[u8] = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\n\
    content-type: application/problem+json\r\ncontent-length: 111\r\n\r\n\
    {\"type\":\"about:blank\",\"title\":\"Request Timeout\",\
    \"status\":408,\"detail\":\"the head of the request took too long\"}\n";

/// The HTTP version of a connection.
enum HttpVersion {
    One,
    Two,
}

/// Adapts the router to hyper's service trait, and adds the origin of the connection to each
/// request.
#[derive(Clone)]
struct RouterService {
    router: Router,
    origin: Arc<ConnectionOrigin>,
}

impl Service<axum::http::Request<Incoming>> for RouterService {
    type Response = Response;
    type Error = Infallible;
    type Future = axum::routing::future::RouteFuture<Infallible>;

    fn call(&self, request: axum::http::Request<Incoming>) -> Self::Future {
        let mut request: Request = request.map(Body::new);
        request.extensions_mut().insert(Arc::clone(&self.origin));
        tower_service::Service::call(&mut self.router.clone(), request)
    }
}

/// A router service that counts open requests, for the idle timeout of HTTP/2.
struct CountingService {
    routed: RouterService,
    open: watch::Sender<usize>,
}

/// Counts one open request for as long as this value lives: until the response has been sent or
/// abandoned.
struct OpenRequest(watch::Sender<usize>);

impl OpenRequest {
    fn new(open: &watch::Sender<usize>) -> Self {
        open.send_modify(|count| *count += 1);
        Self(open.clone())
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

impl Service<axum::http::Request<Incoming>> for CountingService {
    type Response = axum::http::Response<CountedBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn call(&self, request: axum::http::Request<Incoming>) -> Self::Future {
        let (asked, answer) = (OpenRequest::new(&self.open), self.routed.call(request));
        Box::pin(async move {
            let answer = answer.await?;
            Ok(answer.map(|body| CountedBody { body, _asked: asked }))
        })
    }
}

/// A response body that keeps its request counted as open until the body is dropped.
struct CountedBody {
    body: Body,
    _asked: OpenRequest,
}

impl hyper::body::Body for CountedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Serves a connection until it ends. The states of the handshake and of both HTTP versions have
/// boxes of their own, so that a connection takes memory only for the one that it is in: without
/// boxes, each task has room for all of them, 9 KiB.
pub(super) async fn serve(
    app: &AppState,
    router: &Router,
    source: PeerIdentity,
    stream: ServerStream,
    user: Option<CertifiedCaller>,
) {
    let service = |certified| {
        let origin = app.peers.origin(source, certified, None);
        RouterService { router: router.clone(), origin }
    };
    let phase = app.follow_phase();
    let tcp = match &stream {
        ServerStream::Tcp(tcp) => tcp,
        // A Unix socket needs no TLS: the kernel has identified the user, and nobody can eavesdrop.
        ServerStream::Unix(_) => {
            return Box::pin(serve_one(stream, service(user), phase)).await;
        }
    };
    let Some(config) = app.gate.tls() else {
        return match timeout(HEAD_PATIENCE, version_of(tcp)).await {
            Ok(Some(HttpVersion::One)) => {
                Box::pin(serve_one(stream, service(None), phase)).await;
            }
            Ok(Some(HttpVersion::Two)) => {
                Box::pin(serve_two(stream, service(None), phase)).await;
            }
            // The client disconnected, or sent nothing within the timeout.
            Ok(None) | Err(_) => {}
        };
    };
    let accepting = Box::pin(TlsAcceptor::from(config).accept(stream));
    let shaken = timeout(HANDSHAKE_PATIENCE, accepting).await;
    let stream = match shaken {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            if let Some(why) = server_tls::foreign_certificate(&error) {
                let (grant, origin) = (&Grant::nothing(), &*app.peers.origin(source, None, None));
                let caller = AuditedCaller { grant, origin };
                caller.refused(&app.locks, Operation::Authenticate, &why);
            }
            return log::debug!("a handshake failed: {error}");
        }
        Err(_) => return log::debug!("a handshake took too long"),
    };
    let session = stream.get_ref().1;
    let certificate = session.peer_certificates().and_then(|chain| chain.first());
    let certified = certificate.and_then(server_tls::caller_of);
    let exporter = app.home.as_ref().and_then(|_| exporter_of(session));
    let origin = app.peers.origin(source, certified, exporter);
    let service = RouterService { router: router.clone(), origin };
    match session.alpn_protocol() {
        Some(b"h2") => Box::pin(serve_two(stream, service, phase)).await,
        _ => Box::pin(serve_one(stream, service, phase)).await,
    }
}

/// Returns the value that both ends of a connection derive from it. A relay that ends TLS has one
/// value with each side. Before TLS 1.3 two connections could be made to have the same one.
fn exporter_of(session: &ServerConnection) -> Option<[u8; EXPORTER_BYTES]> {
    let is_safe = session.protocol_version() == Some(ProtocolVersion::TLSv1_3);
    let value = session.export_keying_material([0; EXPORTER_BYTES], EXPORTER_LABEL, None);
    value.ok().filter(|_| is_safe)
}

/// Detects the HTTP version from the first bytes of a connection, without consuming them. Returns
/// `None` if the client has disconnected.
async fn version_of(stream: &TcpStream) -> Option<HttpVersion> {
    let mut seen = [0; H2_PREFACE.len()];
    let mut before = 0;
    loop {
        let count = stream.peek(&mut seen).await.ok()?;
        match count {
            0 => return None,
            _ if !H2_PREFACE.starts_with(&seen[..count]) => return Some(HttpVersion::One),
            _ if count == seen.len() => return Some(HttpVersion::Two),
            // No new bytes have arrived since the last check, and the HTTP/2 preface is incomplete,
            // so the loop sleeps before it checks again.
            _ if count == before => tokio::time::sleep(Duration::from_millis(10)).await,
            _ => before = count,
        }
    }
}

async fn serve_one<S>(stream: S, routed: RouterService, mut phase: watch::Receiver<ShutdownPhase>)
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let mut connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_PATIENCE)
        .max_buf_size(HEAD_BYTES_MAX)
        .max_headers(HEADERS_MAX)
        // Responses are short: copying into one buffer is cheaper than vectored writes.
        .writev(false)
        .serve_connection(TokioIo::new(stream), routed);
    let closing = entered(&mut phase, ShutdownPhase::Closing);
    let ended = to_the_end(&mut connection, http1::Connection::graceful_shutdown, closing);
    let Err(error) = ended.await else { return };
    log::debug!("a connection ended: {error}");
    let parts = connection.into_parts();
    if error.is_timeout() && !parts.read_buf.is_empty() {
        let mut stream = parts.io.into_inner();
        // The response goes to a client that was too slow to send a request head. A write error is
        // ignored, because that client may have disconnected.
        let _ = stream.write_all(TOO_SLOW).await;
        let _ = stream.shutdown().await;
    }
}

async fn serve_two<S>(stream: S, routed: RouterService, mut phase: watch::Receiver<ShutdownPhase>)
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let (open, asked) = watch::channel(0);
    let mut connection = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(HEAD_BYTES_MAX as u32)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_PATIENCE)
        .serve_connection(TokioIo::new(stream), CountingService { routed, open });
    let idle = asked.clone();
    let closing = async {
        tokio::select! {
            () = entered(&mut phase, ShutdownPhase::Closing) => {}
            () = idle_for(HEAD_PATIENCE, idle) => {}
        }
    };
    tokio::select! {
        ended = to_the_end(&mut connection, http2::Connection::graceful_shutdown, closing) => {
            if let Err(error) = ended {
                log::debug!("a connection ended: {error}");
            }
        }
        // hyper's graceful shutdown does not end the connection of a client that has sent no
        // request, or half a request head; this timeout does.
        () = idle_for(HEAD_PATIENCE + PING_PATIENCE, asked) => {
            log::debug!("a connection asked nothing, and did not end");
        }
    }
}

/// Serves a connection until the client closes it. Once `closing` is ready, starts a graceful
/// shutdown, which lets current requests finish.
async fn to_the_end<C: Future + Unpin>(
    connection: &mut C,
    shut: fn(Pin<&mut C>),
    closing: impl Future<Output = ()>,
) -> C::Output {
    let mut closing = pin!(closing);
    let mut is_closing = false;
    poll_fn(|context| {
        if !is_closing && closing.as_mut().poll(context).is_ready() {
            is_closing = true;
            shut(Pin::new(connection));
        }
        Pin::new(&mut *connection).poll(context)
    })
    .await
}

/// Waits until an HTTP/2 connection has had no open request for the time `patience`. HTTP/1.1
/// connections need no such wait, because hyper's timeout for the request head ends them.
async fn idle_for(patience: Duration, mut open: watch::Receiver<usize>) {
    loop {
        match timeout(patience, open.changed()).await {
            Err(_) if *open.borrow() == 0 => return,
            Ok(Ok(())) | Err(_) => {}
            // The sender of the request count is gone, because the connection has ended. This
            // future then never completes; its caller drops it with the connection.
            Ok(Err(_)) => pending().await,
        }
    }
}

/// Maps the user at the other end of a Unix socket to its permissions; `None` denies all access.
pub type UserGrants = Arc<dyn Fn(&PeerUser) -> Option<Grant> + Send + Sync>;

/// The socket on which a server listens.
#[derive(Clone)]
pub enum Listen {
    /// A TCP socket that listens on this address.
    Tcp(SocketAddr),
    /// A Unix socket at this path, with the function that returns the permissions of each
    /// connecting user.
    Unix(PathBuf, UserGrants),
}

/// A bound socket that accepts connections.
pub(super) enum HttpListener {
    Tcp(tokio::net::TcpListener),
    Unix(tokio::net::UnixListener, UserGrants),
}

/// An accepted connection that is not registered with an event loop yet.
pub(super) enum AcceptedStream {
    Tcp(std::net::TcpStream),
    Unix(UnixStream),
}

/// A connection that is registered with its thread's event loop.
pub(super) enum ServerStream {
    Tcp(TcpStream),
    Unix(tokio::net::UnixStream),
}

impl Listen {
    /// Whether only programs on this machine can connect to the socket.
    pub(super) fn is_local(&self) -> bool {
        match self {
            Self::Tcp(address) => address.ip().is_loopback(),
            Self::Unix(..) => true,
        }
    }

    /// Binds the socket, and returns the listener with its address or path. A Unix socket that a
    /// service manager has bound is used as it is.
    pub(super) fn open(&self) -> io::Result<(BoundListener, String)> {
        match self {
            Self::Tcp(address) => {
                let listener = listen(*address)?;
                let address = listener.local_addr()?.to_string();
                Ok((BoundListener::Tcp(listener), address))
            }
            Self::Unix(path, users) if is_passed(path) => {
                let listener = passed_listener()?;
                Ok((BoundListener::Unix(listener, Arc::clone(users)), path.display().to_string()))
            }
            Self::Unix(path, users) => {
                // A daemon that was killed leaves its socket file behind; it is removed if nobody
                // listens on it.
                let is_socket = |file: Metadata| file.file_type().is_socket();
                if path.symlink_metadata().is_ok_and(is_socket) && is_dead(path) {
                    std::fs::remove_file(path)?;
                }
                let listener = UnixListener::bind(path)?;
                listener.set_nonblocking(true)?;
                // The socket's file mode lets every user connect: the kernel tells the server which
                // user connects, so permissions are checked per request.
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))?;
                Ok((BoundListener::Unix(listener, Arc::clone(users)), path.display().to_string()))
            }
        }
    }
}

/// The first descriptor that a service manager passes to a daemon.
const PASSED: RawFd = 3;

/// Whether a service manager has bound the socket at `path` and passed it to this process.
pub(super) fn is_passed(path: &Path) -> bool {
    let is = |name, value: &str| std::env::var(name).is_ok_and(|found| found == value);
    is("LISTEN_PID", &std::process::id().to_string())
        && is("LISTEN_FDS", "1")
        && getsockname::<UnixAddr>(PASSED).is_ok_and(|address| address.path() == Some(path))
}

/// Takes over the socket that a service manager has passed. The programs that this one starts do
/// not inherit it.
#[allow(unsafe_code)]
fn passed_listener() -> io::Result<UnixListener> {
    // SAFETY: the descriptor is open, as its name has shown, and nothing else in this process uses
    // it: the caller asks for each path once.
    let passed = unsafe { BorrowedFd::borrow_raw(PASSED) };
    let listener = UnixListener::from(passed.try_clone_to_owned()?);
    rustix::io::fcntl_setfd(passed, rustix::io::FdFlags::CLOEXEC)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Whether nobody listens on the Unix socket at `path`.
fn is_dead(path: &Path) -> bool {
    let error = UnixStream::connect(path).err();
    error.is_some_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

impl fmt::Debug for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path, _) => write!(f, "{}", path.display()),
        }
    }
}

/// A bound listener that is not registered with an event loop yet.
pub(super) enum BoundListener {
    Tcp(std::net::TcpListener),
    Unix(UnixListener, UserGrants),
}

impl BoundListener {
    /// Returns the port of a TCP socket.
    pub(super) fn port(&self) -> Option<u16> {
        match self {
            Self::Tcp(listener) => listener.local_addr().ok().map(|address| address.port()),
            Self::Unix(..) => None,
        }
    }

    /// Registers the listener with the event loop of the current thread.
    pub(super) fn here(self) -> io::Result<HttpListener> {
        Ok(match self {
            Self::Tcp(listener) => HttpListener::Tcp(tokio::net::TcpListener::from_std(listener)?),
            Self::Unix(listener, users) => {
                HttpListener::Unix(tokio::net::UnixListener::from_std(listener)?, users)
            }
        })
    }
}

/// An accepted connection, the identity of its peer, and the permissions of a peer that the kernel
/// has identified.
pub(super) type AcceptedConnection = (AcceptedStream, PeerIdentity, Option<CertifiedCaller>);

impl Acceptor for HttpListener {
    type Connection = AcceptedConnection;

    async fn accept(&self) -> io::Result<AcceptedConnection> {
        match self {
            Self::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                Ok((
                    AcceptedStream::Tcp(stream.into_std()?),
                    PeerIdentity::Address(peer.ip()),
                    None,
                ))
            }
            Self::Unix(listener, users) => {
                let (stream, _) = listener.accept().await?;
                let peer = stream.peer_cred()?;
                let uid = peer.uid();
                let groups = other_groups(&stream).map(|groups| [&[peer.gid()], &*groups].concat());
                // A process that this one can't see has the number 0.
                let pid = peer.pid().and_then(|pid| u32::try_from(pid).ok()).filter(|pid| *pid > 0);
                let user = PeerUser { uid, groups, pid };
                let grant = Arc::new(users(&user).unwrap_or_else(Grant::nothing));
                let caller = CertifiedCaller { grant, serial: None, user: Some(user) };
                let source = PeerIdentity::User(uid);
                Ok((AcceptedStream::Unix(stream.into_std()?), source, Some(caller)))
            }
        }
    }
}

/// Returns the supplementary groups that the peer's process had when it connected.
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
fn other_groups(stream: &tokio::net::UnixStream) -> Option<Vec<u32>> {
    // The maximum number of groups of a process on Linux.
    const GROUPS_MAX: usize = 65_536;
    let mut groups = vec![0_u32; 64];
    loop {
        let bytes = size_of_val(&*groups);
        let mut length = bytes as libc::socklen_t;
        // SAFETY: the kernel writes at most `length` bytes into `groups`, which has as many, and
        // stores in `length` the number of bytes that all groups take.
        let failed = unsafe {
            libc::getsockopt(
                stream.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        let count = length as usize / size_of::<u32>();
        if failed == 0 {
            groups.truncate(count);
            return Some(groups);
        }
        // With ERANGE, the kernel stores the size that it needs in `length`, so the loop retries.
        if count <= groups.len() || count > GROUPS_MAX {
            return None;
        }
        groups.resize(count, 0);
    }
}

#[cfg(not(target_os = "linux"))]
fn other_groups(_stream: &tokio::net::UnixStream) -> Option<Vec<u32>> {
    None
}

impl AcceptedStream {
    /// Registers the connection with the event loop of the current thread.
    pub(super) fn here(self) -> io::Result<ServerStream> {
        Ok(match self {
            Self::Tcp(stream) => ServerStream::Tcp(TcpStream::from_std(stream)?),
            Self::Unix(stream) => ServerStream::Unix(tokio::net::UnixStream::from_std(stream)?),
        })
    }
}

impl AsyncRead for ServerStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Unix(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for ServerStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Unix(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_flush(context),
            Self::Unix(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_timeout_response_has_the_right_content_length() {
        let text = std::str::from_utf8(TOO_SLOW).expect("ASCII");
        let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
        assert!(head.contains(&format!("content-length: {}", body.len())), "{}", body.len());
    }
}
