//! A durable mount: tests of `tests/mounted`, run again on mounts with `--data`.
//!
//! Not all of them: answers come a sync later, as those of a server do, and some programs there
//! look in between. In `wait_file.rs` one reads without blocking in the moment in which its lock
//! comes, in `flock.rs` one removes a file in the moment in which another's close gives it back.

// The harness is that of all mounts; not all of it is needed here.
#![allow(dead_code)]
// Programs in other languages stand in the tests as they are, whatever their quotes.
#![allow(clippy::needless_raw_string_hashes)]

/// The mounts keep all in a log.
pub(crate) const DURABLE: bool = true;

#[path = "../mounted/harness.rs"]
mod harness;
#[path = "../support/mod.rs"]
mod support;

#[path = "../mounted/holding.rs"]
mod holding;
#[path = "../mounted/keeping.rs"]
mod keeping;
#[path = "../mounted/locking.rs"]
mod locking;
#[path = "../mounted/making.rs"]
mod making;
#[path = "../mounted/showing.rs"]
mod showing;
#[path = "../mounted/waiting.rs"]
mod waiting;
