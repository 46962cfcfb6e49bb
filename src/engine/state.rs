//! The state of an engine: its locks, sessions, deadlines, counters and limits.

use super::command::{Op, RequestId};
use super::deadlines::{Deadlines, Due};
use super::event::{Event, EventKind};
use super::hold_off::HoldOff;
use super::idempotency::IdempotencyTable;
use super::lease::{Ends, Lease, Lifetime, Ownership, SessionId, Token};
use super::lock_table::LockTable;
use super::name::LockName;
use super::refusal::{Limit, Reason, Refusal};
use super::remembered_names::RememberedNames;
use super::session::Session;
use super::tokens::TokenAllocator;
use super::usage::UsageTable;
use crate::time::{Span, Time};
use std::collections::BTreeMap;

/// The limits and durations of an engine. They must be the same on every replica, so they are part
/// of the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// The maximum number of held locks. At 400 bytes each the default takes about 400 MB.
    pub locks_max: usize,
    /// The maximum number of waiters in one queue: clients do not wait long enough for a longer
    /// one.
    pub waiters_max: usize,
    /// The maximum number of holders of one shared lock: each acquire looks at all of them.
    pub holders_max: usize,
    /// The maximum number of open sessions: one per mount or HTTP client.
    pub sessions_max: usize,
    /// The maximum number of request ids whose answers are kept. Beyond it the caller with the most
    /// answers loses its oldest one.
    pub requests_max: usize,
    /// How long a request id is remembered, unless its caller acknowledges the answer earlier:
    /// longer than any client retries.
    pub requests_kept: Span,
    /// How long a stolen lock stays unusable: time for the old holder to stop.
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

/// The engine: all locks, and the state that their rules need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Engine {
    pub(super) locks: LockTable,
    pub(super) books: EngineState,
}

/// The state of the engine apart from its locks. It is a struct of its own, so that the locks and
/// this state can be borrowed mutably at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EngineState {
    pub(super) rules: Rules,
    /// The latest time that a caller passed. It never goes back.
    pub(super) clock: Time,
    pub(super) mint: TokenAllocator,
    /// The ticket of the next waiter.
    pub(super) next_ticket: u64,
    /// The number of waiters in all queues.
    pub(super) waiting: usize,
    /// Until when the engine grants no lock, and why.
    pub(super) hold_off: Option<HoldOff>,
    /// The longest permitted sum of ttl and grace. `None` permits any: only an engine whose state
    /// is not persisted has this limit, so that a restart without state knows how long old leases
    /// can last. The limit is not part of the encoded state.
    pub(super) longest: Option<Span>,
    pub(super) sessions: BTreeMap<SessionId, Session>,
    pub(super) usage: UsageTable,
    pub(super) agenda: Deadlines,
    pub(super) replies: IdempotencyTable,
    pub(super) remembered: RememberedNames,
}

impl Default for Engine {
    fn default() -> Self {
        Self::new(Rules::default())
    }
}

impl Engine {
    /// Returns an engine without leases.
    pub fn new(rules: Rules) -> Self {
        let books = EngineState {
            rules,
            clock: Time::ZERO,
            mint: TokenAllocator::default(),
            next_ticket: 1,
            waiting: 0,
            hold_off: None,
            longest: None,
            sessions: BTreeMap::new(),
            usage: UsageTable::default(),
            agenda: Deadlines::default(),
            replies: IdempotencyTable::default(),
            remembered: RememberedNames::default(),
        };
        Self { locks: LockTable::default(), books }
    }

    /// Returns the time at which a deadline next changes the state. The caller need not call the
    /// engine before that time.
    pub fn next_deadline(&self) -> Option<Time> {
        self.books.agenda.next()
    }

    /// Returns the latest time that a caller passed.
    pub const fn clock(&self) -> Time {
        self.books.clock
    }

    /// Returns the token that the next granted lock will get. A backend that persists its tokens
    /// must, before the next command, reserve [`Engine::tokens_wanted`] tokens beginning with this
    /// one.
    pub const fn next_token(&self) -> u64 {
        self.books.mint.upcoming()
    }

    /// Returns the most tokens that a command may use: one for each waiter, which it may serve, and
    /// those of the command itself, which may concern all locks.
    pub fn tokens_wanted(&self, op: &Op) -> u64 {
        let own = match op {
            Op::Reset(_) => self.locks.len() as u64 + 1,
            op => u64::from(!op.only_ends()),
        };
        self.books.waiting as u64 + own
    }

