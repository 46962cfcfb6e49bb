//! Attacks on the running program by a hostile client, a local user, a server and a web page. Each
//! test asserts the result of the attack, and that a victim beside it gets its right answer within
//! a second.

// The harnesses belong to other suites; each test here uses a part of them.
#![allow(dead_code, unused_imports)]
// Programs in other languages keep their raw string delimiters, whether they contain quotes or not.
#![allow(clippy::needless_raw_string_hashes)]

/// Whether servers and mounts keep their state in a data directory (`--data`): here servers keep
/// none, and mounts use the journal of `--state`.
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

// The harness modules of other suites refer to the harness of servers by this name.
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
mod revocation;
mod shares;
mod web_page;
