//! What all requests share.

use super::access::Grant;
use super::peers::Peers;
use crate::engine::{Grace, Ttl};
use crate::locks::Locks;
use std::sync::Arc;
use tokio::sync::watch;

/// What all requests share.
pub(super) struct App {
    pub(super) locks: Locks,
    /// How long a lease lasts that says nothing about it.
    pub(super) ttl: Ttl,
    /// The same for its grace.
    pub(super) grace: Grace,
    pub(super) peers: Peers,
    /// What a caller without credentials may do.
    pub(super) anyone: Arc<Grant>,
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
    pub(super) fn new(locks: Locks, ttl: Ttl, grace: Grace) -> Self {
        let anyone = Arc::new(Grant::everything());
        let (phase, _) = watch::channel(Phase::Serving);
        Self { locks, ttl, grace, peers: Peers::default(), anyone, phase }
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
