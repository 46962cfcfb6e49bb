//! Why the engine says no. A refusal is an answer: deterministic, and it leaves nothing behind.

use super::lease::{Ends, Mode, SessionId, Token};
use super::limits::{LimitedField, TEXT_BYTES_MAX};
use super::name::{ClientId, LockName};
use crate::time::{Span, Time};
use std::fmt;
use std::sync::Arc;

/// A no, with all that is needed to say it in a sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// When.
    pub at: Time,
    /// Why.
    pub reason: Box<Reason>,
}

/// Why not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// Another holds it, or the client itself in a way that excludes this request.
    Conflict(Conflict),
    /// The client does not hold it.
    NotHeld {
        /// Which lock.
        name: LockName,
        /// The client that asked.
        client: ClientId,
        /// The client that does hold it.
        holder: Option<ClientId>,
    },
    /// The tenure that the caller names is over, and nobody has the lock.
    Expired {
        /// Which lock.
        name: LockName,
        /// The tenure named.
        token: Token,
    },
    /// The caller names a tenure that is not the current one.
    StaleToken {
        /// Which lock.
        name: LockName,
        /// The token named.
        named: Token,
        /// The current one.
        current: Token,
    },
    /// The holder has acquired the lock again, under the same token, after what a release names.
    AcquiredAgain {
        /// Which lock.
        name: LockName,
        /// The tenure, which goes on.
        token: Token,
        /// The last acquire that was answered with it.
        current: u32,
    },
    /// The session is over, or never was.
    NoSession(SessionId),
    /// There is no such place in the line.
    NotInLine(LockName),
    /// The sender of this session has had a later request carried out, or this one before: this is
    /// a copy, and what became of the request is not known.
    LateCopy(SessionId),
    /// A hold moves onto itself.
    SameName(LockName),
    /// There are as many as there may be.
    Limit(Limit),
    /// The text would be longer than [`TEXT_BYTES_MAX`].
    TextTooLong(LockName),
    /// The lease or session would last longer than this server lets it.
    TooLong {
        /// The longest ttl and grace together.
        max: Span,
    },
    /// A part of the command is longer than it may be.
    Oversized(LimitedField),
    /// The caller has used this key for another request.
    KeyReused(Arc<str>),
}

/// The lease in the way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// Which lock.
    pub name: LockName,
    /// The holder that is in the way.
    pub holder: ClientId,
    /// Under which token.
    pub token: Token,
    /// Alone or with others.
    pub mode: Mode,
    /// Until when.
    pub ends: Ends,
    /// How the lease is in the way.
    pub way: Way,
    /// How many wait.
    pub waiting: usize,
}

/// How a lease is in the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// It is held.
    Held,
    /// It has run out, and only its holder may come back.
    Grace,
    /// The caller itself holds it, by another form or open file.
    Own,
    /// It is shared, and an exclusive request waits before this one.
    Behind,
    /// It was stolen, and nobody may use it before the steal grace is over.
    StealGrace {
        /// When that is.
        until: Time,
    },
    /// The leases from before a restore, or a start without state, are not known: a client may
    /// still believe to hold this one.
    Restored {
        /// Until when.
        until: Time,
    },
}

/// The limit that was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// Locks that are held.
    Locks(usize),
    /// Waiters in one line.
    Waiters(usize),
    /// Holders of one shared lock.
    Holders(usize),
    /// Sessions.
    Sessions(usize),
    /// Requests whose answers are kept for repeats.
    Requests(usize),
    /// Tokens that there can ever be.
    Tokens,
}

/// The kinds of section 7 of the design, which each edge translates by its own table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RefusalKind {
    /// Held by another, or in another's grace.
    LockConflict,
    /// The caller is not the holder.
    LockNotHeld,
    /// The caller's lease is past grace, or gone.
    LockExpired,
    /// The token named is not the current one.
    FencingMismatch,
    /// Clocks differ by more than allowed.
    ClockSkewExceeded,
    /// No answer in time: the outcome is unknown.
    ConsistencyUnavailable,
    /// Bad name, ttl, JSON, range.
    Invalid,
    /// Too many.
    Limit,
    /// Not allowed.
    Denied,
}

impl RefusalKind {
    /// All of them, in the order of the design.
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

    /// As written in answers and logs.
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
    /// The kind of section 7.
    pub const fn kind(&self) -> RefusalKind {
        match *self.reason {
            Reason::Conflict(_) => RefusalKind::LockConflict,
            Reason::NotHeld { .. } => RefusalKind::LockNotHeld,
            Reason::Expired { .. } | Reason::NoSession(_) | Reason::NotInLine(_) => {
                RefusalKind::LockExpired
            }
            Reason::StaleToken { .. } | Reason::AcquiredAgain { .. } => {
                RefusalKind::FencingMismatch
            }
            Reason::SameName(_)
            | Reason::TextTooLong(_)
            | Reason::Oversized(_)
            | Reason::TooLong { .. }
            | Reason::KeyReused(_) => RefusalKind::Invalid,
            Reason::Limit(_) => RefusalKind::Limit,
            Reason::LateCopy(_) => RefusalKind::ConsistencyUnavailable,
        }
    }
}

