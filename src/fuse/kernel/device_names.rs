//! The names of the FUSE device and of the helper that mounts for users.

/// The device through which the FUSE protocol runs.
pub const DEVICE: &str = "/dev/fuse";
/// The setuid helper that mounts for users other than root.
pub const HELPER: &str = "fusermount3";
