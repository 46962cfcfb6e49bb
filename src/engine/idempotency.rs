//! The idempotency table (rule 10): a repeated request has one effect, and gets the first answer.
//!
//! Only what was done is remembered. A refusal had no effect, so repeating the request can do no
//! harm, and remembering it would let a client that is refused fill the memory.
//!
//! The id of a request that waits names its place in the queue: it is kept as long as the place,
//! each repeat sets anew how long the request waits, and when the place is served the id names the
//! grant. When the place is left unserved, a repeat is refused: one that was on its way must not
//! enter the queue again.

use super::command::{Answer, Digest, Line, Op, Outcome, Replay, Request, RequestId, Rulebook};
use super::deadlines::Due;
use super::lease::Ticket;
use super::mutants::{Bug, planted};
use super::refusal::{Limit, Reason};
use super::session::Session;
use super::{Books, Engine};
use crate::time::{Span, Time};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The first answers to requests that carried an id.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Replies {
    by_id: BTreeMap<Arc<RequestId>, Reply>,
    /// The ids of requests that wait, by their place in a queue.
    waiting: BTreeMap<Ticket, BTreeSet<Arc<RequestId>>>,
}

/// The first answer to one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reply {
    /// When it is forgotten. `Time::NEVER`: not before its request has left the queue.
    pub(super) until: Time,
    /// The digest of the request.
    pub(super) digest: Digest,
    /// The answer.
    pub(super) replay: Replay,
}

impl Replies {
    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Forgets the reply of an id whose time is over.
    pub(super) fn forget(&mut self, id: &RequestId) {
        self.by_id.remove(id);
    }

    /// The reply with the highest id.
    pub(super) fn last(&self) -> Option<&RequestId> {
        self.by_id.last_key_value().map(|(id, _)| &**id)
    }

    /// Each reply, by id.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&RequestId, &Reply)> {
        self.by_id.iter().map(|(id, reply)| (&**id, reply))
    }
}

impl Reply {
    /// The place in the queue of a request that waits.
    pub(super) fn place(&self) -> Option<Ticket> {
        match self.replay.first {
            Outcome::Waiting { ticket, .. } if self.until == Time::NEVER => Some(ticket),
            _ => None,
        }
    }
}

impl Engine {
    /// Returns the answer to a request that was carried out before, or that uses the id of another
    /// one; `None` if the id is new.
    pub(super) fn replay(&mut self, request: &Request, op: &Op) -> Option<Answer> {
        let known = self.books.replies.by_id.get(&request.id)?;
        if planted(Bug::RepeatsAreApplied) {
            return None;
        }
        if known.digest != request.digest && !planted(Bug::KeyOfAnotherRequest) {
            let reason = Reason::KeyReused(Arc::clone(&request.id.key));
            return Some(Err(self.books.refuse(reason)));
        }
        let replay = known.replay.clone();
        if let (Some(ticket), Op::Acquire(ask)) = (known.place(), op)
            && let Line::Join(patience) = ask.line
            && patience != Some(Span::ZERO)
            && !planted(Bug::RepeatKeepsPatience)
        {
            let until = patience.map(|span| self.books.clock + span);
            self.wait_until(&ask.name, ticket, until);
        }
        if let (Outcome::Left, Op::Acquire(ask)) = (&replay.first, op) {
            return Some(Err(self.books.refuse(Reason::NotInLine(ask.name.clone()))));
        }
        Some(Ok(Outcome::Replayed(Box::new(replay))))
    }

    /// Whether the answer to one more request can be kept.
    pub(super) fn has_room_for_reply(&self) -> Result<(), super::Refusal> {
        let (known, max) = (self.books.replies.len(), self.books.rules.requests_max);
        self.books.limit(known, max, Limit::Requests)
    }
}

impl Books {
    /// Keeps the answer to a request for repeats of it.
    pub(super) fn remember(&mut self, request: &Request, first: &Outcome, rules: Rulebook) {
        let waits = matches!(first, Outcome::Waiting { .. })
            && !matches!(rules, Rulebook::First | Rulebook::Second)
            && !planted(Bug::WaitingIdForgotten);
        let until = if waits { Time::NEVER } else { self.clock + self.rules.requests_kept };
        let reply = Reply { until, digest: request.digest, replay: self.replay_of(first) };
        self.restore_reply(request.id.clone(), reply);
    }

    fn replay_of(&self, first: &Outcome) -> Replay {
        let ends = match first {
            Outcome::SessionOpened(id) => self.sessions.get(id).map(Session::ends),
            _ => first.tenure().map(|tenure| self.ends(tenure.life)),
        };
        Replay { at: self.clock, first: first.clone(), ends }
    }

    /// The wait at this place has come to `end`: so say from now on the ids that named the place.
    pub(super) fn wait_is_over(&mut self, ticket: Ticket, end: &Outcome) {
        for id in self.replies.waiting.remove(&ticket).unwrap_or_default() {
            let waited = self.replies.by_id.get(&id).expect("a request that waits has its reply");
            let (digest, until) = (waited.digest, self.clock + self.rules.requests_kept);
            let replay = if planted(Bug::ServedIdStillWaits) {
                waited.replay.clone()
            } else {
                self.replay_of(end)
            };
            self.restore_reply(RequestId::clone(&id), Reply { until, digest, replay });
        }
    }

    /// Enters a reply: what a snapshot brings back.
    pub(super) fn restore_reply(&mut self, id: RequestId, reply: Reply) {
        let (id, until, place) = (Arc::new(id), reply.until, reply.place());
        if let Some(before) = self.replies.by_id.insert(Arc::clone(&id), reply)
            && before.until < Time::NEVER
        {
            self.agenda.remove(before.until, Due::Reply(Arc::clone(&id)));
        }
        match place {
            Some(ticket) => drop(self.replies.waiting.entry(ticket).or_default().insert(id)),
            None => self.agenda.add(until, Due::Reply(id)),
        }
    }
}
