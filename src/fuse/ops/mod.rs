//! The file operations on locks: each turns a request of the kernel into requests to the lock
//! service.

pub(crate) mod lease_change;
pub(crate) mod lookup;
pub(crate) mod setattr;
pub(crate) mod create;
pub(crate) mod link;
pub(crate) mod file_io;
pub(crate) mod unlink;
pub(crate) mod xattr;
