//! The files of the sync barrier: the decisions of `barrier` are made over what is read here, and
//! what they decide to write is written here. The directory `.latchfs` is carried by a sync tool,
//! so that each file in it is read as untrusted input.
//!
//! The modules in reading order: `small_files` reads and writes files that have a maximum size;
//! `disk_tree` is the folder as `barrier` compares it; `marker_dir` reads, writes and removes the
//! markers; `change_record` is a line of the change log, and `ledger_store` keeps the log and the
//! ledger.

pub(crate) mod small_files;
pub(crate) mod disk_tree;
pub(crate) mod marker_dir;
pub(crate) mod change_record;
pub(crate) mod ledger_store;
#[cfg(test)]
pub(in crate::guard) mod test_disk;
