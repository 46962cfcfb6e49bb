//! Attacks on the running program: a hostile client, a hostile local user, a hostile server, a
//! hostile web page. Each test asserts what the attacker gets and that a victim beside it gets its
//! right answer within a second.

// The harnesses belong to other suites; each test here uses a part of them.
#![allow(dead_code, unused_imports)]
// Programs in other languages stand in the tests as they are, whatever their quotes.
#![allow(clippy::needless_raw_string_hashes)]

/// The servers and mounts under attack keep their state in a journal.
pub(crate) const DURABLE: bool = false;

mod mount_port;
mod peers;
mod permissions;

/// Mounts of the real program.
#[path = "../mounted/harness.rs"]
mod mounted_harness;
/// Servers of the real program.
#[path = "../server/harness.rs"]
mod server_harness;
#[path = "../support/mod.rs"]
mod support;
/// Connections to the line port.
#[path = "../line/talk.rs"]
mod talk;

// By this name the modules of other suites know the harness of servers.
use server_harness as harness;

mod bounds;
mod floods;
mod links;
mod hostile_server;
mod line_port;
mod mount_floods;
mod mount_reserve;
mod nested_names;
mod patience;
mod request_ids;
mod web_page;
