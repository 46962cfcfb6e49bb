//! Applies commands: advances time, checks limits and idempotency, then calls the operation's
//! module.
//!
//! Expires leases, graces, sessions, waits and remembered answers (rule 4), and serves the next
//! waiters.

use crate::state::{Engine, EngineState};
use crate::time::Time;
#[cfg(feature = "planted-version")]
use crate::values::command::Acquire;
use crate::values::command::{Answer, Command, Op, Outcome};
use crate::values::deadlines::Due;
use crate::values::event::{Event, EventKind, LeaveReason, TenureEnd};
use crate::values::lease::{Ticket, Token};
use crate::values::lock::{Lock, QueuedWaiter};
use crate::values::name::LockName;
use crate::values::refusal::Reason;

impl Engine {
    /// Applies `command` at the time `at`, and appends the resulting events to `events`.
    ///
    /// An `at` before the latest one is taken as the latest one: engine time never goes back.
    pub fn apply(&mut self, at: Time, command: &Command, events: &mut Vec<Event>) -> Answer {
        self.settle(at, events);
        if let Some(part) = command.oversized() {
            return Err(self.state.refuse(Reason::Oversized(part)));
        }
        if let Some(max) = self.state.longest.filter(|max| command.op.lasts() > *max) {
            return Err(self.state.refuse(Reason::TooLong { max }));
        }
        let Some(request) = &command.request else {
            return self.carry_out(command, events);
        };
        if let Some(answer) = self.replay(request, &command.op) {
            return answer;
        }
        self.state.has_room_for_reply(request, command)?;
        self.state.use_number(command)?;
        let outcome = self.carry_out(command, events)?;
        if command.op.is_part() {
            return Ok(outcome);
        }
        self.state.forget_answered(&request.id.caller, command);
        self.state.remember(request, &outcome);
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

impl Engine {
    /// Advances time to `at`. Deadlines take effect in the order in which they were due. A waiter
    /// that a deadline serves gets a lease that begins at `at`, since the waiter could not learn of
    /// it earlier.
    pub(crate) fn settle(&mut self, at: Time, events: &mut Vec<Event>) {
        let until = self.state.clock.max(at);
        while let Some((due_at, due)) = self.state.agenda.pop(until) {
            // The clock advances before a deadline takes effect: `due_at` compares the expiry of a
            // lease with the clock.
            self.state.clock = until;
            match due {
                Due::Session(id) => {
                    let session = self.state.sessions.remove(&id);
                    let session = session.expect("a session that is due is open");
                    self.expire_session(id, session, events);
                }
                Due::Patience(place) => {
                    let (ticket, name) = *place;
                    self.unqueue(&name, ticket, LeaveReason::TimedOut, events);
                    self.serve(&name, events);
                }
                Due::Lease(token, name) => self.lease_due(due_at, token, &name, events),
                Due::Reply(request) => drop(self.state.replies.remove(&request)),
                Due::HoldOff => {
                    self.state.hold_off = None;
                    self.grant_again(None, events);
                }
            }
        }
        self.state.clock = until;
    }

    /// Handles the expiry of a lease or of its grace.
    fn lease_due(&mut self, due_at: Time, token: Token, name: &LockName, events: &mut Vec<Event>) {
        let lock = self.locks.get_mut(name).expect("a lease that is due has its lock");
        let lease = lock.lease_mut(token).expect("a lease that is due is there");
        let ends = self.state.ends(lease.life);
        if due_at < ends.grace_until {
            let holder = lease.holder.clone();
            let due = Due::Lease(token, name.clone());
            self.state.agenda.add(ends.grace_until, due);
            self.state.emit(events, EventKind::Expired { name: name.clone(), holder, token });
        } else {
            // If the grace ends at the time when the lease begins, the lock was stolen, and its new
            // holder released it before the lease began: see `give_back`. The end of such a lease
            // is reported as a release, not as an expiry.
            let given_back = ends.grace_until == lease.acquired_at;
            let end = if given_back { TenureEnd::Released } else { TenureEnd::Lapsed };
            // The caller has taken the lease's deadline from the set of deadlines, so the lease is
            // no longer registered.
            self.finish(name, token, end, events);
            self.serve(name, events);
        }
    }

    /// Removes all waiters of a session from their queues. Serves no waiter yet: the next one, in
    /// this queue or in another, could belong to the same session.
    pub(crate) fn unqueue_all<'a>(
        &mut self,
        waiters: impl Iterator<Item = &'a (LockName, Ticket)>,
        events: &mut Vec<Event>,
    ) {
        for (name, ticket) in waiters {
            self.unqueue(name, *ticket, LeaveReason::SessionOver, events);
        }
    }

    /// Removes the lease with this token from its lock, and reports its end. The lease must have no
    /// registered deadline any more. Does not serve the next waiter.
    pub(crate) fn finish(
        &mut self,
        name: &LockName,
        token: Token,
        end: TenureEnd,
        events: &mut Vec<Event>,
    ) {
        let lock = self.locks.get_mut(name).expect("a tenure that ends has its lock");
        self.state.finish(lock, name, token, end, events);
    }
}

impl EngineState {
    /// Removes the lease with this token from a lock that the caller already looked up, and reports
    /// its end: with a million locks, the lookup is the main cost.
    pub(crate) fn finish(
        &mut self,
        lock: &mut Lock,
        name: &LockName,
        token: Token,
        end: TenureEnd,
        events: &mut Vec<Event>,
    ) {
        let lease = lock.evict(token).expect("a tenure that ends is there");
        let held = self.clock.since(lease.acquired_at);
        let (name, holder) = (name.clone(), lease.holder);
        self.emit(events, EventKind::Ended { name, holder, token, held, end });
    }

    /// Whether a waiter can still be served: its sessions are alive and its timeout has not passed.
    ///
    /// All deadlines up to the clock take effect before any command, but a deadline can serve a
    /// waiter whose own deadline is later and due in the same step.
    pub(crate) fn is_alive(&self, waiter: &QueuedWaiter) -> bool {
        let lives = |id| self.sessions.get(&id).is_some_and(|s| s.expires_at() > self.clock);
        waiter.sessions().all(lives) && waiter.until.is_none_or(|until| until > self.clock)
    }
}
