//! The substitute for the FUSE front end on systems other than Linux: the same interface for the
//! command line, without any mounts.

#[path = "kernel/machine_facts.rs"]
pub mod machine_facts;
#[path = "mount_config.rs"]
pub mod mount_config;

/// The substitute for the FUSE protocol layer.
pub mod kernel {
    pub use super::{device, machine_facts, mount_seal, mountinfo};
}

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
        pub(crate) fn is_ours(&self) -> bool {
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
    pub(crate) fn ours_and_views() -> io::Result<Vec<MountPoint>> {
        Ok(Vec::new())
    }

    /// Returns `false`, since this system runs no containers.
    pub(crate) fn is_on_root(_dir: &Path) -> io::Result<bool> {
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

/// The substitute for mounting, which always fails.
pub mod lock_fs {
    use crate::auth::Grant;
    use crate::engine::ClientId;
    use crate::fuse::kernel::device::Gone;
    pub use crate::fuse::mount_config::{ClientScope, HoldBy, MountConfig, ReadContent, Users};
    use crate::service::LockService;
    use std::fmt;
    use std::io;
    use std::path::Path;

    /// A mounted directory. The enum has no variants, since no directory can be mounted on this
    /// system.
    pub enum Mounted {}

    /// The result of unmounting a directory.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Unmounted {
        /// The file system was still mounted; holds how it was removed.
        Now(Gone),
        /// The file system was not mounted any more.
        Before,
    }

    /// The reason why a directory can't be mounted.
    #[derive(Debug)]
    pub enum MountError {
        /// This system is not Linux.
        Elsewhere,
        /// `/dev/fuse` may not be opened. Never returned on this system, only on Linux.
        DeviceDenied,
        /// `/etc/fuse.conf` does not allow `allow_other`. Never returned on this system, only on
        /// Linux.
        AllowOther,
    }

    impl fmt::Display for MountError {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(
                "mounts need Linux; here 'latchfs serve' serves locks to others, and the commands \
                 ask a server by --server URL",
            )
        }
    }

    impl std::error::Error for MountError {}

    /// Fails, since mounts need Linux.
    pub fn mount(
        _locks: &Arc<dyn LockService>,
        _config: &MountConfig,
    ) -> Result<Mounted, MountError> {
        Err(MountError::Elsewhere)
    }

    /// Fails, since mounts need Linux.
    pub fn check(_dir: &Path, _nonempty: bool) -> Result<(), MountError> {
        Err(MountError::Elsewhere)
    }

    /// Returns `None`: no mount serves any user.
    pub fn grant_of_user(_mounts: &[MountConfig], _uid: u32) -> Option<Grant> {
        None
    }

    /// Returns the client of the user of this process on the host `host`.
    pub fn client_of_user(host: &ClientId) -> ClientId {
        let user = std::env::var("USER").unwrap_or_default();
        let named = ClientId::parse(&format!("{host}:{user}"));
        named.ok().filter(|_| !user.is_empty()).unwrap_or_else(|| host.clone())
    }

    impl Mounted {
        /// Returns the mount point of this mount.
        pub fn dir(&self) -> &Path {
            match *self {}
        }

        /// Whether the mount has created the directory on which it is mounted.
        pub fn made_dir(&self) -> bool {
            match *self {}
        }

        /// Calls the callback when the mount is gone.
        pub fn on_end(&self, _then: impl FnOnce() + Send + 'static) {
            match *self {}
        }

        /// Unmounts the directory.
        pub fn unmount(&self) -> io::Result<Unmounted> {
            match *self {}
        }
    }
}
