//! Tests of the line protocol from the outside, with the real program and plain sockets.

mod follower;

mod access;
mod following;
mod fuzz;
mod words;
