//! The durable engine: the same engine, told what to do by a log that is on the disk.
//!
//! A command is written to the log, synced, carried out, and only then answered, so whatever
//! anybody has been told outlives a crash and a power failure. openraft keeps the log's order;
//! with one node it is its own majority. Locks and Raft know nothing of each other here but
//! [`Engine::apply`](crate::engine::Engine::apply).
//!
//! Where to look: `door` is what the edges ask; `desk` where requests wait, `proposer` what makes
//! entries of them; `log` and `snapshot` the disk, `data` its directory; `machine` and `replica`
//! carry entries out; `clock` what time it is; `node` brings it all up; `kind` and `bytes` what an
//! entry is.

mod bytes;
mod clock;
mod data;
mod desk;
mod door;
mod error;
mod kind;
mod log;
mod lone;
mod machine;
mod node;
mod proposer;
mod replica;
mod restore;
mod snapshot;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_upgrade;
mod trouble;

pub use door::Node;
pub use error::DataError;
pub use restore::restore;
