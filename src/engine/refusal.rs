//! The reasons for which the engine refuses a command. A refusal is deterministic and changes
//! nothing.

use super::handover::Previous;
use super::hold_off::HoldOff;
use super::lease::{Ends, Mode, SessionId, Token};
use super::limits::LimitedField;
use super::name::{ClientId, LockName};
use crate::time::{Span, Time};
use std::sync::Arc;

/// A refusal with all data that its message needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The engine time of the refusal.
    pub at: Time,
    /// The reason for the refusal.
    pub reason: Box<Reason>,
}

/// The reason for a refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// Another client holds the lock, or the client itself holds it in a way that excludes this
    /// request.
    Conflict(Conflict),
    /// The engine grants no lock before a time.
    HoldOff {
        /// The name of the lock.
        name: LockName,
        /// Until when no lock is granted, and why.
        hold_off: HoldOff,
        /// The number of waiters in the queue of the lock.
        waiting: usize,
    },
    /// The client that made the request does not hold the lock.
    NotHeld {
        /// The name of the lock.
        name: LockName,
        /// The client that made the request.
        client: ClientId,
        /// The client that holds the lock, if any.
        holder: Option<ClientId>,
    },
    /// The caller names a fencing token whose lease is over, and no client holds the lock.
    Expired {
        /// The name of the lock.
        name: LockName,
        /// The token that the caller named.
        token: Token,
    },
    /// The caller names a fencing token that is not the current one of the lock.
    StaleToken {
        /// The name of the lock.
        name: LockName,
        /// The token that the caller named.
        named: Token,
        /// The current fencing token of the lock.
        current: Token,
    },
    /// After the acquire that a release names, the holder acquired the lock again under the same
    /// token.
    AcquiredAgain {
        /// The name of the lock.
        name: LockName,
        /// The fencing token under which the client still holds the lock.
        token: Token,
        /// The number of the last acquire that was answered with this token.
        current: u32,
    },
    /// The session has ended or never existed.
    NoSession(SessionId),
    /// The waiter that the request names is not, or no longer, in the queue of this lock.
    NotInLine(LockName),
    /// The request is a late copy: the engine has already processed this request, or a later one of
    /// the same session. The outcome of the first copy is unknown.
    LateCopy(SessionId),
    /// The old and the new name of a move are the same.
    SameName(LockName),
    /// A maximum, such as the number of held locks, is reached.
    Limit(Limit),
    /// The text would be longer than [`TEXT_BYTES_MAX`](super::limits::TEXT_BYTES_MAX).
    TextTooLong(LockName),
    /// The lease or session would last longer than this server permits.
    TooLong {
        /// The longest permitted sum of ttl and grace.
        max: Span,
    },
    /// A field of the command, such as the note, is too long.
    Oversized(LimitedField),
    /// The request sets a handover, and the name of the lock is not remembered.
    NotRemembered(LockName),
    /// The request sets a handover without the token of the tenure that sets it.
    HandoverNeedsToken(LockName),
    /// The tenure has set a handover with this counter, or a higher one, already.
    OldHandover {
        /// The name of the lock.
        name: LockName,
        /// The counter that the caller named.
        named: u64,
        /// The counter of the last handover of the tenure.
        current: u64,
    },
    /// The request uses a feature of a newer cluster version.
    NeedsClusterVersion {
        /// The cluster version that the feature requires.
        requires: u8,
        /// The cluster version.
        version: u8,
    },
    /// The caller used this idempotency key for a different request.
    KeyReused(Arc<str>),
}

/// The lease that conflicts with a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// The name of the lock.
    pub name: LockName,
    /// The client that holds the lease.
    pub holder: ClientId,
    /// The fencing token of the lease.
    pub token: Token,
    /// The mode of the lock: exclusive or shared.
    pub mode: Mode,
    /// When the lease and its grace end.
    pub ends: Ends,
    /// How the lease conflicts with the request.
    pub way: Way,
    /// The number of waiters in the queue of the lock.
    pub waiting: usize,
    /// The last handover of the name and the number of its grants; `None` if the name is not
    /// remembered.
    pub previous: Option<Arc<Previous>>,
}

/// How a lease conflicts with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// The lock is held.
    Held,
    /// The lease has expired, and only its holder may take it back.
    Grace,
    /// The caller's own client holds the lock, for another program or through another open file.
    Own,
    /// The lock is shared, and a waiter is queued ahead of this request.
    Behind,
    /// The lock was stolen, and is unusable until the steal grace ends, so that its previous
    /// holders can stop.
    StealGrace {
        /// The time at which the stolen lock becomes usable.
        until: Time,
    },
}

