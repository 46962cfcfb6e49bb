//! The durable engine: the same engine, told what to do by a log that is on the disk.
//!
//! A command is written to the log, synced, carried out, and only then answered, so whatever
//! anybody has been told outlives a crash and a power failure. openraft keeps the log's order;
//! with one node it is its own majority. Locks and Raft know nothing of each other here but
//! [`Engine::apply`](crate::engine::Engine::apply).
//!
//! Where to look: `door` is what the edges ask; `desk` where requests wait, `proposer` what makes
//! entries of them or sends them on (`forward`), `reader` what looks wait for; `log` and `snapshot`
//! the disk, `syncs` how long it takes, `data` its directory, `book` the addresses in it; `machine`
//! and `replica` carry entries out; `clock` what time it is, `reign` who leads, `elections` how
//! often that changed; `peer` what nodes say to each other, `network` how openraft says it,
//! `reception` who answers; `members` who is in the cluster, `report` how they stand, `peering` how
//! one gets in, `watchman` what each looks after; `node` brings it all up; `kind` and `bytes` what
//! an entry is.

mod data_dir_error;
pub(crate) mod types;
pub(crate) mod leader_clock;
mod data_dir;
mod fsync_latency;
mod node_address;
pub(crate) mod entry_codec;
mod rpc;
pub(crate) mod snapshot;
pub(crate) mod replica;
mod staleness;
mod elections;
mod proposal_queue;
mod leadership;
mod forward;
mod membership;
mod fatal_error;
mod log;
mod state_machine;
mod peer_store;
mod linearizable_read;
mod proposer;
mod status_report;
mod peer_config;
mod network;
mod membership_task;
mod peer_service;
mod node;
mod cluster_admin;
mod lock_service;
mod restore;

#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_upgrade;

pub use data_dir_error::{DataError, PeerError, Stop};
pub use lock_service::RaftNode;
pub use peer_config::{ElectionPace, Peering};
pub use restore::restore;
pub use rpc::mutual_tls::PeerFiles;
