//! Rule 10: a repeated request has one effect, and gets the first answer.
//!
//! Only what was done is remembered. A refusal had no effect, and remembering it would let a client
//! that is refused fill the memory. A copy of a refused request could still be carried out when the
//! client has acquired the lock by a later one: it would turn that hold into what the first request
//! asked for. Therefore each session remembers the number of its last request, and a request with
//! an order ([`RequestOrder`]) that does not come after it is refused.
//!
//! The id of a request that waits names its place in the queue: it is kept as long as the place,
//! each repeat sets anew how long the request waits, and when the place is served the id names the
//! grant. When the place is left unserved, a repeat is refused: one that was on its way must not
//! enter the queue again.

use super::command::{
    Answer, IdempotencyKey, Op, Outcome, QueuePolicy, Replay, RequestId, RequestOrder, Rulebook,
};
use super::deadlines::Due;
use super::idempotency::IdempotencyRecord;
use super::lease::Ticket;
use super::refusal::{Limit, Reason, Refusal};
use super::session::Session;
use super::state::{Engine, EngineState};
use crate::time::{Span, Time};
use std::sync::Arc;

impl Engine {
    /// Returns the answer to a request that was carried out before, or that uses the id of another
    /// one; `None` if the id is new.
    pub(super) fn replay(&mut self, request: &IdempotencyKey, op: &Op) -> Option<Answer> {
        let known = self.books.replies.by_id.get(&request.id)?;
        if known.digest != request.digest {
            let reason = Reason::KeyReused(Arc::clone(&request.id.key));
            return Some(Err(self.books.refuse(reason)));
        }
        let replay = known.replay.clone();
        if let (Some(ticket), Op::Acquire(ask)) = (known.place(), op)
            && let QueuePolicy::Join(patience) = ask.line
            && patience != Some(Span::ZERO)
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
    pub(super) fn has_room_for_reply(&self) -> Result<(), Refusal> {
        let (known, max) = (self.books.replies.len(), self.books.rules.requests_max);
        self.books.limit(known, max, Limit::Requests)
    }
}

impl EngineState {
    /// Refuses a copy of a request that was carried out before, or whose sender has sent later
    /// ones since. A refusal is not remembered, so only this keeps a copy of a refused request
    /// from changing what the client has acquired meanwhile.
    pub(super) fn enter_order(&mut self, order: Option<RequestOrder>) -> Result<(), Refusal> {
        let Some(RequestOrder { session: id, number }) = order else { return Ok(()) };
        let Some(session) = self.sessions.get_mut(&id) else {
            return Err(self.refuse(Reason::NoSession(id)));
        };
        if number <= session.last_request {
            return Err(self.refuse(Reason::LateCopy(id)));
        }
        session.last_request = number;
        Ok(())
    }

    /// Keeps the answer to a request for repeats of it.
    pub(super) fn remember(&mut self, request: &IdempotencyKey, first: &Outcome, rules: Rulebook) {
        let waits = matches!(first, Outcome::Waiting { .. })
            && !matches!(rules, Rulebook::First | Rulebook::Second);
        let until = if waits { Time::NEVER } else { self.clock + self.rules.requests_kept };
        let reply =
            IdempotencyRecord { until, digest: request.digest, replay: self.replay_of(first) };
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
            let replay = self.replay_of(end);
            self.restore_reply(RequestId::clone(&id), IdempotencyRecord { until, digest, replay });
        }
    }

    /// Enters a reply: what a snapshot brings back.
    pub(super) fn restore_reply(&mut self, id: RequestId, reply: IdempotencyRecord) {
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
