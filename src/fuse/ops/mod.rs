//! The operations on the files of locks.

pub(crate) mod ancestors;
pub(crate) mod lease_change;
pub(crate) mod lookup;
pub(crate) mod create;
pub(crate) mod file_io;
pub(crate) mod remove;
pub(crate) mod xattr;
pub(crate) mod readdir;
