//! An alarm on the boot clock, on which one thread sleeps until the next deadline.
//!
//! A condition variable would sleep on the monotonic clock, which stands still while a laptop
//! sleeps; a `timerfd` on the boot clock fires as soon as the machine is awake again.

use crate::time::Time;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// An alarm on the boot clock. Any thread may set it; one thread waits for it.
pub(crate) struct Alarm {
    fd: OwnedFd,
    /// When the alarm fires, in nanoseconds of the boot clock; `u64::MAX` if it is not set.
    set_for: AtomicU64,
    stopped: AtomicBool,
}

impl Alarm {
    pub(crate) fn new() -> io::Result<Self> {
        let fd = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC)?;
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
    pub(crate) fn wait(&self) -> bool {
        while rustix::io::read(&self.fd, &mut [0; 8]).is_err() {
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

    fn ring_at(&self, nanos: u64) {
        let (zero, at) = (Timespec::default(), Duration::from_nanos(nanos));
        let it_value = Timespec::try_from(at).unwrap_or(zero);
        let once = Itimerspec { it_interval: zero, it_value };
        let set = timerfd_settime(&self.fd, TimerfdTimerFlags::ABSTIME, &once);
        assert!(set.is_ok(), "a timer of our own takes any valid time");
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
