//! What the clients saw, as virtual time would have it: what they asked, when, what it came to,
//! and from when to when they believed to hold a lock.

use crate::time::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Which of the locks.
pub(super) type Lock = usize;
/// A life of a client: who dies comes back under another name.
pub(super) type Who = Arc<str>;
/// A fencing token.
pub(super) type Token = u64;

/// Something that happened to a lock at one moment between `from` and `to`.
#[derive(Debug, Clone)]
pub(super) struct Act {
    pub(super) from: Time,
    /// `None`: nobody has heard of it. It may have happened later, or not at all.
    pub(super) to: Option<Time>,
    pub(super) what: What,
}

/// What happened to a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    /// It was free, and a tenure began.
    Granted(Token),
    /// Whoever had it, another tenure began.
    Stolen(Token),
    /// This tenure had it, and went on.
    Kept(Token),
    /// This tenure did not have it.
    NotKept(Token),
    /// This tenure had it, and then nobody.
    Released(Token),
    /// Somebody looked.
    Seen(Option<Token>),
}

/// That a client believed to hold a lock.
#[derive(Debug, Clone)]
pub(super) struct Belief {
    pub(super) lock: Lock,
    pub(super) token: Token,
    pub(super) who: Who,
    pub(super) from: Time,
    pub(super) until: Time,
}

/// A place in a line that somebody was told of.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) lock: Lock,
    pub(super) who: Who,
    /// When its client was told of it.
    pub(super) told: Time,
    /// Its number: the lowest is served first.
    pub(super) ticket: u64,
    /// The tenure that it became, if somebody was told of that.
    pub(super) served: Option<Token>,
}

/// All that the clients saw.
#[derive(Debug, Default)]
pub(super) struct History {
    pub(super) acts: BTreeMap<Lock, Vec<Act>>,
    pub(super) beliefs: Vec<Belief>,
    pub(super) places: Vec<Place>,
    /// Which tenure a token was, as far as anybody was told.
    pub(super) tenures: BTreeMap<Token, (Lock, Who)>,
    /// Tokens of tenures whose beginning somebody was told of.
    pub(super) granted: BTreeSet<Token>,
    /// Who asked for a lock, since when, and does not know what came of it.
    pub(super) open: BTreeMap<(Lock, Who), Time>,
    /// Until when the last answer says that a tenure lasts at least.
    pub(super) secured: BTreeMap<Token, Time>,
    /// From when on a tenure may have been ended by its client.
    pub(super) freed: BTreeMap<Token, Time>,
    pub(super) steals: Vec<(Lock, Time, Token)>,
    /// What can't be true of any history.
    pub(super) wrong: Vec<String>,
    /// Answers to clients.
    pub(super) answered: u64,
    /// Requests whose outcome their client never learned.
    pub(super) unknown: u64,
}

impl History {
    /// Something happened to a lock.
    pub(super) fn act(&mut self, lock: Lock, from: Time, to: Option<Time>, what: What) {
        if let What::Granted(token) | What::Stolen(token) = what {
            self.granted.insert(token);
        }
        self.acts.entry(lock).or_default().push(Act { from, to, what });
    }

    /// Somebody was shown who has a token.
    pub(super) fn tenure(&mut self, lock: Lock, token: Token, who: &Who) {
        let known = self.tenures.entry(token).or_insert_with(|| (lock, Arc::clone(who)));
        if known.0 != lock || known.1 != *who {
            let (other, first) = known;
            self.wrong.push(format!(
                "token {token} was given twice: to {first} for lock {other}, and to {who} for \
                 lock {lock}"
            ));
        }
    }

    /// Somebody asked for a lock, and does not know what came of it.
    pub(super) fn left_open(&mut self, lock: Lock, who: &Who, since: Time) {
        let open = self.open.entry((lock, Arc::clone(who))).or_insert(since);
        *open = since.min(*open);
    }

    /// An answer says that a tenure lasts at least until then.
    pub(super) fn secure(&mut self, token: Token, until: Time) {
        let secured = self.secured.entry(token).or_default();
        *secured = until.max(*secured);
    }

    /// A client has asked for the end of a tenure.
    pub(super) fn free(&mut self, token: Token, from: Time) {
        let freed = self.freed.entry(token).or_insert(from);
        *freed = from.min(*freed);
    }
}
