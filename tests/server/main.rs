//! The HTTP server as clients meet it: the real program, real connections, curl.
//!
//! Each test has a server of its own, so that they run side by side.

/// Whether the servers keep all in a log. See tests/durable, which has these tests, too.
pub(crate) const DURABLE: bool = false;

mod fuzz;
mod harness;
#[path = "../support/mod.rs"]
mod support;

mod access;
mod admin;
mod docker;
mod doctor;
mod ending;
mod events;
mod examples;
mod health;
mod hold_off;
mod http2;
mod launchd;
mod limits;
mod listing;
mod locks;
mod mounting;
mod nodes;
mod page;
mod problems;
mod prometheus;
mod seed;
mod sentences;
mod sessions;
mod several;
mod targets;
mod tls;
mod units;
mod waiting;
