//! Starts and stops the HTTP server: listening, worker threads, TCP keep-alive, graceful shutdown.
//!
//! The threads that serve HTTP connections. Each has its own event loop, and new connections are
//! assigned to the threads in turn.

use super::app_state::{AppState, ShutdownPhase, entered};
use super::connection;
use super::home::Home;
use super::idle_end::{self, ServerActivity, hidden};
use crate::auth::connection_limits::{CONNECTIONS_MAX, PeerIdentity};
use crate::auth::server_tls::CertifiedCaller;
use crate::auth::{Authenticator, Credentials, CredentialsError, OpenTo};
use crate::base::said;
use crate::engine::{Grace, Ttl};
use crate::home::invitations::InvitationKind;
use crate::home::messages::InviteResponse;
use crate::metrics::MetricsPage;
use crate::net::connections::accept_until;
use crate::server::http::app_state::RequestCounts;
use crate::server::http::connection::{
    AcceptedStream, BoundListener, Listen, ServerStream, is_passed,
};
use crate::server::http::routes::route_table::counted_endpoints;
use crate::server::http::routes::router;
use crate::service::{AuditEntry, LockService};
use crate::shares::{LoweredLimits, SharePercent};
use crate::time::{Span, boot_now};
use axum::Router;
use socket2::{SockRef, TcpKeepalive};
use std::future::Future;
use std::num::NonZero;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;
use std::{fmt, io, thread};
use tokio::runtime::{Builder, Handle};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

/// How long the server keeps serving existing connections after the shutdown has begun, if there
/// are any. Connected clients can still release their locks, and see that the server is not ready.
const DRAIN_NOTICE: Duration = Duration::from_secs(1);

/// How long connections may take to end after [`DRAIN_NOTICE`]. Both times together are less than
/// the 10 s that `docker stop` grants by default.
const DRAIN_PATIENCE: Duration = Duration::from_secs(6);

/// Idle time of a connection before the first TCP keep-alive probe.
const SILENCE: Duration = Duration::from_secs(15);
/// Interval between TCP keep-alive probes.
const PROBE: Duration = Duration::from_secs(5);
/// Number of unanswered TCP keep-alive probes after which a connection is dead. Dead peers are thus
/// detected within the default ttl of a lease.
const PROBES: u32 = 3;

/// Number of file descriptors for other uses than connections: the state directory, mounts and
/// their control files.
const OTHER_FILES: usize = 4_096;

/// The configuration of an HTTP server.
#[derive(Debug, Clone)]
pub struct HttpConfig {
    /// The sockets on which to listen.
    pub listen: Vec<Listen>,
    /// Default ttl of leases and sessions.
    pub ttl: Ttl,
    /// Default grace period of leases and sessions, for which a lock is kept for its holder after
    /// the lease has expired.
    pub grace: Grace,
    /// How callers authenticate, and how connections are encrypted.
    pub credentials: Credentials,
    /// The protections that the server may lack although it listens for other machines.
    pub insecure: OpenTo,
    /// Whether the holds and waits of the client with a node's name end when that node is removed
    /// from the cluster.
    pub release_on_node_removal: bool,
    /// The part of each limited table that one credential or address may take.
    pub share: SharePercent,
    /// The limits that are lower than usual.
    pub limits: LoweredLimits,
    /// The directory with the certificate authority of the devices that join by a code.
    pub home: Option<PathBuf>,
}

/// A running HTTP server.
pub struct HttpServer {
    app: Arc<AppState>,
    addresses: Vec<String>,
    /// The paths of the Unix sockets, which are removed when the server stops.
    sockets: Vec<PathBuf>,
    workers: Workers,
}

/// Why the HTTP server could not start.
#[derive(Debug)]
pub enum HttpStartError {
    /// Listening on this socket failed.
    Listen(Listen, io::Error),
    /// The system could not provide threads or event loops.
    System(io::Error),
    /// A credential file can't be used.
    Credentials(CredentialsError),
    /// Other machines could reach the server without authentication or TLS; holds the socket, and
    /// what is missing.
    Open(Listen, OpenTo),
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
            Self::Open(address, lack) => {
                write!(f, "{address} can be reached by other machines: {lack}")
            }
            Self::System(error) => write!(f, "the server can't be started: {}", said(error)),
        }
    }
}

impl std::error::Error for HttpStartError {}

impl HttpConfig {
    /// Reads the files of tokens, rights, certificates and keys, for the server and all others of
    /// this process. Nothing is bound or begun before they are known to be valid.
    pub fn authenticator(&self) -> Result<Arc<Authenticator>, HttpStartError> {
        let lack = self.credentials.lack(self.insecure);
        if let Some(open) = self.listen.iter().find(|listen| !listen.is_local())
            && !lack.is_nobody()
        {
            return Err(HttpStartError::Open(open.clone(), lack));
        }
        let gate = Authenticator::new(self.credentials.clone());
        gate.map(Arc::new).map_err(HttpStartError::Credentials)
    }
}

