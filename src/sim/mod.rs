//! A whole cluster in one thread, on virtual time, decided by one number.
//!
//! The simulation runs openraft's own core, and nodes with the request pipeline, the replica, the
//! entries and the snapshots of real ones. Everything that may fail is virtual: disks that lose
//! unsynced writes, a network that loses, delays, doubles and splits, machines that crash, clocks
//! that run at other rates. Clients ask for locks meanwhile, and their history is checked:
//!
//! - no two clients believe to hold the same lock, unless both share it;
//! - tokens rise, and none is given twice;
//! - waiters are served in the order in which they came;
//! - a request that was sent again has one effect and one answer;
//! - no lease ends before its time, and nothing that was promised is lost: there is an order in
//!   which all that the clients saw can have happened, one thing at a time (`linearizability`);
//! - nodes that have applied as much are in the same state, byte for byte;
//! - when all is mended the cluster works again.
//!
//! The same seed gives the same run, to the byte of its trace.
//!
//! The modules in reading order:
//!
//! - The record: `violation`, `client_history`, `coverage`, `recorder` (the trace). `planted_bugs`
//!   are bugs that the simulator must find.
//! - The virtual machines: `seeded_random`, `sim_types` (openraft's type configuration),
//!   `virtual_clock`, `virtual_environment`, `virtual_disk`, `virtual_log` and
//!   `virtual_state_machine` (openraft's storage), `virtual_network`; `world` holds all of it,
//!   `virtual_links` carry messages, and `virtual_node` answers the requests of `node_messages`.
//! - The clients: `client_leases`, `client`, `client_requests`, `client_beliefs`,
//!   `client_actions`, `queued_client`.
//! - `faults` breaks things, `linearizability` and `promises` check the history, and `simulation`
//!   is one run.

pub mod violation;
mod planted_bugs;
mod seeded_random;
pub mod client_history;
mod sim_types;
mod coverage;
mod recorder;
mod virtual_clock;
mod virtual_environment;
mod virtual_disk;
mod virtual_log;
mod virtual_state_machine;
mod virtual_network;
mod node_messages;
mod world;
mod virtual_links;
mod virtual_node;
mod client_leases;
mod client;
mod client_requests;
mod client_beliefs;
mod client_actions;
mod queued_client;
mod faults;
mod linearizability;
pub mod promises;
mod simulation;

pub use coverage::CoveragePoint;
pub use simulation::{SimOptions, SimReport, run};

#[cfg(test)]
mod session_hour;
#[cfg(test)]
mod tests;
