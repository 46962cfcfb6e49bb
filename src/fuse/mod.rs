//! The FUSE front end: file operations become requests to the lock service, and its answers become
//! errnos, attributes and entries.
//!
//! `kernel` talks to the kernel, for any file system. Above it, `lock_fs` is the file system of
//! locks: it sends each operation to the part that does it, in `ops`, `posix_locks` or
//! `control_files`. No part knows who may hold a lock: each parses, asks the lock service, and
//! turns a refusal into an errno by the one table in `errno`.
//!
//! An operation is a future that yields plain values. It runs on the thread that read the request
//! until the lock service makes it wait, and then on the thread that brings the answer, so a slow
//! answer never blocks the thread that reads the kernel's requests.

pub mod kernel;
pub mod mount_config;
mod credentials;
mod errno;
mod write_message;
mod last_refusal;
mod refusals;
mod control_names;

mod inodes;
mod lock_access;
mod file_attrs;
mod lock_nodes;
mod report_names;
mod kernel_cache;
mod open_files;
mod parent_checks;
mod process;
mod posix_locks;
mod work_signal;
mod file_waits;
mod poll;
mod ops;
mod control_files;
mod lock_parts;
mod lock_fs;
pub mod mount;

#[cfg(test)]
mod tests;
