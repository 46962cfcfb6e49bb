//! The substitute for the FUSE front end on systems other than Linux: the same interface for the
//! command line, without any mounts.

#[path = "mount_config.rs"]
pub mod mount_config;

/// The substitute for mounting, which always fails.
pub mod lock_fs {
    use crate::auth::Grant;
    use crate::engine::ClientId;
    pub use crate::fuse::mount_config::{ClientScope, HoldBy, MountConfig, ReadContent, Users};
    use crate::service::LockService;
    use kernel::device::Gone;
    use std::fmt;
    use std::io;
    use std::path::Path;
    use std::sync::Arc;

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
