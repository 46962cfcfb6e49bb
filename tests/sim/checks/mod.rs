//! The record of a simulation, and the properties that it is checked for.
//!
//! `client_history` and `handover_history` record what clients saw, `recorder` is the record of a
//! whole run. `promises` checks them all, also that the history is linearizable.

pub mod client_history;
pub mod promises;
pub(super) mod handover_history;
pub(super) mod recorder;
