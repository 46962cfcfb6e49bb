//! Reads what a survivor of a lost majority has on its disk. `latchfs cluster recover` begins a new
//! cluster with it.

use super::data_dir::Data;
use super::data_dir_error::DataError;
use super::fatal_error::FatalError;
use super::log::LogStore;
use super::node_address::NodeAddress;
use super::node_environment::SystemEnvironment;
use super::replica::Replica;
use super::restore::restore;
use super::snapshot;
use super::types::{Heritage, NodeId, Origin};
use crate::engine::Engine;
use crate::service::audit::Audit;
use futures_util::FutureExt as _;
use openraft::storage::RaftLogReader as _;
use std::path::Path;
use std::sync::Arc;

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
        let applied = replica.look().meta().last_log_id;
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
        let core = replica.look();
        let (members, node) = (core.members().clone(), data.identity.node);
        let address = |id| members.get_node(&id).and_then(NodeAddress::of).map(|at| at.address);
        let voters = members.voter_ids().map(|id| (id, address(id))).collect();
        let engine = core.engine.clone();
        drop(core);
        Ok(Self { data, engine, node, voters })
    }

    /// Creates the data directory of the first node of a new cluster, and then ends this node for
    /// good: it never starts again.
    pub fn succeed(mut self, path: &Path, heritage: Heritage) -> Result<(), DataError> {
        restore(path, heritage, Origin::Survivor)?;
        self.data.is_removed()
    }
}
