//! How a change reaches the folder.
//!
//! `gate` lets a change pass, or refuses it; `publish` publishes a file in one step, and
//! `staged_file` is what it publishes. `fence` is the first act of a new tenure: it removes the
//! stages of others.

pub(crate) mod gate;
pub(crate) mod publish;
pub(crate) mod staged_file;
pub(crate) mod fence;
