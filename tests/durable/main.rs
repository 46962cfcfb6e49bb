//! A durable server: what every server does, and what only one with a log on the disk can promise.
//!
//! The first modules are the tests of `tests/server`, run again on servers with `--data`.

// The harness is that of all servers; not all of it is needed here.
#![allow(dead_code)]

/// The servers keep all in a log.
pub(crate) const DURABLE: bool = true;

#[path = "../server/harness.rs"]
mod harness;
#[path = "../support/mod.rs"]
mod support;

#[path = "../server/ending.rs"]
mod ending;
#[path = "../server/events.rs"]
mod events;
#[path = "../server/limits.rs"]
mod limits;
#[path = "../server/listing.rs"]
mod listing;
#[path = "../server/locks.rs"]
mod locks;
#[path = "../server/problems.rs"]
mod problems;
#[path = "../server/seed.rs"]
mod seed;
#[path = "../server/sessions.rs"]
mod sessions;
#[path = "../server/waiting.rs"]
mod waiting;

mod faults;
mod full_disk;
mod killed;
mod power;
mod shim;
mod talk;
