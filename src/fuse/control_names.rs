//! The names of control files: what `.latchfs` holds, and the facts in a directory that is a lock.

use crate::engine::LockName;
use std::ffi::OsStr;

/// Something that is no lock.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum ControlFile {
    /// `.latchfs` itself.
    Top,
    /// A file in it.
    Page(ControlPage),
    /// The events, from a number on or from now on.
    Events(Option<u64>),
    /// A directory of reports, or one within where locks lie below a name.
    Reports(LockReport, Option<LockName>),
    /// A report on a lock, held or free.
    Report(LockReport, LockName),
    /// A fact about a lock that is a directory.
    Fact(LockFact, LockName),
}

/// A file in `.latchfs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum ControlPage {
    /// The table of what programs can do here.
    Readme,
    /// The last refusal.
    Why,
    /// How this mount is made.
    Server,
    /// Counts, for Prometheus.
    Metrics,
    /// Requests and answers, for the command line.
    Ctl,
}

/// The subject of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum LockReport {
    /// The status, as JSON.
    Status,
    /// The text that programs wrote.
    Content,
    /// The status, as soon as the lock is the reader's.
    Wait,
}

/// A fact about a lock that is a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum LockFact {
    /// The status, as JSON.
    Status,
    /// The holder.
    Holder,
    /// The token.
    Token,
    /// The phase.
    Phase,
    /// When it expires.
    ExpiresAt,
    /// The waiters, one a line.
    Waiters,
    /// Takes what a write to a lock's file takes.
    Ctl,
}

impl ControlPage {
    pub(crate) const ALL: [Self; 5] =
        [Self::Readme, Self::Why, Self::Server, Self::Metrics, Self::Ctl];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Readme => "README",
            Self::Why => "why",
            Self::Server => "server",
            Self::Metrics => "metrics",
            Self::Ctl => "ctl",
        }
    }
}

impl LockReport {
    pub(crate) const ALL: [Self; 3] = [Self::Status, Self::Content, Self::Wait];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Status => "status",
            Self::Content => "content",
            Self::Wait => "wait",
        }
    }
}

impl LockFact {
    /// The fact of this name.
    pub(crate) fn named(name: &OsStr) -> Option<Self> {
        match name.to_str()? {
            "status.json" => Some(Self::Status),
            "holder" => Some(Self::Holder),
            "token" => Some(Self::Token),
            "phase" => Some(Self::Phase),
            "expires_at" => Some(Self::ExpiresAt),
            "waiters" => Some(Self::Waiters),
            "ctl" => Some(Self::Ctl),
            _ => None,
        }
    }
}

impl ControlFile {
    pub(crate) const fn is_directory(&self) -> bool {
        matches!(self, Self::Top | Self::Reports(..))
    }

    pub(crate) const fn takes_writes(&self) -> bool {
        matches!(self, Self::Page(ControlPage::Ctl) | Self::Fact(LockFact::Ctl, _))
    }

    /// Whether it is there whatever becomes of the locks.
    pub(crate) const fn is_constant(&self) -> bool {
        matches!(self, Self::Top | Self::Page(_) | Self::Events(None) | Self::Reports(_, None))
    }
}
