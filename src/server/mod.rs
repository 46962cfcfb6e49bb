//! The servers through which clients reach the lock service: HTTP, and the text protocol for
//! scripts.

pub mod http;
pub mod line;
