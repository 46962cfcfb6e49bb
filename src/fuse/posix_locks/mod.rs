//! flock(2), fcntl(2) and OFD locks: turns the kernel's lock requests into requests to the engine,
//! and the engine's events into replies.
//!
//! [`table`] is pure state and decides the effects of each request. [`lock_session`] performs the
//! effects with no mutex held: it sends requests to the engine, replies to programs, and has
//! waiting threads watched for signals. Byte ranges are in [`byte_ranges`].
//!
//! `file_locks` has the requests of programs.

pub(crate) mod byte_ranges;
mod table;
mod lock_session;
pub(crate) mod file_locks;

pub(crate) use file_locks::PosixLocks;
pub(crate) use lock_session::LockingParts;
