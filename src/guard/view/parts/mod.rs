//! The parts of a view that have a state of their own.
//!
//! `nodes` knows which file each node stands for, and where that lies. `open_file` is
//! what a program has open, and `second_opens` what it is about to open after the first try has
//! failed; `attributes` makes files as the folder's own file system would. `close_rule`
//! decides whether a close publishes a file, from what `processes` sees of the programs.
//! `database_files` knows the files of databases, `record_nodes` the lock record, `view_snapshots`
//! the snapshots that are shown or taken, and `local_dir` the files that belong to this machine.
//! `control_files` lists the files in `.latchfs`.

pub(super) mod record_nodes;
pub(super) mod attributes;
pub(super) mod close_rule;
pub(super) mod database_files;
pub(super) mod open_file;
pub(super) mod nodes;
pub(super) mod local_dir;
pub(super) mod processes;
pub(super) mod control_files;
pub(super) mod second_opens;
pub(crate) mod view_snapshots;
