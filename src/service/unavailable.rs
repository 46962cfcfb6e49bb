//! Why a request has no outcome: the engine refused it, or there was no answer.

use crate::engine::{Refusal, RefusalKind};
use std::fmt;
use std::sync::Arc;

/// Why there is no answer, or none that can be trusted. Unless the variant says otherwise, assume
/// that the outcome is unknown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unavailable {
    /// The state directory cannot be written. The request had no effect: the engine grants nothing
    /// that a restart would forget.
    State {
        /// Whether the disk is full, a condition that may pass.
        full: bool,
        /// The error text of the operating system.
        why: Arc<str>,
    },
    /// The daemon is shutting down.
    Closing,
    /// The server did not answer in time, or cannot be reached.
    NoAnswer {
        /// The name of the server.
        server: Arc<str>,
    },
    /// The replicated log gives no answer: its disk has failed, is full or is too slow.
    Log {
        /// A description of the failure.
        why: Arc<str>,
    },
    /// The cluster has no quorum, or no leader yet.
    NoQuorum {
        /// A description of the cause.
        why: Arc<str>,
    },
    /// The clock of this machine differs too much from the server's for a steal. The request was
    /// not sent.
    ClockSkew {
        /// The difference and the next step, as a sentence.
        why: Arc<str>,
    },
    /// The caller lacks the permission.
    Denied {
        /// The reason, as a sentence.
        why: Arc<str>,
    },
}

/// The cause of [`Unavailable::NoQuorum`] while a node has no contact with a majority.
const NO_MAJORITY: &str = "no majority of the nodes answers";

/// The remedy for the lack of a majority, as the end of a sentence.
pub const MAJORITY_ADVICE: &str = "start nodes until a majority answers; if the data of so many \
    is lost for good that none can, 'latchfs cluster recover' begins a new cluster with a node \
    that is left";

impl Unavailable {
    /// Returns the failure of a node that has no contact with a majority.
    pub fn no_majority() -> Self {
        Self::NoQuorum { why: NO_MAJORITY.into() }
    }

    /// Whether there is no answer because the cluster has no majority.
    pub fn is_no_majority(&self) -> bool {
        matches!(self, Self::NoQuorum { why } if &**why == NO_MAJORITY)
    }

    /// Returns the kind of this failure. A full disk counts as a limit: nothing was done, and the
    /// request can be retried.
    pub const fn kind(&self) -> RefusalKind {
        match self {
            Self::State { full: true, .. } => RefusalKind::Limit,
            Self::State { full: false, .. }
            | Self::Closing
            | Self::NoAnswer { .. }
            | Self::NoQuorum { .. }
            | Self::Log { .. } => RefusalKind::ConsistencyUnavailable,
            Self::ClockSkew { .. } => RefusalKind::ClockSkewExceeded,
            Self::Denied { .. } => RefusalKind::Denied,
        }
    }
}

/// Why a request has no outcome: a refusal, or no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestError {
    /// The engine refused the request.
    Refused(Refusal),
    /// The service gave no answer.
    Unavailable(Unavailable),
}

impl RequestError {
    /// Returns the kind of the refusal or failure.
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
                 that a restart would forget; free disk space or repair it, and try again"
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
            Self::NoQuorum { why } if self.is_no_majority() => write!(
                f,
                "the cluster has no majority: {why}, so nothing is granted, and the outcome of a \
                 change is unknown; {MAJORITY_ADVICE}"
            ),
            Self::NoQuorum { why } => write!(
                f,
                "the nodes give no answer ({why}), so the outcome is unknown; see 'latchfs cluster \
                 status', and try again"
            ),
            Self::ClockSkew { why } | Self::Denied { why } => f.write_str(why),
        }
    }
}

impl std::error::Error for Unavailable {}