impl HttpServer {
    /// Starts listening on the sockets and serving requests.
    pub fn start(
        locks: Arc<dyn LockService>,
        config: &HttpConfig,
        gate: Arc<Authenticator>,
    ) -> Result<Self, HttpStartError> {
        raise_open_files();
        let open = |listen: &Listen| {
            listen.open().map_err(|error| HttpStartError::Listen(listen.clone(), error))
        };
        let bound: Vec<_> = config.listen.iter().map(open).collect::<Result<_, _>>()?;
        let requests = RequestCounts::new(counted_endpoints().count());
        let (ttl, grace) = (config.ttl, config.grace);
        let (share, limits) = (config.share, config.limits);
        let mut app = AppState::new(locks, ttl, grace, gate, share, limits, requests);
        app.release_on_node_removal = config.release_on_node_removal;
        if let Some(dir) = &config.home {
            let port = bound.iter().find_map(|(listener, _)| listener.port());
            let (locks, gate) = (app.locks.clone(), Arc::clone(&app.gate));
            let home = Home::open(dir, port, locks, gate).map_err(HttpStartError::System)?;
            app.home = Some(Arc::new(home));
        }
        let app = Arc::new(app);
        let workers = Workers::start().map_err(HttpStartError::System)?;
        let router = router::router(&app);
        let mut addresses = Vec::new();
        for (listener, address) in bound {
            let accepting = accept(Arc::clone(&app), router.clone(), listener, workers.choice());
            workers.first().spawn(accepting);
            addresses.push(address);
        }
        let keeping = Arc::clone(&app);
        workers.first().spawn(async move { keeping.chronicle.keep().await });
        if let Some(home) = app.home.clone() {
            workers.first().spawn(async move { home.follow().await });
        }
        let path_of = |listen: &Listen| match listen {
            Listen::Tcp(_) => None,
            // The socket of a service manager stays.
            Listen::Unix(path, _) => Some(path.clone()).filter(|path| !is_passed(path)),
        };
        let sockets = config.listen.iter().filter_map(path_of).collect();
        Ok(Self { app, addresses, sockets, workers })
    }

    /// Returns the addresses and socket paths on which the server listens, in the order of the
    /// configuration.
    pub fn addresses(&self) -> &[String] {
        &self.addresses
    }

    /// Calls `end` when no lock is held or waited for, and nobody has been connected for the time
    /// `after`.
    pub fn on_idle(&self, after: Span, end: impl FnOnce() + Send + 'static) -> io::Result<()> {
        idle_end::watch(after, ServerActivity::of(&self.app, &self.sockets), end)
    }

    /// Returns a new invitation for the first device, and the number of devices that have joined;
    /// `None` if the server lets none join.
    pub(crate) fn first_invitation(
        &self,
        may_show: bool,
    ) -> Option<(Option<InviteResponse>, usize)> {
        let home = self.app.home.as_ref()?;
        let joined = home.devices().len();
        let invite = || home.invite(boot_now(), InvitationKind::Device, None);
        Some((if may_show && joined == 0 { invite() } else { None }, joined))
    }

    /// Registers a callback that adds metrics to the metrics page.
    pub fn add_metrics(&self, more: impl Fn(&mut MetricsPage) + Send + Sync + 'static) {
        self.app.more_metrics.lock().push(Box::new(more));
    }

    /// Reads tokens and certificates again. If one of them is invalid, the previous ones stay in
    /// force.
    pub fn reload(&self) -> Result<(), CredentialsError> {
        self.app.gate.reload()
    }

    /// Adds an entry to the audit log of the lock service.
    pub fn audit(&self, entry: &AuditEntry<'_>) {
        self.app.locks.audit(entry);
    }

    /// Shuts the server down gracefully: grants no more locks, answers waiting requests, and closes
    /// connections. Takes 10 s at most.
    pub fn drain(self) {
        let (done, ended) = mpsc::channel();
        let app = Arc::clone(&self.app);
        self.workers.first().spawn(async move {
            drain(&app).await;
            // The send fails only if `drain` has timed out below and dropped the receiver.
            let _ = done.send(());
        });
        let _ = ended.recv_timeout(DRAIN_NOTICE + DRAIN_PATIENCE + Duration::from_secs(1));
        self.workers.stop();
        // Removing the socket file may fail. A file that stays behind does no harm: the next server
        // removes it.
        for socket in self.sockets {
            let _ = std::fs::remove_file(&socket);
            let _ = std::fs::remove_file(hidden(&socket));
        }
    }
}

