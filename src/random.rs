//! Random ids, and jitter for the backoff of retries. No decision of the engine depends on either.

use crate::time::Span;
use std::hash::{BuildHasher, RandomState};

/// As random as the keys of a hash map are.
pub fn random() -> u64 {
    RandomState::new().hash_one(std::process::id())
}

/// Between a half and the whole of it: those who were refused together, or have lost a server
/// together, come back one by one.
pub fn jittered(span: Span) -> Span {
    let half = span.as_nanos() / 2;
    Span::from_nanos(half + random() % half.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_come_back_one_by_one() {
        let (half, whole) = (Span::from_millis(50), Span::from_millis(100));
        let all: Vec<_> = (0..100).map(|_| jittered(whole)).collect();
        assert!(all.iter().all(|span| (half..=whole).contains(span)), "{all:?}");
        assert!(all.iter().any(|span| *span != all[0]), "{all:?}");
        assert_eq!(jittered(Span::ZERO), Span::ZERO);
    }
}
