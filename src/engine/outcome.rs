//! The answers to commands.

use super::handover::Previous;
use super::lease::{Ends, Lifetime, SessionId, Ticket, Token};
use super::refusal::Refusal;
use crate::time::Time;
use std::sync::Arc;

/// The engine's answer to a command.
pub type Answer = Result<Outcome, Refusal>;

/// The effect of a command that was not refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The answer to [`Op::Settle`](super::command::Op::Settle): all expiries and timeouts that
    /// were due have taken effect.
    Settled,
    /// The lock was granted: a tenure (a possession of the lock under one fencing token) began.
    Granted(Tenure),
    /// The client's own lease was renewed. Its token is the same, unless the request changed the
    /// mode of the lease from shared to exclusive.
    Renewed(Tenure),
    /// The request waits in the queue.
    Waiting {
        /// The ticket: the number of the request's place in the queue.
        ticket: Ticket,
        /// The number of waiters ahead in the queue.
        ahead: usize,
    },
    /// The lock was released.
    Released,
    /// The waiter left the queue.
    Left,
    /// The details of the lease were changed.
    Annotated,
    /// The lease was moved to another lock name, under a new token.
    Moved(Tenure),
    /// The lock was taken from its holders. The new holder may use it after the steal grace, the
    /// time in which a stolen lock is unusable.
    Stolen(Tenure),
    /// The session is open.
    SessionOpened(SessionId),
    /// The session was kept alive, and lasts until the time in this variant.
    KeptAlive(Time),
    /// The session was ended.
    SessionEnded,
    /// The reset removed this many leases and queue places.
    Reset {
        /// The number of leases that were ended.
        holds: usize,
        /// The number of waiters that were removed from queues.
        waits: usize,
    },
    /// One part of a reset, [`ResetPart::Names`](super::command::ResetPart::Names), removed this
    /// many leases and queue places.
    ResetPart {
        /// The number of leases that were ended.
        holds: usize,
        /// The number of waiters that were removed from queues.
        waits: usize,
    },
    /// The name is not remembered, or is remembered no more.
    Forgotten,
    /// The engine grants locks.
    HoldOffEnded,
    /// The request had no effect, because it had been applied before.
    Replayed(Box<Replay>),
}

/// The answer that a repeated request gets: that of its first execution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replay {
    /// When the request was applied.
    pub at: Time,
    /// The outcome of the first execution.
    pub first: Outcome,
    /// When the lease or the session in the outcome `first` was to end, as known at the time of the
    /// first execution.
    pub ends: Option<Ends>,
}

impl Outcome {
    /// Returns the outcome of the first execution, whether this answer is that of a repeat or not.
    #[must_use]
    pub fn first(self) -> Self {
        match self {
            Self::Replayed(replay) => replay.first,
            done => done,
        }
    }

    /// Returns the tenure (the possession of the lock under one token) in this outcome, if there is
    /// one.
    pub const fn tenure(&self) -> Option<&Tenure> {
        match self {
            Self::Granted(tenure)
            | Self::Renewed(tenure)
            | Self::Moved(tenure)
            | Self::Stolen(tenure) => Some(tenure),
            _ => None,
        }
    }
}

/// A tenure as answers show it. A tenure is one uninterrupted possession of a lock by a client,
/// under one fencing token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tenure {
    /// The fencing token under which the client holds the lock.
    pub token: Token,
    /// Whether the lease ends at a deadline that renewals extend, or together with a session.
    pub life: Lifetime,
    /// When the client's possession of the lock began, or will begin if the lock was stolen.
    pub acquired_at: Time,
    /// How often an acquire was answered with this lease: see
    /// [`Lease::acquisition`](super::lease::Lease::acquisition).
    pub acquisition: u32,
    /// The last handover of the name and the number of its grants, as of the moment when the lock
    /// was granted or acquired again. `None` if the name is not remembered, and for a renewal.
    pub previous: Option<Arc<Previous>>,
}
