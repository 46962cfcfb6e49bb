//! The gate: every change of the folder passes it, and it lets a change pass only during a ready
//! tenure, for programs of the tenure's owner, and before the tenure's local deadline.

use crate::guard::tenure::{Owner, TenureClock};
use crate::time::{Span, Time};
use barrier::tenure_id::TenureId;
use parking_lot::{RwLock, RwLockReadGuard};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// How long before its deadline a tenure lets no change begin any more: time for the system call
/// that makes the change.
pub(crate) const RESERVE: Span = Span::from_millis(200);

/// How long the kernel may cache names and attributes while the gate is open. Files of the folder
/// change past the view, for example by a sync tool, so a longer time would show old versions.
pub(crate) const CACHED_FOR: Span = Span::from_secs(1);
/// How long an answer from before the gate closed may be on its way to the kernel, which counts the
/// time in ticks of its own.
const ANSWERED_IN: Span = Span::from_millis(250);

/// Why a change must not be made now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Closed {
    /// This guard does not hold the lock of the folder.
    NotHeld,
    /// The lock is held for other programs of this machine.
    OtherOwner(Owner),
    /// The tenure in which the file was opened is over.
    TenureOver,
    /// The lock service has not confirmed the lock for so long that it may be lost.
    Deadline,
}

/// The tenure for which the gate is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OpenTenure {
    /// The number of the tenure.
    pub(crate) id: TenureId,
    /// The programs that may change the folder.
    pub(crate) owner: Owner,
}

/// The gate of one folder.
pub(crate) struct Gate {
    open: RwLock<Option<OpenTenure>>,
    clock: Arc<dyn TenureClock>,
    /// The boot time at which the last change passed or the gate was opened, in nanoseconds.
    last_change: AtomicU64,
    /// Whether a change must wait until the lock service has a handover that announces it.
    must_announce: AtomicBool,
    /// The boot time in nanoseconds until which the kernel may cache answers from the time before
    /// the gate last closed.
    cached_until: AtomicU64,
    /// How long the machine had slept when the lock service last said that the lock is held, in
    /// nanoseconds.
    slept: AtomicU64,
}

/// How much longer the machine must have slept, since the lock service last said that the lock is
/// held, to count as a jump of the clock.
const JUMP: Span = Span::from_secs(1);

/// The permission for one change. While it lives the tenure can't be given up.
#[must_use]
pub(crate) struct Pass<'a> {
    tenure: OpenTenure,
    _shared: RwLockReadGuard<'a, Option<OpenTenure>>,
}

impl Pass<'_> {
    /// Returns the owner of the tenure.
    pub(crate) const fn owner(&self) -> Owner {
        self.tenure.owner
    }

    /// Returns the tenure in which the change is made.
    pub(crate) const fn tenure(&self) -> TenureId {
        self.tenure.id
    }
}

impl Gate {
    /// Returns a closed gate.
    pub(crate) fn new(clock: Arc<dyn TenureClock>) -> Self {
        Self {
            open: RwLock::new(None),
            clock,
            last_change: AtomicU64::new(0),
            must_announce: AtomicBool::new(false),
            cached_until: AtomicU64::new(0),
            slept: AtomicU64::new(0),
        }
    }

