//! The state of the HTTP server that all requests share, and the phase of its shutdown.

use super::history::EventHistory;
use super::request_counts::RequestCounts;
use super::server_session::ServerSession;
use crate::auth::connection_limits::{CONNECTIONS_MAX, ConnectionLimits};
use crate::auth::{Authenticator, EngineShares};
use crate::engine::{Grace, Ttl};
use crate::metrics::{MetricsPage, ServiceMetrics};
use crate::service::Locks;
use crate::service::batch_server::BatchServer;
use crate::service::queue_waits::QueueWaits;
use crate::shares::{LimitName, LoweredLimits, SharePercent, SharedTable};
use crate::time::Wall;
use parking_lot::Mutex;
use std::sync::Arc;
use tokio::sync::{Mutex as Turn, watch};

/// Maximum number of open event streams. Each stream receives every event, so their number is
/// limited.
const STREAMS_MAX: usize = 1_000;

/// Maximum number of open event streams of mounts, each on a connection of its own.
const MOUNT_STREAMS_MAX: usize = CONNECTIONS_MAX / 2;

/// Maximum number of requests that wait at the same time. Each occupies a connection, or a stream
/// of one.
const WAITING_MAX: usize = 10_000;

/// Maximum total size in bytes of the long bodies that are being read: eight of the longest
/// batches.
const BODY_BYTES_MAX: usize = 16 << 20;

/// Maximum number of backups that are not sent yet; each is as long as the whole state.
const BACKUPS_MAX: usize = 2;

/// Maximum total size in bytes of the long answers that are not sent yet: 36 of the longest answers
/// to batches, or 500 pages of locks.
const ANSWER_BYTES_MAX: usize = 256 << 20;

/// A callback that adds metrics to the metrics page.
pub(super) type MoreMetrics = Box<dyn Fn(&mut MetricsPage) + Send + Sync>;

pub(super) struct AppState {
    pub(super) locks: Locks,
    /// Default ttl of a lease, for requests that name none.
    pub(super) ttl: Ttl,
    /// Default grace period of a lease, for requests that name none.
    pub(super) grace: Grace,
    pub(super) peers: ConnectionLimits,
    /// The bytes of long request bodies that are being read.
    pub(super) bodies: SharedTable,
    /// The bytes of long answers that are not sent yet.
    pub(super) answers: SharedTable,
    /// The backups that are not sent yet.
    pub(super) backups: SharedTable,
    pub(super) gate: Arc<Authenticator>,
    /// Executes the batches of requests that latchfs clients on other machines send.
    pub(super) porter: BatchServer,
    /// The HTTP requests that wait in the queues of locks.
    pub(super) waits: Arc<QueueWaits>,
    pub(super) waiting: SharedTable,
    /// The shares of credentials in the tables of the engine.
    pub(super) shares: EngineShares,
    /// The server's session, which keeps the queue places of waiting requests alive.
    pub(super) session: Arc<ServerSession>,
    /// Tenures that have ended recently, and leases that sessions have lost.
    pub(super) chronicle: EventHistory,
    /// The event streams of the API, and those of mounts.
    pub(super) streams: SharedTable,
    pub(super) mount_streams: SharedTable,
    pub(super) requests: RequestCounts,
    /// The metrics of the lock service and of this process.
    pub(super) metrics: ServiceMetrics,
    /// Locked while a thread makes the metrics page: one at a time, however many clients ask.
    pub(super) metrics_turn: Arc<Turn<()>>,
    /// Whether the removal of a node ends the holds and waits of the client with its name.
    pub(super) release_on_node_removal: bool,
    /// Callbacks by which other components add to the metrics page.
    pub(super) more_metrics: Mutex<Vec<MoreMetrics>>,
    /// The id of this run of the server, a part of each event id: event numbers start again with
    /// each run.
    pub(super) instance: String,
    phase: watch::Sender<ShutdownPhase>,
}

/// Progress of the server's shutdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ShutdownPhase {
    /// The server serves all requests.
    Serving,
    /// The server grants no more locks: clients can still release locks, and other requests get an
    /// error that says that the server is closing.
    Draining,
    /// The server accepts no connections, and closes each open one after its current request.
    Closing,
}

impl AppState {
    pub(super) fn new(
        locks: Locks,
        (ttl, grace): (Ttl, Grace),
        gate: Arc<Authenticator>,
        (share, limits): (SharePercent, LoweredLimits),
        requests: RequestCounts,
    ) -> Self {
        let table = |items, max| SharedTable::new(items, max, share.of(max));
        let (phase, _) = watch::channel(ShutdownPhase::Serving);
        let connections = limits.of(LimitName::Connections, CONNECTIONS_MAX);
        let begun = Wall::now();
        let instance = format!("{:x}.{:x}", begun.secs, begun.nanos);
        Self {
            waits: QueueWaits::new(locks.clone()),
            waiting: table("waiting requests", WAITING_MAX),
            shares: EngineShares::new(share).lowered_to(limits),
            session: ServerSession::new(locks.clone(), &instance),
            chronicle: EventHistory::new(&locks),
            porter: BatchServer::new(locks.clone()),
            metrics: ServiceMetrics::new(locks.clone()),
            metrics_turn: Arc::default(),
            locks,
            ttl,
            grace,
            peers: ConnectionLimits::new(connections, share),
            bodies: table("bytes of long requests", BODY_BYTES_MAX),
            answers: table("bytes of answers that are not sent yet", ANSWER_BYTES_MAX),
            backups: SharedTable::new("backups that are not sent yet", BACKUPS_MAX, BACKUPS_MAX),
            gate,
            streams: table("event streams", STREAMS_MAX),
            mount_streams: table("event streams of mounts", MOUNT_STREAMS_MAX),
            requests,
            release_on_node_removal: false,
            more_metrics: Mutex::default(),
            instance,
            phase,
        }
    }

    /// Returns the phase of the server's shutdown.
    pub(super) fn phase(&self) -> ShutdownPhase {
        *self.phase.borrow()
    }

    /// Returns a receiver that follows the phase of the server's shutdown.
    pub(super) fn follow_phase(&self) -> watch::Receiver<ShutdownPhase> {
        self.phase.subscribe()
    }

    /// Sets the phase of the server's shutdown.
    pub(super) fn enter(&self, phase: ShutdownPhase) {
        self.phase.send_replace(phase);
    }
}

/// Waits until the shutdown has reached the phase `least`.
pub(super) async fn entered(phase: &mut watch::Receiver<ShutdownPhase>, least: ShutdownPhase) {
    // The wait fails only if the sender was dropped, which happens when the server has ended: then
    // every phase of the shutdown has been reached.
    let _ = phase.wait_for(|phase| *phase >= least).await;
}
