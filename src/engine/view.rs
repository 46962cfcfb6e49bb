//! Views of locks and sessions at one moment. They own their data, so no mutex is held while they
//! are rendered.

use super::lease::{Ends, Lease, Mode, Phase, Ticket, Token};
use super::name::{ClientId, LockName};
use crate::time::Time;

/// One lock at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockView {
    /// Its name.
    pub name: LockName,
    /// The moment.
    pub at: Time,
    /// Alone or with others, if anybody has it.
    pub mode: Mode,
    /// The holders, oldest first; empty when the lock is free.
    pub holders: Vec<Holder>,
    /// The waiters, in the order in which they will be served.
    pub waiters: Vec<WaiterView>,
    /// Whether a lock below this name is held or waited for.
    pub has_below: bool,
}

/// One holder of the lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The fact.
    pub lease: Lease,
    /// When it ends, whatever keeps it alive.
    pub ends: Ends,
}

/// One who waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaiterView {
    /// Who.
    pub client: ClientId,
    /// The place.
    pub ticket: Ticket,
    /// Alone or with others.
    pub mode: Mode,
    /// Since when.
    pub since: Time,
}

/// One session at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionView {
    /// The client that owns it.
    pub client: ClientId,
    /// When it ends unless it is kept alive.
    pub ends: Ends,
    /// Its leases by lock name, up to the number that was asked for.
    pub leases: Vec<(LockName, Token)>,
    /// The number of all its leases.
    pub held: usize,
    /// The number of queues in which it waits.
    pub waiting: usize,
}

/// Something directly below a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Child {
    /// The whole name.
    pub name: LockName,
    /// The lock of that name, if it is held; otherwise it is only the way to locks below.
    pub lock: Option<Lease>,
}

impl LockView {
    /// The first holder: the only one of an exclusive lock.
    pub fn holder(&self) -> Option<&Holder> {
        self.holders.first()
    }

    /// Where the lock stands. A shared lock is held while any of its holders is.
    pub fn phase(&self) -> Phase {
        let phases = self.holders.iter().map(|holder| holder.ends.phase(self.at));
        match phases.max_by_key(|phase| match phase {
            Phase::Free => 0,
            Phase::Grace => 1,
            Phase::Held => 2,
        }) {
            Some(phase) => phase,
            None => Phase::Free,
        }
    }

    /// Whether `client` holds this lock or waits for it.
    pub fn involves(&self, client: &ClientId) -> bool {
        self.held_by(client).is_some() || self.waiters.iter().any(|place| place.client == *client)
    }

    /// The holder that is this client, if it is one.
    pub fn held_by(&self, client: &ClientId) -> Option<&Holder> {
        self.holders.iter().find(|holder| holder.lease.holder == *client)
    }
}
