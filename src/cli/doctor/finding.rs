//! A finding of `doctor`: its severity, and how to fix the problem.

use crate::cli::output::Colour;

/// The result of one check of `doctor`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Finding {
    /// The part of the system that was checked.
    pub(super) check: &'static str,
    /// The result of the check, as a sentence.
    pub(super) says: String,
    /// The severity of the finding.
    pub(super) level: Level,
    /// How to fix the problem that was found; `None` if the check has found none.
    pub(super) fix: Option<String>,
}

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Level {
    /// The check passed.
    Well,
    /// The check has found something unexpected, on which no lock depends.
    Odd,
    /// The check has found a problem that should be fixed.
    Wrong,
}

impl Level {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Well => "ok",
            Self::Odd => "odd",
            Self::Wrong => "wrong",
        }
    }

    pub(super) const fn colour(self) -> Colour {
        match self {
            Self::Well => Colour::Green,
            Self::Odd => Colour::Yellow,
            Self::Wrong => Colour::Red,
        }
    }
}

impl Finding {
    pub(super) fn well(check: &'static str, says: impl Into<String>) -> Self {
        Self { check, says: says.into(), level: Level::Well, fix: None }
    }

    pub(super) fn odd(
        check: &'static str,
        says: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self { level: Level::Odd, fix: Some(fix.into()), ..Self::well(check, says) }
    }

    pub(super) fn wrong(
        check: &'static str,
        says: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self { level: Level::Wrong, ..Self::odd(check, says, fix) }
    }

    pub(super) fn is_wrong(&self) -> bool {
        self.level == Level::Wrong
    }
}
