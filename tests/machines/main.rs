//! Several machines: a server, and mounts that use it. Each machine is a network namespace with
//! its own address; a cable can be pulled, and one direction of it can go dead.

// Programs in other languages stand in the tests as they are, whatever their quotes.
#![allow(clippy::needless_raw_string_hashes)]
// A server is served, and its machine is a server.
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
