//! The server's life: listening, a few threads that serve, an end in order.

use super::app_state::{AppState, ShutdownPhase, entered};
use super::connection;
use super::dispatch;
use super::listener::{AcceptedStream, BoundListener, Listen, ServerStream};
use super::request_counts::RequestCounts;
use super::routes::endpoints;
use super::workers::{WorkerChoice, Workers};
use crate::auth::connection_limits::{CONNECTIONS_MAX, PeerIdentity};
use crate::auth::{Authenticator, Credentials, CredentialsError, Grant};
use crate::engine::{Grace, Ttl};
use crate::metrics::MetricsPage;
use crate::net::accept::accept_until;
use crate::os_error::said;
use crate::service::Locks;
use axum::Router;
use socket2::{SockRef, TcpKeepalive};
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// While draining, so long whoever is connected can still see that the server is not ready, and
/// release what it holds.
const DRAIN_NOTICE: Duration = Duration::from_secs(1);

/// Then connections have this long to end: with the notice, less than the 10 s that service
/// managers give.
const DRAIN_PATIENCE: Duration = Duration::from_secs(6);

/// A connection that is silent for so long is asked whether it is there,
const SILENCE: Duration = Duration::from_secs(15);
/// this often,
const PROBE: Duration = Duration::from_secs(5);
/// and so many times: within a ttl the dead are known.
const PROBES: u32 = 3;

/// Files beside connections: the state directory, mounts and their control files.
const OTHER_FILES: usize = 4_096;

/// How a server is made.
#[derive(Debug, Clone)]
pub struct HttpConfig {
    /// Where to listen.
    pub listen: Listen,
    /// How long a lease lasts that says nothing about it.
    pub ttl: Ttl,
    /// The same for its grace.
    pub grace: Grace,
    /// How clients authenticate, and how connections are encrypted.
    pub credentials: Credentials,
    /// Whether it may be open to a network without authentication, or without TLS.
    pub insecure: bool,
}

/// A running HTTP server.
pub struct HttpServer {
    app: Arc<AppState>,
    address: String,
    /// The file of its Unix socket, which goes with it.
    socket: Option<PathBuf>,
    workers: Workers,
}

/// Why the HTTP server could not start.
#[derive(Debug)]
pub enum HttpStartError {
    /// The address can't be listened on.
    Listen(Listen, io::Error),
    /// The system gives no threads or events.
    System(io::Error),
    /// The credentials can't be used.
    Credentials(CredentialsError),
    /// It would be open to a network.
    Open(Listen),
}

impl fmt::Display for HttpStartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listen(address, error) => {
                write!(
                    f,
                    "can't listen on {address}: {}; name another address by --listen",
                    said(error)
                )
            }
            Self::Credentials(error) => error.fmt(f),
            Self::Open(address) => write!(
                f,
                "{address} can be reached by other machines: say who may ask by --tokens or \
                 --client-ca, and encrypt by --tls-cert and --tls-key; or leave it open to \
                 everybody by --insecure"
            ),
            Self::System(error) => write!(f, "the server can't be started: {}", said(error)),
        }
    }
}

impl std::error::Error for HttpStartError {}

impl HttpServer {
    /// Listens, and serves from now on.
    pub fn start(locks: Locks, config: &HttpConfig) -> Result<Self, HttpStartError> {
        let credentials = &config.credentials;
        if !config.listen.is_local() && !credentials.close() && !config.insecure {
            return Err(HttpStartError::Open(config.listen.clone()));
        }
        raise_open_files();
        let gate =
            Arc::new(Authenticator::new(credentials.clone()).map_err(HttpStartError::Credentials)?);
        let refused = |error| HttpStartError::Listen(config.listen.clone(), error);
        let (listener, address) = config.listen.open().map_err(refused)?;
        let requests = RequestCounts::new(endpoints().count());
        let app = Arc::new(AppState::new(locks, (config.ttl, config.grace), gate, requests));
        let workers = Workers::start().map_err(HttpStartError::System)?;
        let router = dispatch::router(&app);
        workers.first().spawn(accept(Arc::clone(&app), router, listener, workers.choice()));
        let keeping = Arc::clone(&app);
        workers.first().spawn(async move { keeping.chronicle.keep().await });
        let socket = match &config.listen {
            Listen::Tcp(_) => None,
            Listen::Unix(path, _) => Some(path.clone()),
        };
        Ok(Self { app, address, socket, workers })
    }

