//! An alarm on the boot clock, on which one thread sleeps until the next deadline.

#[cfg(not(target_os = "linux"))]
pub(crate) use by_condition::Alarm;
#[cfg(target_os = "linux")]
pub(crate) use by_timerfd::Alarm;

/// A condition variable would sleep on the monotonic clock, which stands still while a laptop
/// sleeps; a `timerfd` on the boot clock fires as soon as the machine is awake again.
#[cfg(target_os = "linux")]
mod by_timerfd {
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

        /// Sets the alarm to `at` on the boot clock, unless it is set to an earlier time. Call it
        /// under the mutex that guards the deadlines, so that calls are ordered.
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
        /// Returns the timerfd, so that a thread which also waits for other descriptors can poll
        /// the alarm.
        fn as_raw_fd(&self) -> RawFd {
            self.fd.as_raw_fd()
        }
    }
}

/// The alarm on systems without timerfd. It waits on a condition variable, whose timeout may not
/// advance while the machine sleeps, and therefore checks the boot clock once a second.
#[cfg(any(test, not(target_os = "linux")))]
mod by_condition {
    use crate::time::{Span, Time, boot_now};
    use parking_lot::{Condvar, Mutex};
    use std::io;

    /// The interval at which the boot clock is checked: how late the alarm may fire after the
    /// machine has slept.
    const POLL_EVERY: Span = Span::from_secs(1);

    /// An alarm on the boot clock. Any thread may set it; one thread waits for it.
    pub(crate) struct Alarm {
        state: Mutex<AlarmState>,
        changed: Condvar,
    }

    struct AlarmState {
        /// When the alarm fires.
        set_for: Time,
        /// When [`Alarm::wait`] returns next; [`Time::NEVER`] once it has returned for the time
        /// set.
        rings_at: Time,
        stopped: bool,
    }

    impl Alarm {
        #[allow(clippy::unnecessary_wraps)] // kernel timers can fail
        pub(crate) fn new() -> io::Result<Self> {
            let state = AlarmState { set_for: Time::NEVER, rings_at: Time::NEVER, stopped: false };
            Ok(Self { state: Mutex::new(state), changed: Condvar::new() })
        }

        /// Sets the alarm to `at` on the boot clock, unless it is set to an earlier time. Call it
        /// under the mutex that guards the deadlines, so that calls are ordered.
        pub(crate) fn set(&self, at: Time) {
            let mut state = self.state.lock();
            if at < state.set_for {
                (state.set_for, state.rings_at) = (at, at);
                self.changed.notify_all();
            }
        }

        /// Waits until the alarm fires. Returns false once it is stopped.
        pub(crate) fn wait(&self) -> bool {
            let mut state = self.state.lock();
            loop {
                let left = state.rings_at.since(boot_now());
                if state.stopped || left == Span::ZERO {
                    state.rings_at = Time::NEVER;
                    return !state.stopped;
                }
                self.changed.wait_for(&mut state, left.min(POLL_EVERY).as_duration());
            }
        }

        /// Resets the alarm after it fired, so that the next [`Self::set`] counts, however late its
        /// time. Call it under the mutex that guards the deadlines.
        pub(crate) fn clear(&self) {
            self.state.lock().set_for = Time::NEVER;
        }

        /// Stops the alarm and wakes the waiting thread.
        pub(crate) fn stop(&self) {
            self.state.lock().stopped = true;
            self.changed.notify_all();
        }
    }
}

/// Makes the tests that every implementation of the alarm must pass.
#[cfg(test)]
macro_rules! tests_of_alarm {
    ($implementation:ident) => {
        mod $implementation {
            use super::super::$implementation::Alarm;
            use crate::time::{Span, Time, boot_now};
            use std::sync::Arc;

            #[test]
            fn it_fires_at_the_earliest_time_set() {
                let alarm = Alarm::new().expect("a timer is to be had");
                let now = boot_now();
                alarm.set(now + Span::from_secs(3_600));
                alarm.set(now + Span::from_millis(5));
                alarm.set(now + Span::from_secs(60));
                assert!(alarm.wait());
                let waited = boot_now().since(now);
                assert!(waited >= Span::from_millis(5) && waited < Span::from_secs(60), "{waited}");
                alarm.clear();
                alarm.stop();
                assert!(!alarm.wait());
            }

            #[test]
            fn a_waiting_thread_notices_an_earlier_time() {
                let alarm = Arc::new(Alarm::new().expect("a timer is to be had"));
                alarm.set(boot_now() + Span::from_secs(3_600));
                let waiting = Arc::clone(&alarm);
                let rung = std::thread::spawn(move || waiting.wait());
                alarm.set(Time::ZERO);
                assert!(rung.join().expect("it waits"));
            }
        }
    };
}

#[cfg(test)]
mod tests {
    #[cfg(target_os = "linux")]
    tests_of_alarm!(by_timerfd);
    tests_of_alarm!(by_condition);
}
