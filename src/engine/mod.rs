//! The rules of a lock, as a pure value.
//!
//! An [`Engine`] is told what is asked and when, and answers; it reads no clock, does no IO, logs
//! nothing and draws no random numbers. The same commands at the same times give the same answers,
//! events and bytes, on every replica and after every restart.
//!
//! - **Time is an argument.** Each command carries `at`. First all that is due by then happens
//!   ([`Op::Settle`] is only that), in the order in which it was due; then the command.
//! - **Facts are stored, phases derived.** A lease has its ends; whether it is held or in grace
//!   depends on when one looks. A free lock is not stored.
//! - **A refusal leaves nothing behind.** Every operation first finds out whether it may, and only
//!   then changes anything.
//! - **A waiter is served in the step that frees the lock**, and only if it is still somebody:
//!   its session lives, its patience is not over.
//!
//! Where to look: `acquire` rules 1, 5, 6, by `stance`; `keep` rules 2 and 3; `transfer` moving
//! and rule 9, which `reset` is for all locks; `session` rule 8; `settle` rule 4; `mint` rule 7;
//! `replies` rule 10; `heritage` what outlives the loss of all replicas; `show` what can be seen;
//! `limits` how long parts of a command may be; `check` the invariants; `codec` the bytes that
//! outlive a process, `wire` those that only cross to another one, `encoding` how each value is
//! written in both.

pub mod lease_terms;
pub(crate) mod mutants;
pub mod name;
pub mod lease;
mod encoding;
pub mod event;
pub mod command;
pub mod limits;
mod tokens;
mod lock;
pub mod view;
mod interner;
mod invariants;
mod deadlines;
pub mod refusal;
mod renew;
mod session;
mod idempotency;
mod expiry;
mod lock_table;
mod conflict;
mod acquire;
mod reset;
mod baseline;
pub mod codec;
mod transfer;
mod query;
mod event_codec;

pub use baseline::Baseline;
pub use command::{
    Acquire, Annotate, Answer, Command, Digest, EndSession, Firm, IdempotencyKey, IfExists,
    LeaseKey, Leave, Move, Op, OpenSession, Outcome, Patch, QueuePolicy, Release, Renew, Replay,
    RequestId, Reset, ResetScope, Rulebook, Steal, Tenure, TextPatch,
};
pub use event::{Event, EventKind, LeaveReason, SessionEnd, TenureEnd};
pub use interner::Interner;
pub use lease::{
    Details, Ends, FileAttrs, FileType, Lease, LeaseTerms, Lifetime, Mode, OpenId, Ownership,
    Phase, Process, ReadMode, SessionId, StealReason, Ticket, Token,
};
pub use lease_terms::{GRACE_OF_PROCESS, Grace, TermError, Ttl};
pub use name::{ClientId, LockName, NameError};
pub use refusal::{Conflict, Limit, Reason, Refusal, RefusalKind, Way};
pub use view::{Child, Glance, Holder, LockView, SessionView, WaiterView};

use crate::time::{Span, Time};
use deadlines::{Deadlines, Due};
use idempotency::IdempotencyTable;
use lock_table::LockTable;
use mutants::{Mutant, planted};
use session::Session;
use std::collections::BTreeMap;
use tokens::TokenAllocator;

/// What is the same on every replica, and so travels with the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// Locks that may be held at once. At 400 bytes each the default is about 400 MB.
    pub locks_max: usize,
    /// Waiters in one line: more would wait for longer than anybody does.
    pub waiters_max: usize,
    /// Holders of one shared lock: each is looked at when the lock is asked for.
    pub holders_max: usize,
    /// Open sessions: one per mount or HTTP client.
    pub sessions_max: usize,
    /// Request ids remembered at once.
    pub requests_max: usize,
    /// For how long a request id is remembered: longer than any client retries.
    pub requests_kept: Span,
    /// For how long a stolen lock is kept from everybody: time for the old holder to stop.
    pub steal_grace: Span,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            locks_max: 1 << 20,
            waiters_max: 10_000,
            holders_max: 10_000,
            sessions_max: 100_000,
            requests_max: 100_000,
            requests_kept: Span::from_secs(600),
            steal_grace: Span::from_secs(1),
        }
    }
}

/// All locks, and what may happen to them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Engine {
    locks: LockTable,
    books: EngineState,
}

