//! flock(2), fcntl(2) and OFD locks.
#![allow(dead_code)]

mod ranges;
mod signals;
mod table;
