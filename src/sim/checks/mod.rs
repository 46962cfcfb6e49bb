//! What is recorded of a simulation, and the promises that it is checked for.
//!
//! `recorder` is the record of a run, `client_history` and `handover_history` are that of its
//! clients. `promises` and `linearizability` check them, and report each `violation`.

pub mod client_history;
pub mod promises;
pub(super) mod handover_history;
pub(super) mod recorder;
