//! Why a directory can't be mounted, and what to do next.

use crate::fuse::kernel::device_names::{DEVICE, HELPER};
use crate::os_error::said;
use std::fmt;
use std::io;
use std::path::PathBuf;

/// Why a directory can't be mounted.
#[derive(Debug)]
pub enum MountError {
    /// There is no /dev/fuse.
    NoDevice,
    /// /dev/fuse may not be opened.
    DeviceDenied,
    /// /dev/fuse can't be opened, or no socket be made.
    Device(io::Error),
    /// There is no fusermount3, and the caller is not root.
    NoHelper,
    /// fusermount3 says no.
    Helper(String),
    /// /etc/fuse.conf does not allow it to serve others.
    AllowOther,
    /// mount(2) says no.
    Refused {
        /// The mount point.
        dir: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// One of ours is there already, and lives.
    Already(PathBuf),
    /// One of ours is there already, and does not answer.
    Silent(PathBuf),
    /// It lies in one of ours, where all that is made is a lock.
    Inside {
        /// The path as it was given.
        dir: PathBuf,
        /// The mount.
        mount: PathBuf,
    },
    /// It has entries, which a mount would hide.
    Entries {
        /// The directory.
        dir: PathBuf,
        /// Some of them.
        entries: String,
    },
    /// A latchfs of root has sealed it.
    Sealed(PathBuf),
    /// It is no directory, or can't be made one.
    Dir {
        /// The path as it was given.
        dir: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The kernel and we do not understand each other.
    Handshake(io::Error),
}

impl fmt::Display for MountError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoDevice => write!(
                f,
                "{DEVICE} is missing, so nothing can be mounted; load the kernel module by \
                 'modprobe fuse', or give the container the device by '--device {DEVICE}'"
            ),
            Self::DeviceDenied => write!(
                f,
                "{DEVICE} may not be opened by this user, so nothing can be mounted; let root \
                 run 'chmod 666 {DEVICE}', which is its usual mode, or mount as root"
            ),
            Self::Device(error) => write!(f, "{DEVICE} can't be opened: {}", said(error)),
            Self::NoHelper => write!(
                f,
                "{HELPER} is missing, and without it only root can mount; install the package \
                 fuse3, or mount as root"
            ),
            Self::Helper(said) => write!(
                f,
                "{HELPER} could not mount: {said}; see 'latchfs doctor', or mount as root"
            ),
            Self::AllowOther => write!(
                f,
                "/etc/fuse.conf does not let users serve other users; add the line \
                 'user_allow_other' to it, or leave out --allow-other"
            ),
            Self::Refused { dir, error } if error.raw_os_error() == Some(libc::EPERM) => {
                write!(f, "this root may not mount on {}; ", dir.display())?;
                write!(f, "give the container the capability SYS_ADMIN")
            }
            Self::Refused { dir, error } => {
                write!(f, "the kernel does not mount on {}: {}", dir.display(), said(error))
            }
            Self::Already(dir) => {
                let dir = dir.display();
                write!(f, "{dir} is a latchfs mount already, and it works; use it as it is, ")?;
                write!(f, "or unmount it first by 'latchfs umount {dir}'")
            }
            Self::Silent(dir) => {
                let dir = dir.display();
                write!(f, "{dir} is a latchfs mount already, but its daemon does not answer; ")?;
                write!(f, "continue or end that process, or run 'latchfs umount {dir}'")
            }
            Self::Inside { dir, mount } => {
                let (dir, mount) = (dir.display(), mount.display());
                write!(f, "{dir} lies in the latchfs that is mounted at {mount}, where whatever ")?;
                write!(f, "is made is a lock; name a directory outside of it")
            }
            Self::Entries { dir, entries } => say_entries(&dir.display(), entries, f),
            Self::Sealed(dir) => say_sealed(&dir.display(), f),
            Self::Dir { dir, error } => {
                write!(f, "{} can't be a mount point: {}; ", dir.display(), said(error))?;
                write!(f, "name a directory, or a place where one can be made")
            }
            Self::Handshake(error) => {
                write!(f, "the kernel's FUSE did not answer as expected: {}; ", said(error))?;
                write!(f, "latchfs needs Linux 5.4 or newer")
            }
        }
    }
}

fn say_entries(
    dir: &std::path::Display<'_>,
    entries: &str,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    write!(
        f,
        "{dir} has entries, which the mount would hide: {entries}; if programs made them as "
    )?;
    write!(
        f,
        "locks while nothing was mounted, they lock nothing: remove them, mount on an empty "
    )?;
    write!(f, "directory, or pass --nonempty")
}

fn say_sealed(dir: &std::path::Display<'_>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "{dir} is sealed, since root mounted a latchfs there; let root run ")?;
    write!(f, "'latchfs umount --unseal {dir}', or name another directory")
}

impl std::error::Error for MountError {}
