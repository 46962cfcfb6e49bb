//! The checks of `latchfs doctor --strict` in a guarded folder and in the state of its guard. It
//! reads the files of a guard that may run, and writes none of them.
//!
//! `folder_checks` makes all checks of the folder and of its snapshots, and names the findings;
//! `leftovers` checks the state directory.

pub(crate) mod folder_checks;