/// All but the locks: apart, so that a lock and the books can be changed side by side.
#[derive(Debug, Clone, PartialEq, Eq)]
struct EngineState {
    rules: Rules,
    /// The latest time seen. It never goes back, whatever a caller's clock does.
    clock: Time,
    mint: TokenAllocator,
    /// The place in line that the next waiter gets.
    next_ticket: u64,
    /// Waiters in all lines.
    waiting: usize,
    /// Until then nothing is granted: this engine goes on from a backup of a lost one, or knows
    /// nothing of the one before.
    shut_until: Time,
    /// The longest lease, ttl and grace together, where nothing outlives the engine. Only such an
    /// engine has one, so it is never written.
    longest: Option<Span>,
    sessions: BTreeMap<SessionId, Session>,
    agenda: Deadlines,
    replies: IdempotencyTable,
}

impl Default for Engine {
    fn default() -> Self {
        Self::new(Rules::default())
    }
}

impl Engine {
    /// An engine in which nothing is held.
    pub fn new(rules: Rules) -> Self {
        let books = EngineState {
            rules,
            clock: Time::ZERO,
            mint: TokenAllocator::default(),
            next_ticket: 1,
            waiting: 0,
            shut_until: Time::ZERO,
            longest: None,
            sessions: BTreeMap::new(),
            agenda: Deadlines::default(),
            replies: IdempotencyTable::default(),
        };
        Self { locks: LockTable::default(), books }
    }

    /// Carries `command` out at `at`, and adds what happened to `events`.
    ///
    /// An `at` before the latest one counts as that: time never goes back.
    pub fn apply(&mut self, at: Time, command: &Command, events: &mut Vec<Event>) -> Answer {
        self.settle(at, events);
        if let Some(part) = command.oversized() {
            return Err(self.books.refuse(Reason::Oversized(part)));
        }
        if let Some(max) = self.books.longest.filter(|max| command.op.lasts() > *max) {
            return Err(self.books.refuse(Reason::TooLong { max }));
        }
        let Some(request) = &command.request else {
            return self.carry_out(command, events);
        };
        if let Some(answer) = self.replay(request, &command.op) {
            return answer;
        }
        self.has_room_for_reply()?;
        let outcome = self.carry_out(command, events)?;
        self.books.remember(request, &outcome, command.rules);
        Ok(outcome)
    }

    fn carry_out(&mut self, command: &Command, events: &mut Vec<Event>) -> Answer {
        match &command.op {
            Op::Settle => Ok(Outcome::Settled),
            Op::Acquire(ask) => self.acquire(ask, command.rules, events),
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
        }
    }

    /// When time passing will next change anything. Until then nobody has to call.
    pub fn next_deadline(&self) -> Option<Time> {
        self.books.agenda.next()
    }

    /// The latest time seen.
    pub const fn clock(&self) -> Time {
        self.books.clock
    }

    /// The token that the next tenure will get. What hands tokens out durably must have reserved
    /// [`Engine::tokens_wanted`] from here on before the next command.
    pub const fn next_token(&self) -> u64 {
        self.books.mint.upcoming()
    }

    /// How many tokens a command may use up: each waiter may be served, and the command itself,
    /// which may be about all locks.
    pub fn tokens_wanted(&self, op: &Op) -> u64 {
        let own = match op {
            Op::Reset(_) => self.locks.len() as u64 + 1,
            op => u64::from(!op.only_ends()),
        };
        self.books.waiting as u64 + own
    }

    /// Tokens go on at `floor` at least: after a restart that may have forgotten some.
    pub fn raise_tokens(&mut self, floor: u64) {
        self.books.mint.raise(floor);
    }

    /// The limits.
    pub const fn rules(&self) -> Rules {
        self.books.rules
    }

    /// Until when nothing is granted, if that is so now.
    pub fn shut_until(&self) -> Option<Time> {
        (self.books.shut_until > self.books.clock).then_some(self.books.shut_until)
    }

    /// Other limits from now on. What is above them already stays.
    pub fn set_rules(&mut self, rules: Rules) {
        self.books.rules = rules;
    }

    /// How many locks are held.
    pub fn locks(&self) -> usize {
        self.locks.len()
    }

    /// How many wait, in all lines.
    pub const fn waiters(&self) -> usize {
        self.books.waiting
    }

    /// How many sessions are open.
    pub fn sessions(&self) -> usize {
        self.books.sessions.len()
    }

