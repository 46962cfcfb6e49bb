//! Starts and stops the server of the line protocol, which runs on one thread.
//!
//! One connection of the line protocol: reads lines and writes replies, in order, within timeouts.

use super::commands::{LinePhase, LineService};
use super::request::{LINE_BYTES_MAX, LineReply, LineRequest};
use crate::auth::connection_limits::{ConnectionOrigin, PeerIdentity};
use crate::auth::permissions::Operation;
use crate::auth::{Authenticator, Grant, OpenTo, WRONG_TOKEN_DELAY, server_tls};
use crate::base::said;
use crate::engine::{Grace, Ttl};
use crate::metrics::MetricsPage;
use crate::net::connections::{accept_until, listen};
use crate::server::lock_log::AuditedCaller;
use crate::service::LockService;
use crate::shares::{LoweredLimits, SharePercent};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;
use std::{fmt, io, thread};
use tokio::io::{
    AsyncBufRead, AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader,
};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

/// Maximum number of open connections of the line protocol. Many of its clients open one for each
/// request. These connections count towards the file descriptors that the HTTP server reserves for
/// other uses.
pub(super) const CONNECTIONS_MAX: usize = 2_048;

/// How long current requests may take to finish during the shutdown.
const CLOSE_PATIENCE: Duration = Duration::from_secs(2);

/// The configuration of a server of the line protocol.
pub struct LineConfig {
    /// The address on which to listen.
    pub listen: SocketAddr,
    /// Default ttl of a lock, if the request names none.
    pub ttl: Ttl,
    /// Grace period of every lock, during which only its holder may renew it.
    pub grace: Grace,
    /// Authenticates clients, and provides the TLS configuration.
    pub gate: Arc<Authenticator>,
    /// The protections that the server may lack although it listens for other machines.
    pub insecure: OpenTo,
    /// The part of each limited table that one credential or address may take.
    pub share: SharePercent,
    /// The limits that are lower than usual.
    pub limits: LoweredLimits,
    /// The addresses that may be registered as followers from any other address.
    pub follow_addresses: Vec<IpAddr>,
}

/// A running server of the line protocol.
pub struct LineServer {
    desk: Arc<LineService>,
    address: SocketAddr,
    handle: Handle,
    stop: watch::Sender<bool>,
    worker: JoinHandle<()>,
}

/// Why the line server could not start.
#[derive(Debug)]
pub enum LineStartError {
    /// Listening on this address failed.
    Listen(SocketAddr, io::Error),
    /// The system could not provide a thread or an event loop.
    System(io::Error),
    /// Other machines could reach the server without authentication or TLS; holds the address, and
    /// what is missing.
    Open(SocketAddr, OpenTo),
}

impl fmt::Display for LineStartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listen(address, error) => write!(
                f,
                "can't listen for lines on {address}: {}; name another address by --line-listen",
                said(error)
            ),
            Self::System(error) => write!(f, "lines can't be served: {}", said(error)),
            Self::Open(address, lack) => {
                write!(f, "{address} can be reached by other machines: {lack}")
            }
        }
    }
}

impl std::error::Error for LineStartError {}

impl LineConfig {
    /// Refuses an address at which other machines could reach the server without authentication or
    /// TLS.
    pub fn check(&self) -> Result<(), LineStartError> {
        let lack = self.gate.lacks(self.insecure);
        if self.listen.ip().is_loopback() || lack.is_nobody() {
            return Ok(());
        }
        Err(LineStartError::Open(self.listen, lack))
    }
}

impl LineServer {
    /// Starts listening on the address and serving requests.
    pub fn start(locks: Arc<dyn LockService>, config: LineConfig) -> Result<Self, LineStartError> {
        let LineConfig { ttl, grace, gate, share, limits, follow_addresses, .. } = config;
        let address = config.listen;
        let refused = |error| LineStartError::Listen(address, error);
        let listener = listen(address).map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        let desk =
            Arc::new(LineService::new(locks, ttl, grace, gate, share, limits, follow_addresses));
        let runtime =
            Builder::new_current_thread().enable_all().build().map_err(LineStartError::System)?;
        let handle = runtime.handle().clone();
        handle.spawn(accept(Arc::clone(&desk), listener));
        let (stop, stopped) = watch::channel(false);
        let worker = work(runtime, stopped).map_err(LineStartError::System)?;
        Ok(Self { desk, address, handle, stop, worker })
    }

