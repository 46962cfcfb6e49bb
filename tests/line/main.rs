//! Tests of the line protocol from the outside, with the real program and plain sockets.

// The suite includes the harness of tests/server by `#[path]`, and does not use all functions of
// it.
#![allow(dead_code)]

/// The harness keeps the state of servers in a data directory if this is true. The tests of the
/// line protocol use servers that keep their state in memory.
pub(crate) const DURABLE: bool = false;

#[path = "../server/harness.rs"]
mod harness;
#[path = "../support/mod.rs"]
mod support;

mod follower;
mod talk;

mod access;
mod following;
mod fuzz;
mod words;