/// One sentence: the thing, the reason, the next step.
impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.reason {
            Reason::Conflict(conflict) => conflict.say(self.at, f),
            Reason::NotHeld { name, client, holder: None } => {
                write!(f, "lock '{name}' is free, so {client} has nothing to renew or release; ")?;
                write!(f, "acquire it with 'mkdir' or 'latchfs acquire {name}'")
            }
            Reason::NotHeld { name, client, holder: Some(holder) } => {
                write!(f, "lock '{name}' is held by {holder}, not by {client}; ")?;
                write!(f, "only its holder can renew or release it")
            }
            Reason::Expired { name, token } => {
                write!(f, "the tenure of lock '{name}' with token {token} is over; ")?;
                write!(f, "stop the work that it guarded, and acquire the lock anew")
            }
            Reason::StaleToken { name, named, current } => {
                write!(f, "token {named} of lock '{name}' is not the current one ({current}); ")?;
                write!(f, "stop the work that it guarded: another tenure has begun")
            }
            Reason::AcquiredAgain { name, token, current } => {
                write!(
                    f,
                    "lock '{name}' was acquired again under token {token} after the acquire "
                )?;
                write!(f, "that this release names, and stays held; name acquisition {current} ")?;
                write!(f, "to end it")
            }
            Reason::NoSession(id) => {
                write!(f, "session {id} is over, and its leases are lost; open a new one")
            }
            Reason::NotInLine(name) => {
                write!(
                    f,
                    "there is no such place in the queue of lock '{name}'; ask for the lock "
                )?;
                write!(f, "anew, under a new request key if there was one")
            }
            Reason::LateCopy(id) => {
                write!(
                    f,
                    "this copy of a request of session {id} came late: a later request was "
                )?;
                write!(f, "carried out before it; look at the lock, and ask anew")
            }
            Reason::SameName(name) => write!(f, "lock '{name}' has this name already"),
            Reason::Limit(limit) => limit.fmt(f),
            Reason::TooLong { max } => {
                write!(
                    f,
                    "a ttl and its grace may be {max} together here, since this server keeps "
                )?;
                write!(f, "no state; ask for less, or start it with a longer --max-ttl")
            }
            Reason::Oversized(part) => f.write_str(&part.excess()),
            Reason::KeyReused(key) => {
                write!(f, "request key '{key}' was used before for another request; ")?;
                write!(f, "choose a new key for each request, and repeat only the same request")
            }
            Reason::TextTooLong(name) => {
                write!(f, "the text of lock '{name}' would be longer than ")?;
                write!(f, "{TEXT_BYTES_MAX} bytes; keep it short")
            }
        }
    }
}

impl Conflict {
    fn say(&self, at: Time, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, holder, ends, waiting, .. } = self;
        match self.way {
            Way::Held => {
                write!(f, "lock '{name}' is held by {holder} ")?;
                ends.say_left(at, f)?;
                write!(f, " ({waiting} waiting); wait with 'latchfs run', or read .latchfs/why")
            }
            Way::Grace => {
                let left = ends.grace_until.since(at);
                write!(f, "lock '{name}': grace period active: only {holder} may take it back ")?;
                write!(f, "for {left} more; try again then")
            }
            Way::Own if ends.expires_at <= at => {
                let left = ends.grace_until.since(at);
                write!(
                    f,
                    "lock '{name}': grace period active: your own user, {holder}, may take "
                )?;
                write!(f, "its lease back for {left} more by naming its token or its lock file; ")?;
                write!(f, "another program of yours waits until then")
            }
            Way::Own => {
                write!(f, "lock '{name}' is held by your own user, {holder}, ")?;
                ends.say_left(at, f)?;
                write!(f, " ({waiting} waiting), for another program or open file; ")?;
                write!(f, "wait with 'latchfs run', or renew the lease if it is yours")
            }
            Way::Behind => {
                write!(f, "lock '{name}' is shared by {holder}, and {waiting} wait before you; ")?;
                write!(f, "wait in the queue with 'latchfs run --shared'")
            }
            Way::Restored { until } => {
                write!(f, "lock '{name}': nothing is granted for {} more, ", until.since(at))?;
                write!(f, "since a client may still believe in a lease from before this server ")?;
                write!(f, "began without it; wait with 'latchfs run', or try again then")
            }
            Way::StealGrace { until } => {
                write!(f, "lock '{name}' was taken over by {holder}, and nobody may use it for ")?;
                write!(f, "{} more; try again then", until.since(at))
            }
        }
    }
}

impl Ends {
    fn say_left(&self, at: Time, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.expires_at == Time::NEVER {
            return write!(f, "until it lets go");
        }
        write!(f, "for {} more", self.left(at))
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Locks(max) => write!(f, "{max} locks are held, which is the limit; release some"),
            Self::Waiters(max) => {
                write!(f, "{max} wait for this lock, which is the limit; try again later")
            }
            Self::Holders(max) => {
                write!(f, "{max} share this lock, which is the limit; try again later")
            }
            Self::Sessions(max) => {
                write!(f, "{max} sessions are open, which is the limit; end some")
            }
            Self::Requests(max) => {
                write!(f, "{max} request ids are remembered, which is the limit; try again later")
            }
            Self::Tokens => write!(f, "all tokens below 2^53 are used up; start a new state"),
        }
    }
}

impl std::error::Error for Refusal {}
