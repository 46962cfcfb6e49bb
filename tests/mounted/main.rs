//! latchfs as programs meet it: the real kernel, a real mount, unmodified programs.
//!
//! Each test has a mount of its own, so that they run side by side. One file per part of the
//! design's table of files; each row of it is the doc comment of the test that shows it.

// Programs in other languages stand in the tests as they are, whatever their quotes.
#![allow(clippy::needless_raw_string_hashes)]

/// Whether the mounts keep all in a log. See `tests/durable_mounts`, which has some of these tests.
pub(crate) const DURABLE: bool = false;

mod harness;
mod locking;
#[path = "../support/mod.rs"]
mod support;

mod apart;
mod control;
mod ending;
mod following;
mod keeping;
mod making;
mod mutex;
mod owners;
mod process;
mod sealing;
mod showing;
mod unprivileged;

#[path = "../clients/mod.rs"]
mod clients;
#[path = "../clients/locking.rs"]
mod clients_locking;
mod manners;

mod bad_input;
mod commands;
mod many;
mod restart;
mod run;

mod contention;
mod flock;
mod holding;
mod stress;
mod wait_file;
mod waiting;
