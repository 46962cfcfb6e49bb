//! Events: the state changes of the engine, in the order in which they happened.

use super::lease::{Mode, Ownership, SessionId, StealReason, Ticket, Token};
use super::name::{ClientId, LockName};
use crate::time::{Span, Time};

/// One thing that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// When the engine learned of it.
    pub at: Time,
    /// The kind of event, with its data.
    pub what: EventKind,
}

/// The kind of an event, with its data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventKind {
    /// A tenure began.
    Granted {
        /// Of this lock.
        name: LockName,
        /// By whom.
        holder: ClientId,
        /// Its token.
        token: Token,
        /// Alone or with others.
        mode: Mode,
        /// The owner within the client.
        hold: Ownership,
        /// The place in line that was served, and how long it had waited.
        waited: Option<(Ticket, Span)>,
    },
    /// A tenure goes on: renewed, taken back within grace, or downgraded to shared.
    Renewed {
        /// Of this lock.
        name: LockName,
        /// By whom.
        holder: ClientId,
        /// Its token.
        token: Token,
    },
    /// The details of a lease have changed.
    Annotated {
        /// Of this lock.
        name: LockName,
        /// The tenure.
        token: Token,
    },
    /// A lease ran out: the lock is in grace.
    Expired {
        /// Of this lock.
        name: LockName,
        /// The client that may still renew the lease within its grace.
        holder: ClientId,
        /// The tenure.
        token: Token,
    },
    /// A tenure ended.
    Ended {
        /// Of this lock.
        name: LockName,
        /// The client that held it.
        holder: ClientId,
        /// The tenure.
        token: Token,
        /// How long it was held.
        held: Span,
        /// How it ended.
        end: TenureEnd,
    },
    /// A waiter came.
    Joined {
        /// To this lock's line.
        name: LockName,
        /// Who.
        client: ClientId,
        /// The place.
        ticket: Ticket,
    },
    /// A waiter went without having been served.
    Left {
        /// From this lock's line.
        name: LockName,
        /// Who.
        client: ClientId,
        /// The place.
        ticket: Ticket,
        /// Why.
        why: LeaveReason,
    },
    /// A session began.
    SessionOpened {
        /// Which.
        session: SessionId,
        /// Whose.
        client: ClientId,
    },
    /// A session was kept alive, and with it all that hangs on it.
    SessionKept {
        /// Which.
        session: SessionId,
    },
    /// A session is over.
    SessionOver {
        /// Which.
        session: SessionId,
        /// Whose.
        client: ClientId,
        /// How.
        end: SessionEnd,
    },
}

/// How a tenure ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TenureEnd {
    /// Given back.
    Released,
    /// Not renewed, and not taken back within grace.
    Lapsed,
    /// Carried over to another name.
    Moved {
        /// That name.
        to: LockName,
    },
    /// Replaced by another tenure of the same client: by `mv`, or by an upgrade to exclusive.
    Replaced,
    /// Taken away.
    Stolen {
        /// By whom.
        by: ClientId,
        /// Why.
        reason: StealReason,
    },
}

/// Why a waiter went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaveReason {
    /// It asked to.
    Asked,
    /// A signal, a closed file or a closed connection ended the wait.
    Gone,
    /// Its patience was over.
    TimedOut,
    /// Its session was over.
    SessionOver,
    /// An administrator has reset what its client holds and waits for.
    Reset,
}

/// How a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionEnd {
    /// It was ended: all that hung on it is released.
    Closed,
    /// It was not kept alive: all that hung on it is in grace.
    Expired,
}
