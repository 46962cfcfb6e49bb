//! Clusters of real node processes, each on a machine (network namespace) of its own. Nodes are
//! killed, stopped, isolated, removed and replaced while clients send requests.

#[path = "../machines/crowd.rs"]
#[allow(dead_code)] // a part of it is used
mod crowd;
#[path = "../machines/server_faults.rs"]
mod server_faults;

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
mod partitions;
mod recover;
mod several;
mod storm;
mod trust;
#[cfg(feature = "planted-version")]
mod turns;
#[cfg(feature = "planted-version")]
mod versions;
