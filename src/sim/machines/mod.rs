//! The machines of a simulation: clocks, disks and network in memory, and the nodes that run on
//! them.
//!
//! `virtual_disk` keeps a journal and a snapshot, which `virtual_log` gives to openraft;
//! `virtual_network` loses and delays what `virtual_links` carry; `virtual_node` is the request
//! pipeline of a real node over all of them.

pub(super) mod virtual_environment;
pub(super) mod virtual_disk;
pub(super) mod virtual_state_machine;
pub(super) mod virtual_links;
pub(super) mod virtual_node;
