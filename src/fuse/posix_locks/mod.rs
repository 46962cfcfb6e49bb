//! flock(2), fcntl(2) and OFD locks: the kernel's requests become requests to the engine, and its
//! events become answers.
//!
//! [`table`] decides, purely, what is to be done; [`lock_session`] does it, with no mutex held: it
//! asks the engine, answers programs, and has those that wait watched for signals. Byte ranges are
//! in [`byte_ranges`].

mod effect_queue;
pub(crate) mod byte_ranges;
mod table;
mod lock_session;
mod lock_waiter;
mod reconcile;
mod file_locks;
pub(crate) mod ioctls;

pub(crate) use file_locks::PosixLocks;
pub(crate) use lock_session::LockingParts;
