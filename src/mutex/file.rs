//! The file of a lock: open it, lock it by flock(2), and wait for a change of it by poll(2).

use super::place::Mode;
use crate::time::{Time, boot_now};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, PipeReader};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

/// How long to wait for a lock.
#[derive(Debug, Clone, Copy)]
pub(super) enum Wait {
    /// Not at all.
    No,
    /// Until then.
    Until(Time),
    /// In line, until it is there.
    Ever,
}

/// Takes the lock; `None` when it was not to be had in time. Calls `waiting` before it waits.
pub(super) fn take(
    path: &Path,
    mode: Mode,
    wait: Wait,
    waiting: impl FnOnce(),
) -> io::Result<Option<File>> {
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
    let file = file.map_err(|error| cant("can't be opened", path, &error))?;
    if try_lock(path, &file, mode)? {
        return Ok(Some(file));
    }
    if matches!(wait, Wait::No) {
        return Ok(None);
    }
    waiting();
    let Wait::Until(deadline) = wait else { return lock(path, file, mode).map(Some) };
    loop {
        let left = deadline.since(boot_now()).as_duration();
        if left.is_zero() {
            return Ok(None);
        }
        await_change(&file, None, Some(left))?;
        // Read before trying: what changes behind this is told anew.
        see(&file)?;
        if try_lock(path, &file, mode)? {
            return Ok(Some(file));
        }
    }
}

fn try_lock(path: &Path, file: &File, mode: Mode) -> io::Result<bool> {
    loop {
        let tried = match mode {
            Mode::Exclusive => file.try_lock(),
            Mode::Shared => file.try_lock_shared(),
        };
        match tried {
            Ok(()) => return Ok(true),
            Err(TryLockError::WouldBlock) => return Ok(false),
            Err(TryLockError::Error(error)) if error.kind() == ErrorKind::Interrupted => {}
            Err(TryLockError::Error(error)) => return Err(cant("can't be locked", path, &error)),
        }
    }
}

/// Waits in line. A signal whose handler returns does not end the wait.
fn lock(path: &Path, file: File, mode: Mode) -> io::Result<File> {
    loop {
        let locked = match mode {
            Mode::Exclusive => file.lock(),
            Mode::Shared => file.lock_shared(),
        };
        match locked {
            Ok(()) => return Ok(file),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(cant("can't be locked", path, &error)),
        }
    }
}

/// What has changed up to here has been seen.
pub(super) fn see(file: &File) -> io::Result<()> {
    file.read_at(&mut [0], 0).map(|_| ())
}

/// Waits until the lock has changed, `stop` was closed at its other end, or the time is over.
#[allow(unsafe_code)]
pub(super) fn await_change(
    file: &File,
    stop: Option<&PipeReader>,
    patience: Option<Duration>,
) -> io::Result<()> {
    // Rounded up, or the last millisecond would be waited for without sleeping.
    let millis = patience.map_or(-1, |patience| {
        let millis = patience.as_nanos().div_ceil(1_000_000);
        libc::c_int::try_from(millis).unwrap_or(libc::c_int::MAX)
    });
    let mut files = [
        libc::pollfd { fd: file.as_raw_fd(), events: libc::POLLPRI, revents: 0 },
        libc::pollfd { fd: stop.map_or(-1, AsRawFd::as_raw_fd), events: 0, revents: 0 },
    ];
    // SAFETY: two valid pollfds that live until the call returns; poll ignores a negative fd.
    let found = unsafe { libc::poll(files.as_mut_ptr(), 2, millis) };
    match io::Error::last_os_error() {
        error if found < 0 && error.kind() != ErrorKind::Interrupted => Err(error),
        _ => Ok(()),
    }
}

/// Whether the other end of `stop` was closed.
#[allow(unsafe_code)]
pub(super) fn is_stopped(stop: &PipeReader) -> bool {
    let mut end = libc::pollfd { fd: stop.as_raw_fd(), events: 0, revents: 0 };
    // SAFETY: one valid pollfd that lives until the call returns.
    let found = unsafe { libc::poll(&raw mut end, 1, 0) };
    found > 0
}

fn cant(what: &str, path: &Path, error: &io::Error) -> io::Error {
    let path = path.display();
    let next = match error.kind() {
        ErrorKind::NotFound => "; of a name with parts the first must be held, as a directory",
        _ => "; see .latchfs/why in the mount",
    };
    io::Error::new(error.kind(), format!("the lock {path} {what}: {error}{next}"))
}