    /// Returns the address on which the server listens.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns a callback that writes the metrics of this server to the metrics page.
    pub fn metrics(&self) -> impl Fn(&mut MetricsPage) + Send + Sync + use<> {
        let desk = Arc::clone(&self.desk);
        move |page| desk.write_metrics(page)
    }

    /// Makes the server grant no more locks; clients can still release them.
    pub fn drain(&self) {
        self.desk.enter(LinePhase::Draining);
    }

    /// Shuts the server down: answers current requests, closes connections, and stops sending lock
    /// changes to registered followers. Takes 3 s at most.
    pub fn close(self) {
        self.desk.enter(LinePhase::Closing);
        let (done, ended) = mpsc::channel();
        let desk = Arc::clone(&self.desk);
        self.handle.spawn(async move {
            let left = timeout(CLOSE_PATIENCE, desk.peers.none_left()).await.is_err();
            if left {
                let count = desk.peers.connections();
                log::warn!("{count} connections for lines did not end in time, and are cut");
            }
            // The send fails only if the shutdown has timed out below and dropped the receiver.
            let _ = done.send(());
        });
        let _ = ended.recv_timeout(CLOSE_PATIENCE + Duration::from_secs(1));
        self.stop.send_replace(true);
        if self.worker.join().is_err() {
            log::error!("the thread that serves lines has panicked");
        }
    }
}

fn work(runtime: Runtime, mut stopped: watch::Receiver<bool>) -> io::Result<JoinHandle<()>> {
    thread::Builder::new().name("line".to_owned()).spawn(move || {
        // The wait for the stop flag fails only if the sender of the flag was dropped together with
        // the server, and the thread must end in that case as well.
        let _ = runtime.block_on(stopped.wait_for(|stop| *stop));
        runtime.shutdown_background();
    })
}

/// Accepts and serves connections until the shutdown.
async fn accept(desk: Arc<LineService>, listener: TcpListener) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => {
            return log::error!("the line server can't accept connections: {}", said(&error));
        }
    };
    let closing = desk.closing();
    accept_until(&listener, "the line protocol", closing, |(stream, peer)| {
        let desk = Arc::clone(&desk);
        tokio::spawn(async move {
            let source = PeerIdentity::Address(peer.ip());
            let _slot = match desk.peers.admit(source) {
                Ok(slot) => slot,
                Err(full) => return log::debug!("a connection for lines is refused: {full}"),
            };
            if stream.set_nodelay(true).is_ok() {
                serve(&desk, source, stream).await;
            }
        });
    })
    .await;
}

/// Idle timeout of a connection; a client that sends a request later has to reconnect.
const IDLE_PATIENCE: Duration = Duration::from_secs(60);

/// Timeout for the rest of a line that has begun; a line fits into one or two packets.
const LINE_PATIENCE: Duration = Duration::from_secs(10);

/// Timeout for writing a reply, after which the client is considered dead.
const WORD_PATIENCE: Duration = Duration::from_secs(10);

/// Timeout for the TLS handshake, which takes one or two round trips.
const HANDSHAKE_PATIENCE: Duration = Duration::from_secs(10);

/// The result of reading one line.
enum NextLine {
    /// A whole line has been read.
    Line,
    /// The line is too long.
    Broken,
    /// There is no further line: the client closed the connection, or was idle for too long.
    End,
}

/// Serves a connection until it ends.
pub(super) async fn serve(desk: &LineService, source: PeerIdentity, stream: TcpStream) {
    let origin = |certified| desk.peers.origin(source, certified, None);
    let ended = match desk.gate.tls() {
        None => talk(desk, stream, &origin(None)).await,
        Some(config) => {
            let accepting = TlsAcceptor::from(config).accept(stream);
            match timeout(HANDSHAKE_PATIENCE, accepting).await {
                Ok(Ok(stream)) => {
                    let chain = stream.get_ref().1.peer_certificates();
                    let first = chain.and_then(|chain| chain.first());
                    let certified = first.and_then(server_tls::caller_of);
                    talk(desk, stream, &origin(certified)).await
                }
                Ok(Err(error)) => {
                    if let Some(why) = server_tls::foreign_certificate(&error) {
                        refuse(desk, &origin(None), Operation::Authenticate, &why);
                    }
                    Err(error)
                }
                Err(_) => Err(io::ErrorKind::TimedOut.into()),
            }
        }
    };
    if let Err(error) = ended {
        log::debug!("a connection for lines ended: {error}");
    }
}

