//! The clients of a simulated cluster.
//!
//! `client` acquires and releases locks, and says until when it relies on its lock, which the
//! checks hold against what the others believe. `client_actions` does everything else, also for
//! clients that wait in a queue or set handovers.

pub(super) mod client;
pub(super) mod client_actions;
