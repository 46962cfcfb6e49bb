//! A directory that belongs to one daemon: the common parts of the state directory and of a node's
//! data directory, which are the lock, the check that it is on a local disk, and the error
//! messages.

use crate::base::said;
use log::warn;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{error, fmt, process, thread};

/// The purpose of a locked directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The state directory of a server or mount without a cluster.
    State,
    /// The data directory of a cluster node.
    Data,
}

/// Why a directory cannot be used.
#[derive(Debug)]
pub struct LockedDirError {
    role: Role,
    path: PathBuf,
    cause: LockDirError,
}

#[derive(Debug)]
enum LockDirError {
    /// The path is not a directory.
    NotADirectory,
    /// The permissions, or a read-only file system, prevent writing.
    NotWritable(io::Error),
    /// The disk is full.
    DiskFull(io::Error),
    /// Another daemon has locked the directory. The number is its process id, if it could be read.
    InUse(Option<u32>),
    /// The directory is on a network file system of this kind, which may lose synced data.
    Remote(&'static str),
    /// The directory belongs to this other user, who could replace any file in it.
    Foreign(u32),
    /// Any other I/O error.
    Io(io::Error),
}

/// The number of attempts to lock a directory, over five seconds in all. A daemon that has just
/// unmounted, or was asked to stop, may still be writing when the next one starts.
const TAKE_TRIES: u32 = 250;
const TAKE_PAUSE: Duration = Duration::from_millis(20);

/// Returns the effective user id of this process.
#[allow(unsafe_code)]
fn own_uid() -> u32 {
    // SAFETY: geteuid only reads, and can't fail.
    unsafe { libc::geteuid() }
}

/// The locked lock file of a directory, which is unlocked when this is dropped.
#[derive(Debug)]
pub struct DirLock(pub(crate) File);

impl Drop for DirLock {
    /// Closing the file is not enough: a process that another thread has just forked, and that has
    /// not called `exec` yet, has the file open too.
    fn drop(&mut self) {
        let _ = self.0.unlock();
    }
}

impl Role {
    /// Returns the name of a directory with this role in messages.
    const fn what(self) -> &'static str {
        match self {
            Self::State => "state directory",
            Self::Data => "data directory",
        }
    }

    /// Returns the command line option that sets the directory with this role.
    const fn option(self) -> &'static str {
        match self {
            Self::State => "--state",
            Self::Data => "--data",
        }
    }

    fn error(self, path: &Path, cause: LockDirError) -> LockedDirError {
        LockedDirError { role: self, path: path.to_path_buf(), cause }
    }

    /// Returns the error for a path that is not a directory.
    pub(crate) fn not_a_directory(self, path: &Path) -> LockedDirError {
        self.error(path, LockDirError::NotADirectory)
    }

    /// Converts an I/O error on `path`.
    pub(crate) fn io(self, path: &Path, error: io::Error) -> LockedDirError {
        let cause = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                LockDirError::DiskFull(error)
            }
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                LockDirError::NotWritable(error)
            }
            io::ErrorKind::NotADirectory => LockDirError::NotADirectory,
            _ => LockDirError::Io(error),
        };
        self.error(path, cause)
    }

    /// Locks a directory for this process. Returns its canonical path, which stays valid for
    /// messages when the daemon changes its working directory, and the lock.
    pub(crate) fn take(self, path: &Path) -> Result<(PathBuf, DirLock), LockedDirError> {
        let path = fs::canonicalize(path).map_err(|error| self.io(path, error))?;
        if let Some(kind) = remote_kind(&path) {
            return Err(self.error(&path, LockDirError::Remote(kind)));
        }
        let owner = fs::metadata(&path).map_err(|error| self.io(&path, error))?.uid();
        if owner != 0 && owner != own_uid() {
            return Err(self.error(&path, LockDirError::Foreign(owner)));
        }
        let lock = self.lock(&path)?;
        Ok((path, DirLock(lock)))
    }

    /// Locks the directory, or returns the process that has locked it.
    fn lock(self, dir: &Path) -> Result<File, LockedDirError> {
        let path = dir.join("lock");
        let at = |error| self.io(&path, error);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        options.custom_flags(libc::O_NOFOLLOW);
        let mut lock = options.open(&path).map_err(at)?;
        let mut tries = 0;
        loop {
            match lock.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if tries < TAKE_TRIES => thread::sleep(TAKE_PAUSE),
                Err(TryLockError::WouldBlock) => {
                    let mut pid = String::new();
                    let _ = lock.read_to_string(&mut pid);
                    return Err(self.error(dir, LockDirError::InUse(pid.trim().parse().ok())));
                }
                Err(TryLockError::Error(error)) => return Err(at(error)),
            }
            tries += 1;
        }
        let pid = format!("{}\n", process::id());
        // The lock on the directory works without the process id in the file, so a full disk is no
        // error here.
        let named =
            lock.write_all_at(pid.as_bytes(), 0).and_then(|()| lock.set_len(pid.len() as u64));
        if let Err(error) = named {
            warn!("can't write our process id into {} ({error})", path.display());
        }
        Ok(lock)
    }
}

