//! latchfs: a directory in which a file is a lock.
//!
//! Other programs may use [`Mutex`] and [`LineClient`]. Everything else is public for the program,
//! its tests and the simulator of clusters, and may change with any version.
//!
//! The modules in reading order. Each uses only modules above it, apart from a few exceptions that
//! `tests/tidy` counts:
//!
//! - [`engine`], a crate of its own, holds the rules of a lock as a pure value: leases, sessions,
//!   queues, tokens. Its [`time`] reads the kernel's clocks; no other module does.
//! - `common`, a crate of its own, has what the program and its crates need alike: `shares` counts
//!   what each identity takes of limited tables.
//! - `barrier`, a crate of its own, decides whether a guarded folder has everything that other
//!   machines have published.
//! - `kernel`, a crate of its own, speaks the FUSE protocol and serves any file system.
//! - [`base`] has the version of this build and random ids.
//! - `log_output` writes the log as text or JSON, and never blocks a caller.
//! - [`storage`] keeps the state of one daemon on the disk: journal, snapshots, data directory.
//! - `audit_chain` chains the lines of audit logs by their digests, and finds broken lines.
//! - `net` listens, accepts with limits, dials and encrypts.
//! - `home` has the codes by which machines join a server, and the list of those that have joined.
//! - [`service`] is the interface between front ends and the engine, with the local backend.
//! - [`raft`] is the backend that replicates the engine in a cluster.
//! - [`client`] is the backend that uses a server.
//! - [`holder_id`] names the process that holds a lock.
//! - [`status`] shows a lock, or an event, as JSON.
//! - [`metrics`] writes the metrics page for Prometheus.
//! - [`auth`] decides which caller may do what, for every front end.
//! - `control` carries out the requests of `.latchfs/ctl` and of commands with `--server`.
//! - [`fuse`] is the mount: files that are locks.
//! - [`guard`] shows a real folder in which a write succeeds only under the folder's lock.
//! - [`mutex`] is the library for Rust programs.
//! - [`server`] speaks HTTP and the line protocol.
//! - [`cli`] is the command line.

pub mod base;
mod log_output;
pub mod storage;
mod audit_chain;
mod net;
mod home;
pub mod service;
pub mod raft;
pub mod client;
pub mod holder_id;
pub mod status;
pub mod metrics;
pub mod auth;
mod control;
#[cfg(target_os = "linux")]
pub mod fuse;
#[cfg(not(target_os = "linux"))]
#[path = "fuse/elsewhere.rs"]
pub mod fuse;
pub mod guard;
pub mod mutex;
pub mod server;
pub mod cli;

#[cfg(test)]
#[path = "../tests/fixtures/formats.rs"]
mod fixtures;

use common::shares;

pub use client::line_client::LineClient;
pub use engine::{self, time};
pub use mutex::Mutex;
