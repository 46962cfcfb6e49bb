//! A wake-up signal for one thread: several signals before the thread wakes count as one.

use parking_lot::{Condvar, Mutex};

/// The signal that wakes one thread when there is work for it.
#[derive(Default)]
pub(crate) struct WorkSignal {
    state: Mutex<SignalState>,
    rung: Condvar,
}

#[derive(Default)]
struct SignalState {
    is_due: bool,
    is_over: bool,
}

impl WorkSignal {
    /// Signals that there is work. The call never blocks for long, so any thread may make it.
    pub(crate) fn ring(&self) {
        let before = std::mem::replace(&mut self.state.lock().is_due, true);
        if !before {
            self.rung.notify_one();
        }
    }

    /// Makes [`WorkSignal::wait`] return false, so that the thread ends.
    pub(crate) fn stop(&self) {
        self.state.lock().is_over = true;
        self.rung.notify_one();
    }

    /// Sleeps until there is work. Returns false after [`WorkSignal::stop`].
    pub(crate) fn wait(&self) -> bool {
        let mut state = self.state.lock();
        self.rung.wait_while(&mut state, |state| !state.is_due && !state.is_over);
        state.is_due = false;
        !state.is_over
    }
}