/// The maximum that was reached, with its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// The maximum number of held locks.
    Locks(usize),
    /// The maximum number of waiters in one queue.
    Waiters(usize),
    /// The maximum number of waiters in all queues.
    AllWaiters(usize),
    /// The maximum number of holders of one shared lock.
    Holders(usize),
    /// The maximum number of open sessions.
    Sessions(usize),
    /// The maximum number of requests whose answers are kept for repeats. Queued requests take up
    /// the caller's share of it, or all of it.
    QueuedRequests(usize),
    /// The maximum number of names that are remembered beyond a tenure.
    Remembered(usize),
    /// The engine has used up all tokens that can ever be issued.
    Tokens,
    /// The caller's share of a table, which a front end enforces.
    Share(ShareOf, usize),
}

/// A table of the engine of which each caller has a share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ShareOf {
    /// All leases.
    Locks,
    /// The waiters in all queues.
    Waiters,
    /// The queue of one lock.
    Queue,
    /// The holders of one shared lock.
    Holders,
    /// The open sessions.
    Sessions,
    /// The names that are remembered beyond a tenure.
    Remembered,
}

/// The kinds of refusals. Each front end maps them to its own codes, such as HTTP statuses and
/// errnos.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RefusalKind {
    /// Another client holds the lock, or may still take it back within its grace, or no lock is
    /// granted yet.
    LockConflict,
    /// The caller is not the holder.
    LockNotHeld,
    /// The caller's lease is past its grace, or gone.
    LockExpired,
    /// The token that the caller named is not the current one.
    FencingMismatch,
    /// The clocks of client and server differ by more than is allowed.
    ClockSkewExceeded,
    /// The answer did not arrive in time: the outcome is unknown.
    ConsistencyUnavailable,
    /// A name, ttl, JSON value or range is invalid.
    Invalid,
    /// A limit is reached.
    Limit,
    /// The credentials do not permit the request.
    Denied,
}

impl RefusalKind {
    /// All kinds of refusals.
    pub const ALL: [Self; 9] = [
        Self::LockConflict,
        Self::LockNotHeld,
        Self::LockExpired,
        Self::FencingMismatch,
        Self::ClockSkewExceeded,
        Self::ConsistencyUnavailable,
        Self::Invalid,
        Self::Limit,
        Self::Denied,
    ];

    /// Returns the name of the kind in answers and logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::LockConflict => "E_LOCK_CONFLICT",
            Self::LockNotHeld => "E_LOCK_NOT_HELD",
            Self::LockExpired => "E_LOCK_EXPIRED",
            Self::FencingMismatch => "E_FENCING_MISMATCH",
            Self::ClockSkewExceeded => "E_CLOCK_SKEW_EXCEEDED",
            Self::ConsistencyUnavailable => "E_CONSISTENCY_UNAVAILABLE",
            Self::Invalid => "E_INVALID",
            Self::Limit => "E_LIMIT",
            Self::Denied => "E_DENIED",
        }
    }
}

impl Refusal {
    /// Returns the kind of this refusal.
    pub const fn kind(&self) -> RefusalKind {
        match *self.reason {
            Reason::Conflict(_) | Reason::HoldOff { .. } => RefusalKind::LockConflict,
            Reason::NotHeld { .. } => RefusalKind::LockNotHeld,
            Reason::Expired { .. } | Reason::NoSession(_) | Reason::NotInLine(_) => {
                RefusalKind::LockExpired
            }
            Reason::StaleToken { .. }
            | Reason::AcquiredAgain { .. }
            | Reason::OldHandover { .. } => RefusalKind::FencingMismatch,
            Reason::SameName(_)
            | Reason::TextTooLong(_)
            | Reason::Oversized(_)
            | Reason::TooLong { .. }
            | Reason::NotRemembered(_)
            | Reason::HandoverNeedsToken(_)
            | Reason::NeedsClusterVersion { .. }
            | Reason::KeyReused(_) => RefusalKind::Invalid,
            Reason::Limit(_) => RefusalKind::Limit,
            Reason::LateCopy(_) => RefusalKind::ConsistencyUnavailable,
        }
    }
}

impl std::error::Error for Refusal {}
