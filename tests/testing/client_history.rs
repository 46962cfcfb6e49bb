//! The history of all clients: their requests with times and answers, and the periods in which each
//! client believed that it held a lock. All times are from one clock that the clients share:
//! virtual time in a simulation, the machine's clock in a test against real nodes.
//!
//! The violations that the checks of a simulation report: the broken promise, and how it was
//! broken.

use engine::time::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

/// The number by which the history identifies a lock.
pub type Lock = usize;
/// The id of a client. After a crash the client comes back under another one.
pub type Who = Arc<str>;
/// A fencing token, as a plain number.
pub type Token = u64;

/// An operation on a lock. It took effect at one moment between `from` and `to`.
#[derive(Debug, Clone)]
pub struct LockStep {
    /// When the request was sent.
    pub from: Time,
    /// When the answer arrived. `None`: the outcome is unknown, and the operation may take effect
    /// later, or never.
    pub to: Option<Time>,
    /// The operation and its result.
    pub what: StepKind,
}

/// The effect or the result of an operation on a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StepKind {
    /// A tenure (one client's hold of the lock) began: no client held the lock, or only sharers did
    /// and this tenure shares it too.
    Granted(Token, Sharing),
    /// A steal succeeded: every tenure (hold of the lock) ended, and an exclusive one began.
    Stolen(Token),
    /// Every tenure (hold of the lock) ended by a steal whose answer was lost, and no client saw
    /// the tenure that the steal began.
    AllEnded,
    /// A client saw a tenure (a hold of the lock by some client) for which no client received a
    /// grant. The tenure began by an acquire, by a change of the mode or by a steal.
    Appeared {
        /// The token of the tenure that appeared.
        token: Token,
        /// Earlier tenures of the same client, one of which may have become this one by a change of
        /// the mode.
        was: Vec<Token>,
        /// Whether the tenure may have begun by a steal.
        steal: bool,
    },
    /// A tenure (a client's hold of the lock) continues in the given mode, perhaps under another
    /// token. If the mode or the token changes, it was the only tenure of the lock.
    Changed {
        /// The token of the tenure before the change.
        from: Token,
        /// The token of the tenure after the change.
        to: Token,
        /// The mode of the tenure after the change.
        mode: Sharing,
    },
    /// A renewal or a repeated acquire succeeded: the tenure held the lock, and continued.
    Kept(Token),
    /// A request for this tenure failed: the tenure did not hold the lock.
    NotKept(Token),
    /// The tenure held the lock, and ended by a release or a move.
    Released(Token),
    /// A read returned exactly these tokens of holders, in ascending order.
    Seen(Vec<Token>),
    /// A conflict was reported with this tenure as one of the holders.
    InTheWay(Token),
}

/// Whether a tenure, a client's hold of a lock, admits other holders.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Sharing {
    /// The tenure excludes all others.
    Alone,
    /// The tenure holds the lock together with other shared tenures, at most as many as the lock
    /// has seats.
    Shared,
}

/// A period in which a client believed that it held a lock.
#[derive(Debug, Clone)]
pub struct Belief {
    /// The lock that the client believed it held.
    pub lock: Lock,
    /// The fencing token under which the client believed that it held the lock.
    pub token: Token,
    /// The client that believed it held the lock.
    pub who: Who,
    /// Whether the client shared the lock.
    pub mode: Sharing,
    /// When the client requested the lock. The answer may have come long after the grant.
    pub asked: Time,
    /// The time from which the client believed that it held the lock.
    pub from: Time,
    /// The time until which the client believed that it held the lock.
    pub until: Time,
}

/// A client's place in the queue of a lock.
#[derive(Debug, Clone)]
pub struct ObservedQueuePlace {
    /// The lock that has the queue.
    pub lock: Lock,
    /// The client that waited in the queue.
    pub who: Who,
    /// When the client learned that it was queued.
    pub queued_at: Time,
    /// The queue ticket: the lowest one is served first.
    pub ticket: u64,
    /// The token of the grant that ended the wait, if the client learned of it.
    pub served: Option<Token>,
}

/// A reset, which ended all leases and queue places except those of some clients.
#[derive(Debug, Clone)]
pub struct ObservedReset {
    /// When the request was sent.
    pub from: Time,
    /// When the answer arrived. `None`: the outcome is unknown.
    pub to: Option<Time>,
    /// The clients that kept their leases and queue places.
    pub kept: Vec<Who>,
}

