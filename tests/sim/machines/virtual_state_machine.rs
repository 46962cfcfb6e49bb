//! The replica of a node behind openraft's state machine traits, with its snapshots on a virtual
//! disk.

use super::virtual_disk::OpenDisk;
use crate::checks::recorder::CoveragePoint;
use crate::checks::recorder::Record;
use crate::machines::virtual_environment::{SimTypeConfig, now};
use crate::planted_bugs::{PlantedBug, distorted, forgetful, is_any_planted, planted};
use futures_util::{Stream, TryStreamExt};
use latchfs::engine::codec::state_codec::known_version;
use latchfs::raft::node_environment::ClusterVersion;
use latchfs::raft::node_environment::NodeEnvironment;
use latchfs::raft::store::snapshot;
use latchfs::raft::store::snapshot::{
    Commands, Entry, LogId, Membership, Meta, NodeId, Proposal, Snapshot,
};
use latchfs::raft::write::state_machine::Replica;
use latchfs::service::audit::audit_log::Audit;
use openraft::EntryPayload;
use openraft::storage::{EntryResponder, RaftSnapshotBuilder, RaftStateMachine};
use std::io;
use std::path::Path;
use std::sync::Arc;
use testing::client_history::SafetyProperty;

/// openraft's handle of a simulated node.
pub type Raft = openraft::Raft<SimTypeConfig, VirtualStateMachine>;

/// The replica of a node, and the disk for its snapshots.
pub struct VirtualStateMachine {
    pub replica: Arc<Replica>,
    node: NodeId,
    disk: OpenDisk,
    record: Arc<Record>,
}

/// A snapshot of the replica that is yet to be written to the disk.
pub struct VirtualSnapshotBuilder {
    snapshot: Snapshot,
    node: NodeId,
    disk: OpenDisk,
    record: Arc<Record>,
}

/// A guard that reports a violation if a panic of its thread drops it.
struct PanicRecorder<'a>(&'a Record, NodeId);

impl Drop for PanicRecorder<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let what = format_args!("node {} has panicked while it applied an entry", self.1);
            self.0.violation(SafetyProperty::NoPanic, what);
        }
    }
}

/// Writes a snapshot to the disk, and checks that the node could then start from the log and the
/// snapshot.
async fn put(
    node: NodeId,
    disk: &OpenDisk,
    record: &Record,
    snapshot: &Snapshot,
) -> io::Result<()> {
    let (began, upto) = (now(), snapshot.meta.last_log_id);
    disk.put_snapshot(upto, snapshot::to_file(snapshot).into()).await?;
    record.took(CoveragePoint::SlowSnapshotWrite, began);
    let (purged, there) = (disk.read(|files| files.purged)?, disk.snapshot_upto());
    if purged > there {
        let what = format_args!(
            "node {node} could not start: its log begins after {purged:?}, and its snapshot ends \
             at {there:?}"
        );
        record.violation(SafetyProperty::NodesStart, what);
    }
    Ok(())
}

impl VirtualStateMachine {
    /// Restores the replica from the snapshot on the disk, or creates an empty one.
    pub fn open(
        node: NodeId,
        disk: &OpenDisk,
        environment: Arc<dyn NodeEnvironment>,
        record: &Arc<Record>,
    ) -> Result<Self, String> {
        let read = |bytes: Arc<[u8]>| {
            let found = snapshot::from_file(Path::new("snapshot"), &bytes);
            let found = found.map_err(|error| error.to_string())?;
            snapshot::unpack(&found).map_err(|error| error.to_string())
        };
        let known = disk.snapshot().map(read).transpose()?;
        let replica =
            Arc::new(Replica::new(known, Audit::off(), environment, ClusterVersion::default()));
        Ok(Self { replica, node, disk: disk.clone(), record: Arc::clone(record) })
    }

    /// Returns the last entry that the replica has applied.
    pub fn applied(&self) -> Option<LogId> {
        self.replica.state().meta().last_log_id
    }
}

/// Returns an entry with its commands as a planted bug changes them.
fn distorted_entry(replica: &Replica, mut entry: Entry) -> Entry {
    if let EntryPayload::Normal(Proposal::Commands(body)) = &mut entry.payload {
        let engine = &replica.state().engine;
        let distorted = |command| distorted(command, engine, body.now);
        let commands = body.commands.iter().map(distorted).collect();
        *body = Arc::new(Commands { now: body.now, commands });
    }
    entry
}

impl RaftStateMachine<SimTypeConfig> for VirtualStateMachine {
    type SnapshotData = Arc<[u8]>;
    type SnapshotBuilder = VirtualSnapshotBuilder;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, Membership)> {
        let meta = self.replica.state().meta();
        Ok((meta.last_log_id, meta.last_membership))
    }

    async fn apply<S>(&mut self, mut entries: S) -> io::Result<()>
    where
        S: Stream<Item = io::Result<EntryResponder<SimTypeConfig>>> + Unpin + Send,
    {
        while let Some((entry, responder)) = entries.try_next().await? {
            let id = entry.log_id;
            let body = match &entry.payload {
                EntryPayload::Normal(Proposal::Commands(body)) => Some(Arc::clone(body)),
                _ => None,
            };
            let watch = PanicRecorder(&self.record, self.node);
            let panics = planted(PlantedBug::ApplyPanics) && responder.is_some() && id.index > 50;
            assert!(!panics, "this bug is planted");
            let entry =
                if is_any_planted() { distorted_entry(&self.replica, entry) } else { entry };
            let answers = self.replica.apply(entry);
            drop(watch);
            self.record.applied(self.node, id, body.as_deref(), &answers, || {
                snapshot::to_bytes(known_version(), None, &self.replica.state().engine)
            });
            if let Some(responder) = responder {
                responder.send(answers);
            }
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> VirtualSnapshotBuilder {
        let core = self.replica.state();
        let bytes = if planted(PlantedBug::SnapshotForgets) {
            snapshot::to_bytes(known_version(), core.cluster, &forgetful(&core.engine))
        } else {
            snapshot::to_bytes(known_version(), core.cluster, &core.engine)
        };
        let snapshot = Snapshot { meta: core.meta(), snapshot: bytes };
        let (disk, record) = (self.disk.clone(), Arc::clone(&self.record));
        VirtualSnapshotBuilder { snapshot, node: self.node, disk, record }
    }

    async fn install_snapshot(&mut self, meta: &Meta, data: Arc<[u8]>) -> io::Result<()> {
        let snapshot = Snapshot { meta: meta.clone(), snapshot: data };
        let known = snapshot::unpack(&snapshot).map_err(io::Error::other)?;
        if planted(PlantedBug::InstallNeverEnds) {
            return std::future::pending().await;
        }
        put(self.node, &self.disk, &self.record, &snapshot).await?;
        self.replica.replace(known);
        self.record.installed(self.node, meta.last_log_id);
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<Snapshot>> {
        let read = |bytes: Arc<[u8]>| {
            snapshot::from_file(Path::new("snapshot"), &bytes).map_err(io::Error::other)
        };
        let began = now();
        let bytes = self.disk.read_snapshot().await?;
        self.record.took(CoveragePoint::SlowSnapshotRead, began);
        bytes.map(read).transpose()
    }
}

impl RaftSnapshotBuilder<SimTypeConfig> for VirtualSnapshotBuilder {
    type SnapshotData = Arc<[u8]>;

    async fn build_snapshot(&mut self) -> io::Result<Snapshot> {
        put(self.node, &self.disk, &self.record, &self.snapshot).await?;
        Ok(self.snapshot.clone())
    }
}
