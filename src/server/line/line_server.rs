//! Starts and stops the server of the line protocol, which runs on one thread.

use super::commands::{LinePhase, LineService};
use super::text_connection;
use crate::auth::connection_limits::PeerIdentity;
use crate::auth::{Authenticator, OpenTo};
use crate::engine::{Grace, Ttl};
use crate::metrics::MetricsPage;
use crate::net::accept_loop::accept_until;
use crate::net::listen::listen;
use crate::os_error::said;
use crate::service::Locks;
use crate::shares::{LoweredLimits, SharePercent};
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::watch;
use tokio::time::timeout;

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
    pub fn start(locks: Locks, config: LineConfig) -> Result<Self, LineStartError> {
        let LineConfig { ttl, grace, gate, share, limits, follow_addresses, .. } = config;
        let address = config.listen;
        let refused = |error| LineStartError::Listen(address, error);
        let listener = listen(address).map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        let desk = Arc::new(LineService::new(
            locks,
            (ttl, grace),
            gate,
            (share, limits),
            follow_addresses,
        ));
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
        move |page| desk.show(page)
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
                text_connection::serve(&desk, source, stream).await;
            }
        });
    })
    .await;
}
