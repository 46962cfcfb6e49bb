//! How a mount is served: its file system type, and which tasks its file system leaves to the
//! kernel.

use crate::fuse::kernel::mountinfo;

/// How a mount is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionKind {
    /// The file system type that `/proc/self/mountinfo` shows: `fuse.`, and a name.
    pub type_name: &'static str,
    /// Whether the source of the mount names the daemon.
    pub names_daemon: bool,
    /// The number of threads that read the kernel's requests. With more than one, requests are not
    /// processed in their order.
    pub threads: usize,
    /// The side that grants flock and POSIX locks on files of the mount.
    pub locks: LocksBy,
    /// The side that checks permissions.
    pub permissions: PermissionsBy,
    /// Whether the kernel caches content of files, and drops it when a file's size or modification
    /// time has changed. It also reads by itself from backing files that the file system names.
    pub caches_content: bool,
    /// Whether programs follow the symlinks in the mount.
    pub follows_symlinks: bool,
}

/// The side that grants flock and POSIX locks on files of a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LocksBy {
    /// The file system.
    FileSystem,
    /// The kernel, so that the locks exclude only programs that use this mount.
    Kernel,
}

/// The side that checks permissions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PermissionsBy {
    /// The file system, in each operation.
    FileSystem,
    /// The kernel, by the modes, owners and POSIX ACLs that the file system reports.
    Kernel,
}

impl SessionKind {
    /// A directory of locks.
    pub const LOCKS: Self = Self {
        type_name: mountinfo::TYPE,
        names_daemon: false,
        // One thread preserves the order of requests: with more threads, a close could be processed
        // after a later lock request.
        threads: 1,
        locks: LocksBy::FileSystem,
        permissions: PermissionsBy::FileSystem,
        caches_content: false,
        follows_symlinks: false,
    };
    /// The view of a guarded folder.
    pub const VIEW: Self = Self {
        type_name: mountinfo::VIEW_TYPE,
        names_daemon: true,
        // One thread preserves the order of requests: the close of a file, and what follows.
        threads: 1,
        locks: LocksBy::Kernel,
        permissions: PermissionsBy::Kernel,
        caches_content: true,
        follows_symlinks: true,
    };
}
