//! The reasons for which the engine refuses a command. A refusal is deterministic and changes
//! nothing.
//!
//! The sentences of refusals: each with the subject, the reason and the next step. The next step
//! depends on the interface by which the reader asks for locks.

use super::handover::Previous;
use super::hold_off::HoldOff;
use super::lease::{Ends, Mode, SessionId, Token};
use super::name::{ClientId, LockName};
use crate::time::{Span, Time};
use crate::values::details::{LimitedField, TEXT_BYTES_MAX};
use std::fmt;
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
    /// The tenure that a steal names is over.
    NothingToSteal {
        /// The name of the lock.
        name: LockName,
        /// The token that the caller named.
        named: Token,
        /// The current fencing token of the lock, if a client holds it.
        current: Option<Token>,
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
    /// The request is a late copy: the engine has already processed a request of the session with
    /// this number, or the sender has the answer to it. The outcome of the first copy is unknown.
    LateCopy(SessionId),
    /// The old and the new name of a move are the same.
    SameName(LockName),
    /// A maximum, such as the number of held locks, is reached.
    Limit(Limit),
    /// The text would be longer than [`TEXT_BYTES_MAX`].
    TextTooLong(LockName),
    /// The lease or session would last longer than this server permits.
    TooLong {
        /// The longest permitted sum of ttl and grace.
        max: Span,
    },
    /// A field of the command, such as the note, is too long.
    Oversized(LimitedField),
    /// The request names another number of seats than those have who hold the lock or wait for it.
    OtherSeats {
        /// The name of the lock.
        name: LockName,
        /// The number of seats that the request names.
        named: u16,
        /// The number of seats of the lock.
        has: u16,
    },
    /// The request is for a seat of a lock whose name is remembered for handovers.
    SeatsAndHandovers(LockName),
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
    /// The maximum number of requests of one session that have no answer yet.
    Unanswered(usize),
    /// The engine has used up all tokens that can ever be issued.
    Tokens,
    /// The caller has used up its share of a table that all callers have in common. A front end
    /// enforces the share.
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

impl ShareOf {
    /// Returns the limit that a full table of `max` places has reached.
    pub const fn full(self, max: usize) -> Limit {
        match self {
            Self::Locks => Limit::Locks(max),
            Self::Waiters => Limit::AllWaiters(max),
            Self::Queue => Limit::Waiters(max),
            Self::Sessions => Limit::Sessions(max),
            Self::Holders => Limit::Holders(max),
            Self::Remembered => Limit::Remembered(max),
        }
    }
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
            Reason::Conflict(_) | Reason::HoldOff { .. } | Reason::OtherSeats { .. } => {
                RefusalKind::LockConflict
            }
            Reason::NotHeld { .. } => RefusalKind::LockNotHeld,
            Reason::Expired { .. }
            | Reason::NothingToSteal { current: None, .. }
            | Reason::NoSession(_)
            | Reason::NotInLine(_) => RefusalKind::LockExpired,
            Reason::StaleToken { .. }
            | Reason::NothingToSteal { .. }
            | Reason::AcquiredAgain { .. }
            | Reason::OldHandover { .. } => RefusalKind::FencingMismatch,
            Reason::SameName(_)
            | Reason::TextTooLong(_)
            | Reason::Oversized(_)
            | Reason::TooLong { .. }
            | Reason::SeatsAndHandovers(_)
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

/// How the reader of a refusal asks for locks, and so which next steps the sentence names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Interface {
    /// By commands and files.
    Commands,
    /// By HTTP requests.
    Http,
}

/// A refusal as its sentence reads for a caller of the HTTP API.
struct ForHttp<'a>(&'a Refusal);

impl fmt::Display for ForHttp<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.say(Interface::Http, f)
    }
}

/// Writes one sentence with the subject, the reason and the next step.
impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.say(Interface::Commands, f)
    }
}

impl Refusal {
    /// Returns the sentence of the refusal for a caller of the HTTP API.
    pub fn for_http(&self) -> String {
        ForHttp(self).to_string()
    }

