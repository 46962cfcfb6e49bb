//! Tests of the line protocol from the outside: the real program, and plain sockets.

// The harness is shared with the suite tests/server; not all of it is used here.
#![allow(dead_code)]

/// These tests need no durable servers.
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
