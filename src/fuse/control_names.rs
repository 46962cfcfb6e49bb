//! The names of control files: the files in `.latchfs`, and the facts in a directory that is a
//! lock.

use crate::engine::LockName;
use std::ffi::OsStr;

/// A file or directory of the mount that is not a lock.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum ControlFile {
    /// The directory `.latchfs`.
    Top,
    /// A file in `.latchfs`.
    Page(ControlPage),
    /// The event stream, from an event number on, or from now on.
    Events(Option<u64>),
    /// A directory of reports, or one in it for a name that has locks below it.
    Reports(LockReport, Option<LockName>),
    /// A report about a lock, whether it is held or free.
    Report(LockReport, LockName),
    /// A fact about a lock that is a directory.
    Fact(LockFact, LockName),
}

/// A file in `.latchfs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum ControlPage {
    /// Help: the operations that programs can use in the mount.
    Readme,
    /// The last refusal of the reader.
    Why,
    /// The configuration and state of this mount.
    Server,
    /// Counters, for Prometheus.
    Metrics,
    /// Requests and answers as JSON, for the command line.
    Ctl,
}

/// The kind of a report about a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum LockReport {
    /// The status, as JSON.
    Status,
    /// The content that programs wrote.
    Content,
    /// The status, as soon as the lock is granted to the reader.
    Wait,
}

/// A fact about a lock that is a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum LockFact {
    /// The status, as JSON.
    Status,
    /// The client that holds the lock.
    Holder,
    /// The fencing token.
    Token,
    /// The phase: free, held or grace.
    Phase,
    /// The time at which the lease expires.
    ExpiresAt,
    /// The waiting clients, one per line.
    Waiters,
    /// Accepts the messages that a write to a lock's file accepts.
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
    /// Returns the fact with this name.
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

    /// Whether the file exists independently of locks.
    pub(crate) const fn is_constant(&self) -> bool {
        matches!(self, Self::Top | Self::Page(_) | Self::Events(None) | Self::Reports(_, None))
    }
}
