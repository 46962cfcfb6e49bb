//! The first start of a cluster whose nodes are declared (`--initial-cluster`): all nodes have the
//! same set of addresses, and may start in any order.
//!
//! The node with the smallest address begins the cluster, but only after all others have said that
//! they have no cluster either, and are declared with the same addresses. The others join it. So
//! two nodes never both begin one, and a node that has lost its data begins no second cluster:
//! either another node knows the first one, or does not answer, and then this node waits.
//!
//! Restores a cluster: creates the first node of a new cluster from what is known of a lost one.
//!
//! Reads what a survivor of a lost majority has on its disk. `latchfs cluster recover` begins a new
//! cluster with it.

use super::raft_node::RaftNode;
use crate::base::jittered;
use crate::engine::Engine;
use crate::raft::node_environment::{ClusterName, NodeAddress, SystemEnvironment};
use crate::raft::rpc::accept::{RpcHandler, accept};
use crate::raft::rpc::messages::{ANYBODY, Envelope, RpcError, RpcRequest, RpcResponse};
use crate::raft::rpc::mutual_tls::PeerCertificate;
use crate::raft::rpc::network::{RpcFailure, RpcIdentity};
use crate::raft::rpc::peer_config::ListeningPeers;
use crate::raft::store::data_dir::{Data, DataError, FatalError, PeerError};
use crate::raft::store::log::LogStore;
use crate::raft::store::snapshot::{ClusterId, InheritedState, NodeId, Origin};
use crate::raft::store::{data_dir, snapshot};
use crate::raft::write::state_machine::Replica;
use crate::service::audit::audit_log::Audit;
use crate::storage::atomic_file::sync_names;
use crate::storage::locked_dir::Role;
use crate::time::Span;
use futures_util::FutureExt as _;
use futures_util::future::join_all;
use openraft::storage::RaftLogReader as _;
use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use tokio::time::sleep;

/// Timeout of the question whether another node has a cluster.
const ASK_PATIENCE: Span = Span::from_secs(5);
/// The pause between two rounds of questions, before jitter.
const ASK_PAUSE: Span = Span::from_millis(250);

/// The action of an empty node once the other nodes have answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FirstStart {
    Begin,
    Join,
}

/// Answers the calls of other nodes while this node has no cluster.
struct EmptyNode {
    name: Option<ClusterName>,
    /// The declared addresses.
    declared: Arc<str>,
}

impl RpcHandler for EmptyNode {
    fn cluster_name(&self) -> Option<&ClusterName> {
        self.name.as_ref()
    }

    fn admits(&self, _: &Envelope, _: &PeerCertificate) -> bool {
        true
    }

    fn refused(&self, address: IpAddr, why: &str) {
        // Anyone who reaches the port can cause this line. A node with wrong credentials says so
        // itself, when it asks others.
        log::debug!("a call from {address} is refused: {why}");
    }

    async fn leader_closed(self: Arc<Self>, _: NodeId) {}

    async fn answer(self: Arc<Self>, _: Envelope) -> Result<RpcResponse, RpcError> {
        Err(RpcError::NoCluster(Arc::clone(&self.declared)))
    }
}

impl ListeningPeers {
    /// Waits until it is sure whether the declared cluster exists. Returns the ids of a new cluster
    /// and of its first node, or those with which this node has joined.
    pub(in crate::raft) fn bootstrap(&self, path: &Path) -> Result<(ClusterId, NodeId), DataError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| DataError::io(path, error))?;
        let first = runtime.block_on(self.first_start(path))?;
        drop(runtime);
        match first {
            FirstStart::Begin => Ok(data_dir::first()),
            FirstStart::Join => self.join(path),
        }
    }

    async fn first_start(&self, path: &Path) -> Result<FirstStart, DataError> {
        let listener = self.listener.try_clone().map_err(|error| DataError::io(path, error))?;
        let declared = self.initial.join(",").into();
        let empty = Arc::new(EmptyNode { name: self.name.clone(), declared });
        let answers = accept(listener, self.tls.clone(), empty);
        tokio::select! {
            first = self.ask_all() => first,
            () = answers => Err(DataError::Stopped(
                path.to_path_buf(),
                "its address for other nodes accepts no connections".to_owned(),
            )),
        }
    }

    /// Asks all other declared nodes and seeds whether they have a cluster, until one has or none
    /// has.
    async fn ask_all(&self) -> Result<FirstStart, DataError> {
        let caller = Arc::new(RpcIdentity::nobody(Some(self.tls.clone()), self.name.clone()));
        let is_first = self.initial.first().is_some_and(|first| **first == *self.station.address);
        let declared = self.initial.join(",");
        let mut logged_before = String::new();
        loop {
            let all = self.seeds.iter().map(async |address| {
                let mut line = caller.line(ANYBODY, address);
                (address, line.call(RpcRequest::Status(false), ASK_PATIENCE).await)
            });
            let mut missing = Vec::new();
            for (address, reply) in join_all(all).await {
                match reply {
                    Ok(_) => return Ok(FirstStart::Join),
                    Err(RpcFailure::Turned(RpcError::NoCluster(other))) if *other == *declared => {}
                    Err(RpcFailure::Turned(RpcError::NoCluster(other))) => {
                        let (address, other) = (address.clone(), other.escape_debug().to_string());
                        return Err(PeerError::Declared { address, other, declared }.into());
                    }
                    Err(RpcFailure::Turned(RpcError::Refused(why))) => {
                        let seeds = address.clone();
                        return Err(PeerError::Join { seeds, why: why.to_string() }.into());
                    }
                    Err(failure) => missing.push(format!("{address} ({failure})")),
                }
            }
            let missing_nodes = match (missing.is_empty(), is_first) {
                (true, true) => return Ok(FirstStart::Begin),
                (true, false) => format!("the node at {} to begin it", self.initial[0]),
                (false, _) => missing.join(", "),
            };
            if missing_nodes != logged_before {
                log::warn!("this node has no cluster yet, and waits for {missing_nodes}");
                logged_before = missing_nodes;
            }
            sleep(jittered(ASK_PAUSE).as_duration()).await;
        }
    }
}

