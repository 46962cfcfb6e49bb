//! The Raft backend: a durable, replicated lock engine that applies the commands of a log on disk.
//!
//! A command is written to the log, synced, applied, and only then answered, so every answer
//! survives a crash and a power failure. openraft orders the log; a single node is its own quorum.
//! The lock engine does not depend on Raft: the two meet only in
//! [`Engine::apply`](crate::engine::Engine::apply).
//!
//! The folders and files in reading order:
//!
//! - `node_environment` has the clocks, addresses and names that all parts use, `cluster_types`
//!   what differs between a real cluster and a simulated one.
//! - `store` keeps the log and snapshots of a node on its disk.
//! - `write` turns requests into entries and applies them, `leadership` tracks who leads, and
//!   `linearizable_read` asks the leader before a read.
//! - `rpc` carries messages between nodes.
//! - `node` starts all of it, and is the interface to the front ends.
//! - `fuzz` gives `tests/fuzz` access to the decoders.

pub mod store;
pub mod node_environment;
pub mod write;
mod rpc;
pub mod cluster_types;
mod linearizable_read;
pub mod leadership;
pub mod node;
#[doc(hidden)]
pub mod fuzz;

#[cfg(test)]
mod tests;

pub use crate::raft::node::bootstrap::Survivor;
pub use crate::raft::node::bootstrap::restore;
pub use crate::raft::node::raft_node::RaftNode;
pub use crate::raft::node_environment::ClusterName;
pub use crate::raft::rpc::peer_config::{ElectionPace, Peering};
pub use crate::raft::store::data_dir::{DataError, PeerError, Stop};
pub use crate::raft::store::snapshot::{InheritedState, Origin};
pub use rpc::mutual_tls::PeerFiles;
