//! The parts of a held lock: the lease, its token, its ownership and its lifetime.

use super::details::Details;
use super::lease_terms::{Grace, Ttl};
use super::limits::NOTE_BYTES_MAX;
use super::name::ClientId;
use crate::time::{Span, Time};
use std::fmt;
use std::sync::Arc;

/// The fencing token under which a client holds a lock. Each time a client gets a lock, it gets a
/// new token, higher than all earlier ones. No token is reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub(super) u64);

/// The highest token. Tokens stay below 2^53, so that JSON readers keep them exact.
pub const TOKEN_MAX: u64 = (1 << 53) - 1;

/// The id of a session, to which leases can be bound. Session ids come from the same counter as
/// tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub(super) u64);

/// The id of an open file, or of an attempt to acquire a lock, within a session. Tells two programs
/// of one client apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpenId {
    /// The session to which the open file belongs.
    pub session: SessionId,
    /// The number of the open file within its session, never used twice.
    pub number: u64,
}

/// A ticket: the number of a place in the wait queue of a lock. Tickets rise; the waiter with the
/// lowest is served first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub(super) u64);

/// Whether a lock has one holder or several.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mode {
    /// The lock has one holder.
    Exclusive,
    /// Any number of clients hold the lock at the same time, all in shared mode.
    Shared,
}

/// The owner of a lease within its client, which decides the effect of another acquire by the same
/// client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Ownership {
    /// The client as a whole owns the lease. An acquire with this ownership renews the lease, and
    /// the first open file of the client that locks the name takes the lease over.
    Client,
    /// One program of the client owns the lease: the lock was created exclusively, or was given a
    /// ttl, a text or a process. Other programs and open files of the client are refused, except
    /// the open file that created the lease, if a file did, and one that names the token of a lease
    /// that no file created. An acquire as [`Ownership::Client`] still renews the lease.
    Exclusive(Option<OpenId>),
    /// An open file owns the lease, until the file is unlocked or closed.
    OpenFile(OpenId),
}

/// How a lease is kept alive: by its own renewals or by a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LeaseTerms {
    /// The lease lasts for the ttl after each of its own renewals. After that, only its holder may
    /// take the lock back during the grace.
    Own(Ttl, Grace),
    /// A session, to which the lease is bound, keeps it alive.
    Session(SessionId),
}

/// How a granted lease is kept alive: its [`LeaseTerms`] with their current deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lifetime {
    /// The lease ends at `expires_at` unless it is renewed.
    Own {
        /// How long each renewal lasts.
        ttl: Ttl,
        /// How long after the expiry only the holder may take the lock back.
        grace: Grace,
        /// When the lease expires unless it is renewed.
        expires_at: Time,
    },
    /// The lease ends with its session.
    Session(SessionId),
}

/// A client's possession of a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// The client that has the lock.
    pub holder: ClientId,
    /// The fencing token under which the client holds the lock.
    pub token: Token,
    /// The owner of the lease within the client.
    pub hold: Ownership,
    /// How the lease is kept alive: by its own renewals or by a session.
    pub life: Lifetime,
    /// When the client's possession of the lock under this token began. After a steal it begins at
    /// the end of the steal grace, the time in which a stolen lock is unusable.
    pub acquired_at: Time,
    /// When the lease was last renewed.
    pub renewed_at: Time,
    /// How often an acquire was answered with this lease, after the one that began it. A release
    /// that names an earlier acquire does not end the lease.
    pub acquisition: u32,
    /// The holder id, note, text, process and file attributes. No rule of the engine reads them.
    pub details: Arc<Details>,
}

/// The state of a lock at some moment, derived from a lease and a time, never stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// No client holds the lock.
    Free,
    /// A client holds the lock.
    Held,
    /// The lease has expired, and only its holder may take it back.
    Grace,
}

impl Token {
    /// Returns the token as a number.
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// Returns the token with this number, which a caller has given, for example in a request.
    /// Issues no token.
    pub const fn named(number: u64) -> Self {
        Self(number)
    }
}

impl Ticket {
    /// Returns the ticket as a number.
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// Returns the ticket with this number, which a caller has given, for example in a request.
    /// Issues no ticket.
    pub const fn named(number: u64) -> Self {
        Self(number)
    }
}

impl SessionId {
    /// Returns the session id as a number.
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// Returns the session id with this number, which a caller has given, for example in a request.
    /// Opens no session.
    pub const fn named(number: u64) -> Self {
        Self(number)
    }
}

impl Ownership {
    /// Returns the open file that owns the lease, or that may take it over.
    pub const fn open(self) -> Option<OpenId> {
        match self {
            Self::Client | Self::Exclusive(None) => None,
            Self::Exclusive(Some(open)) | Self::OpenFile(open) => Some(open),
        }
    }
}

impl LeaseTerms {
    /// Returns the lifetime of a lease that begins or is renewed at `now` under these terms.
    pub fn begin(self, now: Time) -> Lifetime {
        match self {
            Self::Own(ttl, grace) => Lifetime::Own { ttl, grace, expires_at: now + ttl.span() },
            Self::Session(id) => Lifetime::Session(id),
        }
    }
}

/// When a lease ends, whether its own renewals or a session keep it alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ends {
    /// When the lease expires. From then until the end of the grace, only its holder may take the
    /// lock back.
    pub expires_at: Time,
    /// When the grace ends and another client may acquire the lock.
    pub grace_until: Time,
    /// How long each renewal lasts.
    pub ttl: Ttl,
    /// The length of the grace.
    pub grace: Grace,
}

impl Ends {
    /// Returns the phase (free, held or in grace) at `now` of a lock whose lease has these
    /// deadlines.
    pub fn phase(&self, now: Time) -> Phase {
        match now {
            _ if now < self.expires_at => Phase::Held,
            _ if now < self.grace_until => Phase::Grace,
            _ => Phase::Free,
        }
    }

    /// Returns the time from `now` to the expiry.
    pub const fn left(&self, now: Time) -> Span {
        self.expires_at.since(now)
    }
}

impl Mode {
    /// Returns the name of the mode in statuses and commands.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Exclusive => "exclusive",
            Self::Shared => "shared",
        }
    }
}

impl Phase {
    /// Returns the phase at `now` of a lock whose leases end so. A shared lock is held as long as
    /// one of its leases is.
    pub fn of_lock(leases: impl Iterator<Item = Ends>, now: Time) -> Self {
        let phases = leases.map(|ends| ends.phase(now));
        let strongest = phases.max_by_key(|phase| match phase {
            Self::Free => 0,
            Self::Grace => 1,
            Self::Held => 2,
        });
        strongest.unwrap_or(Self::Free)
    }

    /// Returns the name of the phase (free, held or in grace) as a lock's status shows it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Held => "held",
            Self::Grace => "grace",
        }
    }
}

/// The reason for taking a lock from its holder, by a steal or a reset: a text that is never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StealReason(Arc<str>);

impl StealReason {
    /// Returns `text` without surrounding blanks as a reason. `None` if the text is blank, is
    /// longer than [`NOTE_BYTES_MAX`] or contains a control character.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let fits = !text.is_empty() && text.len() <= NOTE_BYTES_MAX;
        (fits && !text.chars().any(char::is_control)).then(|| Self(text.into()))
    }

    /// Returns the reason as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
