//! Rule 10: a repeated request has one effect, and gets the first answer.
//!
//! Only what was done is remembered. A refusal had no effect, so repeating the request can do no
//! harm, and remembering it would let a client that is refused fill the memory.

use super::agenda::Due;
use super::command::{Answer, Digest, Outcome, Replay, Request, RequestId};
use super::planted::{Bug, planted};
use super::refusal::{Limit, Reason};
use super::session::Session;
use super::{Books, Engine};
use crate::time::Time;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The first answers to requests that carried an id.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Replies(BTreeMap<Arc<RequestId>, Reply>);

/// The first answer to one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reply {
    /// When it is forgotten.
    pub(super) until: Time,
    /// The digest of the request.
    pub(super) digest: Digest,
    /// The answer.
    pub(super) replay: Replay,
}

impl Replies {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn forget(&mut self, id: &RequestId) {
        self.0.remove(id);
    }

    /// The reply with the highest id.
    pub(super) fn last(&self) -> Option<&RequestId> {
        self.0.last_key_value().map(|(id, _)| &**id)
    }

    /// Each reply, by id.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&RequestId, &Reply)> {
        self.0.iter().map(|(id, reply)| (&**id, reply))
    }
}

impl Engine {
    /// Returns the answer to a request that was carried out before, or that uses the id of another
    /// one; `None` if the id is new.
    pub(super) fn replay(&self, request: &Request) -> Option<Answer> {
        let reply = self.books.replies.0.get(&request.id)?;
        if planted(Bug::RepeatsAreApplied) {
            return None;
        }
        if reply.digest != request.digest && !planted(Bug::KeyOfAnotherRequest) {
            let reason = Reason::KeyReused(Arc::clone(&request.id.key));
            return Some(Err(self.books.refuse(reason)));
        }
        Some(Ok(Outcome::Replayed(Box::new(reply.replay.clone()))))
    }

    /// Whether the answer to one more request can be kept.
    pub(super) fn has_room_for_reply(&self) -> Result<(), super::Refusal> {
        let (known, max) = (self.books.replies.len(), self.books.rules.requests_max);
        self.books.limit(known, max, Limit::Requests)
    }
}

impl Books {
    /// Keeps the answer to a request for repeats of it.
    pub(super) fn remember(&mut self, request: &Request, first: &Outcome) {
        let (at, until) = (self.clock, self.clock + self.rules.requests_kept);
        let ends = match first {
            Outcome::SessionOpened(id) => self.sessions.get(id).map(Session::ends),
            _ => first.tenure().map(|tenure| self.ends(tenure.life)),
        };
        let replay = Replay { at, first: first.clone(), ends };
        self.restore_reply(request.id.clone(), Reply { until, digest: request.digest, replay });
    }

    /// Enters a reply: what a snapshot brings back.
    pub(super) fn restore_reply(&mut self, id: RequestId, reply: Reply) {
        let (id, until) = (Arc::new(id), reply.until);
        if let Some(before) = self.replies.0.insert(Arc::clone(&id), reply) {
            self.agenda.remove(before.until, Due::Reply(Arc::clone(&id)));
        }
        self.agenda.add(until, Due::Reply(id));
    }
}
