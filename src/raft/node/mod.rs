//! A node: how it starts, and what it does besides the requests of clients.
//!
//! `start` opens the data directory and starts everything; `raft_node` is the lock service that
//! front ends call, and `node_pipeline` puts the parts together that process their requests.
//! `bootstrap` begins a cluster, also from what is left of another; `membership` says who votes,
//! and enrolls the node. `peer_service` answers other nodes; `cluster_admin` is for people.

pub(super) mod membership;
pub(super) mod cluster_admin;
pub mod node_pipeline;
pub(super) mod peer_service;
pub(super) mod start;
pub(super) mod raft_node;
pub(super) mod bootstrap;
