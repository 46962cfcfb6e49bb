//! A daemon of mounts, as another process sees it: whether it serves mounts, and its end.

use crate::fuse::kernel::device_names::DEVICE;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// Timeout for the daemon to exit: it may write the state of a million locks, which takes a few
/// seconds.
const END_PATIENCE: Timespec = Timespec { tv_sec: 20, tv_nsec: 0 };

/// A process, by its id and a pidfd: a later process with the same id is another one.
pub(super) struct DaemonProcess {
    pub(super) pid: i32,
    pidfd: OwnedFd,
}

impl DaemonProcess {
    pub(super) fn open(pid: i32) -> Option<Self> {
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
    pub(super) fn open_files(&self) -> Vec<PathBuf> {
        let open = std::fs::read_dir(format!("/proc/{}/fd", self.pid));
        open.into_iter().flatten().flatten().map(|file| file.path()).collect()
    }

    /// Asks the process to end, which fails if it has ended.
    pub(super) fn terminate(&self) {
        let _ = pidfd_send_signal(&self.pidfd, Signal::TERM);
    }

    /// Waits for the end of the process, for at most [`END_PATIENCE`].
    pub(super) fn wait(&self) {
        let _ = poll(&mut [PollFd::new(&self.pidfd, PollFlags::IN)], Some(&END_PATIENCE));
    }
}