    /// Lets a change pass. `tenure` is the tenure in which the program opened the file that it
    /// changes, `None` for a change by path. `is_of` says whether the program belongs to an owner.
    pub(crate) fn enter(
        &self,
        tenure: Option<TenureId>,
        is_of: impl FnOnce(Owner) -> bool,
    ) -> Result<Pass<'_>, Closed> {
        // An operation that holds a pass may enter once more, while another thread waits to close
        // the gate.
        let shared = self.open.read_recursive();
        let Some(open) = *shared else {
            return Err(if tenure.is_some() { Closed::TenureOver } else { Closed::NotHeld });
        };
        if tenure.is_some_and(|tenure| tenure != open.id) {
            return Err(Closed::TenureOver);
        }
        if !is_of(open.owner) {
            return Err(Closed::OtherOwner(open.owner));
        }
        let now = self.clock.now();
        // A program that is refused was at work as well.
        self.last_change.store(now.as_nanos(), Ordering::Relaxed);
        if now + RESERVE >= self.clock.surely_until() {
            return Err(Closed::Deadline);
        }
        Ok(Pass { tenure: open, _shared: shared })
    }

    /// Whether a change must wait until the lock service has a handover that announces it. The
    /// answer stays the same for as long as the caller has a pass, unless it becomes false.
    pub(crate) fn must_announce(&self) -> bool {
        self.must_announce.load(Ordering::Acquire)
    }

    /// Says whether a change must be announced first. Where that becomes true, the gate is closed
    /// meanwhile by [`Gate::exclusively`].
    pub(crate) fn set_must_announce(&self, must: bool) {
        self.must_announce.store(must, Ordering::Release);
    }

    /// Makes a call while no change is under way.
    pub(crate) fn exclusively<T>(&self, call: impl FnOnce() -> T) -> T {
        let _open = self.open.write();
        call()
    }

    /// Returns the tenure for which the gate is open.
    pub(crate) fn tenure(&self) -> Option<OpenTenure> {
        *self.open.read_recursive()
    }

    /// Returns when the last change passed, or the gate was opened, on the boot clock.
    pub(crate) fn last_change(&self) -> Time {
        Time::from_nanos(self.last_change.load(Ordering::Relaxed))
    }

    /// Whether the deadline of the current tenure has passed.
    pub(crate) fn is_past_deadline(&self) -> bool {
        self.clock.now() >= self.clock.surely_until()
    }

    /// Opens the gate for a tenure.
    pub(crate) fn open(&self, tenure: OpenTenure) {
        let mut open = self.open.write();
        self.last_change.store(self.clock.now().as_nanos(), Ordering::Relaxed);
        self.set_slept(self.slept());
        *open = Some(tenure);
    }

    /// Whether the machine has slept since the lock service last said that the lock is held.
    /// Changes then wait until it says so again.
    pub(crate) fn has_jumped(&self) -> bool {
        self.slept() > Span::from_nanos(self.slept.load(Ordering::Relaxed)) + JUMP
    }

    /// Returns how long the machine has slept since it was booted.
    pub(crate) fn slept(&self) -> Span {
        self.clock.slept()
    }

    /// Takes note that the lock was held after the machine had slept for so long.
    pub(crate) fn set_slept(&self, slept: Span) {
        self.slept.store(slept.as_nanos(), Ordering::Relaxed);
    }

    /// Closes the gate, after the changes that have passed it are made. Returns the tenure for
    /// which it was open.
    pub(crate) fn close(&self) -> Option<OpenTenure> {
        let closed = self.open.write().take();
        if closed.is_some() {
            let until = self.clock.now() + CACHED_FOR + ANSWERED_IN;
            self.cached_until.store(until.as_nanos(), Ordering::Release);
        }
        closed
    }

    /// Returns until when the kernel may cache names and attributes from the time before the gate
    /// last closed, on the boot clock.
    pub(crate) fn cached_until(&self) -> Time {
        Time::from_nanos(self.cached_until.load(Ordering::Acquire))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Token;
    use parking_lot::Mutex;

    struct Clocks(Mutex<(Time, Time)>);

    impl TenureClock for Clocks {
        fn now(&self) -> Time {
            self.0.lock().0
        }
        fn surely_until(&self) -> Time {
            self.0.lock().1
        }
    }

    fn refusal(entered: Result<Pass<'_>, Closed>) -> Option<Closed> {
        entered.err()
    }

    #[test]
    fn a_change_passes_only_in_its_tenure_for_its_owner_before_the_deadline() {
        let clocks = Arc::new(Clocks(Mutex::new((Time::from_secs(10), Time::from_secs(40)))));
        let gate = Gate::new(Arc::clone(&clocks) as _);
        let id = |token| TenureId { engine: 1, token: Token::named(token) };
        assert_eq!(refusal(gate.enter(None, |_| true)), Some(Closed::NotHeld));
        assert_eq!(refusal(gate.enter(Some(id(1)), |_| true)), Some(Closed::TenureOver));
        let owner = Owner::User(5);
        gate.open(OpenTenure { id: id(2), owner });
        assert!(gate.enter(None, |owner| owner == Owner::User(5)).is_ok());
        assert!(gate.enter(Some(id(2)), |_| true).is_ok());
        assert_eq!(refusal(gate.enter(Some(id(1)), |_| true)), Some(Closed::TenureOver));
        assert_eq!(refusal(gate.enter(None, |_| false)), Some(Closed::OtherOwner(owner)));
        clocks.0.lock().0 = Time::from_secs(40) - RESERVE;
        assert_eq!(refusal(gate.enter(None, |_| true)), Some(Closed::Deadline));
        assert!(!gate.is_past_deadline());
        clocks.0.lock().0 = Time::from_secs(40);
        assert!(gate.is_past_deadline());
        assert_eq!(gate.cached_until(), Time::ZERO);
        assert_eq!(gate.close().map(|open| open.id), Some(id(2)));
        assert_eq!(refusal(gate.enter(Some(id(2)), |_| true)), Some(Closed::TenureOver));
        assert_eq!(gate.cached_until(), Time::from_secs(40) + CACHED_FOR + ANSWERED_IN);
        clocks.0.lock().0 = Time::from_secs(50);
        assert_eq!(gate.close(), None);
        assert_eq!(gate.cached_until(), Time::from_secs(40) + CACHED_FOR + ANSWERED_IN);
    }
}
