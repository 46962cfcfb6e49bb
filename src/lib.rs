//! latchfs: a directory in which a file is a lock.

pub mod time;

pub mod said;

pub mod chance;

pub mod engine;

pub mod locks;

pub mod cluster;

pub mod sim;

pub mod remote;

pub mod holder_id;

pub mod status;

pub mod event;

pub mod metrics;

#[cfg(target_os = "linux")]
pub mod fs;

#[cfg(not(target_os = "linux"))]
#[path = "fs/elsewhere.rs"]
pub mod fs;

pub mod access;

pub mod http;

pub mod line;

pub mod mutex;

pub use mutex::Mutex;

pub mod cli;
