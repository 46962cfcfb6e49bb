//! An alarm on the boot clock, on which one thread sleeps until the next deadline.
//!
//! A condition variable would sleep on the monotonic clock, which stands still while a laptop
//! sleeps; a `timerfd` on the boot clock fires as soon as the machine is awake again.

use crate::time::Time;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// An alarm on the boot clock. Any thread may set it; one thread waits for it.
pub(crate) struct Alarm {
    fd: OwnedFd,
    /// When the alarm fires, in nanoseconds of the boot clock; `u64::MAX` if it is not set.
    set_for: AtomicU64,
    stopped: AtomicBool,
}

impl Alarm {
    #[allow(unsafe_code)]
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: takes no pointers; the result is checked before it becomes an `OwnedFd`.
        let fd = unsafe { libc::timerfd_create(libc::CLOCK_BOOTTIME, libc::TFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `fd` was just opened, and nothing else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { fd, set_for: AtomicU64::new(u64::MAX), stopped: AtomicBool::new(false) })
    }

    /// Sets the alarm to `at` on the boot clock, unless it is set to an earlier time. Call it under
    /// the mutex that guards the deadlines, so that calls are ordered.
    pub(crate) fn set(&self, at: Time) {
        // 0 would disarm the timer. The first nanosecond is early enough for any deadline.
        let at = at.as_nanos().max(1);
        if at < self.set_for.load(Ordering::Relaxed) {
            self.set_for.store(at, Ordering::Relaxed);
            self.ring_at(at);
        }
    }

    /// Waits until the alarm fires. Returns false once it is stopped.
    #[allow(unsafe_code)]
    pub(crate) fn wait(&self) -> bool {
        let mut rings = 0_u64;
        // SAFETY: reads 8 bytes into a u64 of this frame.
        while unsafe { libc::read(self.fd.as_raw_fd(), (&raw mut rings).cast(), 8) } < 0 {
            // Only a signal interrupts the read of a valid, blocking timer.
        }
        !self.stopped.load(Ordering::Acquire)
    }

    /// Resets the alarm after it fired, so that the next [`Self::set`] counts, however late its
    /// time. Call it under the mutex that guards the deadlines.
    pub(crate) fn clear(&self) {
        self.set_for.store(u64::MAX, Ordering::Relaxed);
    }

    /// Stops the alarm and wakes the waiting thread.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.ring_at(1);
    }

    #[allow(unsafe_code)]
    fn ring_at(&self, nanos: u64) {
        let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let per_sec = 1_000_000_000;
        let value = libc::timespec {
            tv_sec: (nanos / per_sec) as libc::time_t,
            tv_nsec: (nanos % per_sec) as libc::c_long,
        };
        let spec = libc::itimerspec { it_interval: zero, it_value: value };
        let (fd, absolute) = (self.fd.as_raw_fd(), libc::TFD_TIMER_ABSTIME);
        // SAFETY: `spec` lives through the call, and the pointer for the old value may be null.
        let result =
            unsafe { libc::timerfd_settime(fd, absolute, &raw const spec, std::ptr::null_mut()) };
        assert_eq!(result, 0, "a timer of our own takes any valid time");
    }
}

impl AsRawFd for Alarm {
    /// Returns the timerfd, so that a thread which also waits for other descriptors can poll the
    /// alarm.
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

#[cfg(test)]
#[path = "timer_test.rs"]
#[allow(clippy::duplicate_mod)] // The tests apply to either implementation.
mod tests;
