//! The HTTP server as clients meet it: the real program, real connections, curl.
//!
//! Each test has a server of its own, so that they run side by side.

/// Whether the servers keep all in a log. See tests/durable, which has these tests, too.
pub(crate) const DURABLE: bool = false;

mod fuzz;
mod harness;

mod access;
mod ending;
mod events;
mod examples;
mod health;
mod limits;
mod listing;
mod locks;
mod mounting;
mod page;
mod problems;
mod seed;
mod sessions;
mod tls;
mod waiting;
