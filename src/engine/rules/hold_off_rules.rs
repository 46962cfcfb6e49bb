//! Begins and ends the hold-off (rule 13), in which the engine grants no lock.
//!
//! A request that waits is queued meanwhile, so that a lock may have waiters and no lease. At the
//! end of the hold-off, each queue is served. A lease that exists is renewed and released as at any
//! other time.

use crate::rules::acquire::ConflictCheck;
use crate::state::{Engine, EngineState};
use crate::time::Span;
use crate::values::command::{Acquire, Answer, EndHoldOff, Outcome, QueuePolicy};
use crate::values::deadlines::Due;
use crate::values::event::{Event, EventKind};
use crate::values::hold_off::HoldOff;
use crate::values::name::LockName;
use crate::values::refusal::{Limit, Reason, Refusal};

impl Engine {
    /// Grants no lock until the end of `hold_off`.
    pub fn begin_hold_off(&mut self, hold_off: HoldOff) {
        self.state.cancel_hold_off();
        if hold_off.until > self.state.clock {
            self.state.agenda.add(hold_off.until, Due::HoldOff);
            self.state.hold_off = Some(hold_off);
        }
    }

    /// Returns until when the engine grants no lock, and why; `None` if it grants locks.
    pub const fn hold_off(&self) -> Option<HoldOff> {
        self.state.hold_off
    }

    /// Ends the hold-off before its time.
    pub(super) fn end_hold_off(&mut self, ask: &EndHoldOff, events: &mut Vec<Event>) -> Answer {
        self.state.tokens_left()?;
        if self.state.cancel_hold_off().is_some() {
            self.grant_again(Some(ask), events);
        }
        Ok(Outcome::HoldOffEnded)
    }

    /// Serves each queue, in the order of the names, after the hold-off has ended: at the command
    /// `by`, or at its time.
    pub(crate) fn grant_again(&mut self, by: Option<&EndHoldOff>, events: &mut Vec<Event>) {
        self.state.emit(events, EventKind::HoldOffEnded { by: by.cloned() });
        let waited_for = self.locks.iter().filter(|(_, lock)| !lock.line.is_empty());
        let names: Vec<LockName> = waited_for.map(|(name, _)| name.clone()).collect();
        for name in &names {
            self.serve(name, events);
        }
    }

    /// Answers a request that would begin a tenure during the hold-off: queues it, or refuses it.
    /// Returns `None` if there is no hold-off, or if the request would begin no tenure.
    pub(crate) fn put_off(&mut self, ask: &Acquire, events: &mut Vec<Event>) -> Option<Answer> {
        let hold_off = self.state.hold_off?;
        let held = self.locks.get(&ask.name).filter(|lock| !lock.leases().is_empty());
        match held.map(|lock| (self.state.stance(lock, ask), lock.mode())) {
            Some((ConflictCheck::Conflict(..), _)) => None,
            Some((check @ ConflictCheck::Own(_), mode)) => {
                // A request for the other mode of its own lease would wait for that lease.
                check
                    .begins_tenure(mode, ask.mode)
                    .then(|| Err(self.not_before(&ask.name, hold_off)))
            }
            Some((ConflictCheck::Beside, _)) | None => {
                Some(self.wait_for_grants(ask, hold_off, events))
            }
        }
    }

    fn wait_for_grants(
        &mut self,
        ask: &Acquire,
        hold_off: HoldOff,
        events: &mut Vec<Event>,
    ) -> Answer {
        let patience = match ask.line {
            QueuePolicy::Join(patience) if patience != Some(Span::ZERO) => patience,
            QueuePolicy::Join(_) | QueuePolicy::Skip => {
                return Err(self.not_before(&ask.name, hold_off));
            }
        };
        if self.locks.get(&ask.name).is_none() {
            let (held, max) = (self.locks.len(), self.state.rules.locks_max);
            self.state.limit(held, max, Limit::Locks)?;
        }
        let until = patience.map(|span| self.state.clock + span);
        self.join(ask, until, events)
    }

    /// Refuses a request that would begin a tenure of the lock `name` during the hold-off.
    pub(crate) fn may_grant(&self, name: &LockName) -> Result<(), Refusal> {
        self.state.hold_off.map_or(Ok(()), |hold_off| Err(self.not_before(name, hold_off)))
    }

    fn not_before(&self, name: &LockName, hold_off: HoldOff) -> Refusal {
        let waiting = self.locks.get(name).map_or(0, |lock| lock.line.len());
        self.state.refuse(Reason::HoldOff { name: name.clone(), hold_off, waiting })
    }
}

impl EngineState {
    /// Ends the hold-off without serving a queue. Returns it, if there was one.
    fn cancel_hold_off(&mut self) -> Option<HoldOff> {
        let hold_off = self.hold_off.take()?;
        self.agenda.remove(hold_off.until, Due::HoldOff);
        Some(hold_off)
    }
}
