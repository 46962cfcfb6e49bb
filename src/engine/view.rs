//! Views of locks and sessions at one moment. They own their data, so no mutex is held while they
//! are rendered.

use super::handover::Previous;
use super::hold_off::HoldOff;
use super::lease::{Ends, Lease, Mode, Phase, Ticket, Token};
use super::name::{ClientId, LockName};
use super::refusal::Way;
use crate::time::Time;
use std::sync::Arc;

/// The state of one lock at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockView {
    /// The name of the lock.
    pub name: LockName,
    /// The time of the view.
    pub at: Time,
    /// The mode of the lock, exclusive or shared, if it is held.
    pub mode: Mode,
    /// The holders, oldest first; empty when the lock is free.
    pub holders: Vec<Holder>,
    /// The waiters, in the order in which they will be served.
    pub waiters: Vec<WaiterView>,
    /// Whether a lock below this name is held or waited for.
    pub has_below: bool,
    /// The last handover of the name and the number of its grants; `None` if the name is not
    /// remembered.
    pub previous: Option<Arc<Previous>>,
    /// Until when no lock is granted, and why; `None` if locks are granted.
    pub hold_off: Option<HoldOff>,
}

/// What is in the way of a request for a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Obstacle<'a> {
    /// A holder conflicts with the request in this way.
    Lease(&'a Holder, Way),
    /// No lock is granted.
    HoldOff(HoldOff),
}

/// One holder of a lock: its lease, and when that ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The lease of the holder.
    pub lease: Lease,
    /// When the lease ends, whether its own renewals or a session keep it alive.
    pub ends: Ends,
}

/// One waiter in a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaiterView {
    /// The client that waits.
    pub client: ClientId,
    /// The ticket: the number of the waiter's place in the queue.
    pub ticket: Ticket,
    /// The requested mode: exclusive or shared.
    pub mode: Mode,
    /// When the client joined the queue.
    pub since: Time,
}

/// The state of one session at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionView {
    /// The client that owns the session.
    pub client: ClientId,
    /// When the session ends unless it is kept alive.
    pub ends: Ends,
    /// The leases of the session, ordered by lock name, up to the number requested.
    pub leases: Vec<(LockName, Token)>,
    /// The number of all leases of the session.
    pub held: usize,
    /// The number of the session's waiters in all queues.
    pub waiting: usize,
}

/// An entry directly below a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Child {
    /// The full name of the entry.
    pub name: LockName,
    /// The lock with the name of the entry, if that lock is held. `None`: the entry exists only
    /// because locks below its name are held.
    pub lock: Option<Lease>,
}

impl LockView {
    /// Returns the first holder: the only one of an exclusive lock.
    pub fn holder(&self) -> Option<&Holder> {
        self.holders.first()
    }

    /// Returns the phase (free, held or in grace) of the lock. A shared lock is held as long as one
    /// of its leases is.
    pub fn phase(&self) -> Phase {
        Phase::of_lock(self.holders.iter().map(|holder| holder.ends), self.at)
    }

    /// Whether `client` holds this lock or waits for it.
    pub fn involves(&self, client: &ClientId) -> bool {
        self.held_by(client).is_some() || self.waiters.iter().any(|place| place.client == *client)
    }

    /// Returns the holder that is this client, if any.
    pub fn held_by(&self, client: &ClientId) -> Option<&Holder> {
        self.holders.iter().find(|holder| holder.lease.holder == *client)
    }
}
