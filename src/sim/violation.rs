//! The violations that the checks of a simulation report: the broken promise, and how it was
//! broken.

use crate::time::Time;
use std::fmt;

/// A promise that a check verifies. Every check has its own, so that a test which plants a bug can
/// require the right one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Promise {
    /// An exclusive lock has at most one holder at a time.
    OneHolder,
    /// Waiters are served in the order in which they joined the queue.
    FirstComeFirstServed,
    /// A fencing token belongs to one tenure (one client's hold of a lock) only.
    TokensAreUnique,
    /// The answers for a lock are linearizable: they fit some order of the operations.
    Linearizable,
    /// A read is current. Broken if the answers for a lock are linearizable only without the reads.
    ReadsAreCurrent,
    /// A lease lasts as long as the answers say. Broken if the answers are linearizable only if a
    /// lease ended early.
    LeasesLast,
    /// A change from shared to exclusive gives the holder a new fencing token.
    UpgradesMintTokens,
    /// A request is answered only after its entry has been applied.
    AnswersAreApplied,
    /// The linearizability search ends within its limit.
    SearchEnds,
    /// A lock is granted only to a client that requested it.
    OnlyWhatWasAsked,
    /// A request has one effect and one answer, however often it is sent.
    OneEffect,
    /// A reset ends every lease and every queue place in its scope.
    ResetTakesAll,
    /// A grant tells the last handover that was set, and how the tenure that set it ended.
    HandoversAreKept,
    /// Nodes that have applied the same entries are in the same state.
    SameState,
    /// A node remembers its vote.
    VotesAreKept,
    /// A node remembers every entry that it acknowledged.
    EntriesAreKept,
    /// The time of the entries never runs faster than real time.
    TimeIsNotAhead,
    /// A node can start from the contents of its disk.
    NodesStart,
    /// A node stops soon after its disk has failed.
    FailedNodesEnd,
    /// The cluster works again once all faults are repaired.
    Recovers,
    /// No task panics.
    NoPanic,
}

/// A report of a broken promise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The promise that was broken.
    pub promise: Promise,
    /// When a check detected the violation during the run. `None` if the check ran outside a
    /// simulation.
    pub at: Option<Time>,
    /// Description of the violation, in one sentence.
    pub what: String,
}

impl Violation {
    pub(super) const fn new(promise: Promise, what: String) -> Self {
        Self { promise, at: None, what }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.at {
            Some(at) => write!(f, "at {at}: {:?}: {}", self.promise, self.what),
            None => write!(f, "{:?}: {}", self.promise, self.what),
        }
    }
}
