//! The violations that the checks report: which promise was broken, and how.

use crate::time::Time;
use std::fmt;

/// A promise that can be broken. Every check has one of its own, so that a test which plants a bug
/// can require the right one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Promise {
    /// One client holds an exclusive lock at a time.
    OneHolder,
    /// Waiters are served in the order in which they came.
    FirstComeFirstServed,
    /// A token belongs to one tenure.
    TokensAreUnique,
    /// The answers of a lock fit some order of single steps.
    Linearizable,
    /// A read shows the lock as it is: the other answers of a lock fit an order, and with the reads
    /// they do not.
    ReadsAreCurrent,
    /// A lease lasts as long as the answers say: the answers fit an order only if one ended before.
    LeasesLast,
    /// An upgrade begins a new tenure.
    UpgradesMintTokens,
    /// A request is answered when its entry has been applied.
    AnswersAreApplied,
    /// The search for that order ends.
    SearchEnds,
    /// A tenure belongs to a client that asked for it.
    OnlyWhatWasAsked,
    /// A request has one effect and one answer, however often it is sent.
    OneEffect,
    /// A reset takes every hold and every place in a queue that it means.
    ResetTakesAll,
    /// Nodes that have applied the same entries are in the same state.
    SameState,
    /// A node remembers its vote.
    VotesAreKept,
    /// A node remembers every entry that it acknowledged.
    EntriesAreKept,
    /// The time of the entries never runs faster than real time.
    TimeIsNotAhead,
    /// A node starts with what is on its disk.
    NodesStart,
    /// A node ends soon after its disk has failed.
    FailedNodesEnd,
    /// The cluster works again once all faults are repaired.
    Recovers,
    /// No task panics.
    NoPanic,
}

/// A broken promise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Which promise.
    pub promise: Promise,
    /// When it was noticed.
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
