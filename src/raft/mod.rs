//! The Raft backend: a durable, replicated lock engine that applies the commands of a log on disk.
//!
//! A command is written to the log, synced, applied, and only then answered, so every answer
//! survives a crash and a power failure. openraft orders the log; a single node is its own quorum.
//! The lock engine does not depend on Raft: the two meet only in
//! [`Engine::apply`](crate::engine::Engine::apply).
//!
//! The modules in reading order:
//!
//! - Errors and types: `data_dir_error`, `fatal_error`, `types` (openraft's type configuration),
//!   `entry_codec`, `entry_weight` (how much one entry may hold).
//! - The disk: `data_dir`, `fsync_latency`, `log`, `snapshot`.
//! - Time: `engine_clock`, `node_environment` (the clocks of the machine), `leader_clock` (the
//!   engine's time on each node).
//! - The state: `replica`, `state_machine`.
//! - Between the nodes: `node_address`, `peer_store`, `peer_contacts` (log lines about lost nodes),
//!   and `rpc` (messages, and mutual TLS).
//! - `cluster_types` and `timeout`: the modules from here to `node_pipeline` are generic over
//!   the async runtime, so that a simulation can run them as well as a real node.
//! - Leadership: `staleness`, `elections`, `leadership`.
//! - Requests: `proposal_queue`, `forward` (to the leader), `linearizable_read`, `proposer` (makes
//!   entries); `node_pipeline` assembles these parts. `dead_leader` calls an election when the
//!   process of the leader has ended, and `reset_in_parts` splits a reset of many locks.
//! - The cluster: `membership`, `status_report`, `peer_config`, `cluster_name` and `bootstrap`
//!   (the first start of declared nodes), `network` (how openraft reaches a node),
//!   `cluster_log`, `membership_task`, `peer_service` (answers other nodes).
//! - `node` starts all of it; `cluster_admin` and `raft_node` are the interface to the front ends;
//!   `restore` creates a cluster from a backup, and `recover` reads a survivor of a lost one.
//!   `fuzz` gives `tests/fuzz` access to the decoders.

pub(crate) mod store;
pub(crate) mod node_environment;
pub(crate) mod write;
mod rpc;
pub(crate) mod cluster_types;
mod linearizable_read;
pub(crate) mod leadership;
pub(crate) mod node;
#[doc(hidden)]
pub mod fuzz;

#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_upgrade;

pub use crate::raft::node::bootstrap::Survivor;
pub use crate::raft::node::bootstrap::restore;
pub use crate::raft::node::raft_node::RaftNode;
pub use crate::raft::node_environment::ClusterName;
pub use crate::raft::rpc::peer_config::{ElectionPace, Peering};
pub use crate::raft::store::data_dir::{DataError, PeerError, Stop};
pub use crate::raft::store::snapshot::{Heritage, Origin};
pub use rpc::mutual_tls::PeerFiles;