/// Everything that the clients requested, saw and believed.
#[derive(Debug, Default)]
pub struct History {
    /// The number of seats of each lock that has seats. All its shared tenures have one each.
    pub seats: BTreeMap<Lock, usize>,
    /// The operations on each lock, in the order in which they were recorded.
    pub acts: BTreeMap<Lock, Vec<LockStep>>,
    /// The periods in which clients believed that they held a lock.
    pub beliefs: Vec<Belief>,
    /// The places in queues that answers told to clients.
    pub places: Vec<ObservedQueuePlace>,
    /// The resets of the engine, with the clients that kept their leases.
    pub resets: Vec<ObservedReset>,
    /// The lock and the client of each token that any answer mentioned.
    pub tenures: BTreeMap<Token, (Lock, Who)>,
    /// The tokens of all grants that a client learned of by the answer to its request.
    pub granted: BTreeSet<Token>,
    /// Clients that requested a lock and do not know the outcome, with the time of the earliest
    /// request of the client for that lock.
    pub open: BTreeMap<(Lock, Who), Time>,
    /// Requests for a shared lock whose outcome the client does not know, with the time of each.
    pub open_to_share: Vec<(Lock, Who, Time)>,
    /// For each tenure (a client's hold of a lock), the earliest time at which it may expire,
    /// according to the answers.
    pub secured: BTreeMap<Token, Time>,
    /// The time of the earliest request by which a client may have ended its tenure, for each
    /// tenure with such a request.
    pub freed: BTreeMap<Token, Time>,
    /// The steals of locks: when each was requested, and the token that the thief got, or
    /// [`Token::MAX`] if it is unknown.
    pub steals: Vec<(Lock, Time, Token)>,
    /// The tokens of leases that are tied to a session.
    pub of_sessions: BTreeSet<Token>,
    /// The first answer to each request that carries an id.
    replies: BTreeMap<(Who, Arc<str>), String>,
    /// Violations that were found while the history was recorded.
    pub violations: Vec<Violation>,
    /// The number of answers that clients received.
    pub answered: u64,
    /// The number of requests whose outcome the client never learned.
    pub unknown: u64,
}

impl History {
    /// Returns an empty history in which these locks have seats.
    pub fn with_seats(seats: impl IntoIterator<Item = (Lock, usize)>) -> Self {
        Self { seats: seats.into_iter().collect(), ..Self::default() }
    }

    /// Adds an operation on a lock.
    pub fn act(&mut self, lock: Lock, from: Time, to: Option<Time>, what: StepKind) {
        match what {
            StepKind::Granted(token, _) | StepKind::Stolen(token) => {
                self.granted.insert(token);
            }
            StepKind::Changed { from, to, .. } if from != to => {
                self.granted.insert(to);
            }
            _ => {}
        }
        self.acts.entry(lock).or_default().push(LockStep { from, to, what });
    }

    /// Records the lock and the client of a token, as an answer gives them. Reports a violation if
    /// an earlier answer gave others.
    pub fn tenure(&mut self, lock: Lock, token: Token, who: &Who) {
        let known = self.tenures.entry(token).or_insert_with(|| (lock, Arc::clone(who)));
        if known.0 != lock || known.1 != *who {
            let (other, first) = known;
            let what = format!(
                "token {token} was given twice: to {first} for lock {other}, and to {} client, \
                 {who}, for lock {lock}",
                if first == who { "the same" } else { "another" }
            );
            self.violations.push(Violation::new(SafetyProperty::TokensAreUnique, what));
        }
    }

    /// Records a period in which a client believed that it held a lock.
    pub fn believed(&mut self, belief: Belief) {
        self.beliefs.push(belief);
    }

    /// Records a client's place in a queue.
    pub fn place(&mut self, place: ObservedQueuePlace) {
        self.places.push(place);
    }

    /// Records that a client requested a lock and does not know the outcome.
    pub fn left_open(&mut self, lock: Lock, who: &Who, since: Time) {
        let open = self.open.entry((lock, Arc::clone(who))).or_insert(since);
        *open = since.min(*open);
    }

    /// Records that a client requested a shared lock and does not know the outcome. From then on an
    /// exclusive tenure of the client may be shared, even one that the client believes has ended.
    pub fn left_open_to_share(&mut self, lock: Lock, who: &Who, since: Time) {
        self.left_open(lock, who, since);
        self.open_to_share.push((lock, Arc::clone(who), since));
    }

    /// Records an answer by which a tenure (a client's hold of a lock) lasts at least until
    /// `until`.
    pub fn secure(&mut self, token: Token, until: Time) {
        let secured = self.secured.entry(token).or_default();
        *secured = until.max(*secured);
    }

    /// Records that a tenure (a client's hold of a lock) is tied to a session: a violation report
    /// mentions it if the tenure ended too early.
    pub fn hangs_on_session(&mut self, token: Token) {
        self.of_sessions.insert(token);
    }

    /// Records that a client requested the end of its tenure at `from`, by a request whose outcome
    /// it may not learn. From then on the tenure may have ended.
    pub fn free(&mut self, token: Token, from: Time) {
        let freed = self.freed.entry(token).or_insert(from);
        *freed = from.min(*freed);
    }

    /// Records that a client acquired again a lock that it held, and continues the tenure `token`.
    /// A release that it requested earlier no longer ends the tenure, and the duration is that of
    /// the new acquire, which may be shorter.
    pub fn held_again(&mut self, token: Token) {
        self.freed.remove(&token);
        self.secured.remove(&token);
    }

    /// Records the answer to a request that carries an id. Reports a violation if a repeat gets a
    /// different answer.
    pub fn replied(&mut self, who: &Who, key: &Arc<str>, answer: &str) {
        let of = (Arc::clone(who), Arc::clone(key));
        let first = self.replies.entry(of).or_insert_with(|| answer.to_owned());
        if first != answer {
            let what = format!("request {key} of {who} came to {first}, and then to {answer}");
            self.violations.push(Violation::new(SafetyProperty::OneEffect, what));
        }
    }
}

/// A promise that a check verifies. Every check has its own, so that a test which plants a bug can
/// require the right one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SafetyProperty {
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
    pub promise: SafetyProperty,
    /// When a check detected the violation during the run. `None` if the check ran outside a
    /// simulation.
    pub at: Option<Time>,
    /// Description of the violation, in one sentence.
    pub what: String,
}

impl Violation {
    /// Returns a violation that is not of one moment.
    pub const fn new(promise: SafetyProperty, what: String) -> Self {
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
