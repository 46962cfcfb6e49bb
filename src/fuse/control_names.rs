//! The names of control files: the files in `.latchfs`, and the files that show one fact about a
//! lock in the lock's directory.

use crate::engine::LockName;
use std::ffi::OsStr;

/// The help text of the mount, for people.
pub(crate) const README: &str = include_str!("control_files/README.txt");

/// A file or directory of the mount that is not a lock.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum ControlFile {
    /// The directory `.latchfs`.
    Top,
    /// A file in `.latchfs` about the mount as a whole.
    Page(ControlPage),
    /// The event stream `.latchfs/events@N` from event number N on, or `.latchfs/events` from now
    /// on.
    Events(Option<u64>),
    /// A directory of reports on locks, such as `.latchfs/status`, or a subdirectory of it for a
    /// lock name that has other locks below it.
    Reports(LockReport, Option<LockName>),
    /// A report about one lock, such as `.latchfs/status/NAME`. Free locks have reports too.
    Report(LockReport, LockName),
    /// A file in the directory of a held lock, such as `NAME/holder`, that shows one fact about the
    /// lock.
    Fact(LockFact, LockName),
}

/// A file in `.latchfs` about the mount as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum ControlPage {
    /// `.latchfs/README`: the help text about the mount.
    Readme,
    /// `.latchfs/why`: the last refusal to the program's client.
    Why,
    /// `.latchfs/server`: the configuration and state of the mount.
    Server,
    /// `.latchfs/metrics`: counters in the text format of Prometheus.
    Metrics,
    /// `.latchfs/ctl`: requests and answers as JSON, for the command line.
    Ctl,
}

/// A kind of report about locks, with a directory of its own in `.latchfs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum LockReport {
    /// `.latchfs/status`: the status of a lock, as JSON.
    Status,
    /// `.latchfs/content`: the content that programs have written to a lock's file.
    Content,
    /// `.latchfs/wait`: a read returns the status of a lock as soon as the lock is granted to the
    /// reader.
    Wait,
}

/// A file in the directory of a held lock that shows one fact about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum LockFact {
    /// The status of the lock, as JSON.
    Status,
    /// The client that holds the lock.
    Holder,
    /// The fencing token of the lock.
    Token,
    /// The phase of the lock: free, held or grace.
    Phase,
    /// The time at which the lease expires.
    ExpiresAt,
    /// The waiting clients, one per line.
    Waiters,
    /// Accepts the messages that programs write to the file of a lock, for a lock whose file is a
    /// directory.
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
    /// Returns the fact about a lock whose file has the name `name`.
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

    /// Whether the control file exists independently of which locks there are, so that the kernel
    /// may cache its name.
    pub(crate) const fn is_constant(&self) -> bool {
        matches!(self, Self::Top | Self::Page(_) | Self::Events(None) | Self::Reports(_, None))
    }
}
