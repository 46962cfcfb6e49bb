//! The FUSE front end: turns file operations into requests to the lock service, and the service's
//! answers into errnos, attributes and directory entries.
//!
//! The crate `kernel` speaks the FUSE protocol and serves any file system. `lock_fs` is the file
//! system of locks: it passes each operation to its implementation in `ops`, `posix_locks` or
//! `control_files`. None of these modules decides which client may hold a lock: each parses its
//! request, calls the lock service, and maps a refusal to an errno by the one table in `errno`.
//!
//! An operation is a future that yields plain values. It runs on the thread that read the request
//! until it has to wait for the lock service, and then on the thread that delivers the answer, so a
//! slow answer never blocks the thread that reads the kernel's requests.
//!
//! The folders and files in reading order: `control_names`, `refusals` (with the errnos),
//! `credentials` of callers, `inodes`, `file_attrs` and `kernel_cache`; `lock_nodes` combines
//! these. `open_files` are what programs have open, `process` binds leases to processes, and
//! `file_waits` wait in queues. `mount_parts` are what the operations of one mount share. `ops`,
//! `posix_locks` and `control_files` implement them, and `lock_fs` dispatches them, and mounts what
//! `mount_config` describes.

pub mod mount_config;
pub(crate) mod credentials;
mod refusals;
mod control_names;

mod inodes;
mod file_attrs;
pub(crate) mod open_files;
mod process;
mod lock_nodes;
mod posix_locks;
mod kernel_cache;
mod file_waits;
mod mount_parts;
mod ops;
mod control_files;
pub mod lock_fs;

/// The parsers of texts that programs write into a mount, for the fuzzer in `tests/fuzz`. Not a
/// part of the library's interface.
#[doc(hidden)]
pub mod fuzz {
    use crate::control::control_request;
    use crate::fuse::ops::lease_change;

    /// The highest length of a control request in bytes.
    pub const CONTROL_BYTES_MAX: usize = control_request::REQUEST_BYTES_MAX;

    /// Parses a request to `.latchfs/ctl`. Returns it as text, or the sentence that refuses it.
    pub fn control(bytes: &[u8]) -> Result<String, String> {
        control_request::parse(bytes).map(|request| format!("{request:?}"))
    }

    /// Parses a text that is written to the file of a lock. Returns it as text, or the sentence
    /// that refuses it.
    pub fn message(bytes: &[u8]) -> Result<String, String> {
        lease_change::parse(bytes).map(|message| format!("{message:?}"))
    }
}

#[cfg(test)]
mod tests;
