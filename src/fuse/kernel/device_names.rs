//! The names of the FUSE device and of the helper program fusermount3.

/// The device through which the kernel and a FUSE daemon communicate.
pub const DEVICE: &str = "/dev/fuse";
/// The setuid helper that mounts for users other than root.
pub const HELPER: &str = "fusermount3";
