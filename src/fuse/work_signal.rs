//! Wakes one thread when there is work: many wake-ups before it looks count as one.

use parking_lot::{Condvar, Mutex};

/// The signal on which the thread sleeps.
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
    /// There is work. Never blocks for long: it may be called by any thread.
    pub(crate) fn ring(&self) {
        let before = std::mem::replace(&mut self.state.lock().is_due, true);
        if !before {
            self.rung.notify_one();
        }
    }

    /// The thread has nothing to do any more.
    pub(crate) fn stop(&self) {
        self.state.lock().is_over = true;
        self.rung.notify_one();
    }

    /// Sleeps until there is work; false when there will be none.
    pub(crate) fn wait(&self) -> bool {
        let mut state = self.state.lock();
        self.rung.wait_while(&mut state, |state| !state.is_due && !state.is_over);
        state.is_due = false;
        !state.is_over
    }
}
