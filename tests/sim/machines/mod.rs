//! The machines of a simulation: clocks, disks and network in memory, and the nodes that run on
//! them.
//!
//! `virtual_environment` has clocks and random numbers from one seed. `virtual_disk` keeps a
//! journal and a snapshot, and is openraft's log, as `virtual_state_machine` is its state machine;
//! `virtual_links` carry messages over a network that loses and delays them. `virtual_node` is the
//! request pipeline of a real node over all of them.

pub mod virtual_environment;
pub mod virtual_disk;
pub mod virtual_state_machine;
pub mod virtual_links;
pub mod virtual_node;
