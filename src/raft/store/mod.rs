//! The files of a node on its disk.
//!
//! `data_dir` is its directory, with the errors that keep a node from starting; `log` holds the
//! entries of openraft, and `snapshot` what replaces those that are applied, with the encoding of
//! both.

pub mod data_dir;
pub mod snapshot;
pub(super) mod log;
