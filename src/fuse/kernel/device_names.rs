//! The names of the FUSE device and of the helper that mounts for users.

/// The device through which the kernel speaks FUSE.
pub const DEVICE: &str = "/dev/fuse";
/// The program that mounts for users other than root.
pub const HELPER: &str = "fusermount3";
