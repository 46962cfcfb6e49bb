//! latchfs: a directory in which a file is a lock.

pub mod time;
pub mod os_error;
pub mod storage;
pub mod random;
mod net;
pub mod engine;
pub mod service;
pub mod raft;
pub mod sim;
pub mod client;
pub mod holder_id;
pub mod status;
pub mod event_json;
pub mod metrics;
pub mod auth;
mod control;
#[cfg(target_os = "linux")]
pub mod fuse;
#[cfg(not(target_os = "linux"))]
#[path = "fuse/elsewhere.rs"]
pub mod fuse;
pub mod mutex;
pub mod server;
pub mod cli;

pub use mutex::Mutex;
