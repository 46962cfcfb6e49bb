//! The version of this build.

use std::sync::LazyLock;

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
mod tests {
    use super::*;

    #[test]
    fn commit_is_shown_where_it_is_known() {
        assert_eq!(describe(None), VERSION);
        let shown = describe(Some("1a2b3c4d5e6f 2026-11-27"));
        assert_eq!(shown, format!("{VERSION} (1a2b3c4d5e6f 2026-11-27)"));
    }
}
