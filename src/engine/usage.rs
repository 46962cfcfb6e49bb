//! The number of leases, waiters and sessions of each client, from which front ends decide whether
//! a caller has more than its share.
//!
//! The numbers are derived from the events of the engine. They are not encoded, and no command is
//! decided by them.

use super::state::{Engine, EngineState};
use crate::values::event::EventKind;
use crate::values::lock::Lock;
use crate::values::name::{ClientId, LockName};
use std::collections::BTreeMap;
use std::ops::{AddAssign, Bound};

/// The leases, waiters and sessions of one or several clients.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// The number of leases, shared ones included.
    pub leases: usize,
    /// The number of places in queues.
    pub waiters: usize,
    /// The number of open sessions.
    pub sessions: usize,
    /// The number of names that are remembered at the request of the clients.
    pub remembered: usize,
}

/// The usage of each client that has any, and of all clients.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct UsageTable {
    clients: BTreeMap<ClientId, Usage>,
    leases: usize,
}

/// A number of a [`Usage`] that an event changes.
type Field = fn(&mut Usage) -> &mut usize;

const LEASES: Field = |usage| &mut usage.leases;
const WAITERS: Field = |usage| &mut usage.waiters;
const SESSIONS: Field = |usage| &mut usage.sessions;
const REMEMBERED: Field = |usage| &mut usage.remembered;

impl AddAssign for Usage {
    fn add_assign(&mut self, other: Self) {
        self.leases += other.leases;
        self.waiters += other.waiters;
        self.sessions += other.sessions;
        self.remembered += other.remembered;
    }
}

impl UsageTable {
    /// Counts the change that an event reports.
    pub(super) fn learn(&mut self, what: &EventKind) {
        match what {
            EventKind::Granted { holder, waited, .. } => {
                self.leases += 1;
                self.add(holder, LEASES);
                if waited.is_some() {
                    self.sub(holder, WAITERS);
                }
            }
            EventKind::Ended { holder, .. } => {
                self.leases = self.leases.saturating_sub(1);
                self.sub(holder, LEASES);
            }
            EventKind::Joined { client, .. } => self.add(client, WAITERS),
            EventKind::Left { client, .. } => self.sub(client, WAITERS),
            EventKind::SessionOpened { client, .. } => self.add(client, SESSIONS),
            EventKind::SessionOver { client, .. } => self.sub(client, SESSIONS),
            EventKind::Renewed { .. }
            | EventKind::Annotated { .. }
            | EventKind::Expired { .. }
            | EventKind::SessionKept { .. }
            | EventKind::HoldOffEnded { .. } => {}
        }
    }

    fn add(&mut self, client: &ClientId, field: Field) {
        if let Some(usage) = self.clients.get_mut(client) {
            *field(usage) += 1;
        } else {
            let mut usage = Usage::default();
            *field(&mut usage) += 1;
            self.clients.insert(client.clone(), usage);
        }
    }

    fn sub(&mut self, client: &ClientId, field: Field) {
        // An end follows a beginning; an error here must not stop the engine.
        let Some(usage) = self.clients.get_mut(client) else { return };
        *field(usage) = field(usage).saturating_sub(1);
        if *usage == Usage::default() {
            self.clients.remove(client);
        }
    }

    /// Counts the leases and waiters of a lock that was decoded.
    pub(super) fn learn_lock(&mut self, lock: &Lock) {
        self.leases += lock.leases().len();
        lock.leases().iter().for_each(|lease| self.add(&lease.holder, LEASES));
        lock.line.values().for_each(|waiter| self.add(&waiter.client, WAITERS));
    }

    /// Counts a name that is remembered at the request of `client` from now on.
    pub(super) fn learn_name(&mut self, client: &ClientId) {
        self.add(client, REMEMBERED);
    }

    /// Counts a name that was remembered at the request of `client` and is not any more.
    pub(super) fn forget_name(&mut self, client: &ClientId) {
        self.sub(client, REMEMBERED);
    }

    /// Counts a session that was decoded.
    pub(super) fn learn_session(&mut self, client: &ClientId) {
        self.add(client, SESSIONS);
    }
}

impl Engine {
    /// Returns the usage of all clients together.
    pub fn usage(&self) -> Usage {
        let EngineState { usage, waiting, sessions, remembered, .. } = &self.state;
        let (sessions, remembered) = (sessions.len(), remembered.len());
        Usage { leases: usage.leases, waiters: *waiting, sessions, remembered }
    }

    /// Returns the usage of one client.
    pub fn usage_of(&self, client: &str) -> Usage {
        self.state.usage.clients.get(client).copied().unwrap_or_default()
    }

    /// Returns the usage of all clients whose ids begin with `prefix`.
    pub fn usage_of_prefix(&self, prefix: &str) -> Usage {
        let from = (Bound::Included(prefix), Bound::Unbounded);
        let clients = self.state.usage.clients.range::<str, _>(from);
        let mut sum = Usage::default();
        clients
            .take_while(|(client, _)| client.as_str().starts_with(prefix))
            .for_each(|(_, usage)| sum += *usage);
        sum
    }

    /// Returns the number of leases and of waiters below the names that begin with `prefix`.
    pub fn usage_within(&self, prefix: &str) -> Usage {
        let mut sum = Usage::default();
        self.locks
            .range::<str, _>((Bound::Included(prefix), Bound::Unbounded))
            .take_while(|(name, _)| name.as_str().starts_with(prefix))
            .for_each(|(_, lock)| {
                sum.leases += lock.leases().len();
                sum.waiters += lock.line.len();
            });
        sum
    }

    /// Returns the number of leases and of waiters that the clients which `whose` selects have at
    /// one lock.
    pub fn usage_of_lock(
        &self,
        name: &LockName,
        whose: impl Fn(&ClientId) -> bool,
    ) -> (usize, usize) {
        let Some(lock) = self.locks.get(name) else { return (0, 0) };
        let held = lock.leases().iter().filter(|lease| whose(&lease.holder)).count();
        let waiting = lock.line.values().filter(|waiter| whose(&waiter.client)).count();
        (held, waiting)
    }

    /// Returns the usage table as it follows from the locks and sessions.
    pub(super) fn recounted_usage(&self) -> UsageTable {
        let mut usage = UsageTable::default();
        self.locks.values().for_each(|lock| usage.learn_lock(lock));
        self.state.sessions.values().for_each(|session| usage.learn_session(&session.client));
        self.state.remembered.iter().for_each(|(_, owner, _)| usage.learn_name(owner));
        usage
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usages_are_added_field_by_field() {
        let mut sum = Usage { leases: 1, waiters: 2, sessions: 3, remembered: 4 };
        sum += Usage { leases: 10, waiters: 20, sessions: 30, remembered: 40 };
        assert_eq!(sum, Usage { leases: 11, waiters: 22, sessions: 33, remembered: 44 });
    }
}
