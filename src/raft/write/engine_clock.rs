//! Engine time: the clock by which the leader stamps log entries and by which leases expire. It
//! continues from the last stamp in the log and advances with the leader's own steady clock.
//!
//! Engine time never advances faster than real time. Within a term it follows one steady clock. A
//! new leader continues from a `LeaderReading`: the engine time that the previous leader reported
//! plus the time that has passed here since the report was received. The report was made before it
//! was received, so the sum is never ahead of the previous leader's clock. A restart, a pause or a
//! wall clock that was set can therefore only extend leases, never shorten them, and a failover
//! extends them by no more than the report took to arrive. Wall clocks are not used at all.
//!
//! This node's estimate of the engine time, whether it leads or follows.

use crate::raft::node_environment::NodeEnvironment;
use crate::raft::store::snapshot::Leader;
use crate::time::{Span, Time};
use parking_lot::Mutex;
use std::sync::Arc;

/// A clock that shows engine time. It ties one engine time to the reading of a steady clock at the
/// same moment, the reference moment, and advances with the steady clock from there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineClock {
    /// The engine time at the reference moment, at which both clocks were read.
    engine: Time,
    /// The reading of the steady clock at the reference moment.
    steady: Time,
}

impl EngineClock {
    /// Returns a clock that shows `engine` when the steady clock shows `steady`.
    pub const fn on(engine: Time, steady: Time) -> Self {
        Self { engine, steady }
    }

    /// Returns the engine time when the steady clock shows `steady`.
    pub fn at(self, steady: Time) -> Time {
        self.engine + steady.since(self.steady)
    }

    /// Returns an upper bound of the engine time when the local clock shows `here`: the engine time
    /// of the reference moment, plus the time passed since, plus the drift that is allowed for
    /// between two machines.
    pub(in crate::raft) fn loosened(self, here: Time) -> Time {
        let passed = here.since(self.steady).as_nanos();
        self.at(here) + Span::from_nanos(passed / 1_000 * DRIFT_PER_MILLE)
    }

    /// Returns how long it takes until the engine time is `due`, when the steady clock shows
    /// `steady`; zero if `due` has passed.
    pub(crate) fn until(self, due: Time, steady: Time) -> Span {
        due.since(self.at(steady))
    }
}

/// The engine time that a leader reported, and when this node received the report. Gives a lower
/// bound of that leader's engine time now.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LeaderReading {
    leader: Leader,
    clock: EngineClock,
}

impl LeaderReading {
    /// Returns the reading of a report in which `leader` gave its engine time as `engine`. The
    /// report arrived when this node's steady clock showed `steady`.
    pub(crate) const fn of(leader: Leader, engine: Time, steady: Time) -> Self {
        Self { leader, clock: EngineClock::on(engine, steady) }
    }

    /// Returns a lower bound of the leader's engine time when the steady clock shows `steady`: the
    /// time passed less the drift that is allowed for, since the local clock may be the faster one.
    pub(crate) fn at_least(self, steady: Time) -> Time {
        let passed = steady.since(self.clock.steady).as_nanos();
        let drift = (passed / 1_000 + 1) * DRIFT_PER_MILLE;
        self.clock.engine + Span::from_nanos(passed.saturating_sub(drift))
    }

    /// Returns the better of two readings to continue from: that of the later leader, since leases
    /// count by its stamps; of two readings from one leader the one that is ahead.
    pub(crate) fn better(self, other: Option<Self>) -> Self {
        match other {
            Some(other) if other.leader > self.leader => other,
            Some(other)
                if other.leader == self.leader
                    && other.at_least(self.clock.steady) > self.clock.engine =>
            {
                other
            }
            _ => self,
        }
    }

    /// Returns how long ago this node received the report.
    pub(crate) fn age(self, steady: Time) -> Span {
        steady.since(self.clock.steady)
    }
}

/// The drift that is allowed for between the steady clocks of two machines, in thousandths of the
/// time passed: ten times the drift of quartz crystals.
const DRIFT_PER_MILLE: u64 = 1;

/// This node's estimate of the engine time: exact while this node leads, otherwise an upper bound.
pub(in crate::raft) struct LeaderClock {
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
    pub(in crate::raft) fn new(environment: Arc<dyn NodeEnvironment>) -> Self {
        Self { estimate: Mutex::default(), shown: Mutex::default(), environment }
    }

