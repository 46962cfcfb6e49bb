//! Tests of latchfs through the real kernel: a real mount and unmodified programs.
//!
//! Each test has a mount of its own, so that tests run in parallel. Most files are about one group
//! of operations; the doc comment of a test states the behaviour that it checks.
//!
//! `LATCHFS_TESTS_DATA=1` has the mounts keep their state in a data directory. `contrib/test` runs
//! some modules a second time so. Others are left out: a durable mount answers only after a sync,
//! as a server does, and some test programs do something before that. A program in `wait_file.rs`
//! does a non-blocking read at the moment at which its lock is granted, and one in `flock.rs`
//! removes a file at the moment at which another program's close releases it.

// Python and other programs are written as `r#"..."#`, even those that contain no quotes, so
// clippy's lint against needless hashes is off.
#![allow(clippy::needless_raw_string_hashes)]

mod locking;

mod apart;
mod control;
mod ending;
mod fstab;
mod following;
mod keeping;
mod making;
mod mutex;
mod owners;
mod process;
mod sealing;
mod showing;
mod synced;
mod truncating;
mod unprivileged;

mod clients;
mod manners;

mod bad_input;
mod commands;
mod many;
mod restart;
mod run;
mod habits;

mod contention;
mod compare_locks;
mod flock;
mod holding;
mod stress;
mod suites;
mod wait_file;
mod waiting;
