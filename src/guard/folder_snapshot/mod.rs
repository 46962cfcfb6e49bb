//! Folder snapshots: complete copies of a guarded folder, which are built in the stage of a tenure
//! and appear by one rename.
//!
//! The modules in reading order:
//!
//! - `snapshot_id` names a snapshot, `snapshot_disk` has the file operations of its own.
//! - `snapshot_manifest` lists the files of a snapshot with their digests, `descriptor` tells of it
//!   and says that it is complete.
//! - `tree_walk` visits a tree, `tree_copy` copies one, `tree_digest` lists one with its digests.
//! - `snapshot_store` lists, checks and removes snapshots, `snapshot_take` takes one.
//! - `snapshot_answers` answers requests about snapshots.
//! - `snapshot_recovery` finds interrupted snapshots, and finishes or removes them.

pub(crate) mod descriptor;
pub(crate) mod snapshot_disk;
pub(crate) mod tree_copy;
pub(crate) mod snapshot_store;
pub(crate) mod snapshot_take;

#[cfg(test)]
mod tests_snapshots;
