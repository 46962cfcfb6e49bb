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

mod book;
pub(crate) mod bytes;
pub(crate) mod clock;
mod council;
mod data;
mod desk;
mod door;
mod elections;
mod error;
mod forward;
mod freshness;
pub(crate) mod kind;
mod log;
mod machine;
mod members;
mod network;
mod node;
mod peer;
mod peering;
mod proposer;
mod reader;
mod reception;
mod reign;
pub(crate) mod replica;
mod report;
mod restore;
pub(crate) mod snapshot;
mod station;
mod syncs;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_upgrade;
mod trouble;
mod watchman;

pub use door::Node;
pub use error::{DataError, PeerError, Stop};
pub use peer::tls::PeerFiles;
pub use peering::{Pace, Peering};
pub use restore::restore;
