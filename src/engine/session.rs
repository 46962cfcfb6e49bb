//! A session: one keep-alive renews all that hangs on it, at a cost that does not grow.

use super::lease::{Ends, Ticket, Token};
use super::lease_terms::{Grace, TTL_DEFAULT, Ttl};
use super::name::{ClientId, LockName};
use crate::time::Time;
use std::collections::BTreeSet;

/// A client process's bond with the engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Session {
    pub(super) client: ClientId,
    /// `None`: it lasts until it is ended.
    pub(super) ttl: Option<Ttl>,
    pub(super) grace: Grace,
    pub(super) renewed_at: Time,
    /// The number of the last request that its sender had carried out: see
    /// [`RequestOrder`](super::command::RequestOrder).
    pub(super) last_request: u64,
    /// The leases that end with it.
    pub(super) leases: BTreeSet<(LockName, Token)>,
    /// The places in line that end with it.
    pub(super) waiters: BTreeSet<(LockName, Ticket)>,
}

impl Session {
    pub(super) fn new(client: ClientId, ttl: Option<Ttl>, grace: Grace, now: Time) -> Self {
        let (leases, waiters) = (BTreeSet::new(), BTreeSet::new());
        Self { client, ttl, grace, renewed_at: now, last_request: 0, leases, waiters }
    }

    pub(super) fn expires_at(&self) -> Time {
        self.ttl.map_or(Time::NEVER, |ttl| self.renewed_at + ttl.span())
    }

    /// When the leases that hang on it end, unless it is kept alive.
    pub(super) fn ends(&self) -> Ends {
        let expires_at = self.expires_at();
        let grace_until = expires_at + self.grace.span();
        Ends { expires_at, grace_until, ttl: self.ttl.unwrap_or(TTL_DEFAULT), grace: self.grace }
    }
}
