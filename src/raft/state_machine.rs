//! Implements openraft's state machine traits: applies entries to the replica, and builds and
//! installs snapshots, after which the log can be purged.

use super::cluster_version::ClusterVersion;
use super::fatal_error::FatalError;
use super::node_environment::SystemEnvironment;
use super::replica::Replica;
use super::snapshot::{self, SnapshotContents};
use super::types::{Entry, LogId, Membership, Meta, Proposal, Snapshot, TypeConfig};
use crate::engine::Op;
use crate::service::audit::Audit;
use futures_util::{Stream, TryStreamExt};
use openraft::EntryPayload;
use openraft::storage::{EntryResponder, RaftSnapshotBuilder, RaftStateMachine};
use parking_lot::Mutex;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The openraft handle of a real node.
pub(super) type Raft = openraft::Raft<TypeConfig, StateMachine>;

/// The replica and its snapshot file.
pub(crate) struct StateMachine {
    pub(super) replica: Arc<Replica>,
    file: Arc<SnapshotFile>,
    trouble: FatalError,
}

/// Writes one snapshot to disk.
pub(crate) struct StateSnapshotBuilder {
    snapshot: Snapshot,
    replica: Arc<Replica>,
    file: Arc<SnapshotFile>,
    trouble: FatalError,
}

/// The snapshot file. openraft may build a snapshot in the background while it installs one from
/// the leader: both write this file, one at a time, and the newer snapshot stays.
struct SnapshotFile {
    path: PathBuf,
    /// The last entry of the snapshot in the file. Locked while the file is written.
    newest: Mutex<Option<LogId>>,
}

impl SnapshotFile {
    /// Writes a snapshot, unless the file has a newer one.
    fn write(&self, snapshot: &Snapshot) -> io::Result<()> {
        let mut newest = self.newest.lock();
        if snapshot.meta.last_log_id >= *newest {
            snapshot::write(&self.path, snapshot)?;
            *newest = snapshot.meta.last_log_id;
        }
        Ok(())
    }
}

impl StateMachine {
    /// Returns a state machine with the state `known` of the snapshot at `path`, or with an empty
    /// one.
    pub(super) fn new(
        path: &Path,
        known: Option<SnapshotContents>,
        audit: Audit,
        trouble: &FatalError,
        version: ClusterVersion,
    ) -> Self {
        let newest = Mutex::new(known.as_ref().and_then(|known| known.meta.last_log_id));
        let file = Arc::new(SnapshotFile { path: path.to_path_buf(), newest });
        let replica = Arc::new(Replica::new(known, audit, Arc::new(SystemEnvironment), version));
        Self { replica, file, trouble: trouble.clone() }
    }

    /// Returns the id of the last applied entry.
    pub(super) fn applied(&self) -> Option<LogId> {
        self.replica.look().meta().last_log_id
    }
}

/// Runs blocking disk I/O on a separate thread, and records an error as fatal.
async fn on_the_disk<T: Send + 'static>(
    trouble: &FatalError,
    act: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let done = tokio::task::spawn_blocking(act).await.map_err(io::Error::other);
    done.flatten().map_err(|error| trouble.note("the snapshot can't be written", error))
}

/// Whether an entry may change so many locks that it is applied on a thread of its own: a reset of
/// 100,000 takes a sixth of a second. Meanwhile the thread of openraft goes on to send and answer
/// messages, so that all nodes apply the entry at the same time, and none misses heartbeats.
fn is_long(entry: &Entry) -> bool {
    let EntryPayload::Normal(Proposal::Commands(body)) = &entry.payload else { return false };
    body.commands.iter().any(|command| matches!(command.op, Op::Reset(_)))
}

impl RaftStateMachine<TypeConfig> for StateMachine {
    type SnapshotData = Arc<[u8]>;
    type SnapshotBuilder = StateSnapshotBuilder;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, Membership)> {
        let meta = self.replica.look().meta();
        Ok((meta.last_log_id, meta.last_membership))
    }

    async fn apply<S>(&mut self, mut entries: S) -> io::Result<()>
    where
        S: Stream<Item = io::Result<EntryResponder<TypeConfig>>> + Unpin + Send,
    {
        while let Some((entry, responder)) = entries.try_next().await? {
            let answers = if is_long(&entry) {
                let replica = Arc::clone(&self.replica);
                let applied = tokio::task::spawn_blocking(move || replica.apply(entry)).await;
                applied.map_err(io::Error::other)?
            } else {
                self.replica.apply(entry)
            };
            if let Some(responder) = responder {
                responder.send(answers);
            }
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> StateSnapshotBuilder {
        let core = self.replica.look();
        let bytes = snapshot::to_bytes(core.cluster_version, core.cluster, &core.engine);
        let snapshot = Snapshot { meta: core.meta(), snapshot: bytes };
        StateSnapshotBuilder {
            snapshot,
            replica: Arc::clone(&self.replica),
            file: Arc::clone(&self.file),
            trouble: self.trouble.clone(),
        }
    }

    async fn install_snapshot(&mut self, meta: &Meta, data: Arc<[u8]>) -> io::Result<()> {
        let snapshot = Snapshot { meta: meta.clone(), snapshot: data };
        let known = snapshot::unpack(&snapshot).map_err(io::Error::other)?;
        let file = Arc::clone(&self.file);
        on_the_disk(&self.trouble, move || file.write(&snapshot)).await?;
        self.replica.replace(known);
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<Snapshot>> {
        let path = self.file.path.clone();
        let read = move || snapshot::read(&path).map_err(io::Error::other);
        on_the_disk(&self.trouble, read).await
    }
}

impl RaftSnapshotBuilder<TypeConfig> for StateSnapshotBuilder {
    type SnapshotData = Arc<[u8]>;

    async fn build_snapshot(&mut self) -> io::Result<Snapshot> {
        let (file, snapshot) = (Arc::clone(&self.file), self.snapshot.clone());
        let replica = Arc::clone(&self.replica);
        let write = move || {
            // A start does not replay the entries that the snapshot covers, so their audit records
            // must be on disk before it.
            replica.audit.flush();
            file.write(&snapshot)
        };
        on_the_disk(&self.trouble, write).await?;
        Ok(self.snapshot.clone())
    }
}