    /// Handles a report from the leader that its engine time was `now`. The request for the report
    /// was sent when this node's boot clock showed `asked` or later. Counting from `asked` makes
    /// the estimate an upper bound of the leader's time.
    pub(in crate::raft) fn observe(&self, asked: Time, now: Time) {
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
    pub(in crate::raft) fn lead(&self, clock: EngineClock) {
        *self.estimate.lock() = TimeEstimate::Exactly(clock);
    }

    /// Notes that this node leads no more. Its clock becomes an upper bound, since the next leader
    /// continues from an earlier stamp.
    pub(in crate::raft) fn follow(&self) {
        let mut known = self.estimate.lock();
        if let TimeEstimate::Exactly(clock) = *known {
            let (steady, boot) = (self.environment.steady_now(), self.environment.boot_now());
            *known = TimeEstimate::AtMost(EngineClock::on(clock.at(steady), boot));
        }
    }

    /// Returns the engine time or an upper bound of it, or `None` before the first report from a
    /// leader.
    pub(in crate::raft) fn now(&self) -> Option<Time> {
        match *self.estimate.lock() {
            TimeEstimate::Nothing => None,
            TimeEstimate::AtMost(bound) => Some(bound.loosened(self.environment.boot_now())),
            TimeEstimate::Exactly(clock) => Some(clock.at(self.environment.steady_now())),
        }
    }

    /// Converts an engine time to the boot clock of this machine, for display. Returns `None`
    /// before the first report from a leader.
    pub(in crate::raft) fn boot_time(&self, at: Time) -> Option<Time> {
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
    use super::*;

    #[test]
    fn time_goes_on_where_the_last_stamp_left_it() {
        let (engine, steady) = (Time::from_secs(100), Time::from_secs(7));
        let carried = EngineClock::on(engine, steady);
        assert_eq!(carried.at(steady), engine);
        assert_eq!(carried.at(Time::from_secs(10)), Time::from_secs(103));
        // The steady clock of another machine may show any value: engine time advances by the time
        // that passes on it.
        let restarted = EngineClock::on(carried.at(Time::from_secs(10)), Time::from_secs(90_000));
        assert_eq!(restarted.at(Time::from_secs(90_002)), Time::from_secs(105));
        // If the steady clock goes back, the engine time does not.
        assert_eq!(carried.at(Time::from_secs(3)), engine);
    }

    fn reading(term: u64, engine: u64, steady: u64) -> LeaderReading {
        let leader = Leader { term, node_id: 1 };
        LeaderReading::of(leader, Time::from_secs(engine), Time::from_secs(steady))
    }

    /// A new leader continues at the previous leader's engine time less the drift, never ahead.
    #[test]
    fn a_reading_goes_on_a_little_slower_than_the_clock() {
        let reading = reading(1, 100, 50);
        assert_eq!(reading.at_least(Time::from_secs(40)), Time::from_secs(100));
        let later = reading.at_least(Time::from_secs(1_050));
        assert!(later < Time::from_secs(1_099) && later.as_nanos() > 1_098_999_000_000);
    }

    #[test]
    fn a_later_leaders_reading_is_the_better_one() {
        let engine = |reading: LeaderReading| reading.clock.engine;
        // Of two readings from one leader the one that is ahead now is the better one: an old entry
        // that arrives late is behind.
        assert_eq!(
            engine(reading(1, 120, 60).better(Some(reading(1, 100, 50)))),
            Time::from_secs(120)
        );
        assert_eq!(
            engine(reading(1, 101, 60).better(Some(reading(1, 100, 50)))),
            Time::from_secs(100)
        );
        // A later leader's time may be behind that of the previous one: leases count by the later
        // leader's stamps.
        assert_eq!(
            engine(reading(2, 101, 60).better(Some(reading(1, 100, 50)))),
            Time::from_secs(101)
        );
        assert_eq!(
            engine(reading(1, 500, 60).better(Some(reading(2, 100, 50)))),
            Time::from_secs(100)
        );
        assert_eq!(engine(reading(1, 7, 60).better(None)), Time::from_secs(7));
    }

    #[test]
    fn until_returns_the_time_left_and_zero_when_due() {
        let carried = EngineClock::on(Time::from_secs(100), Time::from_secs(7));
        let wait = |due| carried.until(Time::from_secs(due), Time::from_secs(8));
        assert_eq!(wait(105), Span::from_secs(4));
        assert_eq!(wait(101), Span::ZERO);
        assert_eq!(wait(50), Span::ZERO);
    }
}

#[cfg(test)]
mod leader_clock_tests {
    use super::*;
    use crate::raft::node_environment::SystemEnvironment;
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
        hands.observe(secs(10), secs(105));
        assert!(at_most(&hands) >= secs(135) && at_most(&hands) < secs(136));
        // The second report tightens the bound to 94; the third, with 97, would loosen it.
        hands.observe(secs(20), secs(114));
        hands.observe(secs(21), secs(118));
        assert!(at_most(&hands) >= secs(134) && at_most(&hands) < secs(135));
        // A node that leads, or has led, knows the time best, so it ignores other reports.
        hands.lead(EngineClock::on(secs(50), steady_now()));
        hands.observe(boot_now(), secs(500));
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
