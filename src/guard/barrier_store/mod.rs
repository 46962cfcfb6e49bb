//! The files of the sync barrier: the decisions of `barrier` are made over what is read here, and
//! what they decide to write is written here. The directory `.latchfs` is carried by a sync tool,
//! so that each file in it is read as untrusted input.
//!
//! The modules in reading order:
//!
//! - `bounded_read` reads a file that has a maximum size.
//! - `whole_write` writes a file that appears complete or not at all.
//! - `disk_names` finds the name on the disk that belongs to a path.
//! - `disk_tree` is the folder as `barrier` compares it.
//! - `ignore_files` reads the ignore rules.
//! - `marker_dir` reads the markers, `marker_writer` writes and removes them.
//! - `unread_file` keeps which versions of other machines no program has opened, `tool_file` which
//!   ignore patterns the sync tool has named last.
//! - `change_record` is a line of the change log, `ledger_store` keeps the log and the ledger.

pub(crate) mod small_files;
pub(crate) mod disk_tree;
pub(crate) mod marker_dir;
pub(crate) mod change_record;
pub(crate) mod ledger_store;
#[cfg(test)]
pub(in crate::guard) mod test_disk;
