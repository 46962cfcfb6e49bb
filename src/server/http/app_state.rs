//! The state of the HTTP server that all requests share, and the phase of its shutdown.
//!
//! Request counters and durations by endpoint, for the metrics page.

use super::history::EventHistory;
use super::home::Home;
use super::server_session::ServerSession;
use crate::auth::connection_limits::{CONNECTIONS_MAX, ConnectionLimits};
use crate::auth::{Authenticator, EngineShares};
use crate::engine::{Grace, Ttl};
use crate::metrics::{MetricsPage, ServiceMetrics};
use crate::service::LockService;
use crate::service::batch::batch_server::BatchServer;
use crate::service::counters::{Histogram, LatencyHistogram};
use crate::service::queue_waits::QueueWaits;
use crate::shares::{LimitName, LoweredLimits, SharePercent, SharedTable};
use crate::time::{Span, Wall};
use axum::http::StatusCode;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
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
    pub(super) locks: Arc<dyn LockService>,
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
    pub(super) batch_server: BatchServer,
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
    /// The number of connections that were accepted since the start.
    pub(super) accepted: AtomicU64,
    /// The devices that join by a code, if the server lets any join.
    pub(super) home: Option<Arc<Home>>,
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
        locks: Arc<dyn LockService>,
        ttl: Ttl,
        grace: Grace,
        gate: Arc<Authenticator>,
        share: SharePercent,
        limits: LoweredLimits,
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
            shares: EngineShares::new(share, limits),
            session: ServerSession::new(locks.clone(), &instance),
            chronicle: EventHistory::new(&locks),
            batch_server: BatchServer::new(locks.clone()),
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
            accepted: AtomicU64::new(0),
            home: None,
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

/// The status codes that are counted separately. All other codes are counted under the last entry,
/// 0.
const CODES: [u16; 21] = [
    200, 201, 204, 304, 400, 401, 403, 404, 405, 408, 409, 410, 412, 413, 415, 422, 429, 431, 500,
    503, 0,
];

/// Upper bounds of the histogram buckets in microseconds, from an answer out of memory to a wait in
/// a queue.
const BOUNDS_US: [u64; 11] =
    [250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 100_000, 500_000, 2_500_000, 30_000_000];

/// Counts and durations of requests by endpoint.
pub(super) struct RequestCounts(Vec<EndpointCounts>);

struct EndpointCounts {
    codes: [AtomicU64; CODES.len()],
    durations: LatencyHistogram<{ BOUNDS_US.len() }>,
}

/// The requests to one endpoint since the start.
pub(super) struct EndpointRequests {
    /// The number of answers by status code; the code 0 stands for all other codes.
    pub(super) codes: Vec<(u16, u64)>,
    pub(super) durations: Histogram,
}

impl RequestCounts {
    /// Returns counters for `endpoints` endpoints, all at zero.
    pub(super) fn new(endpoints: usize) -> Self {
        let bounds = BOUNDS_US.map(|micros| Span::from_nanos(micros * 1_000));
        let none = || EndpointCounts {
            codes: Default::default(),
            durations: LatencyHistogram::new(bounds),
        };
        Self((0..endpoints).map(|_| none()).collect())
    }

    /// Counts a response of the endpoint with the index `endpoint`, which took the time `took`.
    pub(super) fn count(&self, endpoint: usize, code: StatusCode, took: Span) {
        let code = CODES.iter().position(|known| *known == code.as_u16());
        let counts = &self.0[endpoint];
        counts.codes[code.unwrap_or(CODES.len() - 1)].fetch_add(1, Ordering::Relaxed);
        counts.durations.add(took);
    }

    /// Returns the requests to each endpoint, in their order.
    pub(super) fn by_endpoint(&self) -> impl Iterator<Item = EndpointRequests> {
        self.0.iter().map(|counts| {
            let codes = counts.codes.iter().map(|count| count.load(Ordering::Relaxed));
            EndpointRequests {
                codes: CODES.into_iter().zip(codes).collect(),
                durations: counts.durations.histogram("", ""),
            }
        })
    }
}
