//! The checks of `latchfs doctor --strict` in a guarded folder and in the state of its guard. It
//! reads the files of a guard that may run, and writes none of them.
//!
//! `folder_checks` makes all checks of the folder, of its snapshots and of the state directory, and
//! names the findings.

pub(crate) mod folder_checks;
