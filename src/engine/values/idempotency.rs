//! The idempotency table: the first answers to requests that carried an id.
//!
//! An answer is forgotten after a while, or earlier once its caller has acknowledged it, which it
//! does if its requests have numbers: a session knows which numbers were used. While the
//! table is full, each new answer takes the place of the oldest answer of the caller that has the
//! most: a caller that sends many ids shortens only its own memory.

use super::command::{Digest, Outcome, Replay, RequestId, RequestKey, RequestNumber};
use super::lease::{Ticket, Token};
use crate::time::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The remembered answers to requests that carried an id, by that id.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct IdempotencyTable {
    pub(crate) by_id: BTreeMap<Arc<RequestId>, IdempotencyRecord>,
    /// The ids of queued requests, by their ticket.
    pub(crate) waiting: BTreeMap<Ticket, BTreeSet<Arc<RequestId>>>,
    /// The number of ids of queued requests.
    queued: usize,
    callers: BTreeMap<Arc<str>, CallerShare>,
    /// The number of final answers of each caller that has any, and the caller.
    sizes: BTreeSet<(usize, Arc<str>)>,
    /// The ids of the requests that were granted a lock, by the token of the grant.
    grants: BTreeSet<(Token, Arc<RequestId>)>,
}

/// The part of the table that belongs to one caller.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct CallerShare {
    /// The final answers, by the time when they are dropped.
    settled: BTreeSet<(Time, Arc<RequestId>)>,
    /// The number of ids of queued requests.
    waiting: usize,
}

/// The maximum number of requests of one session that have no answer yet.
pub const UNANSWERED_MAX: u64 = 512;

/// The numbers that the requests of one session have used.
///
/// A number stays used when its request was refused or its answer is forgotten, so no copy of a
/// request is carried out a second time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct UsedNumbers {
    /// The sender has the answers to all requests with lower numbers.
    pub(crate) answered_below: u64,
    /// A bit for each of the next [`UNANSWERED_MAX`] numbers, at the place of its remainder.
    pub(crate) used: [u64; (UNANSWERED_MAX / 64) as usize],
}

impl UsedNumbers {
    /// Records that the sender has the answers to all requests below `below`.
    pub(crate) fn acknowledge(&mut self, below: u64) {
        let passed = below.saturating_sub(self.answered_below).min(UNANSWERED_MAX);
        for number in self.answered_below..self.answered_below + passed {
            let (word, bit) = Self::place(number);
            self.used[word] &= !bit;
        }
        self.answered_below = self.answered_below.max(below);
    }

    /// Whether a request used `number`, which is below `answered_below` + [`UNANSWERED_MAX`].
    pub(crate) const fn contains(&self, number: u64) -> bool {
        let (word, bit) = Self::place(number);
        number < self.answered_below || self.used[word] & bit != 0
    }

    /// Adds a number that is not below `answered_below`.
    pub(crate) const fn insert(&mut self, number: u64) {
        let (word, bit) = Self::place(number);
        self.used[word] |= bit;
    }

    const fn place(number: u64) -> (usize, u64) {
        let place = number % UNANSWERED_MAX;
        ((place / 64) as usize, 1 << (place % 64))
    }
}

/// The remembered answer to one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct IdempotencyRecord {
    /// When the answer is dropped. `Time::NEVER` while the request is in the queue.
    pub(crate) until: Time,
    /// The digest of the request. A request with the same id and another digest is refused.
    pub(crate) digest: Digest,
    /// The answer to return to a repeat of the request.
    pub(crate) replay: Replay,
}

impl IdempotencyTable {
    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Inserts an answer under a new id.
    pub(crate) fn insert(&mut self, id: &Arc<RequestId>, record: IdempotencyRecord) {
        if let Some(ticket) = record.place() {
            self.waiting.entry(ticket).or_default().insert(Arc::clone(id));
            self.queued += 1;
            self.change_share(id, |share| share.waiting += 1);
        } else {
            let known = (record.until, Arc::clone(id));
            self.change_share(id, |share| _ = share.settled.insert(known));
        }
        if let Some(token) = record.granted() {
            self.grants.insert((token, Arc::clone(id)));
        }
        self.by_id.insert(Arc::clone(id), record);
    }