    /// Raises the next token to at least `floor`. After a restart, tokens that were issued before
    /// it may not be on record.
    pub fn raise_tokens(&mut self, floor: u64) {
        self.books.mint.raise(floor);
    }

    /// Returns the limits and durations of the engine.
    pub const fn rules(&self) -> Rules {
        self.books.rules
    }

    /// Replaces the limits. Locks, waiters and holders that already exceed them stay.
    pub fn set_rules(&mut self, rules: Rules) {
        self.books.rules = rules;
    }

    /// Returns the number of locks that are held or waited for.
    pub fn locks(&self) -> usize {
        self.locks.len()
    }

    /// Returns the number of waiters in all queues.
    pub const fn waiters(&self) -> usize {
        self.books.waiting
    }

    /// Returns the number of open sessions.
    pub fn sessions(&self) -> usize {
        self.books.sessions.len()
    }

    /// Returns the number of requests whose answers are remembered.
    pub fn request_ids(&self) -> usize {
        self.books.replies.len()
    }

    /// Whether the answer to the request with this id is remembered.
    pub fn remembers(&self, id: &RequestId) -> bool {
        self.books.replies.by_id.contains_key(id)
    }

    /// Returns the id of the request that was granted a lock under this token: the id of the
    /// winner, for the refusal of another request. `None` if it had no id, or if its answer is
    /// forgotten: a lease does not store the id, which would take memory and a new format.
    pub fn request_of(&self, token: Token) -> Option<&RequestId> {
        self.books.replies.of_grant(token)
    }

    /// Returns the number of stored items: locks, waiters, sessions, remembered answers and names.
    pub fn size(&self) -> usize {
        self.locks() + self.waiters() + self.sessions() + self.request_ids() + self.remembered()
    }

    /// Drops all remembered answers: a bug that tests inject.
    #[cfg(test)]
    pub(crate) fn forget_replies(&mut self) {
        let known: Vec<_> =
            self.books.replies.iter().map(|(id, reply)| (id.clone(), reply.until)).collect();
        for (request, until) in known {
            self.books.replies.remove(&request);
            if until == Time::NEVER {
                continue;
            }
            self.books.agenda.remove(until, Due::Reply(std::sync::Arc::new(request)));
        }
    }

    /// Returns the sessions without a ttl, which last until they are ended. After a restart the
    /// processes that opened them are gone.
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

    /// Refuses a command that may issue tokens while too few may be left.
    pub(super) fn tokens_left(&self) -> Result<(), Refusal> {
        if self.mint.left() > self.waiting as u64 + 1 {
            Ok(())
        } else {
            Err(self.refuse(Reason::Limit(Limit::Tokens)))
        }
    }

    pub(super) fn tell(&mut self, events: &mut Vec<Event>, what: EventKind) {
        self.usage.learn(&what);
        if !self.remembered.is_empty() {
            self.remembered.learn(&what);
        }
        events.push(Event { at: self.clock, what });
    }

    /// Registers a lease with its deadline or its session.
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
                if let Ownership::OpenFile(open) = lease.hold
                    && open.session == id
                {
                    session.opens.insert((open.number, lease.token), name.clone());
                }
            }
        }
    }

    /// Removes a lease from the deadlines or from its session.
    pub(super) fn unbook(&mut self, name: &LockName, lease: &Lease) {
        match lease.life {
            Lifetime::Own { .. } => {
                let due = Due::Lease(lease.token, name.clone());
                self.agenda.remove(self.due_at(lease.life), due);
            }
            Lifetime::Session(id) => {
                if let Some(session) = self.sessions.get_mut(&id) {
                    session.leases.remove(&(name.clone(), lease.token));
                    if let Ownership::OpenFile(open) = lease.hold
                        && open.session == id
                    {
                        session.opens.remove(&(open.number, lease.token));
                    }
                }
            }
        }
    }

    /// Replaces the registration of a lease that was renewed: `before` is its lifetime before the
    /// renewal, under which it is still registered.
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

    /// Returns the next deadline of a lease that its own renewals keep alive: its expiry, or else
    /// the end of its grace.
    pub(super) fn due_at(&self, life: Lifetime) -> Time {
        let ends = self.ends(life);
        if ends.expires_at > self.clock { ends.expires_at } else { ends.grace_until }
    }

    /// Returns when a lease ends, whether its own renewals or a session keep it alive.
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
