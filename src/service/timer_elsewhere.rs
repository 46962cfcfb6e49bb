//! The alarm where the kernel has no timers to read from: a condition variable, whose sleep may
//! stand still while the machine sleeps. So it looks at the boot clock once a second.

use crate::time::{Span, Time, boot_now};
use parking_lot::{Condvar, Mutex};
use std::io;

/// So late it may ring after the machine has slept.
const LOOK_EVERY: Span = Span::from_secs(1);

/// The alarm. Anybody may set it; one thread waits for it.
pub(crate) struct Alarm {
    state: Mutex<AlarmState>,
    changed: Condvar,
}

struct AlarmState {
    /// When it will ring.
    set_for: Time,
    /// It has been rung at, and waited for, up to here.
    rings_at: Time,
    stopped: bool,
}

impl Alarm {
    #[allow(clippy::unnecessary_wraps)] // with timers of the kernel it can fail
    pub(crate) fn new() -> io::Result<Self> {
        let state = AlarmState { set_for: Time::NEVER, rings_at: Time::NEVER, stopped: false };
        Ok(Self { state: Mutex::new(state), changed: Condvar::new() })
    }

    /// Rings at `at` on the boot clock, unless it rings earlier anyway. To be called under the
    /// lock that guards what the deadline is for, so that settings come in order.
    pub(crate) fn set(&self, at: Time) {
        let mut state = self.state.lock();
        if at < state.set_for {
            (state.set_for, state.rings_at) = (at, at);
            self.changed.notify_all();
        }
    }

    /// Waits until it rings; false when it never will again.
    pub(crate) fn wait(&self) -> bool {
        let mut state = self.state.lock();
        loop {
            let left = state.rings_at.since(boot_now());
            if state.stopped || left == Span::ZERO {
                state.rings_at = Time::NEVER;
                return !state.stopped;
            }
            self.changed.wait_for(&mut state, left.min(LOOK_EVERY).as_duration());
        }
    }

    /// It has rung: what is set next counts, however late. Under the same lock as [`Self::set`].
    pub(crate) fn clear(&self) {
        self.state.lock().set_for = Time::NEVER;
    }

    /// Wakes the waiting thread for the last time.
    pub(crate) fn stop(&self) {
        self.state.lock().stopped = true;
        self.changed.notify_all();
    }
}

#[cfg(test)]
#[path = "timer_test.rs"]
#[allow(clippy::duplicate_mod)] // it holds for either kind
mod tests;
