//! Folder snapshots: complete copies of a guarded folder, which are built in the stage of a tenure
//! and appear by one rename.
//!
//! The modules in reading order: `snapshot_disk` has the file operations of its own; `descriptor`
//! names a snapshot, lists its files, and says that it is complete; `tree_copy` visits and copies a
//! tree; `snapshot_store` lists, checks and removes snapshots, and finishes interrupted ones;
//! `snapshot_take` takes one.

pub(crate) mod descriptor;
pub(crate) mod snapshot_disk;
pub(crate) mod tree_copy;
pub(crate) mod snapshot_store;
pub(crate) mod snapshot_take;

#[cfg(test)]
mod tests_snapshots;
