//! Estimates the server's time from here: never earlier than it really is there, so that a lease
//! always seems to end here before it does there.

use crate::service::batch_messages::Stamp;
use crate::time::{Span, Time, Wall, boot_now};

/// By so much of a time two clocks may drift apart: 0.1 %, ten times what crystals do.
const DRIFT_PER_MILLE: u64 = 1;
/// A wall clock that has moved by more was set, and is followed.
const WALL_STEP_NANOS: i128 = 1_000_000_000;

/// The server's clock.
#[derive(Debug, Default)]
pub(super) struct ServerClock {
    start: u64,
    /// The latest time that it has told.
    latest: Time,
    bound: Option<ClockBound>,
    wall: Option<(Time, Wall)>,
}

/// At `boot` here it was `server` there, at the latest.
#[derive(Debug, Clone, Copy)]
struct ClockBound {
    boot: Time,
    server: Time,
}

impl ClockBound {
    fn at(self, boot: Time) -> Time {
        let passed = boot.since(self.boot);
        self.server + passed + Span::from_nanos(passed.as_nanos() / 1_000 * DRIFT_PER_MILLE)
    }
}

impl ServerClock {
    /// The server has said `stamp` to something that was asked at `asked_at` or later. Says
    /// whether it has forgotten all: its time goes on where it was, as long as it has its state.
    pub(super) fn hear(&mut self, asked_at: Time, stamp: &Stamp) -> bool {
        let anew = stamp.start != self.start;
        let forgot = anew && stamp.now < self.latest;
        self.latest = if anew { stamp.now } else { self.latest.max(stamp.now) };
        if anew {
            (self.start, self.bound, self.wall) = (stamp.start, None, None);
        }
        let heard = ClockBound { boot: asked_at, server: stamp.now };
        if self.bound.is_none_or(|bound| heard.server < bound.at(asked_at)) {
            self.bound = Some(heard);
        }
        // Kept until the clock is set: a file's times must not tremble.
        let moved = self.wall.map(|(at, wall)| {
            (nanos(stamp.wall) - nanos(wall))
                - (i128::from(stamp.now.as_nanos()) - i128::from(at.as_nanos()))
        });
        if moved.is_none_or(|moved| moved.abs() > WALL_STEP_NANOS) {
            self.wall = Some((stamp.now, stamp.wall));
        }
        forgot
    }

    /// The server's time now, or later.
    pub(super) fn now(&self) -> Time {
        self.bound.map_or(Time::ZERO, |bound| bound.at(boot_now()))
    }

    /// Returns the server's wall-clock time at its engine time `at`.
    pub(super) fn wall(&self, at: Time) -> Wall {
        let Some((then, wall)) = self.wall else { return Wall::now() };
        let ahead = i128::from(at.as_nanos()) - i128::from(then.as_nanos());
        let nanos = nanos(wall) + ahead;
        let secs = i64::try_from(nanos.div_euclid(1_000_000_000)).unwrap_or(i64::MAX);
        Wall { secs, nanos: nanos.rem_euclid(1_000_000_000) as u32 }
    }
}

fn nanos(wall: Wall) -> i128 {
    i128::from(wall.secs) * 1_000_000_000 + i128::from(wall.nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(start: u64, secs: u64) -> Stamp {
        let wall = Wall { secs: 1_000 + secs as i64, nanos: 5 };
        Stamp { engine: 0, start, now: Time::from_secs(secs), wall, next_event: 0 }
    }

    fn at(clock: &ServerClock, boot: u64) -> Time {
        clock.bound.expect("heard").at(Time::from_secs(boot))
    }

    #[test]
    fn the_server_is_never_taken_to_be_earlier_than_it_is() {
        let mut clock = ServerClock::default();
        // Asked at 10, answered (later) at what is 105 there: 95 ahead at most.
        clock.hear(Time::from_secs(10), &stamp(1, 105));
        assert_eq!(at(&clock, 10), Time::from_secs(105));
        // Asked at 20, and the answer says 114: 94 ahead at most, which is known better.
        clock.hear(Time::from_secs(20), &stamp(1, 114));
        assert_eq!(at(&clock, 20), Time::from_secs(114));
        // A slow answer says less.
        clock.hear(Time::from_secs(30), &stamp(1, 129));
        assert!(at(&clock, 30) < Time::from_secs(125));
    }

    #[test]
    fn what_was_known_long_ago_is_known_less_well() {
        let mut clock = ServerClock::default();
        clock.hear(Time::ZERO, &stamp(1, 0));
        assert_eq!(at(&clock, 1_000), Time::from_secs(1_001));
        // So an answer that took half a second is news after a quarter of an hour.
        let late = Stamp { now: Time::from_secs(1_000) + Span::from_millis(500), ..stamp(1, 0) };
        clock.hear(Time::from_secs(1_000), &late);
        assert_eq!(at(&clock, 1_000), late.now);
    }

    #[test]
    fn another_start_of_the_server_has_another_clock() {
        let mut clock = ServerClock::default();
        clock.hear(Time::from_secs(10), &stamp(1, 10));
        assert!(!clock.hear(Time::from_secs(11), &stamp(2, 500)), "it goes on");
        assert_eq!(at(&clock, 11), Time::from_secs(500));
        assert!(clock.hear(Time::from_secs(12), &stamp(3, 1)), "it begins anew");
        assert_eq!(at(&clock, 12), Time::from_secs(1));
    }

    #[test]
    fn wall_times_do_not_tremble() {
        let mut clock = ServerClock::default();
        clock.hear(Time::ZERO, &stamp(1, 10));
        let before = clock.wall(Time::from_secs(3));
        assert_eq!(before, Wall { secs: 1_003, nanos: 5 });
        let a_little_off = Wall { secs: 1_020, nanos: 900 };
        clock.hear(Time::ZERO, &Stamp { wall: a_little_off, ..stamp(1, 20) });
        assert_eq!(clock.wall(Time::from_secs(3)), before);
        let set = Wall { secs: 5_030, nanos: 0 };
        clock.hear(Time::ZERO, &Stamp { wall: set, ..stamp(1, 30) });
        assert_eq!(clock.wall(Time::from_secs(30)), set);
    }
}
