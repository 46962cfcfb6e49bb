//! The history of the clients: their requests, with times and answers, and from when to when each
//! client believed to hold a lock. Times are those of one clock that all clients share: virtual
//! time in a simulation, the machine's clock where real nodes are asked.

use super::violation::{Promise, Violation};
use crate::time::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Which of the locks.
pub type Lock = usize;
/// One life of a client: after a crash it comes back under another name.
pub type Who = Arc<str>;
/// A fencing token.
pub type Token = u64;

/// A step that a lock took at one moment between `from` and `to`.
#[derive(Debug, Clone)]
pub struct LockStep {
    /// When it was asked for.
    pub from: Time,
    /// When the answer came. `None`: the outcome is unknown. It may happen later, or never.
    pub to: Option<Time>,
    /// The step.
    pub what: StepKind,
}

/// A step of a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StepKind {
    /// A tenure began: nobody held the lock, or only sharers if this is another one.
    Granted(Token, Sharing),
    /// Every tenure ended, and an exclusive one began.
    Stolen(Token),
    /// Every tenure ended by a steal that nobody was told of, and nobody was shown what began.
    AllEnded,
    /// Somebody was shown a tenure whose grant nobody was told of. It began in one of these ways.
    Appeared {
        /// Its token.
        token: Token,
        /// Tenures of the same client that it may have replaced, by a change of the mode.
        was: Vec<Token>,
        /// Whether it may have been a steal.
        steal: bool,
    },
    /// A tenure goes on in this mode, perhaps under another token: if either changes, it was the
    /// only one.
    Changed {
        /// Its token before.
        from: Token,
        /// Its token from then on.
        to: Token,
        /// Its mode from then on.
        mode: Sharing,
    },
    /// This tenure held the lock, and went on.
    Kept(Token),
    /// This tenure did not hold the lock.
    NotKept(Token),
    /// This tenure held the lock, and ended.
    Released(Token),
    /// A reader saw these holders, in ascending order.
    Seen(Vec<Token>),
    /// A refusal named this one of the holders.
    InTheWay(Token),
}

/// Whether a tenure shares its lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Sharing {
    /// It does not.
    Alone,
    /// With others that do the same.
    Shared,
}

/// A client believed to hold a lock.
#[derive(Debug, Clone)]
pub struct Belief {
    /// The lock.
    pub lock: Lock,
    /// The token of the tenure.
    pub token: Token,
    /// The client.
    pub who: Who,
    /// Alone or shared.
    pub mode: Sharing,
    /// When the tenure was asked for. The answer may have come long after the grant.
    pub asked: Time,
    /// Since when.
    pub from: Time,
    /// Until when.
    pub until: Time,
}

/// A place in a queue.
#[derive(Debug, Clone)]
pub struct ObservedQueuePlace {
    /// The lock.
    pub lock: Lock,
    /// The client.
    pub who: Who,
    /// When the client was told of it.
    pub told: Time,
    /// Its number: the lowest is served first.
    pub ticket: u64,
    /// The tenure that it became, if anybody was told of that.
    pub served: Option<Token>,
}

/// A reset: nobody but some keeps a hold or a place in a queue.
#[derive(Debug, Clone)]
pub struct ObservedReset {
    /// When it was asked for.
    pub from: Time,
    /// When the answer came; `None`: the outcome is unknown.
    pub to: Option<Time>,
    /// The clients that keep what they have.
    pub kept: Vec<Who>,
}

