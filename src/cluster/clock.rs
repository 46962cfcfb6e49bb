//! Carried-on time: engine time begins where the log's last stamp left it, and runs with the
//! leader's own steady clock from there.
//!
//! A stamp never runs ahead of real time: within a term it goes with one clock, and at each new
//! beginning it goes on from a stamp that was made before. So whatever happens in between (a
//! restart, a pause, a wall clock that was set) makes leases last longer, never shorter. No wall
//! clock decides anything.

use crate::time::{Span, Time};

/// Engine time, tied to a steady clock at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Carried {
    /// The moment, in engine time.
    engine: Time,
    /// The moment, on the steady clock.
    steady: Time,
}

impl Carried {
    /// Goes on at `engine` when the steady clock shows `steady`.
    pub(crate) const fn on(engine: Time, steady: Time) -> Self {
        Self { engine, steady }
    }

    /// The engine's time when the steady clock shows `steady`.
    pub(crate) fn at(self, steady: Time) -> Time {
        self.engine + steady.since(self.steady)
    }

    /// How long until engine time is `due`, when the steady clock shows `steady`.
    pub(crate) fn until(self, due: Time, steady: Time) -> Span {
        due.since(self.at(steady))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_goes_on_where_the_last_stamp_left_it() {
        let (engine, steady) = (Time::from_secs(100), Time::from_secs(7));
        let carried = Carried::on(engine, steady);
        assert_eq!(carried.at(steady), engine);
        assert_eq!(carried.at(Time::from_secs(10)), Time::from_secs(103));
        // Wherever the other clock stands: only what passes on it counts.
        let again = Carried::on(carried.at(Time::from_secs(10)), Time::from_secs(90_000));
        assert_eq!(again.at(Time::from_secs(90_002)), Time::from_secs(105));
        // A clock that goes back takes nothing back.
        assert_eq!(carried.at(Time::from_secs(3)), engine);
    }

    #[test]
    fn what_is_due_is_waited_for() {
        let carried = Carried::on(Time::from_secs(100), Time::from_secs(7));
        let wait = |due| carried.until(Time::from_secs(due), Time::from_secs(8));
        assert_eq!(wait(105), Span::from_secs(4));
        assert_eq!(wait(101), Span::ZERO);
        assert_eq!(wait(50), Span::ZERO);
    }
}
