//! The folder's lock in the lock service.
//!
//! `folder_lock` acquires, renews and releases it, by a session that outlives the guard; what the
//! service remembers of the last tenure is in `lock_handovers`. `asking` requests the lock for
//! programs, and knows those that must end before it is given up. `lock_record` and `lock_records`
//! are the record by which programs take it.

pub(crate) mod lock_record;
pub(crate) mod folder_lock;
pub(crate) mod asking;
pub(crate) mod lock_handovers;
#[cfg(target_os = "linux")]
pub(crate) mod lock_records;
