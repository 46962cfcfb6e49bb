//! A durable mount: the tests of `tests/mounted`, run again on mounts with `--data`.
//!
//! Some tests are left out. A durable mount answers only after a sync, as a server does, and some
//! test programs do something before that: a program in `wait_file.rs` does a non-blocking read at
//! the moment at which its lock is granted, and one in `flock.rs` removes a file at the moment at
//! which another program's close releases it.

// Python and other programs are written as `r#"..."#`, even those that contain no quotes, so
// clippy's lint against needless hashes is off.
#![allow(clippy::needless_raw_string_hashes)]

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
