//! The life of the line protocol: listening, one thread that serves, an end in order.

use super::commands::{LinePhase, LineService};
use super::text_connection;
use crate::auth::Authenticator;
use crate::auth::connection_limits::PeerIdentity;
use crate::engine::{Grace, Ttl};
use crate::metrics::MetricsPage;
use crate::net::accept::accept_until;
use crate::net::listen::listen;
use crate::os_error::said;
use crate::service::Locks;
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::watch;
use tokio::time::timeout;

/// Connections at once: those of the seed last for one request. They count among the files that
/// the HTTP server leaves for others.
const CONNECTIONS_MAX: usize = 2_048;

/// At the end, requests at hand are answered within this.
const CLOSE_PATIENCE: Duration = Duration::from_secs(2);

/// How lines are served.
pub struct LineConfig {
    /// Where to listen.
    pub listen: SocketAddr,
    /// How long a lock lasts whose line says nothing about it.
    pub ttl: Ttl,
    /// For how long after that only its holder may take it back.
    pub grace: Grace,
    /// Authenticates clients, and says how connections are encrypted.
    pub gate: Arc<Authenticator>,
    /// Whether it may be open to a network without authentication, or without TLS.
    pub insecure: bool,
}

/// A server of lines that runs.
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
    /// The address can't be listened on.
    Listen(SocketAddr, io::Error),
    /// The system gives no thread or events.
    System(io::Error),
    /// It would be open to a network.
    Open(SocketAddr),
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
            Self::Open(address) => write!(
                f,
                "{address} can be reached by other machines: say who may send lines by --tokens \
                 or --client-ca, and encrypt by --tls-cert and --tls-key; or leave it open to \
                 everybody by --insecure"
            ),
        }
    }
}

impl std::error::Error for LineStartError {}

impl LineServer {
    /// Listens, and serves from now on.
    pub fn start(locks: Locks, config: LineConfig) -> Result<Self, LineStartError> {
        let LineConfig { listen: address, ttl, grace, gate, insecure } = config;
        if !address.ip().is_loopback() && !gate.closes() && !insecure {
            return Err(LineStartError::Open(address));
        }
        let refused = |error| LineStartError::Listen(address, error);
        let listener = listen(address).map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        let desk = Arc::new(LineService::new(locks, (ttl, grace), gate));
        let runtime =
            Builder::new_current_thread().enable_all().build().map_err(LineStartError::System)?;
        let handle = runtime.handle().clone();
        handle.spawn(accept(Arc::clone(&desk), listener));
        let (stop, stopped) = watch::channel(false);
        let worker = work(runtime, stopped).map_err(LineStartError::System)?;
        Ok(Self { desk, address, handle, stop, worker })
    }

    /// Where it listens.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns a callback that writes the metrics of this server.
    pub fn metrics(&self) -> impl Fn(&mut MetricsPage) + Send + Sync + use<> {
        let desk = Arc::clone(&self.desk);
        move |page| desk.show(page)
    }

    /// Grants nothing any more; what is held can still be given back.
    pub fn drain(&self) {
        self.desk.enter(LinePhase::Draining);
    }

    /// Ends: requests at hand are answered, followers told no more; 3 s at most.
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
            // The receiver waits below.
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
        // The sender is dropped only by a server that is gone.
        let _ = runtime.block_on(stopped.wait_for(|stop| *stop));
        runtime.shutdown_background();
    })
}

/// Takes connections, until the end.
async fn accept(desk: Arc<LineService>, listener: TcpListener) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return log::error!("lines can't be taken: {}", said(&error)),
    };
    let closing = desk.closing();
    accept_until(&listener, "the line protocol", closing, |(stream, peer)| {
        let desk = Arc::clone(&desk);
        tokio::spawn(async move {
            let Some(_connected) = desk.peers.admit(PeerIdentity::Address(peer.ip())) else {
                return;
            };
            if desk.peers.connections() > CONNECTIONS_MAX || stream.set_nodelay(true).is_err() {
                return;
            }
            text_connection::serve(&desk, stream).await;
        });
    })
    .await;
}
