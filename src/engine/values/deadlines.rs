//! Deadlines in order of time, so that expiry finds its work without walking all locks.
//!
//! A session: one keep-alive renews all leases that are bound to it, at a cost that does not grow
//! with their number.

use super::command::RequestId;
use super::lease::{Ends, SessionId, Ticket, Token};
use super::name::{ClientId, LockName};
use crate::time::Time;
use crate::values::idempotency::UsedNumbers;
use crate::values::lease::{Grace, TTL_DEFAULT, Ttl};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// An action that is due at a time. The variants are ordered, so that actions due at the same time
/// take effect in the same order on every replica.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Due {
    /// A session expires. This variant comes first, so that the waiters of the session are gone
    /// before any lock is granted to the next waiter.
    Session(SessionId),
    /// The wait of a queued request times out. Boxed, so that the more frequent variants take less
    /// memory.
    Patience(Box<(Ticket, LockName)>),
    /// A lease, or its grace, expires.
    Lease(Token, LockName),
    /// The remembered answer to a request with an id may be dropped.
    Reply(Arc<RequestId>),
    /// The hold-off is over. This variant comes last, so that waiters whose time is over at the
    /// same moment are gone.
    HoldOff,
}

/// All deadlines of an engine, in order of time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Deadlines(BTreeSet<(Time, Due)>);

impl Deadlines {
    pub(crate) fn add(&mut self, at: Time, due: Due) {
        let new = self.0.insert((at, due));
        assert!(new, "each thing is due once");
    }

    pub(crate) fn remove(&mut self, at: Time, due: Due) {
        let known = self.0.remove(&(at, due));
        assert!(known, "what ends was due");
    }

    /// Moves the deadline of the action `due` from the time `from` to the time `to`.
    pub(crate) fn put_off(&mut self, from: Time, to: Time, due: Due) {
        if from != to {
            // The new deadline is added before the old one is removed, so that the set of deadlines
            // never becomes empty, which would free its memory.
            self.add(to, due.clone());
            self.remove(from, due);
        }
    }

    /// Removes a deadline that [`Deadlines::pop`] may already have taken.
    pub(crate) fn discard(&mut self, at: Time, due: Due) {
        self.0.remove(&(at, due));
    }

    /// Returns the time of the next deadline.
    pub(crate) fn next(&self) -> Option<Time> {
        self.0.first().map(|(at, _)| *at)
    }

    /// Takes the first deadline that is due by `now`.
    pub(crate) fn pop(&mut self, now: Time) -> Option<(Time, Due)> {
        if self.next()? > now {
            return None;
        }
        self.0.pop_first()
    }

    /// Returns the number of deadlines.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

/// A session of a client process with its leases and waiters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Session {
    pub(crate) client: ClientId,
    /// How long a keep-alive lasts. `None`: the session lasts until it is ended.
    pub(crate) ttl: Option<Ttl>,
    pub(crate) grace: Grace,
    pub(crate) renewed_at: Time,
    /// The numbers of the sender's requests that were applied.
    pub(crate) numbers: UsedNumbers,
    /// The leases that are bound to the session.
    pub(crate) leases: BTreeSet<(LockName, Token)>,
    /// The locks that open files of the session hold, by the number of the open file (see
    /// [`OpenId`](super::lease::OpenId)) and the fencing token of the lease.
    pub(crate) opens: BTreeMap<(u64, Token), LockName>,
    /// The waiters that end with the session.
    pub(crate) waiters: BTreeSet<(LockName, Ticket)>,
}

impl Session {
    pub(crate) fn new(client: ClientId, ttl: Option<Ttl>, grace: Grace, now: Time) -> Self {
        let (numbers, leases, opens, waiters) = Default::default();
        Self { client, ttl, grace, renewed_at: now, numbers, leases, opens, waiters }
    }

    /// Returns the lock that an open file of the session holds, and the token: the lock of `token`
    /// if the file holds several.
    pub(crate) fn held_by(&self, number: u64, token: Option<Token>) -> Option<(&LockName, Token)> {
        let named = token.and_then(|token| self.opens.get_key_value(&(number, token)));
        let first = || self.opens.range((number, Token(0))..=(number, Token(u64::MAX))).next();
        named.or_else(first).map(|((_, token), name)| (name, *token))
    }

    pub(crate) fn expires_at(&self) -> Time {
        self.ttl.map_or(Time::NEVER, |ttl| self.renewed_at + ttl.span())
    }

    /// Returns when the leases that are bound to the session end, unless it is kept alive.
    pub(crate) fn ends(&self) -> Ends {
        let expires_at = self.expires_at();
        let grace_until = expires_at + self.grace.span();
        Ends { expires_at, grace_until, ttl: self.ttl.unwrap_or(TTL_DEFAULT), grace: self.grace }
    }
}
