//! Maps by numbers that we give out ourselves. Nobody can choose them, so they need no protection
//! from those who would, which costs std's maps more than all the rest of a look-up.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

/// A map by number, or by what is one.
pub(crate) type Numbered<T, K = u64> = HashMap<K, T, BuildHasherDefault<Spread>>;

/// A set of numbers.
pub(crate) type Numbers = HashSet<u64, BuildHasherDefault<Spread>>;

/// A map by names, which others choose: seeded, so that they can't choose bad ones, and still a
/// fraction of std's in the time of a look-up.
pub(crate) type Named<K, T> = HashMap<K, T, foldhash::fast::RandomState>;

/// Spreads consecutive numbers over all bits.
#[derive(Debug, Default)]
pub(crate) struct Spread(u64);

/// 2^64 divided by the golden ratio, made odd: neighbours come far apart.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

impl Hasher for Spread {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        // The high half has seen all bits, the low one only those below it.
        let spread = (self.0 ^ number).wrapping_mul(GOLDEN);
        self.0 = spread ^ (spread >> 32);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_come_far_apart() {
        let hash = |number: u64| {
            let mut spread = Spread::default();
            spread.write_u64(number);
            spread.finish()
        };
        let low: HashSet<u64> = (0..1_024).map(|number| hash(number) % 1_024).collect();
        let high: HashSet<u64> = (0..128).map(|number| hash(number) >> 57).collect();
        assert!(low.len() > 512 && high.len() > 64, "{} {}", low.len(), high.len());
    }
}
