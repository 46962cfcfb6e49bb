//! This node's estimate of the engine time, whether it leads or follows.

use super::engine_clock::EngineClock;
use super::node_environment::NodeEnvironment;
use crate::time::{Span, Time};
use parking_lot::Mutex;
use std::sync::Arc;

/// This node's estimate of the engine time: exact while this node leads, otherwise an upper bound.
pub(super) struct LeaderClock {
    estimate: Mutex<TimeEstimate>,
    /// How far the boot clock is ahead of engine time, in nanoseconds, as it is shown.
    shown: Mutex<Option<i128>>,
    environment: Arc<dyn NodeEnvironment>,
}

/// How far engine time, as it is shown, may differ from the estimate. Smaller differences come from
/// reading two clocks and from the delay of a leader's report; if they showed, the times of a file
/// would vary. Larger ones mean that another node leads, that the machine has slept, or that a
/// report came late.
const APART_MAX: Span = Span::from_millis(200);

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
        Self { estimate: Mutex::default(), shown: Mutex::default(), environment }
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

    /// Converts an engine time to the boot clock of this machine, for display. Returns `None`
    /// before the first report from a leader.
    pub(super) fn boot_time(&self, at: Time) -> Option<Time> {
        let nanos = |time: Time| i128::from(time.as_nanos());
        let engine = nanos(self.now()?);
        let ahead = nanos(self.environment.boot_now()) - engine;
        let mut shown = self.shown.lock();
        let known =
            shown.filter(|known| ahead.abs_diff(*known) <= u128::from(APART_MAX.as_nanos()));
        let ahead = *shown.insert(known.unwrap_or(ahead));
        let boot = u64::try_from((nanos(at) + ahead).max(0)).unwrap_or(u64::MAX);
        Some(Time::from_nanos(boot))
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

    /// Times follow the engine time of each new leader, forwards and backwards, to a part of a
    /// second.
    #[test]
    fn shown_times_follow_the_estimate() {
        let clock = LeaderClock::new(Arc::new(SystemEnvironment));
        assert_eq!(clock.boot_time(Time::from_secs(100)), None);
        let millis = |ms| Time::ZERO + Span::from_millis(ms);
        for engine in [100_000, 100_900, 100_100, 99_300, 98_500, 102_000] {
            clock.lead(EngineClock::on(millis(engine), steady_now()));
            let (shown, now) = (clock.boot_time(millis(engine)).expect("it leads"), boot_now());
            let off = now.since(shown).max(shown.since(now));
            assert!(off < Span::from_millis(300), "engine time {engine} ms: {off} off");
        }
        // Until the estimate has moved, a time is always shown the same.
        let shown = clock.boot_time(millis(102_000));
        assert_eq!(clock.boot_time(millis(102_000)), shown);
        assert_eq!(clock.boot_time(Time::NEVER), Some(Time::NEVER));
    }
}
