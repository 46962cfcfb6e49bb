//! The sync barrier: decides whether everything that other machines have published is here, and
//! what this machine tells them. Where each machine has a copy of the folder and a sync tool
//! carries the files, the lock alone protects nothing: its next holder may have yesterday's files,
//! or half of today's. Files, clock and lock service are parameters, so that the shipped decisions
//! are those that `tests_explore` explores.
//!
//! The modules in reading order:
//!
//! - `tenure_id` is the number of a tenure.
//! - `folder_path` has the paths of files, and the trait of those that stand in the folder.
//! - `handover` is the text that the lock service remembers for the folder.
//! - `marker` reads and writes the files in which a tenure says what it left in the folder; `chain`
//!   is their order.
//! - `ledger` is what this machine knows, with its file, and with the changes that no marker names
//!   yet.
//! - `ignored` knows names that keep nobody from being ready, and `coverage` decides which paths
//!   the barrier covers.
//! - `arrival_target` is what should be here; `comparison` compares the folder with it, and `ready`
//!   decides, or a person does.
//! - `marking` announces changes and lists them in a marker, also after the tenure has ended.

pub mod tenure_id;
pub mod folder_path;
pub mod marker;
pub mod handover;
pub mod chain;
pub mod ledger;
pub mod ignored;
pub mod coverage;
pub mod arrival_target;
pub mod ready;
pub mod comparison;
pub mod marking;
#[cfg(test)]
pub(crate) mod test_markers;
#[cfg(test)]
mod tests_explore;

#[cfg(test)]
extern crate self as barrier; // `test_markers` is also a part of the tests of the program
