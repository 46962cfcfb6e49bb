//! Commands about one lock.
//!
//! `held_lock` acquires a lock that a command holds while it works, watches its lease, shows the
//! progress of a wait, and releases the lock at the end: for `latchfs hold`, where a person works,
//! and for `latchfs run`. `lock_commands` has all others, and completes the names of locks.

pub(super) mod held_lock;
pub(super) mod lock_commands;
