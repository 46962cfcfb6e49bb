//! The servers through which clients reach the lock service: HTTP, and the text protocol for
//! scripts. Also the log of acquisitions and releases, and the entries of both in the audit log.

pub mod lock_log;
pub mod http;
pub mod line;
