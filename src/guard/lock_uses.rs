//! Programs that must end before the guard gives the lock up: `latchfs run --guard` says so for
//! each program that it starts. While there is one, the lock is not idle.

use crate::time::{Span, Time, boot_now};
use parking_lot::{Condvar, Mutex};
use std::sync::{Arc, OnceLock};

/// How long a guard that must give the lock up waits for the end of the programs.
pub(crate) const USE_END_PATIENCE: Span = Span::from_secs(5);

/// The uses of the lock of one folder.
#[derive(Default)]
pub(crate) struct LockUses {
    state: Mutex<UsesState>,
    ended: Condvar,
    /// Called after the end of a use.
    pub(super) on_end: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

#[derive(Default)]
struct UsesState {
    /// The processes that watch over the programs.
    pids: Vec<u32>,
    /// Until when the guard waits for their end, once it must give the lock up.
    ends_at: Option<Time>,
    /// Whether the lock is given up after the last use: a program took it for its use.
    gives: bool,
}

/// One use of the lock, which ends when this value is dropped.
pub(crate) struct LockUse {
    uses: Arc<LockUses>,
    pid: u32,
}

impl LockUses {
    /// Begins a use for a process.
    pub(super) fn begin(self: &Arc<Self>, pid: u32) -> LockUse {
        self.state.lock().pids.push(pid);
        LockUse { uses: Arc::clone(self), pid }
    }

    /// Returns the processes that use the lock.
    pub(crate) fn pids(&self) -> Vec<u32> {
        self.state.lock().pids.clone()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.state.lock().pids.is_empty()
    }

    /// Refuses to give the lock up while a program must end before.
    pub(crate) fn check_unused(&self) -> Result<(), String> {
        let pids = self.pids();
        let Some(pid) = pids.first() else { return Ok(()) };
        Err(format!(
            "a program that 'latchfs run --guard' has started uses the lock, and would have to \
             end; end it first (process {pid} watches over it)"
        ))
    }

    /// Whether the programs must end now.
    pub(crate) fn must_end(&self) -> bool {
        self.state.lock().ends_at.is_some()
    }

    /// Returns until when the guard waits for programs that must end; `Time::ZERO` if it waits for
    /// none.
    pub(super) fn ends_at(&self) -> Time {
        let state = self.state.lock();
        state.ends_at.filter(|_| !state.pids.is_empty()).unwrap_or(Time::ZERO)
    }

    /// Asks the programs to end. Returns whether the guard waits no longer: they have ended, or had
    /// time enough.
    pub(super) fn end(&self, now: Time) -> bool {
        let mut state = self.state.lock();
        let ends_at = *state.ends_at.get_or_insert(now + USE_END_PATIENCE);
        state.pids.is_empty() || ends_at <= now
    }

    /// Asks the programs to end, and waits for it.
    pub(super) fn end_and_wait(&self) {
        self.end(boot_now());
        let mut state = self.state.lock();
        let patience = USE_END_PATIENCE.as_duration();
        self.ended.wait_while_for(&mut state, |state| !state.pids.is_empty(), patience);
    }

    /// Takes note that a use has ended, and whether the program took the lock for it. Returns
    /// whether the lock is given up now.
    pub(super) fn gives_after_last(&self, gives: bool) -> bool {
        let mut state = self.state.lock();
        state.gives |= gives;
        state.gives && state.pids.is_empty()
    }

    /// Takes note that the tenure is over.
    pub(super) fn tenure_is_over(&self) {
        let mut state = self.state.lock();
        (state.ends_at, state.gives) = (None, false);
    }
}

impl Drop for LockUse {
    fn drop(&mut self) {
        let mut state = self.uses.state.lock();
        if let Some(at) = state.pids.iter().position(|pid| *pid == self.pid) {
            state.pids.swap_remove(at);
        }
        drop(state);
        self.uses.ended.notify_all();
        if let Some(on_end) = self.uses.on_end.get() {
            on_end();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guard_waits_for_programs_that_use_the_lock_but_not_for_ever() {
        let uses = Arc::new(LockUses::default());
        let now = boot_now();
        let (first, second) = (uses.begin(1), uses.begin(2));
        assert!(!uses.must_end() && uses.ends_at() == Time::ZERO);
        assert!(!uses.end(now));
        assert!(uses.must_end());
        assert_eq!(uses.ends_at(), now + USE_END_PATIENCE);
        drop(first);
        assert_eq!(uses.pids(), [2]);
        assert!(!uses.end(now + Span::from_secs(1)), "one is left");
        assert!(uses.end(now + USE_END_PATIENCE), "it had time enough");
        drop(second);
        assert!(uses.is_empty() && uses.end(now) && uses.ends_at() == Time::ZERO);
        uses.tenure_is_over();
        assert!(!uses.must_end());
    }

    #[test]
    fn the_last_use_gives_the_lock_up_that_one_of_them_took() {
        let uses = Arc::new(LockUses::default());
        let (first, second) = (uses.begin(1), uses.begin(2));
        drop(first);
        assert!(!uses.gives_after_last(true), "one is left");
        drop(second);
        assert!(uses.gives_after_last(false));
        uses.tenure_is_over();
        drop(uses.begin(3));
        assert!(!uses.gives_after_last(false), "a person took it");
    }
}
