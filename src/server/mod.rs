//! The servers through which clients reach the lock service: HTTP, and the text protocol for
//! scripts. Also the log of acquisitions and releases, and the entries of both in the audit log.

mod audit_trail;
pub mod http;
pub mod line;
pub mod lock_log;
