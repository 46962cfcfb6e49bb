//! Clusters of real node processes, each on a machine (network namespace) of its own. Nodes are
//! killed, stopped, isolated, removed and replaced while clients send requests.

// The suite includes the module for test machines of tests/machines by `#[path]`, and does not use
// all functions of it.
#![allow(dead_code)]

#[path = "../machines/crowd.rs"]
mod crowd;
#[path = "../machines/net.rs"]
mod net;
#[path = "../machines/server_faults.rs"]
mod server_faults;
#[path = "../support/mod.rs"]
mod support;
#[path = "../durable/talk.rs"]
mod talk;

mod audit;
mod chaos;
mod clocks;
mod declared;
mod faults;
mod following;
mod guards;
mod histories;
mod load;
mod logs;
mod members;
mod mounts;
mod nodes;
mod partitions;
mod recover;
mod several;
mod storm;
mod trust;
#[cfg(feature = "planted-version")]
mod turns;
#[cfg(feature = "planted-version")]
mod versions;
