//! What the program and the crates below it need alike, and what knows nothing of locks.
//!
//! The files in reading order:
//!
//! - `error_text` makes texts of operating system errors.
//! - `task` runs futures without a pool of threads.
//! - `shares` counts what each identity takes of limited tables.

pub mod error_text;
pub mod shares;
pub mod task;
