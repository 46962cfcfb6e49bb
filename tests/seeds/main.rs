//! The specifications from which latchfs began (the seeds): a file for each, in which each
//! requirement is quoted above the test that shows it. `contrib/doc/seeds.md` lists what differs.

// The harnesses are shared with other suites; not all of their functions are used here.
#![allow(dead_code)]

/// The servers of these tests keep no state, unless a test says otherwise.
pub(crate) const DURABLE: bool = false;

#[path = "../line/follower.rs"]
mod follower;
#[path = "../guarded/harness.rs"]
mod guards;
#[path = "../server/harness.rs"]
mod harness;
#[path = "../support/mod.rs"]
mod support;
#[path = "../line/talk.rs"]
mod talk;

mod cluster;
mod documents;
mod mount;

mod seed_000;
mod seed_001;
mod seed_002;
mod seed_003;
mod seed_004;
