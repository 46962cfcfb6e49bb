//! Events: the state changes of the engine, in the order in which they happened.
//!
//! Views of locks and sessions at one moment. They own their data, so no mutex is held while they
//! are rendered.

use super::handover::Previous;
use super::hold_off::{EndHoldOff, HoldOff};
use super::lease::{Ends, Lease, Mode, Ownership, Phase, SessionId, StealReason, Ticket, Token};
use super::name::{ClientId, LockName};
use super::refusal::Way;
use crate::time::{Span, Time};
use std::sync::Arc;

/// One state change of the engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The engine time of the change.
    pub at: Time,
    /// The kind of event, with its data.
    pub what: EventKind,
}

/// The kind of an event, with its data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventKind {
    /// A tenure began: a client got the lock, under a new fencing token.
    Granted {
        /// The name of the lock.
        name: LockName,
        /// The client that holds the lock.
        holder: ClientId,
        /// The fencing token under which the client holds the lock.
        token: Token,
        /// The mode of the lock: exclusive or shared.
        mode: Mode,
        /// The owner of the lease within the client: the client as a whole, one program or one open
        /// file.
        hold: Ownership,
        /// The ticket (the queue number) of the waiter to which the lock was granted, and how long
        /// the client had waited; `None` if the client did not wait.
        waited: Option<(Ticket, Span)>,
    },
    /// A client still holds the lock under the same fencing token: its lease was renewed, recovered
    /// within its grace, or downgraded to shared.
    Renewed {
        /// The name of the lock.
        name: LockName,
        /// The client that holds the lock.
        holder: ClientId,
        /// The fencing token under which the client holds the lock.
        token: Token,
    },
    /// The details of a lease have changed.
    Annotated {
        /// The name of the lock.
        name: LockName,
        /// The token of the lease.
        token: Token,
    },
    /// A lease expired. During its grace, only its holder may take the lock back.
    Expired {
        /// The name of the lock.
        name: LockName,
        /// The client that may still renew the lease within its grace.
        holder: ClientId,
        /// The token of the lease.
        token: Token,
    },
    /// A tenure ended: a client no longer has the lock under its fencing token.
    Ended {
        /// The name of the lock.
        name: LockName,
        /// The client that held the lock.
        holder: ClientId,
        /// The fencing token under which the client held the lock.
        token: Token,
        /// How long the client had the lock under this token.
        held: Span,
        /// How the client's possession of the lock under this token ended.
        end: TenureEnd,
    },
    /// A waiter joined a queue.
    Joined {
        /// The name of the lock.
        name: LockName,
        /// The client that waits.
        client: ClientId,
        /// The ticket: the number of the waiter's place in the queue.
        ticket: Ticket,
    },
    /// A waiter left a queue without being served.
    Left {
        /// The name of the lock.
        name: LockName,
        /// The client that waited.
        client: ClientId,
        /// The ticket: the number of the waiter's place in the queue.
        ticket: Ticket,
        /// Why the waiter left.
        why: LeaveReason,
    },
    /// A session was opened.
    SessionOpened {
        /// The id of the session.
        session: SessionId,
        /// The client that owns the session.
        client: ClientId,
    },
    /// A session was kept alive, and with it the leases that are bound to it.
    SessionKept {
        /// The id of the session.
        session: SessionId,
    },
    /// A session ended.
    SessionOver {
        /// The id of the session.
        session: SessionId,
        /// The client that owned the session.
        client: ClientId,
        /// How the session ended.
        end: SessionEnd,
    },
    /// The engine grants locks again: its hold-off is over.
    HoldOffEnded {
        /// The command that ended it before its time, if one did.
        by: Option<EndHoldOff>,
    },
}

/// How a tenure, a client's possession of a lock under one fencing token, ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TenureEnd {
    /// The holder released the lock.
    Released,
    /// The lease expired and was not recovered within its grace.
    Lapsed,
    /// The lease moved to another name.
    Moved {
        /// The new name of the lease.
        to: LockName,
    },
    /// The client got another fencing token for the same lock: by `mv` of another of its leases to
    /// this name, or by a change from shared to exclusive.
    Replaced,
    /// The lock was taken from its holder by a steal or a reset.
    Stolen {
        /// The client that took the lock.
        by: ClientId,
        /// The reason that the client gave for taking the lock.
        reason: StealReason,
    },
}

/// Why a waiter left a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaveReason {
    /// The waiter asked to leave.
    Asked,
    /// A signal, a closed file or a closed connection ended the wait.
    Gone,
    /// The timeout of the wait passed.
    TimedOut,
    /// The session of the waiter ended.
    SessionOver,
    /// An administrator reset the client.
    Reset,
}

impl LeaveReason {
    /// Returns why a wait has ended without the lock, as a part of a sentence.
    pub const fn sentence(self) -> &'static str {
        match self {
            Self::Asked => "the place in its queue was given up by another request of the client",
            Self::Gone => "the program or connection that waited for it is gone",
            Self::TimedOut => "timed out waiting for the lock",
            Self::SessionOver => "the session of the waiting request is over",
            Self::Reset => "an administrator has ended all waits of the client",
        }
    }
}

/// How a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionEnd {
    /// The session was closed: the leases that were bound to it are released.
    Closed,
    /// The session got no keep-alive in time: the leases that were bound to it are in grace.
    Expired,
    /// Another client closed the session. The locks with remembered names stay with their holder
    /// until it releases them or until the session would have expired, since it may not have heard
    /// of its end. The other leases are released.
    Revoked,
}

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

/// The obstacle to a request for a lock.
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

/// Where a waiter stands in its queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueuePlace {
    /// The number of the place, from 1 on: the waiter with number 1 is served next.
    pub position: usize,
    /// The number of clients that must have had the lock and given it up, or have left the queue,
    /// before this waiter has it. Holders do not count, nor do waiters that will have the lock
    /// together with this one: by sharing it, or on other seats.
    pub ahead: usize,
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

    /// Returns the waiters with their places in the queue.
    pub fn queue(&self) -> impl Iterator<Item = (&WaiterView, QueuePlace)> {
        let mut together: &[WaiterView] = &[];
        self.waiters.iter().enumerate().map(move |(before, waiter)| {
            let may_share = waiter.mode != Mode::Exclusive
                && together.last().is_some_and(|last| last.mode == waiter.mode);
            let first = if may_share { before - together.len() } else { before };
            together = &self.waiters[first..=before];
            let seats = waiter.mode.seats().map_or(usize::MAX, usize::from);
            let ahead = first.max((before + 1).saturating_sub(seats));
            (waiter, QueuePlace { position: before + 1, ahead })
        })
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
