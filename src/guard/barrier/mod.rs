//! The sync barrier: decides whether everything that other machines have published is here, and
//! what this machine tells them. Where each machine has a copy of the folder and a sync tool
//! carries the files, the lock alone protects nothing: its next holder may have yesterday's files,
//! or half of today's. Files, clock and lock service are parameters, so that the shipped decisions
//! are those that `tests_explore` explores.
//!
//! The modules in reading order:
//!
//! - `content_digest`, `folder_path`, `marker_name` are the words of markers and handovers.
//! - `handover` is the text that the lock service remembers for the folder.
//! - `marker` reads and writes the files in which a tenure says what it left in the folder.
//! - `marker_files` is the set of those that are here, `chain` their order.
//! - `tree` is the trait of the files that stand in the folder.
//! - `change_log` and `ledger` are what this machine knows, `ledger_file` its file.
//! - `strays` and `ignored` know names that keep nobody from being ready, and `coverage` decides
//!   which paths the barrier covers.
//! - `arrival_target` is what should be here, `missing` what is not; `comparison` compares the
//!   folder with it, and `ready` decides.
//! - `acceptance` goes on without what has not arrived.
//! - `marking` announces changes and lists them in a marker, `checkpoint` in one that names all
//!   paths, and `late` after the tenure has ended.

pub(crate) mod folder_path;
pub(crate) mod marker;
pub(crate) mod handover;
pub(crate) mod chain;
pub(crate) mod ledger;
pub(crate) mod ignored;
pub(crate) mod coverage;
pub(crate) mod arrival_target;
pub(crate) mod ready;
pub(crate) mod comparison;
pub(crate) mod marking;
#[cfg(test)]
pub(in crate::guard) mod test_markers;
#[cfg(test)]
mod tests_explore;
