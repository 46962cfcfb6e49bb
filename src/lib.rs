//! latchfs: a directory in which a file is a lock.

pub mod time;

pub mod engine;

pub mod locks;

pub mod cluster;

pub mod remote;

pub mod status;

pub mod event;

pub mod metrics;

pub mod fs;

pub mod http;

pub mod mutex;

pub use mutex::Mutex;

pub mod cli;
