//! Upper bound on the age of a stale read: how long ago the applied state of this node was known to
//! match the commit index of the leader.
//!
//! Only a confirmed read index bounds the age: this node asked the leader, and a quorum confirmed
//! the leader after that. When this node has applied the log up to that index, its state is at
//! least as new as the moment at which it asked. A heartbeat proves less: a leader that is cut off
//! from its quorum still sends heartbeats to the nodes that it reaches, and a heartbeat can be
//! delayed.

use crate::time::{Span, Time};
use parking_lot::Mutex;

/// Tracks the read indexes that were confirmed to this node, and which of them it has applied.
#[derive(Debug)]
pub(super) struct StalenessBound(Mutex<StalenessState>);

#[derive(Debug)]
struct StalenessState {
    /// When this node last received a heartbeat or last led, on the boot clock. Initially it is the
    /// start of the node.
    contact: Time,
    /// When this node asked for the newest read index that is applied here. On the boot clock.
    as_of: Option<Time>,
    /// When this node asked for a read index that is not applied here yet, and that index.
    pending: Option<(Time, u64)>,
}

impl StalenessState {
    fn settle(&mut self, applied: u64) {
        if let Some((asked, index)) = self.pending
            && applied >= index
        {
            (self.as_of, self.pending) = (self.as_of.max(Some(asked)), None);
        }
    }
}

impl StalenessBound {
    /// Returns a tracker for a node that started at `start` and has no confirmed read index yet.
    pub(super) fn since(start: Time) -> Self {
        Self(Mutex::new(StalenessState { contact: start, as_of: None, pending: None }))
    }

    /// Notes that this node received a heartbeat at `now`, or that it leads or led until now.
    pub(super) fn contact(&self, now: Time) {
        let mut known = self.0.lock();
        known.contact = known.contact.max(now);
    }

    /// Returns for how long this node has not received a heartbeat and has not led.
    pub(super) fn quiet(&self, now: Time) -> Span {
        now.since(self.0.lock().contact)
    }

    /// Handles a confirmed read index, for which this node asked at `asked`. This node has applied
    /// the log up to `applied`.
    pub(super) fn confirm(&self, asked: Time, index: u64, applied: u64) {
        let mut known = self.0.lock();
        known.settle(applied);
        if applied >= index {
            known.as_of = known.as_of.max(Some(asked));
        } else {
            // Keep the oldest pending index, which is reached first. If each confirmation replaced
            // it, a node that is always a little behind would never reach any.
            known.pending.get_or_insert((asked, index));
        }
    }

    /// Returns a time up to which the state here is complete: every entry that was committed by
    /// then is applied. `None` before the first confirmed read index that is applied.
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
    fn state_is_as_old_as_the_last_applied_read_index() {
        let (fresh, secs) = (StalenessBound::since(Time::ZERO), Time::from_secs);
        assert_eq!(fresh.as_of(9), None);
        assert_eq!(fresh.quiet(secs(3)), Span::from_secs(3));
        fresh.confirm(secs(1), 5, 5);
        assert_eq!(fresh.as_of(5), Some(secs(1)));
        // Entry 7 is committed on the leader, and not applied here yet.
        fresh.confirm(secs(2), 7, 5);
        assert_eq!(fresh.as_of(6), Some(secs(1)));
        fresh.confirm(secs(3), 9, 6);
        assert_eq!(fresh.as_of(7), Some(secs(2)));
        // An index that was confirmed while an older one was pending counts when it is confirmed
        // again.
        assert_eq!(fresh.as_of(9), Some(secs(2)));
        fresh.confirm(secs(4), 9, 9);
        assert_eq!(fresh.as_of(9), Some(secs(4)));
        // Heartbeats are contact to a leader, but do not make the state newer.
        fresh.contact(secs(8));
        assert_eq!((fresh.as_of(9), fresh.quiet(secs(9))), (Some(secs(4)), Span::from_secs(1)));
        // Answers that arrive out of order do not make it older.
        fresh.confirm(secs(3), 9, 9);
        fresh.contact(secs(7));
        assert_eq!((fresh.as_of(9), fresh.quiet(secs(9))), (Some(secs(4)), Span::from_secs(1)));
    }
}
