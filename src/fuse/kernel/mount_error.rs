//! The reasons why a directory can't be mounted, as error messages that suggest a remedy.

use crate::fuse::kernel::device_names::{DEVICE, HELPER};
use crate::os_error::said;
use std::fmt;
use std::io;
use std::path::PathBuf;

/// The reason why a directory can't be mounted.
#[derive(Debug)]
pub enum MountError {
    /// `/dev/fuse` does not exist.
    NoDevice,
    /// This user may not open `/dev/fuse`.
    DeviceDenied,
    /// Opening `/dev/fuse` failed for another reason, or no socket to `fusermount3` could be
    /// created.
    Device(io::Error),
    /// `fusermount3` is not installed, and the caller is not root.
    NoHelper,
    /// `fusermount3` failed; holds its error output.
    Helper(String),
    /// `/etc/fuse.conf` does not allow users to mount with `allow_other`.
    AllowOther,
    /// mount(2) failed.
    Refused {
        /// The directory on which mount(2) failed.
        dir: PathBuf,
        /// The error that mount(2) returned.
        error: io::Error,
    },
    /// A latchfs mount exists at the directory already, and its daemon responds.
    Already(PathBuf),
    /// A latchfs mount exists at the directory already, and its daemon does not respond.
    Silent(PathBuf),
    /// The directory lies within a latchfs mount, where every entry that is created is a lock.
    Inside {
        /// The path of the directory as the caller gave it.
        dir: PathBuf,
        /// The mount point of the enclosing latchfs mount.
        mount: PathBuf,
    },
    /// The directory lies within a view of a guarded folder.
    InsideView {
        /// The path of the directory as the caller gave it.
        dir: PathBuf,
        /// The mount point of the view.
        view: PathBuf,
    },
    /// The directory has entries, which a mount would hide.
    Entries {
        /// The directory that has entries.
        dir: PathBuf,
        /// The names of some entries, for the message.
        entries: String,
    },
    /// The directory was sealed by a latchfs mount of root, and the caller is not root.
    Sealed(PathBuf),
    /// The path is not a directory, or no directory can be created there.
    Dir {
        /// The path of the directory as the caller gave it.
        dir: PathBuf,
        /// The error of the file operation that failed.
        error: io::Error,
    },
    /// The FUSE handshake with the kernel failed.
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
            Self::InsideView { dir, view } => {
                let (dir, view) = (dir.display(), view.display());
                write!(f, "{dir} lies in {view}, which is a view of a guarded folder: what is ")?;
                write!(f, "made there reaches the folder; name a directory outside of the view")
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
                write!(f, "choose a directory, or a path where one can be created")
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
