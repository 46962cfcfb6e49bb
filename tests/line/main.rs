//! Tests of the line protocol from the outside, with the real program and plain sockets.

// The suite tests/server shares the harness, and this suite does not use all of it.
#![allow(dead_code)]

/// Whether the servers keep their state in a data directory; these tests need none that do.
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
