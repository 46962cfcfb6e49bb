//! Guarded folders: a view of a real folder in which a write succeeds only under the folder's lock.
//! A file that is saved appears in the folder complete or not at all, and a machine that has lost
//! the lock changes nothing any more, however late it wakes up.
//!
//! The folders and files in reading order:
//!
//! - `tenure` is the time in which a guard holds the lock of its folder.
//! - `disk` has the file operations, and as which user each runs.
//! - `lost_files` keeps what must not reach the folder, within its bounds; `stage` publishes the
//!   rest.
//! - `write_policy` has the options of a guard.
//! - The crate `barrier` decides whether everything that other machines have published is here, and
//!   `barrier_store` reads and writes its files.
//! - `audit_log` records acts for which somebody may have to answer.
//! - `folder` is one folder: its record, its changes, its side of the barrier.
//! - `folder_snapshot` takes and checks snapshots of it.
//! - `lock` is the folder's lock in the lock service; `shared_query` asks once for all who look it
//!   up.
//! - `tenures` asks for tenures, one after the other, and gives them back.
//! - `folder_parts` puts these together to the guard of one folder.
//! - `guard_request` reads the requests of `latchfs guard`, and shows the state of a guard.
//! - `without_view` guards a folder that programs change directly, `view` shows one to programs.
//! - `doctor` finds what is wrong with a folder and with the state of its guard.
//! - `fuzz` gives `tests/fuzz` access to the readers of `barrier`.

// Without views, nothing stages or publishes files.
#![cfg_attr(not(target_os = "linux"), allow(dead_code))]

pub(crate) mod tenure;
pub(crate) mod disk;
pub(crate) mod lost_files;
pub(crate) mod stage;
pub(crate) mod write_policy;
pub(crate) mod barrier_store;
pub(crate) mod audit_log;
pub(crate) mod folder;
#[cfg(target_os = "linux")]
pub(crate) mod folder_snapshot;
mod shared_query;
pub(crate) mod lock;
pub(crate) mod tenures;
pub(crate) mod folder_parts;
pub(crate) mod guard_request;
pub(crate) mod without_view;
#[cfg(target_os = "linux")]
pub(crate) mod view;
pub(crate) mod doctor;
pub mod fuzz;

#[cfg(test)]
#[allow(dead_code)] // the tests of `barrier` use all of it
#[path = "../barrier/test_markers.rs"]
pub(crate) mod test_markers;
#[cfg(test)]
mod tests_explore;
