//! The path of a change: from a request to an entry that every node applies.
//!
//! `proposal_queue` holds the requests of this node's clients, as many as one entry may carry;
//! `proposer` sends them to the leader, or makes entries of them there, stamped by `engine_clock`.
//! `state_machine` applies the entries of the log to the replica.

pub mod engine_clock;
pub(super) mod proposal_queue;
pub mod state_machine;
pub(super) mod proposer;
