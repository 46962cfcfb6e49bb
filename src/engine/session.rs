//! A session: one keep-alive renews all leases that are bound to it, at a cost that does not grow
//! with their number.

use super::lease::{Ends, Ticket, Token};
use super::lease_terms::{Grace, TTL_DEFAULT, Ttl};
use super::name::{ClientId, LockName};
use crate::time::Time;
use std::collections::{BTreeMap, BTreeSet};

/// A session of a client process with its leases and waiters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Session {
    pub(super) client: ClientId,
    /// How long a keep-alive lasts. `None`: the session lasts until it is ended.
    pub(super) ttl: Option<Ttl>,
    pub(super) grace: Grace,
    pub(super) renewed_at: Time,
    /// The number of the last applied request of the sender: see
    /// [`RequestOrder`](super::command::RequestOrder).
    pub(super) last_request: u64,
    /// The leases that are bound to the session.
    pub(super) leases: BTreeSet<(LockName, Token)>,
    /// The locks that open files of the session hold, by the number of the open file (see
    /// [`OpenId`](super::lease::OpenId)) and the fencing token of the lease.
    pub(super) opens: BTreeMap<(u64, Token), LockName>,
    /// The waiters that end with the session.
    pub(super) waiters: BTreeSet<(LockName, Ticket)>,
}

impl Session {
    pub(super) fn new(client: ClientId, ttl: Option<Ttl>, grace: Grace, now: Time) -> Self {
        let (leases, opens, waiters) = Default::default();
        Self { client, ttl, grace, renewed_at: now, last_request: 0, leases, opens, waiters }
    }

    /// Returns the lock that an open file of the session holds, and the token: the lock of `token`
    /// if the file holds several.
    pub(super) fn held_by(&self, number: u64, token: Option<Token>) -> Option<(&LockName, Token)> {
        let named = token.and_then(|token| self.opens.get_key_value(&(number, token)));
        let first = || self.opens.range((number, Token(0))..=(number, Token(u64::MAX))).next();
        named.or_else(first).map(|((_, token), name)| (name, *token))
    }

    pub(super) fn expires_at(&self) -> Time {
        self.ttl.map_or(Time::NEVER, |ttl| self.renewed_at + ttl.span())
    }

    /// Returns when the leases that are bound to the session end, unless it is kept alive.
    pub(super) fn ends(&self) -> Ends {
        let expires_at = self.expires_at();
        let grace_until = expires_at + self.grace.span();
        Ends { expires_at, grace_until, ttl: self.ttl.unwrap_or(TTL_DEFAULT), grace: self.grace }
    }
}
