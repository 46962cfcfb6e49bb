//! What all requests share.

use super::events::STREAMS_MAX;
use super::history::Chronicle;
use super::metrics::Requests;
use super::wait_for_lock::Places;
use crate::auth::Gate;
use crate::auth::connection_limits::Peers;
use crate::engine::{Grace, Ttl};
use crate::metrics::Page;
use crate::service::Locks;
use crate::service::batch_server::BatchServer;
use crate::time::Wall;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use tokio::sync::{Semaphore, watch};

/// Adds to a page of metrics.
pub(super) type MoreMetrics = Box<dyn Fn(&mut Page) + Send + Sync>;

/// What all requests share.
pub(super) struct App {
    pub(super) locks: Locks,
    /// How long a lease lasts that says nothing about it.
    pub(super) ttl: Ttl,
    /// The same for its grace.
    pub(super) grace: Grace,
    pub(super) peers: Peers,
    pub(super) gate: Arc<Gate>,
    /// Serves the remote doors of other machines.
    pub(super) porter: BatchServer,
    /// Those who wait in line.
    pub(super) places: Arc<Places>,
    /// What happened lately.
    pub(super) chronicle: Chronicle,
    /// Places for streams of events.
    pub(super) streams: Arc<Semaphore>,
    pub(super) requests: Requests,
    /// Connections that only keep a session alive.
    pub(super) quiet: Arc<AtomicUsize>,
    /// What others have to say on the page of metrics.
    pub(super) more_metrics: Mutex<Vec<MoreMetrics>>,
    /// Tells the events of this server from those of the one before: numbers begin anew.
    pub(super) instance: String,
    phase: watch::Sender<Phase>,
}

/// How far the server's end is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    /// It serves.
    Serving,
    /// It grants nothing any more; what is held can be released, and who asks is told.
    Draining,
    /// It takes no connections, and ends each that is there after the request at hand.
    Closing,
}

impl App {
    pub(super) fn new(locks: Locks, (ttl, grace): (Ttl, Grace), gate: Arc<Gate>) -> Self {
        let (phase, _) = watch::channel(Phase::Serving);
        let begun = Wall::now();
        Self {
            places: Places::new(locks.clone()),
            chronicle: Chronicle::new(&locks),
            porter: BatchServer::new(locks.clone()),
            locks,
            ttl,
            grace,
            peers: Peers::default(),
            gate,
            streams: Arc::new(Semaphore::new(STREAMS_MAX)),
            requests: Requests::default(),
            quiet: Arc::default(),
            more_metrics: Mutex::default(),
            instance: format!("{:x}.{:x}", begun.secs, begun.nanos),
            phase,
        }
    }

    /// How far the end is.
    pub(super) fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    /// Follows how far the end is.
    pub(super) fn follow_phase(&self) -> watch::Receiver<Phase> {
        self.phase.subscribe()
    }

    /// The end comes nearer.
    pub(super) fn enter(&self, phase: Phase) {
        self.phase.send_replace(phase);
    }
}

/// Returns when the end has come as near as `least`.
pub(super) async fn entered(phase: &mut watch::Receiver<Phase>, least: Phase) {
    // The sender lives as long as the server: an error means that it is gone.
    let _ = phase.wait_for(|phase| *phase >= least).await;
}
