//! The line protocol, with plain sockets.

mod access;
pub(crate) mod follower;
mod following;
mod fuzz;
mod words;
