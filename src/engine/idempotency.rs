//! The idempotency table: the first answers to requests that carried an id.

use super::command::{Digest, Outcome, Replay, RequestId};
use super::lease::Ticket;
use crate::time::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The remembered answers to requests that carried an id, by that id.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct IdempotencyTable {
    pub(super) by_id: BTreeMap<Arc<RequestId>, IdempotencyRecord>,
    /// The ids of queued requests, by their ticket.
    pub(super) waiting: BTreeMap<Ticket, BTreeSet<Arc<RequestId>>>,
}

/// The remembered answer to one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct IdempotencyRecord {
    /// When the answer is dropped. `Time::NEVER` while the request is in the queue.
    pub(super) until: Time,
    /// The digest of the request. A request with the same id and another digest is refused.
    pub(super) digest: Digest,
    /// The answer to return to a repeat of the request.
    pub(super) replay: Replay,
}

impl IdempotencyTable {
    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Drops the answer to the request with this id.
    pub(super) fn forget(&mut self, id: &RequestId) {
        self.by_id.remove(id);
    }

    /// Returns the highest request id in the table.
    pub(super) fn last(&self) -> Option<&RequestId> {
        self.by_id.last_key_value().map(|(id, _)| &**id)
    }

    /// Returns all request ids and answers, ordered by id.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&RequestId, &IdempotencyRecord)> {
        self.by_id.iter().map(|(id, reply)| (&**id, reply))
    }
}

impl IdempotencyRecord {
    /// Returns the ticket of the request while it is in the queue.
    pub(super) fn place(&self) -> Option<Ticket> {
        match self.replay.first {
            Outcome::Waiting { ticket, .. } if self.until == Time::NEVER => Some(ticket),
            _ => None,
        }
    }
}
