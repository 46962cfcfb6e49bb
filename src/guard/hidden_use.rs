//! Uses of the folder that pass no gate: a program may have a file mapped, and change it at any
//! moment without a system call. A guard that is about to give the lock up looks for them.

use crate::time::{Span, Time};
use parking_lot::Mutex;
use std::sync::{Arc, OnceLock};

/// The delay before a guard that found such a use looks again.
pub(super) const LOOK_AGAIN: Span = Span::from_secs(1);

/// Tells whether programs use the folder in a way that passes no gate.
pub(crate) type IsUsed = Arc<dyn Fn() -> bool + Send + Sync>;

/// When the guard looks for such uses.
#[derive(Default)]
pub(crate) struct HiddenUse {
    pub(super) is_used: OnceLock<IsUsed>,
    /// When the guard looks next; `Time::NEVER` while it looks.
    pub(super) next: Mutex<Time>,
}

impl HiddenUse {
    /// Returns when the guard may look next.
    pub(super) fn next_look(&self) -> Time {
        *self.next.lock()
    }
}
