//! The state of an engine: its locks, its sessions, what is due, and the rules they are kept by.

use super::command::Op;
use super::deadlines::{Deadlines, Due};
use super::event::{Event, EventKind};
use super::idempotency::IdempotencyTable;
use super::lease::{Ends, Lease, Lifetime, SessionId};
use super::lock_table::LockTable;
use super::name::LockName;
use super::refusal::{Limit, Reason, Refusal};
use super::session::Session;
use super::tokens::TokenAllocator;
use crate::time::{Span, Time};
use std::collections::BTreeMap;

/// The limits and durations of an engine. They must be the same on every replica, so they are part
/// of the state.
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
    pub(super) locks: LockTable,
    pub(super) books: EngineState,
}

/// All but the locks: apart, so that a lock and the books can be changed side by side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EngineState {
    pub(super) rules: Rules,
    /// The latest time seen. It never goes back, whatever a caller's clock does.
    pub(super) clock: Time,
    pub(super) mint: TokenAllocator,
    /// The place in line that the next waiter gets.
    pub(super) next_ticket: u64,
    /// Waiters in all lines.
    pub(super) waiting: usize,
    /// Until then nothing is granted: this engine goes on from a backup of a lost one, or knows
    /// nothing of the one before.
    pub(super) shut_until: Time,
    /// The longest lease, ttl and grace together, where nothing outlives the engine. Only such an
    /// engine has one, so it is never written.
    pub(super) longest: Option<Span>,
    pub(super) sessions: BTreeMap<SessionId, Session>,
    pub(super) agenda: Deadlines,
    pub(super) replies: IdempotencyTable,
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

    /// When time passing will next change anything. Until then nobody has to call.
    pub fn next_deadline(&self) -> Option<Time> {
        self.books.agenda.next()
    }

    /// The latest time seen.
    pub const fn clock(&self) -> Time {
        self.books.clock
    }

    /// Returns the token of the next tenure. A backend that persists its tokens must reserve
    /// [`Engine::tokens_wanted`] tokens from here on before the next command.
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

    /// Replaces the limits. Locks, waiters and holders that already exceed them stay.
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
    pub(super) fn refuse(&self, reason: Reason) -> Refusal {
        Refusal { at: self.clock, reason: Box::new(reason) }
    }

    pub(super) fn limit(
        &self,
        have: usize,
        max: usize,
        limit: impl FnOnce(usize) -> Limit,
    ) -> Result<(), Refusal> {
        if have < max { Ok(()) } else { Err(self.refuse(Reason::Limit(limit(max)))) }
    }

    /// A command that may use up tokens is refused while there could be too few of them.
    pub(super) fn tokens_left(&self) -> Result<(), Refusal> {
        if self.mint.left() > self.waiting as u64 + 1 {
            Ok(())
        } else {
            Err(self.refuse(Reason::Limit(Limit::Tokens)))
        }
    }

    pub(super) fn tell(&self, events: &mut Vec<Event>, what: EventKind) {
        events.push(Event { at: self.clock, what });
    }

    /// Enters a lease where its end will be found.
    pub(super) fn book(&mut self, name: &LockName, lease: &Lease) {
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
    pub(super) fn unbook(&mut self, name: &LockName, lease: &Lease) {
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
    pub(super) fn rebook(&mut self, name: &LockName, lease: &Lease, before: Lifetime) {
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
    pub(super) fn due_at(&self, life: Lifetime) -> Time {
        let ends = self.ends(life);
        if ends.expires_at > self.clock { ends.expires_at } else { ends.grace_until }
    }

    /// When a lease ends, whatever keeps it alive.
    pub(super) fn ends(&self, life: Lifetime) -> Ends {
        match life {
            Lifetime::Own { ttl, grace, expires_at } => {
                Ends { expires_at, grace_until: expires_at + grace.span(), ttl, grace }
            }
            Lifetime::Session(id) => {
                self.sessions.get(&id).expect("a lease's session is open").ends()
            }
        }
    }
}
