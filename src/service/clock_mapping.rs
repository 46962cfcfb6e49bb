//! Engine time on the boot clock: it runs with it, and goes on where it was after a reboot.

use crate::time::{Time, boot_now};

/// One moment on both clocks; from there they run at the same speed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ClockMapping {
    /// The moment, on the boot clock of this boot.
    boot: Time,
    /// The moment, in engine time.
    engine: Time,
}

impl ClockMapping {
    pub(super) const fn starting_at(boot: Time, engine: Time) -> Self {
        Self { boot, engine }
    }

    /// Engine time goes on at `engine` from now: what a lease had left counts from here.
    pub(super) fn going_on_at(engine: Time) -> Self {
        Self { boot: boot_now(), engine }
    }

    /// The two readings.
    pub(super) const fn readings(self) -> (Time, Time) {
        (self.boot, self.engine)
    }

    /// The engine's time now.
    pub(super) fn now(self) -> Time {
        self.engine + boot_now().since(self.boot)
    }

    /// Converts an engine time to boot-clock time; 0 for times before this boot.
    pub(super) fn boot(self, at: Time) -> Time {
        if at >= self.engine {
            self.boot + at.since(self.engine)
        } else {
            self.boot - self.engine.since(at)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engine_time_goes_on_after_a_reboot() {
        let line = ClockMapping::starting_at(Time::from_secs(5), Time::from_secs(100));
        assert_eq!(line.boot(Time::from_secs(110)), Time::from_secs(15));
        assert_eq!(line.boot(Time::from_secs(97)), Time::from_secs(2));
        assert_eq!(line.boot(Time::from_secs(3)), Time::ZERO);
    }
}
