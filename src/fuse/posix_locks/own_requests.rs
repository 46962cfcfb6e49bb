//! Which events a thread causes itself, and need not tell the table.

use crate::engine::SessionId;
use std::cell::Cell;

thread_local! {
    /// The mount, by its session, for which this thread has just asked for what it will enter
    /// into an empty table itself: then no event can tell that table anything.
    static DEAF: Cell<Option<SessionId>> = const { Cell::new(None) };
}

/// Whether this thread need not tell the table of that session of events.
pub(crate) fn is_deaf(session: SessionId) -> bool {
    DEAF.get() == Some(session)
}

/// Does `work`, during which this thread tells no table of `session` of events.
pub(crate) fn deaf_to<T>(session: Option<SessionId>, work: impl FnOnce() -> T) -> T {
    DEAF.set(session);
    let done = work();
    DEAF.set(None);
    done
}
