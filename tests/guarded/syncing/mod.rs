//! Folders that a sync tool copies between machines, which take turns under a lock. A lock alone
//! does not protect such folders.

mod access;
mod barrier;
mod course;
mod guarded;
mod ledger;
mod lock_only;
mod pair_tool;
mod random;
mod single_cases;
mod sync_tool;
mod syncthing;
mod toy_sync;