    /// Removes the answer to the request with this id, if there is one, and returns it.
    pub(crate) fn remove(&mut self, id: &RequestId) -> Option<IdempotencyRecord> {
        let (id, record) = self.by_id.remove_entry(id)?;
        if let Some(ticket) = record.place() {
            if let Some(ids) = self.waiting.get_mut(&ticket) {
                ids.remove(&id);
                if ids.is_empty() {
                    self.waiting.remove(&ticket);
                }
            }
            self.queued -= 1;
            self.change_share(&id, |share| share.waiting -= 1);
        } else {
            let known = (record.until, Arc::clone(&id));
            self.change_share(&id, |share| _ = share.settled.remove(&known));
        }
        if let Some(token) = record.granted() {
            self.grants.remove(&(token, id));
        }
        Some(record)
    }

    fn change_share(&mut self, id: &RequestId, change: impl FnOnce(&mut CallerShare)) {
        let share = self.callers.entry(Arc::clone(&id.caller)).or_default();
        let before = share.settled.len();
        change(share);
        let (after, waiting) = (share.settled.len(), share.waiting);
        if before != after {
            self.sizes.remove(&(before, Arc::clone(&id.caller)));
            if after > 0 {
                self.sizes.insert((after, Arc::clone(&id.caller)));
            }
        }
        if after + waiting == 0 {
            self.callers.remove(&id.caller);
        }
    }

    /// Returns the id whose answer makes room for a new one of `caller`: the oldest final answer of
    /// the caller that has the most, which is `caller` itself if no other has more.
    pub(crate) fn dispensable(&self, caller: &str) -> Option<Arc<RequestId>> {
        let (most, largest) = self.sizes.last()?;
        let own = self.callers.get(caller).filter(|own| own.settled.len() >= *most);
        let share = own.or_else(|| self.callers.get(largest))?;
        share.settled.first().map(|(_, id)| Arc::clone(id))
    }

    /// Whether another request of `caller` may wait under an id. The ids of queued requests are not
    /// forgotten: those of one caller take at most half of what a table of `max` ids has left
    /// beside those of the other callers.
    pub(crate) fn may_wait(&self, caller: &str, max: usize) -> bool {
        let own = self.callers.get(caller).map_or(0, |share| share.waiting);
        own < max.saturating_sub(self.queued - own) / 2
    }

    /// Returns the ids of `caller` with a number below `below`, of the same session.
    pub(crate) fn answered(&self, caller: &Arc<str>, below: RequestNumber) -> Vec<Arc<RequestId>> {
        let id = |number| {
            let key = RequestKey::Number(RequestNumber { number, ..below });
            RequestId { caller: Arc::clone(caller), key }
        };
        self.by_id.range(id(0)..id(below.number)).map(|(id, _)| Arc::clone(id)).collect()
    }

    /// Returns the id of a request that was granted a lock under this token, as long as its answer
    /// is remembered.
    pub(crate) fn of_grant(&self, token: Token) -> Option<&RequestId> {
        let least = Arc::new(RequestId { caller: "".into(), key: "".into() });
        let next = self.grants.range((token, least)..).next();
        next.filter(|(of, _)| *of == token).map(|(_, id)| &**id)
    }

    /// Returns the highest request id in the table.
    pub(crate) fn last(&self) -> Option<&RequestId> {
        self.by_id.last_key_value().map(|(id, _)| &**id)
    }

    /// Returns all request ids and answers, ordered by id.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&RequestId, &IdempotencyRecord)> {
        self.by_id.iter().map(|(id, reply)| (&**id, reply))
    }
}

impl IdempotencyRecord {
    /// Returns the token under which the request was granted a lock, if it was.
    fn granted(&self) -> Option<Token> {
        match &self.replay.first {
            Outcome::Granted(tenure) | Outcome::Stolen(tenure) => Some(tenure.token),
            _ => None,
        }
    }

    /// Returns the ticket of the request while it is in the queue.
    pub(crate) fn place(&self) -> Option<Ticket> {
        match self.replay.first {
            Outcome::Waiting { ticket, .. } if self.until == Time::NEVER => Some(ticket),
            _ => None,
        }
    }
}
