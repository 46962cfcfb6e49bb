//! The file operations on locks: each turns a request of the kernel into requests to the lock
//! service.
//!
//! `lookup` finds and lists names, `create` and `link` take locks, `unlink` releases and renames
//! them. `file_io` opens, reads, writes and closes; `lease_change` changes leases through files,
//! `setattr` through attributes, and `xattr` shows single facts.

pub(crate) mod lease_change;
pub(crate) mod lookup;
pub(crate) mod setattr;
pub(crate) mod create;
pub(crate) mod link;
pub(crate) mod file_io;
pub(crate) mod unlink;
pub(crate) mod xattr;
