//! A daemon of mounts, as another process sees it: whether it serves mounts, and its end.
//!
//! The daemon of a busy mount that was unmounted. It serves the programs that have files open there
//! until they close them, and keeps its state directory meanwhile. The next mount with that
//! directory ends it and takes over.

use crate::cli::connect::mount_client::{ControlFileClient, LockClient as _};
use kernel::machine_facts::DEVICE;
use kernel::mountinfo;
use kernel::mountinfo::{Life, MountPoint};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// Timeout for the daemon to exit: it may write the state of a million locks, which takes a few
/// seconds.
const END_PATIENCE: Timespec = Timespec { tv_sec: 20, tv_nsec: 0 };

/// A process, by its id and a pidfd: a later process with the same id is another one.
pub(in crate::cli) struct DaemonProcess {
    pub(in crate::cli) pid: i32,
    pidfd: OwnedFd,
}

impl DaemonProcess {
    pub(in crate::cli) fn open(pid: i32) -> Option<Self> {
        let pidfd = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
        Some(Self { pid, pidfd })
    }

    /// Returns the number of FUSE devices that the process has open: one per mount. The process of
    /// another pid namespace, which `/proc` does not show, has none.
    pub(super) fn fuse_devices(&self) -> usize {
        let is_device = |path: &PathBuf| path.read_link().is_ok_and(|it| it == Path::new(DEVICE));
        self.open_files().iter().filter(|path| is_device(path)).count()
    }

    /// Returns the links of `/proc` to the files that the process has open.
    pub(in crate::cli) fn open_files(&self) -> Vec<PathBuf> {
        let open = std::fs::read_dir(format!("/proc/{}/fd", self.pid));
        open.into_iter().flatten().flatten().map(|file| file.path()).collect()
    }

    /// Asks the process to end, which fails if it has ended.
    pub(super) fn terminate(&self) {
        let _ = pidfd_send_signal(&self.pidfd, Signal::TERM);
    }

    /// Waits for the end of the process, for at most [`END_PATIENCE`].
    pub(in crate::cli) fn wait(&self) {
        let _ = poll(&mut [PollFd::new(&self.pidfd, PollFlags::IN)], Some(&END_PATIENCE));
    }
}

/// Ends the daemon that has locked the directory `dir`, if none of its mounts is left. Returns a
/// sentence that says so.
pub(super) fn end_detached_daemon(dir: &Path) -> Option<String> {
    let (lock, pid) = locked_by(dir)?;
    let daemon = DaemonProcess::open(pid)?;
    if daemon.fuse_devices() == 0 || !has_open(&daemon, &lock) || !has_only_detached_mounts(pid) {
        return None;
    }
    daemon.terminate();
    daemon.wait();
    Some(format!(
        "ended process {pid}, which still served programs with open files in a mount that was \
         unmounted: they get errors now, and this mount takes over the locks"
    ))
}

/// Returns the lock file of `dir` and the process that its text names; `None` if nobody has locked
/// the directory.
fn locked_by(dir: &Path) -> Option<(File, i32)> {
    let mut options = OpenOptions::new();
    let mut lock = options.read(true).custom_flags(libc::O_NOFOLLOW).open(dir.join("lock")).ok()?;
    let Err(TryLockError::WouldBlock) = lock.try_lock_shared() else { return None };
    let mut text = String::new();
    (&mut lock).take(32).read_to_string(&mut text).ok()?;
    Some((lock, text.trim().parse().ok()?))
}

/// Whether the process has the lock file open: if not, the text in the file is that of an earlier
/// process, or of one in another pid namespace.
fn has_open(process: &DaemonProcess, lock: &File) -> bool {
    let Ok(lock) = lock.metadata() else { return false };
    let is_lock = |path: &PathBuf| {
        path.metadata().is_ok_and(|file| (file.dev(), file.ino()) == (lock.dev(), lock.ino()))
    };
    process.open_files().iter().any(is_lock)
}

/// Whether the process is in this mount namespace, and no mount in it belongs to the process. A
/// mount that is hidden by another one, or can't be asked for its process, counts as its own.
fn has_only_detached_mounts(pid: i32) -> bool {
    let namespace = |of: &str| std::fs::read_link(format!("/proc/{of}/ns/mnt")).ok();
    let here = namespace("self");
    let Ok(process) = std::fs::metadata(format!("/proc/{pid}")) else { return false };
    if here.is_none() || here != namespace(&pid.to_string()) {
        return false;
    }
    let (Ok(mounts), Ok(visible)) = (mountinfo::read(), mountinfo::ours_and_views()) else {
        return false;
    };
    let own = |mount: &&MountPoint| mount.is_ours() && mount.mounter == process.uid();
    let is_visible = |mount: &MountPoint| visible.contains(mount);
    !mounts.iter().filter(own).any(|mount| !is_visible(mount) || may_be_of(mount, pid))
}

fn may_be_of(mount: &MountPoint, pid: i32) -> bool {
    match mountinfo::probe(&mount.dir) {
        Life::Dead => false,
        Life::Silent => true,
        Life::Live => {
            let about = ControlFileClient::of(mount.dir.clone()).about();
            about.map_or(true, |about| about["pid"].as_i64() == Some(pid.into()))
        }
    }
}
