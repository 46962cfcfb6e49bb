//! The daemon of a busy mount that was unmounted. It serves the programs that have files open there
//! until they close them, and keeps its state directory meanwhile. The next mount with that
//! directory ends it and takes over.

use super::daemon_process::DaemonProcess;
use super::mount_client::{ControlFile, LockClient as _};
use crate::fuse::kernel::mountinfo::{self, Life, MountPoint};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::Read as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

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
            let about = ControlFile::of(mount.dir.clone()).about();
            about.map_or(true, |about| about["pid"].as_i64() == Some(pid.into()))
        }
    }
}
