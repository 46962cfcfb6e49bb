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

mod data_dir_error;
mod cluster_name;
pub(crate) mod fatal_error;
pub(crate) mod types;
pub(crate) mod engine_clock;
pub(crate) mod node_environment;
mod leader_clock;
pub(crate) mod entry_codec;
mod entry_weight;
pub(crate) mod cluster_version;
mod data_dir;
mod fsync_latency;
mod log;
pub(crate) mod snapshot;
pub(crate) mod replica;
mod state_machine;
mod node_address;
mod peer_contacts;
mod rpc;
pub(crate) mod cluster_types;
mod timeout;
mod peer_store;
mod staleness;
pub(crate) mod elections;
mod proposal_queue;
pub(crate) mod leadership;
mod forward;
mod membership;
mod linearizable_read;
mod proposer;
pub(crate) mod node_pipeline;
mod dead_leader;
pub(crate) mod reset_in_parts;
mod status_report;
mod peer_config;
mod bootstrap;
mod network;
mod cluster_log;
mod membership_task;
mod peer_service;
mod node;
mod cluster_admin;
mod raft_node;
mod restore;
mod recover;
#[doc(hidden)]
pub mod fuzz;

#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_upgrade;

pub use cluster_name::ClusterName;
pub use data_dir_error::{DataError, PeerError, Stop};
pub use peer_config::{ElectionPace, Peering};
pub use raft_node::RaftNode;
pub use recover::Survivor;
pub use restore::restore;
pub use rpc::mutual_tls::PeerFiles;
pub use types::{Heritage, Origin};