    fn say(&self, by: Interface, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.reason {
            Reason::Conflict(conflict) => conflict.say(self.at, by, f),
            Reason::HoldOff { name, hold_off, .. } => by.say_hold_off(name, *hold_off, self.at, f),
            Reason::NotHeld { name, client, holder: None } => {
                write!(f, "lock '{name}' is free, so {client} has nothing to renew or release; ")?;
                by.say_acquire(name, f)
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
            Reason::NothingToSteal { name, named, .. } => {
                write!(f, "the tenure of lock '{name}' with token {named} is over, so nothing ")?;
                write!(f, "was stolen; read the lock's status to see who holds it now")
            }
            Reason::AcquiredAgain { name, token, current } => {
                write!(f, "lock '{name}' was acquired again under token {token} after the ")?;
                write!(f, "acquire that this release names, and stays held; name acquisition ")?;
                write!(f, "{current} to end it")
            }
            Reason::NoSession(id) => {
                write!(f, "session {id} is over, and its leases are lost; open a new one")
            }
            Reason::NotInLine(name) => {
                write!(f, "there is no such waiter in the queue of lock '{name}'; request ")?;
                write!(f, "the lock anew, under a new request key if there was one")
            }
            Reason::LateCopy(id) => {
                write!(f, "this copy of a request of session {id} came late: another copy was ")?;
                write!(f, "decided before it; look at the lock, and ask anew")
            }
            Reason::SameName(name) => write!(f, "lock '{name}' has this name already"),
            Reason::Limit(limit) => write!(f, "{limit}"),
            Reason::TooLong { max } => {
                write!(
                    f,
                    "a ttl and its grace may be {max} together here, since this server keeps "
                )?;
                write!(f, "no state; ask for less, or start it with a longer --max-ttl")
            }
            Reason::Oversized(part) => f.write_str(&part.excess()),
            Reason::OtherSeats { .. }
            | Reason::SeatsAndHandovers(_)
            | Reason::NotRemembered(_)
            | Reason::HandoverNeedsToken(_)
            | Reason::OldHandover { .. } => self.reason.say_seat_or_handover(f),
            Reason::NeedsClusterVersion { requires, version } => {
                write!(f, "the request needs cluster version {requires}, and the cluster has ")?;
                write!(f, "version {version}; upgrade all nodes, then ask again")
            }
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

impl Reason {
    /// Writes the sentence for a refused seat or handover.
    fn say_seat_or_handover(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::OtherSeats { name, named, has } => {
                write!(f, "lock '{name}' has {has} seats while somebody holds it or waits for ")?;
                write!(f, "it, not {named}; ask for {has}, or again when it is free")
            }
            Reason::SeatsAndHandovers(name) => {
                write!(f, "lock '{name}' can't have several seats, since its name is remembered ")?;
                write!(f, "for handovers, which only a single holder sets; use another name")
            }
            Reason::NotRemembered(name) => {
                write!(f, "lock '{name}' has no handover, since its name is not remembered; ")?;
                write!(f, "acquire it with 'remember'")
            }
            Reason::HandoverNeedsToken(name) => {
                write!(f, "a handover of lock '{name}' names the token of its tenure; ")?;
                write!(f, "add the token that the grant told")
            }
            Reason::OldHandover { name, named, current } => {
                write!(f, "handover {named} of lock '{name}' comes after handover {current} of ")?;
                write!(f, "the same tenure, and is not set; number them upwards")
            }
            _ => Ok(()),
        }
    }
}

impl Conflict {
    fn say(&self, at: Time, by: Interface, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, holder, ends, waiting, .. } = self;
        match self.way {
            Way::Held if self.mode.seats().is_some() => {
                let seats = self.mode.seats().unwrap_or_default();
                write!(f, "lock '{name}': all {seats} seats are taken, one of them by {holder} ")?;
                ends.say_left(at, f)?;
                write!(f, " ({waiting} waiting); {}", by.wait())
            }
            Way::Held => {
                write!(f, "lock '{name}' is held by {holder} ")?;
                ends.say_left(at, f)?;
                write!(f, " ({waiting} waiting); {}", by.wait())
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
                write!(f, "its lease back for {left} more; if the lease is yours, ")?;
                by.say_renewal(name, f)?;
                write!(f, "; another program of yours waits until then")
            }
            Way::Own => {
                write!(f, "lock '{name}' is held by your own user, {holder}, ")?;
                ends.say_left(at, f)?;
                write!(f, " ({waiting} waiting), for another program or open file; ")?;
                write!(f, "{}; or if the lease is yours, ", by.wait())?;
                by.say_renewal(name, f)
            }
            Way::Behind => {
                write!(f, "lock '{name}' is shared by {holder}, and {waiting} wait before you; ")?;
                match by {
                    Interface::Commands if self.mode.seats().is_some() => {
                        write!(f, "wait in the queue with 'latchfs run --max'")
                    }
                    Interface::Commands => {
                        write!(f, "wait in the queue with 'latchfs run --shared'")
                    }
                    Interface::Http => f.write_str(by.wait()),
                }
            }
            Way::StealGrace { until } => {
                write!(f, "lock '{name}' was taken over by {holder}, and nobody may use it for ")?;
                write!(f, "{} more; try again then", until.since(at))
            }
        }
    }
}

impl Interface {
    /// Returns the advice how to wait for a lock.
    const fn wait(self) -> &'static str {
        match self {
            Self::Commands => "wait with 'latchfs run' or 'latchfs wait'",
            Self::Http => "wait in the queue with 'wait=10m', or try again later",
        }
    }

    /// Writes the advice how to acquire a lock.
    fn say_acquire(self, name: &LockName, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Commands => write!(f, "acquire it with 'mkdir' or 'latchfs acquire {name}'"),
            Self::Http => write!(f, "acquire it first"),
        }
    }

