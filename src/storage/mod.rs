//! Persists the state of a daemon across restarts, in the files of one directory. This module
//! handles bytes and knows nothing about locks.
//!
//! Three kinds of files are kept. `tokens` holds the ceiling below which fencing tokens may be
//! issued; it is on disk before it is used. `snapshot.N` is the whole state at one moment, and
//! `journal.N` holds the records after it, in order; replaying them restores the state. N is the
//! generation. [`StateDir::rotate`] begins the next one without blocking requests, and
//! [`Sealed::compact`] turns the files before it into one snapshot, in the background.
//!
//! A record is written to the page cache and not synced: it survives a crash of the process, but
//! not one of the machine. After a power failure the end of the journal may be missing; recovery
//! truncates the journal after its last complete record. Any other inconsistency is an error that
//! names the file: nothing is ever reset silently.
//!
//! The modules in reading order: `atomic_file`, `locked_dir`, `manifest` (which files make up the
//! state), `header`, `dir` (the files of one directory, and its errors), `journal`, `recovery`, and
//! `state_dir`, the interface, with the compaction. `fuzz` gives `tests/fuzz` access to the
//! recovery.

pub(crate) mod atomic_file;
mod manifest;
pub mod locked_dir;
mod dir;
mod header;
mod journal;
mod recovery;
mod state_dir;
#[doc(hidden)]
pub mod fuzz;

#[cfg(test)]
pub(crate) mod tests;

pub use crate::storage::dir::StateError;
pub use crate::storage::recovery::check;
pub use crate::storage::state_dir::Sealed;
pub use journal::{RECORD_BYTES_MAX, Records};
pub use state_dir::{JOURNAL_BYTES_MIN, Recovered, StateDir};
