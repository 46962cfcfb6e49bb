//! Where there is no FUSE of Linux: what the command line asks of mounts, and that there are none.

#[path = "kernel/device_names.rs"]
pub mod device_names;
#[path = "kernel/mount_users.rs"]
pub mod mount_users;
#[path = "mount_config.rs"]
pub mod mount_config;
#[path = "kernel/own_user.rs"]
pub mod own_user;

/// The part that would know the kernel.
pub mod kernel {
    pub use super::{device, device_names, mount_seal, mount_users, mountinfo, own_user};
}

/// The kernel's side of a mount.
pub mod device {
    use std::io;
    use std::path::Path;

    /// How a mount went away.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Gone {
        /// At once.
        Clean,
        /// It was busy.
        Detached,
    }

    /// There is nothing to take away.
    pub fn unmount(_dir: &Path) -> io::Result<Gone> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// There is nothing to take away.
    pub fn detach(_dir: &Path) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// The directories below mounts: there are none.
pub mod mount_seal {
    use std::io;
    use std::path::Path;

    /// Nothing was mounted there.
    pub fn unseal(_dir: &Path) -> io::Result<bool> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Nothing is named.
    pub fn entries(_dir: &Path) -> Option<String> {
        None
    }

    /// Nothing is hidden.
    pub fn hidden(_dir: &Path) -> io::Result<Option<String>> {
        Ok(None)
    }
}

/// The mounts of this machine: nothing of ours.
pub mod mountinfo {
    use std::io;
    use std::path::{Path, PathBuf};

    /// The file system type of mounts where there are some.
    pub const TYPE: &str = "fuse.latchfs";

    /// One mount.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct MountPoint {
        /// Where.
        pub dir: PathBuf,
    }

    impl MountPoint {
        /// Whether it is one of ours.
        pub fn is_latchfs(&self) -> bool {
            false
        }
    }

    /// Whether somebody serves a mount.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Life {
        /// It answers.
        Live,
        /// Its daemon is gone.
        Dead,
        /// There is no answer.
        Silent,
    }

    /// All mounts of ours.
    pub fn ours() -> io::Result<Vec<MountPoint>> {
        Ok(Vec::new())
    }

    /// The mount at a directory.
    pub fn at(_dir: &Path) -> io::Result<Option<MountPoint>> {
        Ok(None)
    }

    /// The real path.
    pub fn resolve(path: &Path) -> io::Result<PathBuf> {
        path.canonicalize()
    }

    /// Whether somebody serves the mount at a directory.
    pub fn probe(_dir: &Path) -> Life {
        Life::Dead
    }

    /// Whether an error says that a daemon is gone.
    pub fn is_dead(_error: &io::Error) -> bool {
        false
    }
}

/// Mounting.
pub mod mount {
    use crate::auth::Grant;
    use crate::engine::ClientId;
    use crate::fuse::kernel::device::Gone;
    pub use crate::fuse::mount_config::{Content, HoldBy, MountConfig, Owner, Users};
    use crate::service::Locks;
    use std::fmt;
    use std::io;
    use std::path::Path;

    /// A directory that is mounted: there is none.
    pub enum Mounted {}

    /// The result of unmounting.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Unmounted {
        /// It was there, and went so.
        Now(Gone),
        /// It was not there any more.
        Before,
    }

    /// Why a directory can't be mounted.
    #[derive(Debug)]
    pub enum MountError {
        /// This is not Linux.
        Elsewhere,
        /// Only where there is a device.
        DeviceDenied,
        /// Only where there is a helper.
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

    /// Says that it can't be.
    pub fn mount(_locks: &Locks, _config: &MountConfig) -> Result<Mounted, MountError> {
        Err(MountError::Elsewhere)
    }

    /// Says that it can't be.
    pub fn check(_dir: &Path, _nonempty: bool) -> Result<(), MountError> {
        Err(MountError::Elsewhere)
    }

    /// No mount serves anybody.
    pub fn grant_of_user(_mounts: &[MountConfig], _uid: u32) -> Option<Grant> {
        None
    }

    /// The client of the user of this process, on the host `host`.
    pub fn client_of_user(host: &ClientId) -> ClientId {
        let user = std::env::var("USER").unwrap_or_default();
        let named = ClientId::parse(&format!("{host}:{user}"));
        named.ok().filter(|_| !user.is_empty()).unwrap_or_else(|| host.clone())
    }

    impl Mounted {
        /// The mount point.
        pub fn dir(&self) -> &Path {
            match *self {}
        }

        /// Whether there was no such directory before.
        pub fn made_dir(&self) -> bool {
            match *self {}
        }

        /// Calls `then` when it is gone.
        pub fn on_end(&self, _then: impl FnOnce() + Send + 'static) {
            match *self {}
        }

        /// Takes it away.
        pub fn unmount(&self) -> io::Result<Unmounted> {
            match *self {}
        }
    }
}
