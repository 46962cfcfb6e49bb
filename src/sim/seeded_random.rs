//! The random numbers of a simulation: one stream for all its parts, drawn from the seed.

use crate::time::Span;
use parking_lot::Mutex;
use std::sync::Arc;

/// The stream. Cheap to clone: all clones draw from the same one.
#[derive(Debug, Clone)]
pub(super) struct SeededRandom(Arc<Mutex<u64>>);

impl SeededRandom {
    pub(super) fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(seed)))
    }

    /// The next number (Steele's `SplitMix64`).
    fn next(&self) -> u64 {
        let mut state = self.0.lock();
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = *state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`.
    pub(super) fn below(&self, end: u64) -> u64 {
        assert!(end > 0, "there is a number to draw");
        self.next() % end
    }

    /// A place in a list of this length.
    pub(super) fn index(&self, length: usize) -> usize {
        self.below(length as u64) as usize
    }

    /// True so many times in a hundred.
    pub(super) fn percent(&self, chance: u64) -> bool {
        self.below(100) < chance
    }

    /// A time of so many milliseconds, to the microsecond.
    pub(super) fn millis(&self, from: u64, to: u64) -> Span {
        Span::from_nanos((from * 1_000 + self.below((to - from) * 1_000 + 1)) * 1_000)
    }

    /// One of them.
    pub(super) fn pick<'a, T>(&self, from: &'a [T]) -> &'a T {
        &from[self.index(from.len())]
    }
}
