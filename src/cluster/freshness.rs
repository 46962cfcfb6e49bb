//! How old it may be what a node knows: since when another may have decided what this one has not
//! carried out.
//!
//! A leader says with each sign of life how far it has decided. When that is carried out here, all
//! is known that had been decided when it said so.

use crate::time::Time;
use parking_lot::Mutex;

/// What a node that follows has heard of how far the leader has decided.
#[derive(Debug, Default)]
pub(super) struct Freshness(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// All that was decided by then is carried out here. On the boot clock.
    as_of: Option<Time>,
    /// The leader has decided up to this entry, it said then, and that is not seen here yet.
    said: Option<(Time, u64)>,
}

impl Known {
    fn settle(&mut self, applied: u64) {
        if let Some((at, decided)) = self.said
            && applied >= decided
        {
            (self.as_of, self.said) = (Some(at), None);
        }
    }
}

impl Freshness {
    /// The leader has said `at` that it has decided up to this entry; up to `applied` is carried
    /// out here.
    pub(super) fn hear(&self, at: Time, decided: u64, applied: u64) {
        let mut known = self.0.lock();
        known.settle(applied);
        // What was said first is carried out first: a node that is always a little late would
        // otherwise never know of any moment.
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
        let (fresh, secs) = (Freshness::default(), Time::from_secs);
        assert_eq!(fresh.as_of(9), None);
        fresh.hear(secs(1), 5, 5);
        assert_eq!(fresh.as_of(5), Some(secs(1)));
        // Entry 7 is decided there, and not here yet.
        fresh.hear(secs(2), 7, 5);
        assert_eq!(fresh.as_of(6), Some(secs(1)));
        fresh.hear(secs(3), 9, 6);
        assert_eq!(fresh.as_of(7), Some(secs(2)));
        // What was said while something older was awaited counts when it is said again.
        assert_eq!(fresh.as_of(9), Some(secs(2)));
        fresh.hear(secs(4), 9, 9);
        assert_eq!(fresh.as_of(9), Some(secs(4)));
        // Nothing is heard any more: it gets older.
        assert_eq!(fresh.as_of(9), Some(secs(4)));
    }
}