/// Creates the data directory of the first node of a new cluster that replaces a lost one.
/// The directory must be empty or missing. It is created
/// atomically: after an error it is as before.
pub fn restore(path: &Path, inherited: InheritedState, origin: Origin) -> Result<(), DataError> {
    let at = |error| DataError::io(path, error);
    let path = std::path::absolute(path).map_err(at)?;
    if !is_empty(&path)? {
        return Err(DataError::NotEmpty(path));
    }
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(Role::Data.not_a_directory(&path).into());
    };
    // Build the directory under a temporary name and rename it. A half-restored directory would
    // start as a new cluster, and grant tokens that clients of the lost one still hold.
    let name = format!(".{}.restoring-{}", name.to_string_lossy(), std::process::id());
    let beside = parent.join(name);
    let made = RaftNode::begin_with(&beside, inherited, origin)
        .and_then(|()| fs::rename(&beside, &path).and_then(|()| sync_names(parent)).map_err(at));
    if made.is_err() {
        // After an error, the incomplete directory is removed, because it takes up disk space.
        let _ = fs::remove_dir_all(&beside);
    }
    made
}

/// Whether a directory is empty or missing.
fn is_empty(path: &Path) -> Result<bool, DataError> {
    let mut entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(true),
        Err(error) => return Err(DataError::io(path, error)),
    };
    let first = entries.next().transpose().map_err(|error| DataError::io(path, error))?;
    Ok(first.is_none())
}

/// The number of log entries that are applied at a time.
const ENTRIES_AT_ONCE: u64 = 1_000;

/// A stopped node, and what is on its disk.
pub struct Survivor {
    data: Data,
    /// The state after the last entry in the log of the node. The last entries may not have been
    /// committed, but may have been acknowledged by the nodes that are lost.
    pub engine: Engine,
    /// The id of the node.
    pub node: NodeId,
    /// The voters of its cluster, with the addresses at which they listened for nodes. The node
    /// itself may not be one of them.
    pub voters: Vec<(NodeId, Option<Arc<str>>)>,
}

impl Survivor {
    /// Reads the data directory of a node that does not run. A torn write at the end of the log is
    /// truncated, as by a start; nothing else is changed.
    pub fn open(path: &Path) -> Result<Self, DataError> {
        let data = Data::open(path, || Err(DataError::Missing(path.join("node"))))?;
        let known = snapshot::load(&data.snapshot())?;
        let log = LogStore::open(&data.log(), &FatalError::default())?;
        let unreadable = |error| DataError::of_log(&data.log(), error);
        let replica =
            Replica::new(known, Audit::off(), Arc::new(SystemEnvironment), log.version.clone());
        let applied = replica.state().meta().last_log_id;
        let (mut next, end) = (applied.map_or(0, |applied| applied.index + 1), log.range().1);
        if log.purged().is_some_and(|purged| purged.index >= next) {
            return Err(DataError::Missing(data.snapshot()));
        }
        let mut reader = log.clone();
        while next < end {
            let upto = end.min(next + ENTRIES_AT_ONCE);
            let read = reader.try_get_log_entries(next..upto).now_or_never();
            let entries = read.transpose().map_err(unreadable)?.unwrap_or_default();
            for entry in entries {
                replica.apply(entry);
            }
            next = upto;
        }
        let core = replica.state();
        let (members, node) = (core.members().clone(), data.identity.node);
        let address = |id| members.get_node(&id).and_then(NodeAddress::of).map(|at| at.address);
        let voters = members.voter_ids().map(|id| (id, address(id))).collect();
        let engine = core.engine.clone();
        drop(core);
        Ok(Self { data, engine, node, voters })
    }

    /// Creates the data directory of the first node of a new cluster, and then ends this node for
    /// good: it never starts again.
    pub fn succeed(mut self, path: &Path, inherited: InheritedState) -> Result<(), DataError> {
        restore(path, inherited, Origin::Survivor)?;
        self.data.is_removed()
    }
}
