//! The substitute for the FUSE protocol on systems other than Linux: the same interface for the
//! command line, without any mounts.

/// The substitute for creating and removing mounts.
pub mod device {
    use super::mountinfo::MountPoint;
    use std::io;
    use std::path::Path;

    /// How a mount was removed. Never returned on this system, which has no mounts.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Gone {
        /// The mount was not busy, and is gone.
        Clean,
        /// The mount was busy, and was detached.
        Detached,
    }

    /// Fails, since no file system can be mounted on this system.
    pub fn unmount(_dir: &Path) -> io::Result<Gone> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Fails, since no file system can be mounted on this system.
    pub fn abort(_mount: &MountPoint) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Fails, since no file system can be mounted on this system.
    pub fn detach(_dir: &Path) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// The substitute for sealing directories below mounts.
pub mod mount_seal {
    use std::io;
    use std::path::Path;

    /// Returns `false`, since no mount has made a directory on this system.
    pub fn try_remove_made(_dir: &Path) -> io::Result<bool> {
        Ok(false)
    }

    /// Fails, since no directory is sealed on this system.
    pub fn unseal(_dir: &Path) -> io::Result<bool> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Returns `None`, since no directory is checked for entries on a system without mounts.
    pub fn entries(_dir: &Path) -> Option<String> {
        None
    }

    /// Returns `None`, since there are no mounts on this system that could hide entries.
    pub fn hidden(_dir: &Path) -> io::Result<Option<String>> {
        Ok(None)
    }
}

/// The substitute for the list of mounts, always empty.
pub mod mountinfo {
    use std::io;
    use std::path::{Path, PathBuf};

    /// The file system type of latchfs mounts on Linux.
    pub const TYPE: &str = "fuse.latchfs";

    /// A latchfs mount of this machine.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct MountPoint {
        /// The mount point.
        pub dir: PathBuf,
        /// The user that mounted it.
        pub mounter: u32,
    }

    impl MountPoint {
        /// Whether this is a latchfs mount.
        pub fn is_latchfs(&self) -> bool {
            false
        }

        /// Whether this is the view of a guarded folder.
        pub fn is_view(&self) -> bool {
            false
        }

        /// Whether latchfs made this mount.
        pub fn is_ours(&self) -> bool {
            false
        }
    }

    /// Whether a daemon serves a mount.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Life {
        /// The daemon responds.
        Live,
        /// The daemon is gone.
        Dead,
        /// The daemon does not respond.
        Silent,
    }

    /// Returns the latchfs mounts: none.
    pub fn ours() -> io::Result<Vec<MountPoint>> {
        Ok(Vec::new())
    }

    /// Returns the latchfs mounts and views: none.
    pub fn ours_and_views() -> io::Result<Vec<MountPoint>> {
        Ok(Vec::new())
    }

    /// Returns `false`, since this system runs no containers.
    pub fn is_on_root(_dir: &Path) -> io::Result<bool> {
        Ok(false)
    }

    /// Whether a directory is in a latchfs mount: never on this system.
    pub fn is_on_ours(_dir: &Path) -> io::Result<bool> {
        Ok(false)
    }

    /// Returns the mount at a directory: none.
    pub fn at(_dir: &Path) -> io::Result<Option<MountPoint>> {
        Ok(None)
    }

    /// Returns the absolute path of `path` without symlinks.
    pub fn resolve(path: &Path) -> io::Result<PathBuf> {
        path.canonicalize()
    }

    /// Returns whether a daemon serves the mount at a directory: none does.
    pub fn probe(_dir: &Path) -> Life {
        Life::Dead
    }

    /// Returns false: no mount exists on this system whose daemon could be gone.
    pub fn is_dead(_error: &io::Error) -> bool {
        false
    }
}
