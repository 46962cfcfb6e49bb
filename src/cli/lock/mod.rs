//! Commands about one lock.
//!
//! `names` completes the names of locks; `lock_commands` has `acquire`, `wait`, `renew`, `release`,
//! `steal` and `status`, whose waits `wait_progress` shows. `held_lock` acquires a lock that a
//! command holds while it works, watches its lease, and releases it at the end: for `hold`, where a
//! person works, and for `latchfs run`. `who` says who holds the lock of a file.

pub(super) mod held_lock;
pub(super) mod lock_commands;
