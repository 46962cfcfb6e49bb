//! This node's estimate of the engine time, whether it leads or follows.

use super::engine_clock::EngineClock;
use super::node_environment::NodeEnvironment;
use crate::time::Time;
use parking_lot::Mutex;
use std::sync::Arc;

/// This node's estimate of the engine time: exact while this node leads, otherwise an upper bound.
pub(super) struct LeaderClock {
    estimate: Mutex<TimeEstimate>,
    environment: Arc<dyn NodeEnvironment>,
}

#[derive(Debug, Clone, Copy, Default)]
enum TimeEstimate {
    /// The engine time is unknown: no leader has reported it since this node started.
    #[default]
    Nothing,
    /// An upper bound of the engine time. It advances with the boot clock, which also counts the
    /// time that the machine slept.
    AtMost(EngineClock),
    /// The exact engine time: this node leads, and its steady clock defines the engine time.
    Exactly(EngineClock),
}

impl LeaderClock {
    pub(super) fn new(environment: Arc<dyn NodeEnvironment>) -> Self {
        Self { estimate: Mutex::default(), environment }
    }

    /// Handles a report from the leader that its engine time was `now`. The request for the report
    /// was sent when this node's boot clock showed `asked` or later. Counting from `asked` makes
    /// the estimate an upper bound of the leader's time.
    pub(super) fn hear(&self, asked: Time, now: Time) {
        let mut known = self.estimate.lock();
        match *known {
            TimeEstimate::AtMost(bound) if bound.loosened(asked) <= now => {}
            // A node that leads, or led a moment ago, has the tightest bound: no leader's time is
            // ahead of its own.
            TimeEstimate::Exactly(_) => {}
            TimeEstimate::Nothing | TimeEstimate::AtMost(_) => {
                *known = TimeEstimate::AtMost(EngineClock::on(now, asked));
            }
        }
    }

    /// Notes that this node leads from now on, with `clock` as the engine time.
    pub(super) fn lead(&self, clock: EngineClock) {
        *self.estimate.lock() = TimeEstimate::Exactly(clock);
    }

    /// Notes that this node leads no more. Its clock becomes an upper bound, since the next leader
    /// continues from an earlier stamp.
    pub(super) fn follow(&self) {
        let mut known = self.estimate.lock();
        if let TimeEstimate::Exactly(clock) = *known {
            let (steady, boot) = (self.environment.steady_now(), self.environment.boot_now());
            *known = TimeEstimate::AtMost(EngineClock::on(clock.at(steady), boot));
        }
    }

    /// Returns the engine time or an upper bound of it, or `None` before the first report from a
    /// leader.
    pub(super) fn now(&self) -> Option<Time> {
        match *self.estimate.lock() {
            TimeEstimate::Nothing => None,
            TimeEstimate::AtMost(bound) => Some(bound.loosened(self.environment.boot_now())),
            TimeEstimate::Exactly(clock) => Some(clock.at(self.environment.steady_now())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::node_environment::SystemEnvironment;
    use super::*;
    use crate::time::{boot_now, steady_now};

    #[test]
    fn estimate_from_a_leaders_reports_is_an_upper_bound() {
        let (hands, secs) = (LeaderClock::new(Arc::new(SystemEnvironment)), Time::from_secs);
        let at_most = |hands: &LeaderClock| match *hands.estimate.lock() {
            TimeEstimate::AtMost(bound) => bound.loosened(secs(40)),
            other => panic!("{other:?}"),
        };
        assert!(hands.now().is_none());
        // The report was requested when the local clock showed 10, and gives the leader's time as
        // 105: the leader is at most 95 ahead.
        hands.hear(secs(10), secs(105));
        assert!(at_most(&hands) >= secs(135) && at_most(&hands) < secs(136));
        // The second report tightens the bound to 94; the third, with 97, would loosen it.
        hands.hear(secs(20), secs(114));
        hands.hear(secs(21), secs(118));
        assert!(at_most(&hands) >= secs(134) && at_most(&hands) < secs(135));
        // A node that leads, or has led, knows the time best, so it ignores other reports.
        hands.lead(EngineClock::on(secs(50), steady_now()));
        hands.hear(boot_now(), secs(500));
        assert!(hands.now().is_some_and(|now| now >= secs(50) && now < secs(60)));
        hands.follow();
        assert!(hands.now().is_some_and(|now| now >= secs(50) && now < secs(60)));
    }
}