/// All that the clients saw.
#[derive(Debug, Default)]
pub struct History {
    pub(super) acts: BTreeMap<Lock, Vec<LockStep>>,
    pub(super) beliefs: Vec<Belief>,
    pub(super) places: Vec<ObservedQueuePlace>,
    pub(super) resets: Vec<ObservedReset>,
    /// Which tenure a token was, as far as anybody was told.
    pub(super) tenures: BTreeMap<Token, (Lock, Who)>,
    /// Tokens of tenures whose beginning somebody was told of.
    pub(super) granted: BTreeSet<Token>,
    /// Clients that asked for a lock and do not know what came of it, and since when.
    pub(super) open: BTreeMap<(Lock, Who), Time>,
    /// Requests to share a lock whose outcome their client does not know, and since when.
    pub(super) open_to_share: Vec<(Lock, Who, Time)>,
    /// Until when a tenure lasts at least, by the answers.
    pub(super) secured: BTreeMap<Token, Time>,
    /// From when on a tenure may have been ended by its client.
    pub(super) freed: BTreeMap<Token, Time>,
    pub(super) steals: Vec<(Lock, Time, Token)>,
    /// Tenures that hang on a session.
    pub(super) of_sessions: BTreeSet<Token>,
    /// The first answer to each request that carries an id.
    replies: BTreeMap<(Who, Arc<str>), String>,
    /// Violations that were found while the history was recorded.
    pub(super) violations: Vec<Violation>,
    /// Answers to clients.
    pub answered: u64,
    /// Requests whose outcome their client never learned.
    pub unknown: u64,
}

impl History {
    /// Adds a step of a lock.
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

    /// Notes whose tenure a token is, as an answer says.
    pub fn tenure(&mut self, lock: Lock, token: Token, who: &Who) {
        let known = self.tenures.entry(token).or_insert_with(|| (lock, Arc::clone(who)));
        if known.0 != lock || known.1 != *who {
            let (other, first) = known;
            let what = format!(
                "token {token} was given twice: to {first} for lock {other}, and to {} client, \
                 {who}, for lock {lock}",
                if first == who { "the same" } else { "another" }
            );
            self.violations.push(Violation::new(Promise::TokensAreUnique, what));
        }
    }

    /// Notes what a client believed.
    pub fn believed(&mut self, belief: Belief) {
        self.beliefs.push(belief);
    }

    /// Notes a place in a queue.
    pub fn place(&mut self, place: ObservedQueuePlace) {
        self.places.push(place);
    }

    /// Notes that a client asked for a lock and does not know what came of it.
    pub fn left_open(&mut self, lock: Lock, who: &Who, since: Time) {
        let open = self.open.entry((lock, Arc::clone(who))).or_insert(since);
        *open = since.min(*open);
    }

    /// Notes that a client asked to share a lock and does not know what came of it. An exclusive
    /// tenure of the client may be shared from then on, also one that it believed to be over.
    pub fn left_open_to_share(&mut self, lock: Lock, who: &Who, since: Time) {
        self.left_open(lock, who, since);
        self.open_to_share.push((lock, Arc::clone(who), since));
    }

    /// Notes an answer which says that a tenure lasts at least until then.
    pub fn secure(&mut self, token: Token, until: Time) {
        let secured = self.secured.entry(token).or_default();
        *secured = until.max(*secured);
    }

    /// Notes that a tenure hangs on a session: a violation report says so if it ended too early.
    pub fn hangs_on_session(&mut self, token: Token) {
        self.of_sessions.insert(token);
    }

    /// Notes that a client asked for the end of a tenure, and may not learn what came of it.
    pub fn free(&mut self, token: Token, from: Time) {
        let freed = self.freed.entry(token).or_insert(from);
        *freed = from.min(*freed);
    }

    /// Notes that a client acquired a tenure again: a release from before does not end it, and it
    /// lasts as long as this acquire said, which may be shorter.
    pub fn held_again(&mut self, token: Token) {
        self.freed.remove(&token);
        self.secured.remove(&token);
    }

    /// Notes the answer to a request that carries an id: a repeat gets the same.
    pub fn replied(&mut self, who: &Who, key: &Arc<str>, answer: &str) {
        let of = (Arc::clone(who), Arc::clone(key));
        let first = self.replies.entry(of).or_insert_with(|| answer.to_owned());
        if first != answer {
            let what = format!("request {key} of {who} came to {first}, and then to {answer}");
            self.violations.push(Violation::new(Promise::OneEffect, what));
        }
    }
}
