//! Machines that join a server by a code.
//!
//! `join_code` is the code and the proof of both machines that they know it, and `invitations` are
//! the codes that a server has given out, as a pure value. `devices` are the machines that have
//! joined, and `messages` is what server and client send each other.

pub(crate) mod join_code;
pub(crate) mod invitations;
pub(crate) mod devices;
pub(crate) mod messages;
