//! Why there is no outcome: the engine said no, or nobody said anything.

use crate::engine::{Refusal, RefusalKind};
use std::fmt;
use std::sync::Arc;

/// There was no answer, or none that can be trusted: the outcome is unknown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unavailable {
    /// The state directory can't be written: nothing is granted that a restart would forget.
    State {
        /// Whether there is no room, which may pass.
        full: bool,
        /// The error text of the operating system.
        why: Arc<str>,
    },
    /// The daemon is on its way out.
    Closing,
    /// The server has not answered in time, or can't be reached.
    NoAnswer {
        /// Where it should be.
        server: Arc<str>,
    },
    /// The log that decides gives no answer: its disk has failed, is full or takes too long.
    Log {
        /// A description of the failure.
        why: Arc<str>,
    },
    /// The cluster has no quorum, or no leader yet.
    NoQuorum {
        /// The reason, in words.
        why: Arc<str>,
    },
    /// The caller lacks the permission.
    Denied {
        /// The reason, as a sentence.
        why: Arc<str>,
    },
}

impl Unavailable {
    /// The kind of section 7. A full disk is a limit like others: nothing was done, try again.
    pub const fn kind(&self) -> RefusalKind {
        match self {
            Self::State { full: true, .. } => RefusalKind::Limit,
            Self::State { full: false, .. }
            | Self::Closing
            | Self::NoAnswer { .. }
            | Self::NoQuorum { .. }
            | Self::Log { .. } => RefusalKind::ConsistencyUnavailable,
            Self::Denied { .. } => RefusalKind::Denied,
        }
    }
}

/// Why there is no outcome to show: a no, or no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestError {
    /// The engine said no.
    Refused(Refusal),
    /// Nobody said anything.
    Unavailable(Unavailable),
}

impl RequestError {
    /// The kind of section 7.
    pub const fn kind(&self) -> RefusalKind {
        match self {
            Self::Refused(refusal) => refusal.kind(),
            Self::Unavailable(unavailable) => unavailable.kind(),
        }
    }
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(refusal) => refusal.fmt(f),
            Self::Unavailable(unavailable) => unavailable.fmt(f),
        }
    }
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::State { why, .. } => write!(
                f,
                "the state directory can't be written ({why}), so nothing is granted or changed \
                 that a restart would forget; make room or mend it, and try again"
            ),
            Self::Closing => write!(f, "the daemon is being stopped; try again when it is back"),
            Self::NoAnswer { server } => write!(
                f,
                "the server {server} does not answer, so the outcome is unknown; see whether it \
                 runs and can be reached, and try again"
            ),
            Self::Log { why } => write!(
                f,
                "the log gives no answer ({why}), so the outcome is unknown; mend that, and try \
                 again when the node is back"
            ),
            Self::NoQuorum { why } => write!(
                f,
                "the nodes give no answer ({why}), so the outcome is unknown; see 'latchfs cluster \
                 status', and try again"
            ),
            Self::Denied { why } => f.write_str(why),
        }
    }
}

impl std::error::Error for Unavailable {}