/// Reads lines and writes their replies, one after the other.
async fn talk<S>(desk: &LineService, stream: S, origin: &ConnectionOrigin) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut stream = BufReader::with_capacity(LINE_BYTES_MAX, stream);
    let (mut line, mut secret) = (Vec::new(), None::<Box<[u8]>>);
    let mut is_known = false;
    loop {
        line.clear();
        let next = tokio::select! {
            next = next_line(&mut stream, &mut line) => next?,
            () = desk.closing() => NextLine::End,
        };
        match next {
            NextLine::Line if !LineRequest::is_http(&line) => {}
            NextLine::Line | NextLine::Broken => {
                say(&mut stream, &LineReply::InvalidFormat).await?;
                break;
            }
            NextLine::End => break,
        }
        let request = LineRequest::parse(&line);
        if !is_known && let Err(mistake) = request {
            // The connection is closed: its client may be a browser, and a web page may have chosen
            // its later lines.
            say(&mut stream, &mistake.into()).await?;
            break;
        }
        is_known = true;
        if let Ok(LineRequest::Auth(shown)) = &request {
            secret = Some(shown.clone());
        }
        // The permissions of the token are looked up for each request, because the token file may
        // have been reloaded since the last one.
        let grant = desk.gate.grant(secret.as_deref(), origin.certified.as_ref());
        let reply = match (grant, request) {
            (Ok(grant), Ok(request)) => {
                desk.answer(&grant, origin, secret.as_deref(), request).await
            }
            // A wrong token in an AUTH line ends the connection, so that a client that guesses
            // tokens has to reconnect for each guess.
            (Err(_), Ok(request @ LineRequest::Auth(_))) => {
                refuse(desk, origin, request.operation(), "this token is unknown");
                sleep(WRONG_TOKEN_DELAY).await;
                say(&mut stream, &LineReply::Fail).await?;
                break;
            }
            (Err(_), Ok(request)) => {
                refuse(desk, origin, request.operation(), "the credentials are missing or refused");
                LineReply::Error
            }
            (_, Err(mistake)) => mistake.into(),
        };
        say(&mut stream, &reply).await?;
    }
    timeout(WORD_PATIENCE, stream.get_mut().shutdown()).await.unwrap_or(Ok(()))
}

/// Records a refused request of a caller that could not be authenticated.
fn refuse(desk: &LineService, origin: &ConnectionOrigin, operation: Operation, reason: &str) {
    let nothing = Grant::nothing();
    let named = origin.certified.as_ref().map(|caller| &*caller.grant);
    let caller = AuditedCaller { grant: named.unwrap_or(&nothing), origin };
    caller.refused(&desk.locks, operation, reason);
}

/// Waits for the next line, and stores it in `line` without its newline.
async fn next_line<S>(stream: &mut S, line: &mut Vec<u8>) -> io::Result<NextLine>
where
    S: AsyncBufRead + Unpin,
{
    match timeout(IDLE_PATIENCE, stream.fill_buf()).await {
        Ok(Ok([])) | Err(_) => return Ok(NextLine::End),
        Ok(Ok(_)) => {}
        Ok(Err(error)) => return Err(error),
    }
    let mut limited = stream.take(LINE_BYTES_MAX as u64);
    let whole = timeout(LINE_PATIENCE, limited.read_until(b'\n', line));
    whole.await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    // The last line may lack its newline, as Java's `readLine` allows.
    let is_whole = line.pop_if(|last| *last == b'\n').is_some() || line.len() < LINE_BYTES_MAX;
    Ok(if is_whole { NextLine::Line } else { NextLine::Broken })
}

async fn say<S: AsyncWrite + Unpin>(stream: &mut S, reply: &LineReply) -> io::Result<()> {
    let text = format!("{reply}\n");
    let said = async {
        stream.write_all(text.as_bytes()).await?;
        stream.flush().await
    };
    timeout(WORD_PATIENCE, said).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}
