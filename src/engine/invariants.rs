//! The invariants of the engine: conditions that hold between any two commands.

use super::command::Outcome;
use super::handover::HandoverEnd;
use super::idempotency::IdempotencyTable;
use super::lease::{Lifetime, Ownership, Ticket};
use super::limits::REMEMBERED_MAX;
use super::lock::{Lock, Tenancy};
use super::name::LockName;
use super::state::{Engine, EngineState};
use crate::time::Time;
use std::collections::BTreeSet;

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
                assert!(lease.token.as_u64() < self.books.mint.upcoming(), "tokens are minted");
                due += usize::from(matches!(lease.life, Lifetime::Own { .. }));
            }
            self.check_ends(name, lock);
            self.check_line(name, lock);
            due += lock.line.values().filter(|waiter| waiter.until.is_some()).count();
        }
        let below = self.locks.keys().filter(|name| name.has_parts()).count();
        assert_eq!(below, self.locks.below(), "names with parts are counted");
        assert_eq!(waiting, self.books.waiting, "waiters are counted");
        assert_eq!(self.recounted_usage(), self.books.usage, "the usage of clients is counted");
        due += self.books.sessions.values().filter(|session| session.ttl.is_some()).count();
        due += self.books.replies.iter().filter(|(_, reply)| reply.until < Time::NEVER).count();
        due += usize::from(self.books.hold_off.is_some());
        assert_eq!(due, self.books.agenda.len(), "what ends by itself is on the agenda, once");
        if let Some(next) = self.books.agenda.next() {
            assert!(next > self.books.clock, "what is due has happened");
        }
        self.check_sessions();
        self.check_waiting_replies();
        self.check_limits();
        self.check_names();
    }

    fn check_names(&self) {
        let names = self.books.remembered.iter();
        for (name, _, previous) in names {
            let Some(last) = &previous.last else { continue };
            assert!(last.token.as_u64() < self.books.mint.upcoming(), "tokens are minted");
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
            let ends = self.books.ends(lease.life);
            assert!(ends.grace_until > self.books.clock, "no lease outlives its grace");
            assert!(lease.renewed_at >= lease.acquired_at, "no renewal before the tenure");
            if let Lifetime::Session(id) = lease.life {
                let hangs = self.books.sessions[&id].leases.contains(&(name.clone(), lease.token));
                assert!(hangs, "a session knows its leases");
                assert!(ends.expires_at > self.books.clock, "an expired session is gone");
            }
            if let Ownership::OpenFile(open) = lease.hold
                && let Lifetime::Session(id) = lease.life
            {
                let reclaimed = !self.books.sessions.contains_key(&open.session);
                let hangs = open.session == id || reclaimed;
                assert!(hangs, "an open file's hold hangs on the file's session");
                let known = self.books.sessions[&id].opens.get(&(open.number, lease.token));
                assert!(reclaimed || known == Some(name), "a session knows its open files");
            }
        }
    }

    fn check_line(&self, name: &LockName, lock: &Lock) {
        let mut seen = BTreeSet::new();
        for (ticket, waiter) in lock.line.iter() {
            assert!(self.books.is_alive(waiter), "the dead do not wait");
            assert!(ticket.as_u64() < self.books.next_ticket, "places are given out once");
            let once = waiter.hold == Ownership::Exclusive(None)
                || seen.insert((&waiter.client, waiter.hold));
            assert!(once, "an open file waits once in a queue");
            for id in waiter.sessions() {
                let hangs = self.books.sessions[&id].waiters.contains(&(name.clone(), *ticket));
                assert!(hangs, "a session knows its waiters");
            }
        }
        if let Some(waiter) = lock.line.values().next() {
            let to_be_had = lock.admits(waiter.mode) && !self.books.is_full(lock);
            let is_put_off = self.books.hold_off.is_some();
            assert!(!to_be_had || is_put_off, "nobody waits for what is to be had");
        }
    }

    fn check_sessions(&self) {
        for session in self.books.sessions.values() {
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
        for (_, reply) in self.books.replies.iter().filter(|(_, reply)| reply.until == Time::NEVER)
        {
            let Outcome::Waiting { ticket, .. } = reply.replay.first else {
                panic!("only the answer to a request that waits is kept without end");
            };
            assert!(tickets.contains(&ticket), "a request that waits has its place");
        }
    }

    fn check_limits(&self) {
        let EngineState { rules, sessions, replies, .. } = &self.books;
        assert!(self.locks.len() <= rules.locks_max, "locks are limited");
        let sharing = self.locks.values().map(|lock| lock.leases().len());
        assert!(sharing.max().unwrap_or(0) <= rules.holders_max.max(1), "sharers are limited");
        assert!(self.remembered() <= REMEMBERED_MAX, "remembered names are limited");
        assert!(sessions.len() <= rules.sessions_max, "sessions are limited");
        assert!(replies.len() <= rules.requests_max, "request ids are limited");
        let mut again = IdempotencyTable::default();
        for (id, reply) in &replies.by_id {
            again.insert(id, reply.clone());
        }
        assert_eq!(again, *replies, "the shares of the callers are counted");
        let lines = self.locks.values().map(|lock| lock.line.len());
        assert!(lines.max().unwrap_or(0) <= rules.waiters_max, "lines are limited");
    }

    fn check_tenancy(&self, lock: &Lock) {
        assert!(!lock.is_idle(), "a free lock is not stored");
        match &lock.tenancy {
            Tenancy::Nobody => assert!(self.books.hold_off.is_some(), "a free lock is granted"),
            Tenancy::Exclusive(_) => {}
            Tenancy::Shared(leases) => {
                assert!(!leases.is_empty(), "a free lock is not stored");
                let oldest_first = leases.windows(2).all(|pair| pair[0].token < pair[1].token);
                assert!(oldest_first, "sharers stand in the order of their tokens");
            }
        }
    }
}
