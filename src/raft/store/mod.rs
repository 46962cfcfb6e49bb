//! What a node keeps on its disk.
//!
//! `data_dir` is its directory, and `data_dir_error` what can be wrong with it. `log` holds the
//! entries, which `entry_codec` encodes and `types` defines; `snapshot` replaces those that are
//! applied.

pub(crate) mod data_dir;
pub(crate) mod snapshot;
pub(super) mod log;