    /// Writes that a lock is not granted before the end of a hold-off.
    fn say_hold_off(
        self,
        name: &LockName,
        HoldOff { until, cause }: HoldOff,
        at: Time,
        f: &mut fmt::Formatter<'_>,
    ) -> fmt::Result {
        let left = until.since(at);
        write!(f, "lock '{name}': nothing is granted for {left} more, because {cause}, and a ")?;
        write!(f, "client may still rely on a lease from before; {}; if no such ", self.wait())?;
        write!(f, "client is left, an administrator may end this with ")?;
        f.write_str(match self {
            Self::Commands => "'latchfs cluster grant-now --reason WHY'",
            Self::Http => "POST /grant-now?reason=WHY",
        })
    }

    /// Writes the advice how the holder of a lease goes on with it.
    fn say_renewal(self, name: &LockName, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Commands => write!(f, "renew it with 'latchfs acquire {name} --reentrant'"),
            Self::Http => write!(f, "renew it by its token, or with 'reentrant=true'"),
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
            Self::AllWaiters(max) => {
                write!(f, "{max} wait in all queues, which is the limit; try again later")
            }
            Self::Holders(max) => {
                write!(f, "{max} share this lock, which is the limit; try again later")
            }
            Self::Sessions(max) => {
                write!(f, "{max} sessions are open, which is the limit; end some")
            }
            Self::QueuedRequests(max) => {
                write!(
                    f,
                    "too many queued requests have an id, of which {max} can be remembered; "
                )?;
                write!(f, "leave a queue, or try again later")
            }
            Self::Remembered(max) => {
                write!(f, "{max} names are remembered, which is the limit; ")?;
                write!(f, "have some forgotten with DELETE /locks/NAME/previous")
            }
            Self::Unanswered(max) => {
                write!(f, "a session has at most {max} requests without an answer; ")?;
                write!(f, "repeat the earlier ones first")
            }
            Self::Tokens => write!(f, "all tokens below 2^53 are used up; start a new state"),
            Self::Share(of, max) => {
                let (items, next) = match of {
                    ShareOf::Locks => ("locks", "release some"),
                    ShareOf::Waiters => ("places in queues", "leave some"),
                    ShareOf::Queue => ("places in the queue of this lock", "leave some"),
                    ShareOf::Holders => ("holds of this shared lock", "release some"),
                    ShareOf::Sessions => ("open sessions", "end some"),
                    ShareOf::Remembered => ("remembered names", "have some forgotten"),
                };
                write!(f, "you have {max} {items}, which is your share; {next}, ")?;
                write!(f, "or have --share raised where latchfs runs")
            }
        }
    }
}
