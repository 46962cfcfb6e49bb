//! The checks of `latchfs doctor --strict` in a guarded folder and in the state of its guard. It
//! reads the files of a guard that may run, and writes none of them.
//!
//! `folder_checks` makes all checks of the folder and of the state directory, and names the
//! findings; `snapshot_findings` checks the snapshots.

pub(crate) mod folder_checks;
#[cfg(target_os = "linux")]
mod snapshot_findings;