async fn drain(app: &AppState) {
    // The connections are counted before the phase changes, because event streams end at once when
    // draining begins.
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

/// Accepts connections and assigns them to the workers.
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
        app.accepted.fetch_add(1, Ordering::Relaxed);
        // A socket belongs to the event loop of the thread that serves it, so the worker registers
        // it.
        workers.assign(connect(Arc::clone(&app), router.clone(), stream, source, user));
    })
    .await;
}

async fn connect(
    app: Arc<AppState>,
    router: Router,
    stream: AcceptedStream,
    source: PeerIdentity,
    user: Option<CertifiedCaller>,
) {
    let served = async {
        if let AcceptedStream::Tcp(stream) = &stream {
            stream.set_nodelay(true)?;
            watch_over(stream)?;
        }
        let stream: ServerStream = stream.here()?;
        match app.peers.admit(source) {
            Ok(_slot) => connection::serve(&app, &router, source, stream, user).await,
            Err(full) => log::debug!("a connection is refused: {full}"),
        }
        io::Result::Ok(())
    };
    if let Err(error) = served.await {
        log::debug!("a connection was gone before it began: {error}");
    }
}

/// Enables TCP keep-alive, so that a waiting request loses its queue place when its client vanishes
/// without closing the connection.
fn watch_over(stream: &std::net::TcpStream) -> io::Result<()> {
    let socket = SockRef::from(stream);
    let probes = TcpKeepalive::new().with_time(SILENCE).with_interval(PROBE).with_retries(PROBES);
    socket.set_tcp_keepalive(&probes)?;
    // Unacknowledged data suppresses keep-alive probes, so the socket needs a timeout for it as
    // well.
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(SILENCE + PROBE * PROBES))?;
    Ok(())
}

/// Raises the soft limit of open files to the number that all connections need, or to the hard
/// limit. Shells often set a low soft limit.
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

/// Maximum number of worker threads. A request takes microseconds under the mutex of the lock
/// service, and more threads would only contend for it.
const WORKERS_MAX: usize = 2;

/// The worker threads, which run until they are stopped.
pub(super) struct Workers {
    handles: Vec<Handle>,
    stop: watch::Sender<bool>,
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    /// Starts one thread for each processor, up to [`WORKERS_MAX`].
    pub(super) fn start() -> io::Result<Self> {
        let (stop, _) = watch::channel(false);
        let count = thread::available_parallelism().map_or(1, NonZero::get).min(WORKERS_MAX);
        let (mut handles, mut threads) = (Vec::new(), Vec::new());
        for number in 0..count {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            handles.push(runtime.handle().clone());
            let mut stopped = stop.subscribe();
            threads.push(thread::Builder::new().name(format!("http-{number}")).spawn(
                move || {
                    // The wait for the stop flag fails only if the sender of the flag was dropped
                    // together with the server, and this thread must end in that case as well.
                    let _ = runtime.block_on(stopped.wait_for(|stop| *stop));
                    runtime.shutdown_background();
                },
            )?);
        }
        Ok(Self { handles, stop, threads })
    }

    /// Returns the handle of the first thread, which also runs the tasks that exist once, such as
    /// the accept loop.
    pub(super) fn first(&self) -> &Handle {
        &self.handles[0]
    }

    /// Returns a round-robin assignment of connections to the threads.
    pub(super) fn choice(&self) -> WorkerChoice {
        WorkerChoice { handles: self.handles.clone(), turn: 0 }
    }

    /// Stops the threads, and aborts the connections that they still serve.
    pub(super) fn stop(self) {
        self.stop.send_replace(true);
        for thread in self.threads {
            if thread.join().is_err() {
                log::error!("a thread of the server has panicked");
            }
        }
    }
}

/// Assigns connections to threads, round-robin.
pub(super) struct WorkerChoice {
    handles: Vec<Handle>,
    turn: usize,
}

impl WorkerChoice {
    /// Runs the task that serves a connection on the next thread.
    pub(super) fn assign(&mut self, serving: impl Future<Output = ()> + Send + 'static) {
        // The join handle of the task is dropped, because nobody waits for its end.
        drop(self.handles[self.turn].spawn(serving));
        self.turn = (self.turn + 1) % self.handles.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_serve_in_turn_until_they_are_stopped() {
        let workers = Workers::start().expect("threads are to be had");
        let mut choice = workers.choice();
        let (say, said) = mpsc::channel();
        let count = workers.handles.len();
        for turn in 0..=count {
            let say = say.clone();
            choice.assign(async move {
                let name = thread::current().name().map(str::to_owned);
                say.send(name).expect("somebody listens");
            });
            let name = said.recv().expect("it was done");
            assert_eq!(name, Some(format!("http-{}", turn % count)));
        }
        workers.stop();
    }
}
