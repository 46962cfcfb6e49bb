//! Tests with several machines: a server, and mounts that use it. Each machine is a network
//! namespace with an address of its own; its cable can be pulled, and its incoming packets can be
//! dropped.

// Python and other programs are written as `r#"..."#`, even those that contain no quotes, so
// clippy's lint against needless hashes is off.
#![allow(clippy::needless_raw_string_hashes)]
// In these tests, `server` is the machine of a server, and `served` is the server process; clippy
// finds the two names too similar.
#![allow(clippy::similar_names)]

mod access;
mod cli;
mod contact;
pub(crate) mod crowd;
mod cutoff;
mod cycles;
mod exclusion;
mod faults;
mod kept;
mod proxy;
pub(crate) mod server_faults;
mod sessions;
