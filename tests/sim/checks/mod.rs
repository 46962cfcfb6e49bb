//! The record of a simulation, and the properties that it is checked for.
//!
//! `handover_history` records what clients saw of handovers, and `recorder` is the record of a
//! whole run. The history of all clients and the checks of its promises are those of the tests with
//! real nodes: [`testing::client_history`] and [`testing::promises`].

pub mod handover_history;
pub mod recorder;
