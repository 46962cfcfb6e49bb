//! Clusters of real node processes, each on a machine (network namespace) of its own. Nodes are
//! killed, stopped, isolated, removed and replaced while clients send requests. `machines` has one
//! server, and mounts of it on other machines.

mod audit;
mod chaos;
mod clocks;
mod declared;
mod faults;
mod following;
mod guards;
mod histories;
mod home_nodes;
mod load;
mod logs;
mod machines;
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
