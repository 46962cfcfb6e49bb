//! Several machines: a server, and mounts that use it. Each machine is a network namespace with
//! its own address; a cable can be pulled, and one direction of it can go dead.

mod access;
mod cli;
mod contact;
mod cutoff;
mod exclusion;
mod kept;
mod net;
mod proxy;
mod sessions;
