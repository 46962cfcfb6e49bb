//! Deterministic simulation of a whole cluster: one thread, virtual time, and one seed that decides
//! everything.
//!
//! The simulation runs openraft's own core, and nodes that use the request pipeline, replica, log
//! entries and snapshots of real nodes. Everything that can fail is virtual: disks lose unsynced
//! writes, the network loses, delays, duplicates and partitions, machines crash, and clocks run at
//! different rates. Meanwhile clients request locks, and the simulation checks their history:
//!
//! - no two clients believe at the same time that they hold a lock, unless both share it;
//! - tokens rise, and no token is issued twice;
//! - waiters are served in the order in which they joined the queue;
//! - a retried request takes effect once and gets one answer;
//! - no lease ends early and no acknowledged operation is lost: the history of all clients is
//!   linearizable;
//! - a grant tells the last handover of its name, also after a restore from a backup;
//! - nodes that have applied the same entries are in the same state, byte for byte;
//! - the cluster works again once all faults are repaired.
//!
//! The same seed gives the same run, down to each byte of its trace.
//!
//! The folders and files in reading order:
//!
//! - `machines` are the virtual clocks, disks and networks, and the nodes on them; `world` holds
//!   all of it.
//! - `clients` request locks, and `checks` records what happens and checks it.
//! - `planted_bugs` are bugs that the simulator must find, and `faults` what goes wrong.
//! - `simulation` is one run.
//!
//! Its tests stand in `tests.rs` and `session_hour.rs`: a program of their own, so that this
//! library is compiled once. For them some modules are public.

#[doc(hidden)]
pub mod checks;
#[doc(hidden)]
pub mod planted_bugs;
#[doc(hidden)]
pub mod machines;
#[doc(hidden)]
pub mod world;
mod clients;
mod faults;
mod simulation;

pub use crate::checks::recorder::CoveragePoint;
pub use simulation::{SimOptions, SimReport, run};
