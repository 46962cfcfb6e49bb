//! The clients of a simulated cluster.
//!
//! `client` acquires and releases locks and `client_actions` does everything else; `handover_client`
//! and `queued_client` are clients of other kinds. `client_beliefs` says until when a client relies
//! on its lock, which the checks hold against what the others believe.

pub(super) mod client;
pub(super) mod client_actions;
