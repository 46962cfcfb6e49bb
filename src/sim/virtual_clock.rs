//! The clocks of simulated machines. Each has its own rate and its own starting value.

use super::seeded_random::SeededRandom;
use super::sim_types::now;
use crate::time::{Span, Time};

/// Maximum error of a clock's rate, in millionths. Two clocks then differ by less than the 0.1 %
/// that a client allows for.
const RATE_OFF_MAX: u64 = 400;
const MILLION: u64 = 1_000_000;

/// A monotonic clock.
#[derive(Debug, Clone, Copy)]
pub(super) struct VirtualClock {
    /// The reading of the clock at the start of the simulation.
    began: Span,
    /// Microseconds that pass on this clock per second of virtual time.
    rate: u64,
}

impl VirtualClock {
    pub(super) fn new(dice: &SeededRandom) -> Self {
        let rate = MILLION - RATE_OFF_MAX + dice.below(2 * RATE_OFF_MAX + 1);
        Self { began: dice.millis(1_000, 100_000_000), rate }
    }

    /// Returns the current reading of the clock.
    pub(super) fn read(self) -> Time {
        let passed = u128::from(now().as_nanos()) * u128::from(self.rate) / u128::from(MILLION);
        Time::ZERO + self.began + Span::from_nanos(passed as u64)
    }

    /// Returns the virtual time at which the clock shows `time`, in the past or the future.
    pub(super) fn virtual_at(self, time: Time) -> Time {
        let passed = time.since(Time::ZERO + self.began).as_nanos();
        let passed = u128::from(passed) * u128::from(MILLION) / u128::from(self.rate);
        Time::from_nanos(passed as u64)
    }
}