impl fmt::Display for LockedDirError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, option, path) = (self.role.what(), self.role.option(), self.path.display());
        match &self.cause {
            LockDirError::NotADirectory => {
                write!(f, "the {what} {path} is not a directory; name another with {option} DIR")
            }
            LockDirError::NotWritable(error) => write!(
                f,
                "can't write {path} ({}); mend its permissions, or name another {what} with \
                 {option} DIR",
                said(error)
            ),
            LockDirError::DiskFull(error) => write!(
                f,
                "no room to write {path} ({}); make room, or name another {what} with {option} DIR",
                said(error)
            ),
            LockDirError::InUse(pid) => {
                write!(f, "the {what} {path} is in use by ")?;
                match pid {
                    Some(pid) => write!(f, "process {pid}")?,
                    None => write!(f, "another process")?,
                }
                write!(f, "; stop that one, or name another with {option} DIR")
            }
            LockDirError::Foreign(uid) => write!(
                f,
                "the {what} {path} belongs to user {uid}, who could change what is read from it; \
                 change its owner, or name another with {option} DIR"
            ),
            LockDirError::Remote(kind) => write!(
                f,
                "the {what} {path} is on {kind}, which can lose what was written; name one on a \
                 local disk with {option} DIR"
            ),
            LockDirError::Io(error) => write!(
                f,
                "can't use {path} ({}); mend it, or name another {what} with {option} DIR",
                said(error)
            ),
        }
    }
}

impl error::Error for LockedDirError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match &self.cause {
            LockDirError::NotWritable(error)
            | LockDirError::DiskFull(error)
            | LockDirError::Io(error) => Some(error),
            LockDirError::NotADirectory
            | LockDirError::InUse(_)
            | LockDirError::Foreign(_)
            | LockDirError::Remote(_) => None,
        }
    }
}

/// File systems on which synced, renamed or locked files of one machine need not be so on another,
/// by their magic number in statfs(2).
#[cfg(target_os = "linux")]
const REMOTE: [(i64, &str); 9] = [
    (0x6969, "NFS"),
    (0x517b, "SMB"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB"),
    (0x0102_1997, "9P"),
    (0x00c3_6400, "Ceph"),
    (0x5346_414f, "AFS"),
    (0x7375_7245, "Coda"),
    (0x0bd0_0bd0, "Lustre"),
];

/// Network file systems, by their name in statfs(2).
#[cfg(not(target_os = "linux"))]
const REMOTE: [(&str, &str); 5] =
    [("nfs", "NFS"), ("smbfs", "SMB"), ("afpfs", "AFP"), ("webdav", "WebDAV"), ("cifs", "CIFS")];

/// Returns the name of the network file system that `path` is on, if it is on one.
#[allow(unsafe_code)]
fn remote_kind(path: &Path) -> Option<&'static str> {
    let path = std::ffi::CString::new(path.as_os_str().as_bytes()).ok()?;
    // SAFETY: all zeros is a valid statfs: it holds numbers and text only.
    let mut about: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: `path` ends with a zero byte, and `about` is a valid statfs to write to.
    let result = unsafe { libc::statfs(path.as_ptr(), &raw mut about) };
    let found = kind_of(&about);
    let known = REMOTE.iter().find(|(kind, _)| result == 0 && *kind == found);
    known.map(|(_, name)| *name)
}

#[cfg(target_os = "linux")]
fn kind_of(about: &libc::statfs) -> i64 {
    // The integer type of `f_type` differs between C libraries, but every magic number fits into 32
    // bits.
    i64::from(about.f_type as u32)
}

#[cfg(not(target_os = "linux"))]
fn kind_of(about: &libc::statfs) -> String {
    let text = about.f_fstypename.iter().map(|byte| *byte as u8).take_while(|byte| *byte != 0);
    String::from_utf8_lossy(&text.collect::<Vec<u8>>()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_of_the_lock_file_in_a_forked_process_keeps_nobody_out() {
        let dir = testing::Scratch::new();
        let (_, lock) = Role::State.take(dir.path()).expect("nobody else uses it");
        let _copy = lock.0.try_clone().expect("a descriptor");
        drop(lock);
        Role::State.take(dir.path()).expect("its user has ended");
    }
}
