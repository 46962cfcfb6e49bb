//! The state of an engine: its locks, sessions, deadlines, counters and limits.
//!
//! The invariants of the engine: conditions that hold between any two commands.

use super::usage::UsageTable;
use crate::time::{Span, Time};
use crate::values::command::{Op, Outcome, RequestId};
use crate::values::deadlines::{Deadlines, Due, Session};
use crate::values::details::REMEMBERED_MAX;
use crate::values::event::{Event, EventKind};
use crate::values::handover::{HandoverEnd, RememberedNames};
use crate::values::hold_off::HoldOff;
use crate::values::idempotency::IdempotencyTable;
use crate::values::lease::{
    Ends, Lease, Lifetime, Ownership, SessionId, Ticket, Token, TokenAllocator,
};
use crate::values::lock::{Lock, LockTable, Tenancy};
use crate::values::name::LockName;
use crate::values::refusal::{Limit, Reason, Refusal};
use std::collections::{BTreeMap, BTreeSet};

/// The limits and durations of an engine. They must be the same on every replica, so they are part
/// of the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// The maximum number of held locks. At 400 bytes each the default takes about 400 MB.
    pub locks_max: usize,
    /// The maximum number of waiters in one queue: clients do not wait long enough for a longer
    /// one.
    pub waiters_max: usize,
    /// The maximum number of holders of one shared lock: each acquire scans all of them.
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
    pub(super) state: EngineState,
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
        let state = EngineState {
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
        Self { locks: LockTable::default(), state }
    }

    /// Returns the time at which a deadline next changes the state. The caller need not call the
    /// engine before that time.
    pub fn next_deadline(&self) -> Option<Time> {
        self.state.agenda.next()
    }

    /// Returns the latest time that a caller passed.
    pub const fn clock(&self) -> Time {
        self.state.clock
    }

    /// Returns the token that the next granted lock will get. A backend that persists its tokens
    /// must, before the next command, reserve [`Engine::tokens_wanted`] tokens beginning with this
    /// one.
    pub const fn next_token(&self) -> u64 {
        self.state.mint.upcoming()
    }

    /// Returns the most tokens that a command may use: one for each waiter, which it may serve, and
    /// those of the command itself, which may concern all locks.
    pub fn tokens_wanted(&self, op: &Op) -> u64 {
        let own = match op {
            Op::Reset(_) => self.locks.len() as u64 + 1,
            op => u64::from(!op.only_ends()),
        };
        self.state.waiting as u64 + own
    }

    /// Raises the next token to at least `floor`. After a restart, tokens that were issued before
    /// it may not be on record.
    pub fn raise_tokens(&mut self, floor: u64) {
        self.state.mint.raise(floor);
    }

    /// Returns the limits and durations of the engine.
    pub const fn rules(&self) -> Rules {
        self.state.rules
    }

    /// Replaces the limits. Locks, waiters and holders that already exceed them stay.
    pub fn set_rules(&mut self, rules: Rules) {
        self.state.rules = rules;
    }

    /// Returns the number of locks that are held or waited for.
    pub fn locks(&self) -> usize {
        self.locks.len()
    }

    /// Returns the number of waiters in all queues.
    pub const fn waiters(&self) -> usize {
        self.state.waiting
    }

    /// Returns the number of open sessions.
    pub fn sessions(&self) -> usize {
        self.state.sessions.len()
    }

    /// Returns the number of requests whose answers are remembered.
    pub fn request_ids(&self) -> usize {
        self.state.replies.len()
    }

    /// Whether the answer to the request with this id is remembered.
    pub fn remembers(&self, id: &RequestId) -> bool {
        self.state.replies.by_id.contains_key(id)
    }

    /// Returns the id of the request that was granted a lock under this token: the id of the
    /// winner, for the refusal of another request. `None` if it had no id, or if its answer is
    /// forgotten: a lease does not store the id, which would take memory and a new format.
    pub fn request_of(&self, token: Token) -> Option<&RequestId> {
        self.state.replies.of_grant(token)
    }

    /// Returns the number of stored items: locks, waiters, sessions, remembered answers and names.
    pub fn size(&self) -> usize {
        self.locks() + self.waiters() + self.sessions() + self.request_ids() + self.remembered()
    }

    /// Drops all remembered answers: a bug that the simulator plants. Nothing else calls it.
    #[doc(hidden)]
    pub fn forget_replies(&mut self) {
        let known: Vec<_> =
            self.state.replies.iter().map(|(id, reply)| (id.clone(), reply.until)).collect();
        for (request, until) in known {
            self.state.replies.remove(&request);
            if until == Time::NEVER {
                continue;
            }
            self.state.agenda.remove(until, Due::Reply(std::sync::Arc::new(request)));
        }
    }

    /// Returns the sessions without a ttl, which last until they are ended. After a restart the
    /// processes that opened them are gone.
    pub fn unending_sessions(&self) -> Vec<SessionId> {
        let unending = self.state.sessions.iter().filter(|(_, session)| session.ttl.is_none());
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

    pub(super) fn emit(&mut self, events: &mut Vec<Event>, what: EventKind) {
        self.usage.learn(&what);
        if !self.remembered.is_empty() {
            self.remembered.learn(&what);
        }
        events.push(Event { at: self.clock, what });
    }

    /// Registers a lease with its deadline or its session.
    pub(super) fn register_lease(&mut self, name: &LockName, lease: &Lease) {
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
    pub(super) fn unregister_lease(&mut self, name: &LockName, lease: &Lease) {
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
    pub(super) fn update_lease_registration(
        &mut self,
        name: &LockName,
        lease: &Lease,
        before: Lifetime,
    ) {
        match (before, lease.life) {
            (Lifetime::Session(before), Lifetime::Session(now)) if before == now => {}
            (Lifetime::Own { .. }, Lifetime::Own { .. }) => {
                let due = Due::Lease(lease.token, name.clone());
                self.agenda.put_off(self.due_at(before), self.due_at(lease.life), due);
            }
            _ => {
                self.unregister_lease(name, &Lease { life: before, ..lease.clone() });
                self.register_lease(name, lease);
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

impl Engine {
    /// Panics if an invariant is broken. Walks the whole state: for tests, and for a state that was
    /// loaded.
    pub fn check(&self) {
        let mut tokens = BTreeSet::new();
        let mut waiting = 0;
        let mut due = 0;
        for (name, lock) in self.locks.iter() {
            self.check_tenancy(lock);
            waiting += lock.line.len();
            for lease in lock.leases() {
                assert!(tokens.insert(lease.token), "no two leases have one token");
                assert!(lease.token.as_u64() < self.state.mint.upcoming(), "tokens are minted");
                due += usize::from(matches!(lease.life, Lifetime::Own { .. }));
            }
            self.check_ends(name, lock);
            self.check_line(name, lock);
            due += lock.line.values().filter(|waiter| waiter.until.is_some()).count();
        }
        let below = self.locks.keys().filter(|name| name.has_parts()).count();
        assert_eq!(below, self.locks.below(), "names with parts are counted");
        assert_eq!(waiting, self.state.waiting, "waiters are counted");
        assert_eq!(self.recounted_usage(), self.state.usage, "the usage of clients is counted");
        due += self.state.sessions.values().filter(|session| session.ttl.is_some()).count();
        due += self.state.replies.iter().filter(|(_, reply)| reply.until < Time::NEVER).count();
        due += usize::from(self.state.hold_off.is_some());
        assert_eq!(due, self.state.agenda.len(), "what ends by itself is on the agenda, once");
        if let Some(next) = self.state.agenda.next() {
            assert!(next > self.state.clock, "what is due has happened");
        }
        self.check_sessions();
        self.check_waiting_replies();
        self.check_limits();
        self.check_names();
    }

    fn check_names(&self) {
        let names = self.state.remembered.iter();
        for (name, _, previous) in names {
            let Some(last) = &previous.last else { continue };
            assert!(last.token.as_u64() < self.state.mint.upcoming(), "tokens are minted");
            let leases = self.locks.get(name).map_or(&[][..], |lock| lock.leases());
            let runs = leases.iter().any(|lease| lease.token == last.token);
            match last.end {
                HandoverEnd::Open => assert!(runs, "an end is recorded as it happens"),
                HandoverEnd::Unknown => {}
                _ => assert!(!runs, "a tenure that runs has no end"),
            }
        }
    }

    fn check_ends(&self, name: &LockName, lock: &Lock) {
        for lease in lock.leases() {
            let ends = self.state.ends(lease.life);
            assert!(ends.grace_until > self.state.clock, "no lease outlives its grace");
            assert!(lease.renewed_at >= lease.acquired_at, "no renewal before the tenure");
            if let Lifetime::Session(id) = lease.life {
                let hangs = self.state.sessions[&id].leases.contains(&(name.clone(), lease.token));
                assert!(hangs, "a session knows its leases");
                assert!(ends.expires_at > self.state.clock, "an expired session is gone");
            }
            if let Ownership::OpenFile(open) = lease.hold
                && let Lifetime::Session(id) = lease.life
            {
                let reclaimed = !self.state.sessions.contains_key(&open.session);
                let hangs = open.session == id || reclaimed;
                assert!(hangs, "an open file's hold hangs on the file's session");
                let known = self.state.sessions[&id].opens.get(&(open.number, lease.token));
                assert!(reclaimed || known == Some(name), "a session knows its open files");
            }
        }
    }

    fn check_line(&self, name: &LockName, lock: &Lock) {
        let mut seen = BTreeSet::new();
        for (ticket, waiter) in lock.line.iter() {
            assert!(self.state.is_alive(waiter), "the dead do not wait");
            assert!(ticket.as_u64() < self.state.next_ticket, "places are given out once");
            let once = waiter.hold == Ownership::Exclusive(None)
                || seen.insert((&waiter.client, waiter.hold));
            assert!(once, "an open file waits once in a queue");
            for id in waiter.sessions() {
                let hangs = self.state.sessions[&id].waiters.contains(&(name.clone(), *ticket));
                assert!(hangs, "a session knows its waiters");
            }
        }
        if let Some(waiter) = lock.line.values().next() {
            let to_be_had = lock.admits(waiter.mode) && !self.state.is_full(lock);
            let is_put_off = self.state.hold_off.is_some();
            assert!(!to_be_had || is_put_off, "nobody waits for what is to be had");
        }
    }

    fn check_sessions(&self) {
        for session in self.state.sessions.values() {
            for ((_, token), name) in &session.opens {
                let held = session.leases.contains(&(name.clone(), *token));
                assert!(held, "an open file of a session has a lease of the session");
            }
            for (name, token) in &session.leases {
                let lock = self.locks.get(name);
                let lease = lock.and_then(|l| l.leases().iter().find(|l| l.token == *token));
                let on_session = lease.is_some_and(|l| matches!(l.life, Lifetime::Session(_)));
                assert!(on_session, "a session's lease is there and hangs on it");
            }
            for (name, ticket) in &session.waiters {
                let lock = self.locks.get(name);
                let there = lock.is_some_and(|lock| lock.line.contains_key(ticket));
                assert!(there, "a session's waiter is in line");
            }
        }
    }

    fn check_waiting_replies(&self) {
        let tickets = self.locks.values().flat_map(|lock| lock.line.keys());
        let tickets: BTreeSet<Ticket> = tickets.copied().collect();
        for (_, reply) in self.state.replies.iter().filter(|(_, reply)| reply.until == Time::NEVER)
        {
            let Outcome::Waiting { ticket, .. } = reply.replay.first else {
                panic!("only the answer to a request that waits is kept without end");
            };
            assert!(tickets.contains(&ticket), "a request that waits has its place");
        }
    }

    fn check_limits(&self) {
        let EngineState { rules, sessions, replies, .. } = &self.state;
        assert!(self.locks.len() <= rules.locks_max, "locks are limited");
        let sharing = self.locks.values().map(|lock| lock.leases().len());
        assert!(sharing.max().unwrap_or(0) <= rules.holders_max.max(1), "sharers are limited");
        assert!(self.remembered() <= REMEMBERED_MAX, "remembered names are limited");
        assert!(sessions.len() <= rules.sessions_max, "sessions are limited");
        assert!(replies.len() <= rules.requests_max, "request ids are limited");
        let mut recounted = IdempotencyTable::default();
        for (id, reply) in &replies.by_id {
            recounted.insert(id, reply.clone());
        }
        assert_eq!(recounted, *replies, "the shares of the callers are counted");
        let lines = self.locks.values().map(|lock| lock.line.len());
        assert!(lines.max().unwrap_or(0) <= rules.waiters_max, "lines are limited");
    }

    fn check_tenancy(&self, lock: &Lock) {
        assert!(!lock.is_idle(), "a free lock is not stored");
        match &lock.tenancy {
            Tenancy::Nobody => assert!(self.state.hold_off.is_some(), "a free lock is granted"),
            Tenancy::Exclusive(_) => {}
            Tenancy::Shared(leases) | Tenancy::Seats(_, leases) => {
                assert!(!leases.is_empty(), "a free lock is not stored");
                let oldest_first = leases.windows(2).all(|pair| pair[0].token < pair[1].token);
                assert!(oldest_first, "sharers stand in the order of their tokens");
            }
        }
        if let Tenancy::Seats(seats, leases) = &lock.tenancy {
            let taken: BTreeSet<u16> = leases.iter().filter_map(|lease| lease.seat).collect();
            assert_eq!(taken.len(), leases.len(), "each holder has a seat of its own");
            assert!(taken.iter().all(|seat| *seat < seats.get()), "a seat is below the maximum");
        } else {
            assert!(lock.leases().iter().all(|lease| lease.seat.is_none()), "no lock has seats");
        }
    }
}
