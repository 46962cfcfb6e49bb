//! Random ids, and jitter for the backoff of retries. No decision of the engine depends on
//! randomness.

use crate::time::Span;
use std::hash::{BuildHasher, RandomState};

/// Returns a random number from the source that seeds std's hash maps. Not a secret.
pub fn random() -> u64 {
    RandomState::new().hash_one(std::process::id())
}

/// Returns a random span between half of `span` and `span`, so that clients which were refused
/// together, or lost a server together, do not all retry at the same moment.
pub fn jittered(span: Span) -> Span {
    let half = span.as_nanos() / 2;
    Span::from_nanos(half + random() % half.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_spreads_retries() {
        let (half, whole) = (Span::from_millis(50), Span::from_millis(100));
        let all: Vec<_> = (0..100).map(|_| jittered(whole)).collect();
        assert!(all.iter().all(|span| (half..=whole).contains(span)), "{all:?}");
        assert!(all.iter().any(|span| *span != all[0]), "{all:?}");
        assert_eq!(jittered(Span::ZERO), Span::ZERO);
    }
}
