//! Several nodes that decide together, as real processes. Each has a machine (a network namespace)
//! of its own; they are killed, stopped, cut off, removed and replaced while clients ask.

// The machines are those of another suite; not all of them is needed here.
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

mod chaos;
mod clocks;
mod faults;
mod histories;
mod load;
mod members;
mod mounts;
mod nodes;
mod partitions;
mod several;
mod storm;
mod trust;
