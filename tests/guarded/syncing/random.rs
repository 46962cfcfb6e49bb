//! Random numbers of a test run, which its seed repeats.

use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

/// Returns the seed of this run: `LATCHFS_SEED`, or a new one.
pub(crate) fn seed() -> u64 {
    let named = std::env::var("LATCHFS_SEED").ok().and_then(|text| text.parse().ok());
    named.unwrap_or_else(|| RandomState::new().hash_one(0) >> 16)
}

/// A small generator of random numbers (splitmix64): the same seed gives the same numbers.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    pub(crate) fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    pub(crate) fn between(&mut self, shortest: Duration, longest: Duration) -> Duration {
        let span = longest.saturating_sub(shortest).as_micros() as u64;
        shortest + Duration::from_micros(self.next() % (span + 1))
    }

    /// Returns one of the numbers below `end` other than `other`.
    pub(crate) fn below_except(&mut self, end: usize, other: usize) -> usize {
        let drawn = self.below(end - 1);
        if drawn < other { drawn } else { drawn + 1 }
    }
}
