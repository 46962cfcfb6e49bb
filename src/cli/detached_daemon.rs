//! The daemon of a busy mount that was unmounted. It serves the programs that have files open there
//! until they close them, and keeps its state directory meanwhile. The next mount with that
//! directory ends it and takes over.

use super::mount_client::{ControlFile, LockClient as _};
use super::output;
use crate::fuse::kernel::device_names::DEVICE;
use crate::fuse::kernel::mountinfo::{self, Life, MountPoint};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::Read as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// Ends the daemon that has locked the directory `dir`, if none of its mounts is left.
pub(super) fn end_detached_daemon(dir: &Path) {
    let Some((lock, pid)) = locked_by(dir) else { return };
    let Some(daemon) = Pid::from_raw(pid) else { return };
    if !serves_mounts(&lock, pid) || !has_only_detached_mounts(pid) {
        return;
    }
    output::say(&format!(
        "process {pid} still serves programs that have files open in a mount that was unmounted; \
         it ends now, they get errors, and this mount takes over its locks"
    ));
    // It may have ended by itself; if not, the directory stays locked, and the mount says so.
    let _ = kill_process(daemon, Signal::TERM);
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

/// Whether the process has the lock file open, and a FUSE device: so it is a daemon of mounts, and
/// the text in the lock file is no older one.
fn serves_mounts(lock: &File, pid: i32) -> bool {
    let Ok(lock) = lock.metadata() else { return false };
    let Ok(open) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    let paths: Vec<PathBuf> = open.flatten().map(|file| file.path()).collect();
    let is_lock = |path: &PathBuf| {
        path.metadata().is_ok_and(|file| (file.dev(), file.ino()) == (lock.dev(), lock.ino()))
    };
    let is_device = |path: &PathBuf| path.read_link().is_ok_and(|file| file == Path::new(DEVICE));
    paths.iter().any(is_lock) && paths.iter().any(is_device)
}

/// Whether the process is in this mount namespace, and no mount in it belongs to the process. A
/// mount that can't be asked for its process counts as its own.
fn has_only_detached_mounts(pid: i32) -> bool {
    let namespace = |of: &str| std::fs::read_link(format!("/proc/{of}/ns/mnt")).ok();
    let here = namespace("self");
    let Ok(process) = std::fs::metadata(format!("/proc/{pid}")) else { return false };
    if here.is_none() || here != namespace(&pid.to_string()) {
        return false;
    }
    let Ok(mounts) = mountinfo::read() else { return false };
    let own = |mount: &&MountPoint| mount.is_latchfs() && mount.mounter == process.uid();
    !mounts.iter().filter(own).any(|mount| may_be_of(mount, pid))
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
