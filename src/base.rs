//! Random ids, and jitter for the backoff of retries. No decision of the engine depends on
//! randomness.
//!
//! The version of this build.

use crate::time::Span;
pub use common::error_text::said;
use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;

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

/// The version of the package.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The commit and its date, such as `1a2b3c4d5e6f 2026-11-27`. The variable `LATCHFS_COMMIT` of the
/// compiler's environment names them, which `contrib/release` sets.
pub const COMMIT: Option<&str> = option_env!("LATCHFS_COMMIT");

/// Returns the version, with the commit and its date if the build knows them.
pub fn with_commit() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| describe(COMMIT));
    &TEXT
}

fn describe(commit: Option<&str>) -> String {
    commit.map_or_else(|| VERSION.to_owned(), |commit| format!("{VERSION} ({commit})"))
}

#[cfg(test)]
mod random_tests {
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

#[cfg(test)]
mod version_tests {
    use super::*;

    #[test]
    fn commit_is_shown_where_it_is_known() {
        assert_eq!(describe(None), VERSION);
        let shown = describe(Some("1a2b3c4d5e6f 2026-11-27"));
        assert_eq!(shown, format!("{VERSION} (1a2b3c4d5e6f 2026-11-27)"));
    }
}
