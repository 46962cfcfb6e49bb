//! State shared by all requests.

use super::body_memory::BodyMemory;
use super::history::EventHistory;
use super::request_counts::RequestCounts;
use super::server_session::ServerSession;
use super::wait_slots::WaitSlots;
use crate::auth::Authenticator;
use crate::auth::connection_limits::ConnectionLimits;
use crate::engine::{Grace, Ttl};
use crate::metrics::MetricsPage;
use crate::service::Locks;
use crate::service::batch_server::BatchServer;
use crate::service::queue_waits::QueueWaits;
use crate::time::Wall;
use parking_lot::Mutex;
use std::sync::Arc;
use tokio::sync::{Semaphore, watch};

/// Streams of events at once: each is told of every change.
pub(super) const STREAMS_MAX: usize = 1_000;

/// Adds to a page of metrics.
pub(super) type MoreMetrics = Box<dyn Fn(&mut MetricsPage) + Send + Sync>;

/// State that all requests share.
pub(super) struct AppState {
    pub(super) locks: Locks,
    /// How long a lease lasts that says nothing about it.
    pub(super) ttl: Ttl,
    /// The same for its grace.
    pub(super) grace: Grace,
    pub(super) peers: ConnectionLimits,
    /// The memory of long bodies that are being read.
    pub(super) bodies: BodyMemory,
    pub(super) gate: Arc<Authenticator>,
    /// Serves the request batches of remote clients.
    pub(super) porter: BatchServer,
    /// Requests that wait for a lock, and how many there are.
    pub(super) waits: Arc<QueueWaits>,
    pub(super) wait_slots: Arc<WaitSlots>,
    /// The session on which their places hang.
    pub(super) session: Arc<ServerSession>,
    /// Recently ended tenures, and the recent losses of sessions.
    pub(super) chronicle: EventHistory,
    /// Places for streams of events.
    pub(super) streams: Arc<Semaphore>,
    pub(super) requests: RequestCounts,
    /// Callbacks by which other components add to the metrics page.
    pub(super) more_metrics: Mutex<Vec<MoreMetrics>>,
    /// Identifies this run of the server in event IDs: event numbers restart with each run.
    pub(super) instance: String,
    phase: watch::Sender<ShutdownPhase>,
}

/// Progress of the server's shutdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ShutdownPhase {
    /// It serves.
    Serving,
    /// It grants nothing any more; what is held can be released, and who asks is told.
    Draining,
    /// It takes no connections, and ends each that is there after the request at hand.
    Closing,
}

impl AppState {
    pub(super) fn new(
        locks: Locks,
        (ttl, grace): (Ttl, Grace),
        gate: Arc<Authenticator>,
        requests: RequestCounts,
    ) -> Self {
        let (phase, _) = watch::channel(ShutdownPhase::Serving);
        let begun = Wall::now();
        let instance = format!("{:x}.{:x}", begun.secs, begun.nanos);
        Self {
            waits: QueueWaits::new(locks.clone()),
            wait_slots: Arc::default(),
            session: ServerSession::new(locks.clone(), &instance),
            chronicle: EventHistory::new(&locks),
            porter: BatchServer::new(locks.clone()),
            locks,
            ttl,
            grace,
            peers: ConnectionLimits::default(),
            bodies: BodyMemory::default(),
            gate,
            streams: Arc::new(Semaphore::new(STREAMS_MAX)),
            requests,
            more_metrics: Mutex::default(),
            instance,
            phase,
        }
    }

    /// How far the end is.
    pub(super) fn phase(&self) -> ShutdownPhase {
        *self.phase.borrow()
    }

    /// Follows how far the end is.
    pub(super) fn follow_phase(&self) -> watch::Receiver<ShutdownPhase> {
        self.phase.subscribe()
    }

    /// The end comes nearer.
    pub(super) fn enter(&self, phase: ShutdownPhase) {
        self.phase.send_replace(phase);
    }
}

/// Returns when the end has come as near as `least`.
pub(super) async fn entered(phase: &mut watch::Receiver<ShutdownPhase>, least: ShutdownPhase) {
    // The sender lives as long as the server: an error means that it is gone.
    let _ = phase.wait_for(|phase| *phase >= least).await;
}
