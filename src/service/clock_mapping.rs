//! Maps engine time to the boot clock. Engine time advances with the boot clock, and continues
//! after a reboot where it stopped.

use crate::time::{Time, boot_now};

/// A moment of which both the boot-clock time and the engine time are known. From then on, both
/// clocks advance at the same speed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ClockMapping {
    /// The boot-clock time of a moment at which both clocks were read, in the current boot.
    boot: Time,
    /// The engine time at the same moment as `boot`.
    engine: Time,
}

impl ClockMapping {
    pub(super) const fn starting_at(boot: Time, engine: Time) -> Self {
        Self { boot, engine }
    }

    /// Returns a mapping by which engine time continues at `engine` from now on: leases keep the
    /// time that they had left.
    pub(super) fn going_on_at(engine: Time) -> Self {
        Self { boot: boot_now(), engine }
    }

    /// Returns the boot-clock time and the engine time of one moment, from which both clocks
    /// advance at the same speed.
    pub(super) const fn readings(self) -> (Time, Time) {
        (self.boot, self.engine)
    }

    /// Returns the engine time now.
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
    fn engine_time_continues_after_a_reboot() {
        let line = ClockMapping::starting_at(Time::from_secs(5), Time::from_secs(100));
        assert_eq!(line.boot(Time::from_secs(110)), Time::from_secs(15));
        assert_eq!(line.boot(Time::from_secs(97)), Time::from_secs(2));
        assert_eq!(line.boot(Time::from_secs(3)), Time::ZERO);
    }
}
