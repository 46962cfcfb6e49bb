//! The line protocol as its clients meet it: the real program, and sockets without any library.

// The harness is that of all servers; not all of it is needed here.
#![allow(dead_code)]

/// Nothing here looks at what is on the disk.
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
