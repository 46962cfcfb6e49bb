//! Upper bound on the age of a stale read: how long ago the applied state of this node was known to
//! match the commit index of the leader.
//!
//! A leader sends its commit index with each heartbeat. When this node has applied the log up to
//! there, it knows all that was committed when the leader sent it.

use crate::time::{Span, Time};
use parking_lot::Mutex;

/// The commit indexes that a follower has heard from its leader, and how far it has applied them.
#[derive(Debug)]
pub(super) struct StalenessBound(Mutex<StalenessState>);

#[derive(Debug)]
struct StalenessState {
    /// When a leader was heard last, or this node led; else its start. On the boot clock.
    contact: Time,
    /// All that was decided by then is carried out here. On the boot clock.
    as_of: Option<Time>,
    /// When the leader sent a commit index that is not applied here yet, and that index.
    said: Option<(Time, u64)>,
}

impl StalenessState {
    fn settle(&mut self, applied: u64) {
        if let Some((at, decided)) = self.said
            && applied >= decided
        {
            (self.as_of, self.said) = (Some(at), None);
        }
    }
}

impl StalenessBound {
    /// Nothing is heard yet.
    pub(super) fn since(start: Time) -> Self {
        Self(Mutex::new(StalenessState { contact: start, as_of: None, said: None }))
    }

    /// This node has led until now.
    pub(super) fn led(&self, now: Time) {
        self.0.lock().contact = now;
    }

    /// For how long nobody has led, as far as this node knows, which does not.
    pub(super) fn quiet(&self, now: Time) -> Span {
        now.since(self.0.lock().contact)
    }

    /// The leader has said `at` that it has decided up to this entry; up to `applied` is carried
    /// out here.
    pub(super) fn hear(&self, at: Time, decided: u64, applied: u64) {
        let mut known = self.0.lock();
        known.contact = known.contact.max(at);
        known.settle(applied);
        // Keep the oldest pending commit index, which is reached first. If each heartbeat replaced
        // it, a node that is always a little behind would never reach any.
        known.said.get_or_insert((at, decided));
        known.settle(applied);
    }

    /// All that was decided by then is known here; `None`: no leader has said so since the start.
    pub(super) fn as_of(&self, applied: u64) -> Option<Time> {
        let mut known = self.0.lock();
        known.settle(applied);
        known.as_of
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_carried_out_is_known() {
        let (fresh, secs) = (StalenessBound::since(Time::ZERO), Time::from_secs);
        assert_eq!(fresh.as_of(9), None);
        assert_eq!(fresh.quiet(secs(3)), Span::from_secs(3));
        fresh.hear(secs(1), 5, 5);
        assert_eq!(fresh.as_of(5), Some(secs(1)));
        // Entry 7 is decided there, and not here yet.
        fresh.hear(secs(2), 7, 5);
        assert_eq!(fresh.as_of(6), Some(secs(1)));
        fresh.hear(secs(3), 9, 6);
        assert_eq!(fresh.as_of(7), Some(secs(2)));
        // An index that came while an older one was pending counts when it comes again.
        assert_eq!(fresh.as_of(9), Some(secs(2)));
        fresh.hear(secs(4), 9, 9);
        assert_eq!(fresh.as_of(9), Some(secs(4)));
        // Nothing is heard any more: it gets older.
        assert_eq!((fresh.as_of(9), fresh.quiet(secs(9))), (Some(secs(4)), Span::from_secs(5)));
        fresh.led(secs(8));
        assert_eq!((fresh.as_of(9), fresh.quiet(secs(9))), (Some(secs(4)), Span::from_secs(1)));
    }
}
