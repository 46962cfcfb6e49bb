//! Tests with several machines: a server, and mounts that use it. Each machine is a network
//! namespace with an address of its own; its cable can be pulled, and its incoming packets can be
//! dropped.

// Programs in other languages keep their raw string delimiters, whether they contain quotes or not.
#![allow(clippy::needless_raw_string_hashes)]
// The name `server` stands for a machine, and `served` for the server process on it.
#![allow(clippy::similar_names)]

mod access;
mod cli;
mod contact;
mod crowd;
mod cutoff;
mod cycles;
mod exclusion;
mod faults;
mod kept;
mod net;
mod proxy;
mod server_faults;
mod sessions;
#[path = "../support/mod.rs"]
mod support;
mod turns;
mod versions;
