//! The random numbers of a simulation: all its parts draw from one stream, which the seed
//! determines.

use crate::time::Span;
use parking_lot::Mutex;
use std::sync::Arc;

/// A stream of random numbers. Cheap to clone: all clones draw from the same stream.
#[derive(Debug, Clone)]
pub(super) struct SeededRandom(Arc<Mutex<u64>>);

impl SeededRandom {
    pub(super) fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(seed)))
    }

    /// Returns the next number (Steele's `SplitMix64`).
    fn next(&self) -> u64 {
        let mut state = self.0.lock();
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = *state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `end`.
    pub(super) fn below(&self, end: u64) -> u64 {
        assert!(end > 0, "there is a number to draw");
        self.next() % end
    }

    /// Returns an index into a list of this length.
    pub(super) fn index(&self, length: usize) -> usize {
        self.below(length as u64) as usize
    }

    /// Returns true with a probability of `chance` percent.
    pub(super) fn percent(&self, chance: u64) -> bool {
        self.below(100) < chance
    }

    /// Returns a duration between `from` and `to` milliseconds, with microsecond resolution.
    pub(super) fn millis(&self, from: u64, to: u64) -> Span {
        Span::from_nanos((from * 1_000 + self.below((to - from) * 1_000 + 1)) * 1_000)
    }

    /// Returns a random element of `from`.
    pub(super) fn pick<'a, T>(&self, from: &'a [T]) -> &'a T {
        &from[self.index(from.len())]
    }
}
