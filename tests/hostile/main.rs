//! Attacks on the running program by a hostile client, local user, server or web page. Each test
//! checks the result of the attack, and that a victim, another client or user of the attacked
//! program, gets the right answer within a second.

// The modules of other test suites that this suite includes by `#[path]` have functions and imports
// that this suite does not use.
#![allow(dead_code, unused_imports)]
// Python and other programs are written as `r#"..."#`, even those that contain no quotes, so
// clippy's lint against needless hashes is off.
#![allow(clippy::needless_raw_string_hashes)]

/// Whether servers and mounts keep their state in a data directory (`--data`): here servers keep
/// none, and mounts use the journal of `--state`.
pub(crate) const DURABLE: bool = false;

mod mount_port;
mod peers;
mod permissions;

/// The harness that mounts the real program.
#[path = "../mounted/harness.rs"]
mod mounted_harness;
/// The harness that starts servers of the real program.
#[path = "../server/harness.rs"]
mod server_harness;
#[path = "../support/mod.rs"]
mod support;
/// Connections to the port of the line protocol.
#[path = "../line/talk.rs"]
mod talk;

// The harness modules of other test suites refer to the server harness by the name `harness`.
use server_harness as harness;

mod audit;
mod bounds;
mod floods;
mod links;
mod hostile_server;
mod line_port;
mod mount_floods;
mod mount_reserve;
mod nested_names;
mod patience;
mod request_id_floods;
mod request_ids;
mod revocation;
mod shares;
mod web_page;
