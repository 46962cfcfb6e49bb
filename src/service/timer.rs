//! An alarm on the boot clock: one thread sleeps until the next deadline, and only then wakes.
//!
//! A condition variable would sleep on the monotonic clock, which stands still while a laptop
//! sleeps; a `timerfd` on the boot clock rings as soon as the machine is awake again.

use crate::time::Time;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The alarm. Anybody may set it; one thread waits for it.
pub(crate) struct Alarm {
    fd: OwnedFd,
    /// When it will ring, in nanoseconds of the boot clock; `u64::MAX` when it will not.
    set_for: AtomicU64,
    stopped: AtomicBool,
}

impl Alarm {
    #[allow(unsafe_code)]
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: takes no pointers; the result is checked before it becomes an owner.
        let fd = unsafe { libc::timerfd_create(libc::CLOCK_BOOTTIME, libc::TFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `fd` was just opened and belongs to nobody else.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { fd, set_for: AtomicU64::new(u64::MAX), stopped: AtomicBool::new(false) })
    }

    /// Rings at `at` on the boot clock, unless it rings earlier anyway. To be called under the
    /// lock that guards what the deadline is for, so that settings come in order.
    pub(crate) fn set(&self, at: Time) {
        // 0 would switch the timer off; everything that is due is due by the first nanosecond.
        let at = at.as_nanos().max(1);
        if at < self.set_for.load(Ordering::Relaxed) {
            self.set_for.store(at, Ordering::Relaxed);
            self.ring_at(at);
        }
    }

    /// Waits until it rings; false when it never will again.
    #[allow(unsafe_code)]
    pub(crate) fn wait(&self) -> bool {
        let mut rings = 0_u64;
        // SAFETY: reads 8 bytes into a u64 of this frame.
        while unsafe { libc::read(self.fd.as_raw_fd(), (&raw mut rings).cast(), 8) } < 0 {
            // Only a signal can have ended the read of a valid, blocking timer.
        }
        !self.stopped.load(Ordering::Acquire)
    }

    /// It has rung: what is set next counts, however late. Under the same lock as [`Self::set`].
    pub(crate) fn clear(&self) {
        self.set_for.store(u64::MAX, Ordering::Relaxed);
    }

    /// Wakes the waiting thread for the last time.
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
        // SAFETY: `spec` lives through the call, and no old value is asked for.
        let result =
            unsafe { libc::timerfd_settime(fd, absolute, &raw const spec, std::ptr::null_mut()) };
        assert_eq!(result, 0, "a timer of our own takes any valid time");
    }
}

impl AsRawFd for Alarm {
    /// For whoever waits for other things as well.
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

#[cfg(test)]
#[path = "timer_test.rs"]
#[allow(clippy::duplicate_mod)] // it holds for either kind
mod tests;
