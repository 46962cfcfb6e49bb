//! The mount.

pub mod mount;
