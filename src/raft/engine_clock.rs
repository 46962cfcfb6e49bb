//! Engine time as a leader carries it on: it begins where the log's last stamp left it, and runs
//! with the leader's own steady clock from there.
//!
//! A stamp never runs ahead of real time: within a term it goes with one clock, and each new leader
//! goes on from a [`LeaderReading`]: the time that the leader before it reported, and the time that
//! passed here since that was heard. The reading was taken before it was heard, so it is never
//! ahead. So whatever happens in between (a restart, a pause, a wall clock that was set) makes
//! leases last longer, never shorter, and a change of the leader by no more than the message took.
//! No wall clock decides anything.

use super::types::Leader;
use crate::time::{Span, Time};

/// Engine time, tied to a steady clock at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EngineClock {
    /// The moment, in engine time.
    engine: Time,
    /// The moment, on the steady clock.
    steady: Time,
}

impl EngineClock {
    /// Goes on at `engine` when the steady clock shows `steady`.
    pub(crate) const fn on(engine: Time, steady: Time) -> Self {
        Self { engine, steady }
    }

    /// The engine's time when the steady clock shows `steady`.
    pub(crate) fn at(self, steady: Time) -> Time {
        self.engine + steady.since(self.steady)
    }

    /// The same, or later, on a clock that is another machine's.
    pub(super) fn loosened(self, here: Time) -> Time {
        let passed = here.since(self.steady).as_nanos();
        self.at(here) + Span::from_nanos(passed / 1_000 * DRIFT_PER_MILLE)
    }

    /// How long until engine time is `due`, when the steady clock shows `steady`.
    pub(crate) fn until(self, due: Time, steady: Time) -> Span {
        due.since(self.at(steady))
    }
}

/// The engine time that a leader has reported, and when this node received it: a lower bound of
/// that leader's time now.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LeaderReading {
    leader: Leader,
    clock: EngineClock,
}

impl LeaderReading {
    /// `leader` has said that its time was `engine`; the steady clock here shows `steady` now.
    pub(crate) const fn of(leader: Leader, engine: Time, steady: Time) -> Self {
        Self { leader, clock: EngineClock::on(engine, steady) }
    }

    /// That leader's time, or earlier: the clock here may be the faster one.
    pub(crate) fn at_least(self, steady: Time) -> Time {
        let passed = steady.since(self.clock.steady).as_nanos();
        let drift = (passed / 1_000 + 1) * DRIFT_PER_MILLE;
        self.clock.engine + Span::from_nanos(passed.saturating_sub(drift))
    }

    /// The better one of two to go on from: the later leader's, since leases count by what that
    /// one has stamped; of two of one leader the higher.
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

    /// How long ago it was heard.
    pub(crate) fn age(self, steady: Time) -> Span {
        steady.since(self.clock.steady)
    }
}

/// By so much of a time two clocks may drift apart: 0.1 %, ten times what crystals do.
const DRIFT_PER_MILLE: u64 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_goes_on_where_the_last_stamp_left_it() {
        let (engine, steady) = (Time::from_secs(100), Time::from_secs(7));
        let carried = EngineClock::on(engine, steady);
        assert_eq!(carried.at(steady), engine);
        assert_eq!(carried.at(Time::from_secs(10)), Time::from_secs(103));
        // Wherever the other clock stands: only what passes on it counts.
        let again = EngineClock::on(carried.at(Time::from_secs(10)), Time::from_secs(90_000));
        assert_eq!(again.at(Time::from_secs(90_002)), Time::from_secs(105));
        // A clock that goes back takes nothing back.
        assert_eq!(carried.at(Time::from_secs(3)), engine);
    }

    fn reading(term: u64, engine: u64, steady: u64) -> LeaderReading {
        let leader = Leader { term, node_id: 1 };
        LeaderReading::of(leader, Time::from_secs(engine), Time::from_secs(steady))
    }

    /// A new leader goes on where the last one would be now, less the drift, and never ahead.
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
        // Of one leader the one that is ahead now: an old entry that arrives late is behind.
        assert_eq!(
            engine(reading(1, 120, 60).better(Some(reading(1, 100, 50)))),
            Time::from_secs(120)
        );
        assert_eq!(
            engine(reading(1, 101, 60).better(Some(reading(1, 100, 50)))),
            Time::from_secs(100)
        );
        // A later leader may be behind the one before: leases count by the later one's stamps.
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
    fn what_is_due_is_waited_for() {
        let carried = EngineClock::on(Time::from_secs(100), Time::from_secs(7));
        let wait = |due| carried.until(Time::from_secs(due), Time::from_secs(8));
        assert_eq!(wait(105), Span::from_secs(4));
        assert_eq!(wait(101), Span::ZERO);
        assert_eq!(wait(50), Span::ZERO);
    }
}
