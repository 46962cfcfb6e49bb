//! Hash maps for numbers that this process generates. Callers can't choose such keys, so the maps
//! need no protection against hash flooding; in std's maps that protection costs more than the rest
//! of a look-up.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

/// A map keyed by a number that this process generates, or by a newtype of one.
pub(crate) type Numbered<T, K = u64> = HashMap<K, T, BuildHasherDefault<Spread>>;

/// A set of numbers that this process generates.
pub(crate) type Numbers = HashSet<u64, BuildHasherDefault<Spread>>;

/// A map keyed by names, which callers choose: its hasher is seeded against hash flooding, and
/// still takes a fraction of the time of std's default hasher.
pub(crate) type Named<K, T> = HashMap<K, T, foldhash::fast::RandomState>;

/// A hasher for one integer that spreads consecutive numbers over all bits.
#[derive(Debug, Default)]
pub(crate) struct Spread(u64);

/// 2^64 divided by the golden ratio, made odd: multiplication by it maps neighbouring numbers far
/// apart.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

impl Hasher for Spread {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        // Multiplication carries only upwards, so the high half of the product depends on all bits,
        // the low half on the low bits alone; the shift and XOR mix the halves.
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
    fn consecutive_numbers_hash_far_apart() {
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
