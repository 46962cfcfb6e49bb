//! The clocks of simulated machines: each runs at a rate of its own, from a beginning of its own.

use super::seeded_random::SeededRandom;
use super::sim_types::now;
use crate::time::{Span, Time};

/// How far the rate of a clock may be from the truth, in millionths. Two clocks then differ by
/// less than the 0.1 % that a client allows for.
const RATE_OFF_MAX: u64 = 400;
const MILLION: u64 = 1_000_000;

/// A steady clock.
#[derive(Debug, Clone, Copy)]
pub(super) struct VirtualClock {
    /// Its reading at the start of the simulation.
    began: Span,
    /// Millionths that pass on it in a second.
    rate: u64,
}

impl VirtualClock {
    pub(super) fn new(dice: &SeededRandom) -> Self {
        let rate = MILLION - RATE_OFF_MAX + dice.below(2 * RATE_OFF_MAX + 1);
        Self { began: dice.millis(1_000, 100_000_000), rate }
    }

    /// Returns its current reading.
    pub(super) fn read(self) -> Time {
        let passed = u128::from(now().as_nanos()) * u128::from(self.rate) / u128::from(MILLION);
        Time::ZERO + self.began + Span::from_nanos(passed as u64)
    }

    /// When, in virtual time, it will show `time`, or has.
    pub(super) fn virtual_at(self, time: Time) -> Time {
        let passed = time.since(Time::ZERO + self.began).as_nanos();
        let passed = u128::from(passed) * u128::from(MILLION) / u128::from(self.rate);
        Time::from_nanos(passed as u64)
    }
}
