//! The alarm on systems without timerfd. It waits on a condition variable, whose timeout may not
//! advance while the machine sleeps, and therefore checks the boot clock once a second.

use crate::time::{Span, Time, boot_now};
use parking_lot::{Condvar, Mutex};
use std::io;

/// The interval at which the boot clock is checked: how late the alarm may fire after the machine
/// has slept.
const POLL_EVERY: Span = Span::from_secs(1);

/// An alarm on the boot clock. Any thread may set it; one thread waits for it.
pub(crate) struct Alarm {
    state: Mutex<AlarmState>,
    changed: Condvar,
}

struct AlarmState {
    /// When the alarm fires.
    set_for: Time,
    /// When [`Alarm::wait`] returns next; [`Time::NEVER`] once it has returned for the time set.
    rings_at: Time,
    stopped: bool,
}

impl Alarm {
    #[allow(clippy::unnecessary_wraps)] // kernel timers can fail
    pub(crate) fn new() -> io::Result<Self> {
        let state = AlarmState { set_for: Time::NEVER, rings_at: Time::NEVER, stopped: false };
        Ok(Self { state: Mutex::new(state), changed: Condvar::new() })
    }

    /// Sets the alarm to `at` on the boot clock, unless it is set to an earlier time. Call it under
    /// the mutex that guards the deadlines, so that calls are ordered.
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

#[cfg(test)]
#[path = "timer_test.rs"]
#[allow(clippy::duplicate_mod)] // The tests apply to either implementation.
mod tests;
