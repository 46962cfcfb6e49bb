//! Answers repeated requests (rule 10): a repeated request has one effect, and gets the first
//! answer.
//!
//! Only successes are remembered. A refusal had no effect, and remembering refusals would let a
//! client that is refused fill the memory. But a late copy of a refused request could still be
//! applied after the client has acquired the lock by a later one: it would turn that lease into the
//! one that the first request specified. Therefore each session remembers which numbers its
//! requests have used, and refuses a request with a number ([`RequestNumber`]) that was used, or
//! below which its sender has all answers.
//!
//! The id of a queued request identifies its place in the queue. The id is kept as long as the
//! place, each repeat sets a new timeout for the wait, and when the place is served the id
//! identifies the grant. If the waiter leaves the queue unserved, a repeat is refused: a repeat
//! that was under way must not enter the queue again.

use crate::state::{Engine, EngineState};
use crate::time::{Span, Time};
use crate::values::command::{
    Acquire, Answer, Command, IdempotencyKey, Op, Outcome, QueuePolicy, Replay, RequestId,
    RequestNumber,
};
use crate::values::deadlines::Due;
use crate::values::deadlines::Session;
use crate::values::idempotency::{IdempotencyRecord, UNANSWERED_MAX};
use crate::values::lease::Ticket;
use crate::values::refusal::{Limit, Reason, Refusal};
use std::sync::Arc;

impl Engine {
    /// Returns the answer to a request that was applied before, or a refusal if its id belongs to a
    /// different request; `None` if the id is new.
    pub(crate) fn replay(&mut self, request: &IdempotencyKey, op: &Op) -> Option<Answer> {
        let known = self.state.replies.by_id.get(&request.id)?;
        if known.digest != request.digest {
            let reason = Reason::KeyReused(request.id.key.to_string().into());
            return Some(Err(self.state.refuse(reason)));
        }
        let replay = known.replay.clone();
        if let (Some(ticket), Op::Acquire(ask)) = (known.place(), op)
            && let QueuePolicy::Join(patience) = ask.line
            && patience != Some(Span::ZERO)
        {
            let until = patience.map(|span| self.state.clock + span);
            self.wait_until(&ask.name, ticket, until);
        }
        if let (Outcome::Left, Op::Acquire(ask)) = (&replay.first, op) {
            return Some(Err(self.state.refuse(Reason::NotInLine(ask.name.clone()))));
        }
        Some(Ok(Outcome::Replayed(Box::new(replay))))
    }
}

impl EngineState {
    /// Refuses a request with an id that may have to wait, if its caller's queued requests take up
    /// the caller's share of the table, and any request with an id if no answer can be forgotten.
    pub(crate) fn has_room_for_reply(
        &self,
        request: &IdempotencyKey,
        command: &Command,
    ) -> Result<(), Refusal> {
        let (caller, max) = (&request.id.caller, self.rules.requests_max);
        let may_wait = match &command.op {
            Op::Acquire(Acquire { line: QueuePolicy::Join(patience), .. }) => {
                *patience != Some(Span::ZERO)
            }
            _ => false,
        };
        let is_full = self.replies.len() >= max && self.replies.dispensable(caller).is_none();
        if is_full || may_wait && !self.replies.may_wait(caller, max) {
            return Err(self.refuse(Reason::Limit(Limit::QueuedRequests(max))));
        }
        Ok(())
    }

    /// Forgets the answers to requests of the same session that the caller has acknowledged with
    /// this one.
    pub(super) fn forget_answered(&mut self, caller: &Arc<str>, command: &Command) {
        let Some(RequestNumber { session, .. }) = command.number() else { return };
        let below = RequestNumber { session, number: command.answered_below };
        for id in self.replies.answered(caller, below) {
            self.forget_reply(&id);
        }
    }

    /// Forgets the answer to the request with this id, if there is one.
    fn forget_reply(&mut self, id: &Arc<RequestId>) {
        if let Some(known) = self.replies.remove(id)
            && known.until < Time::NEVER
        {
            self.agenda.remove(known.until, Due::Reply(Arc::clone(id)));
        }
    }

    /// Refuses a request whose number was used before, or is one of those that its sender has
    /// acknowledged: it is a late copy. Refusals are not remembered, so only this check prevents a
    /// copy of a refused request from changing a lock that the client has acquired meanwhile. The
    /// parts of a reset have the number of their request, and only the last one uses it up.
    ///
    /// The result does not depend on commands that were refused, which a journal does not have.
    pub(crate) fn use_number(&mut self, command: &Command) -> Result<(), Refusal> {
        let Some(RequestNumber { session: id, number }) = command.number() else { return Ok(()) };
        let Some(session) = self.sessions.get_mut(&id) else {
            return Err(self.refuse(Reason::NoSession(id)));
        };
        if number.saturating_sub(command.answered_below) >= UNANSWERED_MAX {
            return Err(self.refuse(Reason::Limit(Limit::Unanswered(UNANSWERED_MAX as usize))));
        }
        session.numbers.acknowledge(command.answered_below);
        if session.numbers.contains(number) {
            return Err(self.refuse(Reason::LateCopy(id)));
        }
        if !command.op.is_part() {
            session.numbers.insert(number);
        }
        Ok(())
    }

    /// Keeps the answer to a request for repeats of it. Forgets another answer while the table is
    /// full.
    pub(crate) fn remember(&mut self, request: &IdempotencyKey, first: &Outcome) {
        let waits = matches!(first, Outcome::Waiting { .. });
        let until = if waits { Time::NEVER } else { self.clock + self.rules.requests_kept };
        let reply =
            IdempotencyRecord { until, digest: request.digest, replay: self.replay_of(first) };
        while self.replies.len() >= self.rules.requests_max
            && let Some(id) = self.replies.dispensable(&request.id.caller)
        {
            self.forget_reply(&id);
        }
        self.restore_reply(request.id.clone(), reply);
    }

    fn replay_of(&self, first: &Outcome) -> Replay {
        let ends = match first {
            Outcome::SessionOpened(id) => self.sessions.get(id).map(Session::ends),
            _ => first.tenure().map(|tenure| self.ends(tenure.life)),
        };
        Replay { at: self.clock, first: first.clone(), ends }
    }

    /// Records that the wait of `ticket` has ended with `end`: repeats under the ids of that ticket
    /// get this answer from now on.
    pub(crate) fn wait_is_over(&mut self, ticket: Ticket, end: &Outcome) {
        for id in self.replies.waiting.remove(&ticket).unwrap_or_default() {
            let waited = self.replies.by_id.get(&id).expect("a request that waits has its reply");
            let (digest, until) = (waited.digest, self.clock + self.rules.requests_kept);
            let replay = self.replay_of(end);
            self.restore_reply(RequestId::clone(&id), IdempotencyRecord { until, digest, replay });
        }
    }

    /// Inserts the remembered answer to a request with an id. The answer is new, or was read from a
    /// snapshot.
    pub(crate) fn restore_reply(&mut self, id: RequestId, reply: IdempotencyRecord) {
        let (id, until) = (Arc::new(id), reply.until);
        self.forget_reply(&id);
        self.replies.insert(&id, reply);
        if until < Time::NEVER {
            self.agenda.add(until, Due::Reply(id));
        }
    }
}