    /// How much there is to remember: locks, waiters, sessions and answers kept for repeats.
    pub fn size(&self) -> usize {
        self.locks() + self.waiters() + self.sessions() + self.books.replies.len()
    }

    /// Forgets what requests have come to: a bug that tests plant.
    #[cfg(test)]
    pub(crate) fn forget_replies(&mut self) {
        let known: Vec<_> =
            self.books.replies.iter().map(|(id, reply)| (id.clone(), reply.until)).collect();
        for (request, until) in known {
            self.books.replies.forget(&request);
            if until == Time::NEVER {
                continue;
            }
            self.books.agenda.remove(until, Due::Reply(std::sync::Arc::new(request)));
        }
    }

    /// The sessions that last until they are ended: after a restart those who opened them are
    /// gone.
    pub fn unending_sessions(&self) -> Vec<SessionId> {
        let unending = self.books.sessions.iter().filter(|(_, session)| session.ttl.is_none());
        unending.map(|(id, _)| *id).collect()
    }
}

impl EngineState {
    fn refuse(&self, reason: Reason) -> Refusal {
        Refusal { at: self.clock, reason: Box::new(reason) }
    }

    fn limit(
        &self,
        have: usize,
        max: usize,
        limit: impl FnOnce(usize) -> Limit,
    ) -> Result<(), Refusal> {
        if have < max { Ok(()) } else { Err(self.refuse(Reason::Limit(limit(max)))) }
    }

    /// A command that may use up tokens is refused while there could be too few of them.
    fn tokens_left(&self) -> Result<(), Refusal> {
        if self.mint.left() > self.waiting as u64 + 1 {
            Ok(())
        } else {
            Err(self.refuse(Reason::Limit(Limit::Tokens)))
        }
    }

    fn tell(&self, events: &mut Vec<Event>, what: EventKind) {
        events.push(Event { at: self.clock, what });
    }

    /// Enters a lease where its end will be found.
    fn book(&mut self, name: &LockName, lease: &Lease) {
        match lease.life {
            Lifetime::Own { .. } => {
                let due = Due::Lease(lease.token, name.clone());
                self.agenda.add(self.due_at(lease.life), due);
            }
            Lifetime::Session(id) => {
                let session = self.sessions.get_mut(&id).expect("a lease's session is open");
                let new = session.leases.insert((name.clone(), lease.token));
                assert!(new, "a lease hangs on its session once");
            }
        }
    }

    /// Takes a lease out again.
    fn unbook(&mut self, name: &LockName, lease: &Lease) {
        match lease.life {
            Lifetime::Own { .. } => {
                let due = Due::Lease(lease.token, name.clone());
                self.agenda.remove(self.due_at(lease.life), due);
            }
            Lifetime::Session(id) => {
                if let Some(session) = self.sessions.get_mut(&id) {
                    session.leases.remove(&(name.clone(), lease.token));
                }
            }
        }
    }

    /// Enters a lease anew whose life was another before: what a renewal does.
    fn rebook(&mut self, name: &LockName, lease: &Lease, before: Lifetime) {
        match (before, lease.life) {
            (Lifetime::Session(before), Lifetime::Session(now)) if before == now => {}
            (Lifetime::Own { .. }, Lifetime::Own { .. }) => {
                let due = Due::Lease(lease.token, name.clone());
                self.agenda.put_off(self.due_at(before), self.due_at(lease.life), due);
            }
            _ => {
                self.unbook(name, &Lease { life: before, ..lease.clone() });
                self.book(name, lease);
            }
        }
    }

    /// When a lease with a term of its own is next due: at its expiry, or else at its grace's end.
    fn due_at(&self, life: Lifetime) -> Time {
        let ends = self.ends(life);
        if ends.expires_at > self.clock { ends.expires_at } else { ends.grace_until }
    }

    /// When a lease ends, whatever keeps it alive.
    fn ends(&self, life: Lifetime) -> Ends {
        match life {
            Lifetime::Own { ttl, grace, expires_at } => {
                let early = Span::from_nanos(u64::from(planted(Mutant::GraceOneShort)));
                let grace_until = (expires_at + grace.span() - early).max(expires_at);
                Ends { expires_at, grace_until, ttl, grace }
            }
            Lifetime::Session(id) => {
                self.sessions.get(&id).expect("a lease's session is open").ends()
            }
        }
    }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
#[path = "../../tests/model/mod.rs"]
pub(crate) mod model;
