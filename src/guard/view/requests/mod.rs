//! The requests of `FolderView`: the methods of one type, a file for each concept.
//!
//! `open` opens files, `data` reads and writes them, and `closing` publishes what was
//! saved as a whole. `databases` are files that a program keeps open while another machine changes
//! them, or when a tenure ends. `lookup` finds and lists names, `names` makes, renames and removes
//! them, and `set_attributes` changes what a file is. The files in `.latchfs` are in
//! `control_requests`, `lost_control`, `snapshot_requests` and `lock_record_files`; `local_files`
//! belong to this machine.

pub(super) mod closing;
pub(super) mod data;
pub(super) mod local_files;
pub(super) mod databases;
pub(super) mod lock_record_files;
pub(super) mod lookup;
pub(super) mod lost_control;
pub(super) mod names;
pub(super) mod open;
pub(super) mod control_requests;
pub(super) mod set_attributes;
pub(super) mod snapshot_requests;
