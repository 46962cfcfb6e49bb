//! What `latchfs doctor --strict` finds in a guarded folder and in the state of its guard. It reads
//! the files of a guard that may run, and writes none of them.
//!
//! `folder_finding` names the findings, `examined_folder` is the folder with what the lock service
//! says of it, `leftovers` looks at the state directory and `snapshot_findings` at the snapshots in
//! it, `arrival_findings` compares the files with the markers, and `folder_checks` makes all
//! checks.

pub(crate) mod folder_checks;
mod leftovers;
#[cfg(target_os = "linux")]
mod snapshot_findings;