    /// Where it listens.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns the authenticator, which the other servers of this process share.
    pub fn gate(&self) -> Arc<Authenticator> {
        Arc::clone(&self.app.gate)
    }

    /// Has `more` added to the page of metrics.
    pub fn add_metrics(&self, more: impl Fn(&mut MetricsPage) + Send + Sync + 'static) {
        self.app.more_metrics.lock().push(Box::new(more));
    }

    /// Reads tokens and certificates again. If something is wrong with them, all stays as it was.
    pub fn reload(&self) -> Result<(), CredentialsError> {
        self.app.gate.reload()
    }

    /// Ends in order: no new grants, waiters told, connections ended; 10 s at most.
    pub fn drain(self) {
        let (done, ended) = mpsc::channel();
        let app = Arc::clone(&self.app);
        self.workers.first().spawn(async move {
            drain(&app).await;
            // The receiver waits below.
            let _ = done.send(());
        });
        let _ = ended.recv_timeout(DRAIN_NOTICE + DRAIN_PATIENCE + Duration::from_secs(1));
        self.workers.stop();
        // One that is left is no harm: the next server takes its place.
        let _ = self.socket.map(std::fs::remove_file);
    }
}

async fn drain(app: &AppState) {
    // Looked at first: a stream of events ends at once.
    let is_in_use = app.peers.connections() > 0;
    app.enter(ShutdownPhase::Draining);
    if is_in_use {
        sleep(DRAIN_NOTICE).await;
    }
    app.enter(ShutdownPhase::Closing);
    if timeout(DRAIN_PATIENCE, app.peers.none_left()).await.is_err() {
        log::warn!("{} connections did not end in time, and are cut", app.peers.connections());
    }
}

/// Takes connections, and deals them out to the workers.
async fn accept(
    app: Arc<AppState>,
    router: Router,
    listener: BoundListener,
    mut workers: WorkerChoice,
) {
    let listener = match listener.here() {
        Ok(listener) => listener,
        Err(error) => return log::error!("connections can't be accepted: {}", said(&error)),
    };
    let mut phase = app.follow_phase();
    let closing = entered(&mut phase, ShutdownPhase::Closing);
    accept_until(&listener, "the HTTP server", closing, |(stream, source, user)| {
        // A socket belongs to the event loop of the thread that serves it.
        workers.assign(connect(Arc::clone(&app), router.clone(), stream, (source, user)));
    })
    .await;
}

async fn connect(
    app: Arc<AppState>,
    router: Router,
    stream: AcceptedStream,
    (source, user): (PeerIdentity, Option<Arc<Grant>>),
) {
    let served = async {
        if let AcceptedStream::Tcp(stream) = &stream {
            stream.set_nodelay(true)?;
            watch_over(stream)?;
        }
        let stream: ServerStream = stream.here()?;
        if let Some(connected) = app.peers.admit(source) {
            connection::serve(&app, &router, connected.peer(), (stream, user)).await;
        }
        io::Result::Ok(())
    };
    if let Err(error) = served.await {
        log::debug!("a connection was gone before it began: {error}");
    }
}

/// Has the system find out when the other side is gone without a word: who waits in line there
/// must not keep its place.
fn watch_over(stream: &std::net::TcpStream) -> io::Result<()> {
    let socket = SockRef::from(stream);
    let probes = TcpKeepalive::new().with_time(SILENCE).with_interval(PROBE).with_retries(PROBES);
    socket.set_tcp_keepalive(&probes)?;
    // Unacknowledged data suppresses keep-alive probes, so it needs a timeout of its own.
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(SILENCE + PROBE * PROBES))?;
    Ok(())
}

/// As many open files as the system allows: each connection is one, and shells allow few.
#[allow(unsafe_code)]
fn raise_open_files() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid rlimit to write to.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 {
        return;
    }
    let wanted = (CONNECTIONS_MAX + OTHER_FILES) as libc::rlim_t;
    limit.rlim_cur = limit.rlim_cur.max(wanted.min(limit.rlim_max));
    // SAFETY: `limit` is a valid rlimit to read.
    if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } != 0 {
        log::debug!("no more files may be open than {}", limit.rlim_cur);
    }
}
