//! Applies commands: advances time, checks limits and idempotency, then calls the operation's
//! module.

#[cfg(feature = "planted-version")]
use super::command::Acquire;
use super::command::{Answer, Command, Op, Outcome};
use super::event::Event;
use super::refusal::Reason;
use super::state::Engine;
use crate::time::Time;

impl Engine {
    /// Applies `command` at the time `at`, and appends the resulting events to `events`.
    ///
    /// An `at` before the latest one is taken as the latest one: engine time never goes back.
    pub fn apply(&mut self, at: Time, command: &Command, events: &mut Vec<Event>) -> Answer {
        self.settle(at, events);
        if let Some(part) = command.oversized() {
            return Err(self.books.refuse(Reason::Oversized(part)));
        }
        if let Some(max) = self.books.longest.filter(|max| command.op.lasts() > *max) {
            return Err(self.books.refuse(Reason::TooLong { max }));
        }
        let Some(request) = &command.request else {
            self.books.enter_order(command)?;
            return self.carry_out(command, events);
        };
        if let Some(answer) = self.replay(request, &command.op) {
            return answer;
        }
        self.books.has_room_for_reply(request, command)?;
        self.books.enter_order(command)?;
        let outcome = self.carry_out(command, events)?;
        if command.op.is_part() {
            return Ok(outcome);
        }
        if let (Some(keys), Some(_)) = (&command.acknowledged, command.order) {
            self.books.forget_acknowledged(&request.id.caller, keys);
        }
        self.books.remember(request, &outcome);
        Ok(outcome)
    }

    fn carry_out(&mut self, command: &Command, events: &mut Vec<Event>) -> Answer {
        match &command.op {
            Op::Settle => Ok(Outcome::Settled),
            #[cfg(feature = "planted-version")]
            Op::Acquire(Acquire { planted: Some(note), patch, .. }) if patch.note.is_none() => {
                let Op::Acquire(mut ask) = command.op.clone() else { return Ok(Outcome::Settled) };
                ask.patch.note = Some(note.clone());
                self.acquire(&ask, events)
            }
            Op::Acquire(ask) => self.acquire(ask, events),
            Op::Renew(ask) => self.renew(ask, events),
            Op::Annotate(ask) => self.annotate(ask, events),
            Op::Release(ask) => self.release(ask, events),
            Op::Leave(ask) => self.leave(ask, events),
            Op::Move(ask) => self.transfer(ask, events),
            Op::Steal(ask) => self.steal(ask, events),
            Op::OpenSession(ask) => self.open_session(ask, events),
            Op::KeepAlive(id) => self.keep_alive(*id, events),
            Op::EndSession(ask) => self.end_session(ask, events),
            Op::Reset(ask) => self.reset(ask, events),
            Op::Forget(ask) => self.forget(ask, events),
            Op::EndHoldOff(ask) => self.end_hold_off(ask, events),
            #[cfg(feature = "planted-version")]
            Op::Planted(_) => Ok(Outcome::Annotated),
        }
    }
}
