//! Upper bound on the age of a stale read: how long ago the applied state of this node was known to
//! match the commit index of the leader.
//!
//! A leader sends its commit index with each heartbeat. When this node has applied the log up to
//! that index, its state is at least as new as the heartbeat. The age is counted from the arrival
//! of the heartbeat, so it does not include the time that the heartbeat took over the network.

use crate::time::{Span, Time};
use parking_lot::Mutex;

/// Tracks the commit indexes that a follower has received from its leader, and which of them it has
/// applied.
#[derive(Debug)]
pub(super) struct StalenessBound(Mutex<StalenessState>);

#[derive(Debug)]
struct StalenessState {
    /// When this node last received a heartbeat or last led, on the boot clock. Initially it is the
    /// start of the node.
    contact: Time,
    /// When this node received the newest heartbeat whose commit index it has applied, on the boot
    /// clock.
    as_of: Option<Time>,
    /// When this node received a heartbeat whose commit index it has not applied yet, and that
    /// commit index.
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
    /// Returns a tracker for a node that started at `start` and has received no heartbeat yet.
    pub(super) fn since(start: Time) -> Self {
        Self(Mutex::new(StalenessState { contact: start, as_of: None, said: None }))
    }

    /// Notes that this node leads at `now`, or has led until `now`.
    pub(super) fn led(&self, now: Time) {
        self.0.lock().contact = now;
    }

    /// Returns for how long this node has not received a heartbeat and has not led.
    pub(super) fn quiet(&self, now: Time) -> Span {
        now.since(self.0.lock().contact)
    }

    /// Handles a heartbeat, received at `at` with the commit index `decided`. This node has applied
    /// the log up to `applied`.
    pub(super) fn hear(&self, at: Time, decided: u64, applied: u64) {
        let mut known = self.0.lock();
        known.contact = known.contact.max(at);
        known.settle(applied);
        // If a commit index is already pending, it is kept, because it is reached first. If each
        // heartbeat replaced it, a node that always lags a little behind would never reach any.
        known.said.get_or_insert((at, decided));
        known.settle(applied);
    }

    /// Returns the time at which the newest heartbeat arrived whose commit index this node has
    /// applied. The state of this node includes every entry that was committed when the leader sent
    /// that heartbeat. `None`: there is no such heartbeat yet.
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
    fn state_is_as_old_as_the_last_applied_commit_index() {
        let (fresh, secs) = (StalenessBound::since(Time::ZERO), Time::from_secs);
        assert_eq!(fresh.as_of(9), None);
        assert_eq!(fresh.quiet(secs(3)), Span::from_secs(3));
        fresh.hear(secs(1), 5, 5);
        assert_eq!(fresh.as_of(5), Some(secs(1)));
        // Entry 7 is committed on the leader, and not applied on this node yet.
        fresh.hear(secs(2), 7, 5);
        assert_eq!(fresh.as_of(6), Some(secs(1)));
        fresh.hear(secs(3), 9, 6);
        assert_eq!(fresh.as_of(7), Some(secs(2)));
        // The heartbeat with commit index 9 arrived while index 7 was pending, so it was not
        // recorded. Only a later heartbeat with the same index proves that the state is as new.
        assert_eq!(fresh.as_of(9), Some(secs(2)));
        fresh.hear(secs(4), 9, 9);
        assert_eq!(fresh.as_of(9), Some(secs(4)));
        // Without heartbeats the time up to which the state is complete stays the same, so the age
        // of the state grows.
        assert_eq!((fresh.as_of(9), fresh.quiet(secs(9))), (Some(secs(4)), Span::from_secs(5)));
        fresh.led(secs(8));
        assert_eq!((fresh.as_of(9), fresh.quiet(secs(9))), (Some(secs(4)), Span::from_secs(1)));
    }
}
