//! The servers through which clients reach the lock service: `http`, and `line`, the text protocol
//! for scripts. `lock_log` is the log of acquisitions and releases of both, with their entries in
//! the audit log.

pub mod lock_log;
pub mod http;
pub mod line;
