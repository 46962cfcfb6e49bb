//! The cluster version: the version of the encoding in which the nodes of a cluster write entries,
//! snapshots and calls.
//!
//! It is part of the replicated state. Each node says in its address the newest version that it
//! knows, and the leader raises the cluster version by an entry when all members know the next one
//! ([`Proposal::Raise`](super::types::Proposal::Raise)). It is never lowered.

use crate::engine::codec::{known_version, oldest_version};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// The highest cluster version that a node has heard of, by an entry, a snapshot or a call. All
/// clones share one number.
#[derive(Debug, Clone)]
pub(crate) struct ClusterVersion(Arc<AtomicU8>);

impl ClusterVersion {
    pub(crate) fn get(&self) -> u8 {
        self.0.load(Ordering::SeqCst)
    }

    /// Notes that the cluster has this version, or a newer one.
    pub(crate) fn hear(&self, version: u8) {
        self.0.fetch_max(version.min(known_version()), Ordering::SeqCst);
    }
}

impl Default for ClusterVersion {
    fn default() -> Self {
        Self(Arc::new(AtomicU8::new(oldest_version())))
    }
}
