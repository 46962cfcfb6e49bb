//! Events: the state changes of the engine, in the order in which they happened.

use super::hold_off::EndHoldOff;
use super::lease::{Mode, Ownership, SessionId, StealReason, Ticket, Token};
use super::name::{ClientId, LockName};
use crate::time::{Span, Time};

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
