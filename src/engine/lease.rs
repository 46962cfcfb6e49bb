//! The parts of a held lock: the lease, its token, its ownership and its lifetime.

use super::details::Details;
use super::lease_terms::{Grace, Ttl};
use super::limits::NOTE_BYTES_MAX;
use super::name::ClientId;
use crate::time::{Span, Time};
use std::fmt;
use std::sync::Arc;

/// The fencing token of one tenure. Rises with each new tenure, is never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub(super) u64);

/// Tokens stay below 2^53, so that JSON readers keep them exact.
pub const TOKEN_MAX: u64 = (1 << 53) - 1;

/// A client process's bond with the engine. Ids come from the same counter as tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub(super) u64);

/// One open file, or one attempt, of a session: what tells two programs of one client apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpenId {
    /// The session whose open file it is.
    pub session: SessionId,
    /// The session's own number for it, never used twice.
    pub number: u64,
}

/// A place in a line. Numbers rise; the lowest is served first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub(super) u64);

/// How many may hold at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mode {
    /// One.
    Exclusive,
    /// Any number that ask for the same.
    Shared,
}

/// The owner of a lease within its client, which decides the effect of another acquire by the same
/// client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Ownership {
    /// The client as a whole: acquiring again renews, and the first open file of the client that
    /// locks takes the lease over.
    Client,
    /// Made exclusively, or given a ttl, text or process: acquiring again is refused even to the
    /// client itself, and only the open file that made it (if one did) may take it over.
    Exclusive(Option<OpenId>),
    /// One open file's, until that file is unlocked or gone.
    OpenFile(OpenId),
}

/// How a lease is kept alive: by its own renewals or by a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LeaseTerms {
    /// Its own renewals: it lasts so long after each, and then has its grace.
    Own(Ttl, Grace),
    /// The session it hangs on.
    Session(SessionId),
}

/// A [`LeaseTerms`] that runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lifetime {
    /// Ends at `expires_at` unless renewed.
    Own {
        /// How long each renewal lasts.
        ttl: Ttl,
        /// How long after the end only the holder may come back.
        grace: Grace,
        /// When it ends.
        expires_at: Time,
    },
    /// Ends with the session.
    Session(SessionId),
}

/// The fact that a client holds a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// The client that has the lock.
    pub holder: ClientId,
    /// The token of this tenure.
    pub token: Token,
    /// How the client holds it.
    pub hold: Ownership,
    /// How it is kept alive: by its own renewals, until a time, or by a session.
    pub life: Lifetime,
    /// When the tenure began. After a steal this lies ahead by the steal grace.
    pub acquired_at: Time,
    /// When it was last renewed.
    pub renewed_at: Time,
    /// How often an acquire was answered with this lease after the one that began it: a release
    /// that was meant for an earlier one does not end it.
    pub acquisition: u32,
    /// The holder id, note, text, process and file attributes. No rule reads them.
    pub details: Arc<Details>,
}

/// Where a lock stands at some moment. Derived from a lease and a time, never stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// Nobody has it.
    Free,
    /// A client has it.
    Held,
    /// A lease has run out, and only its holder may come back.
    Grace,
}

impl Token {
    /// As a number.
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// The token that a caller names by number. Naming one does not make one.
    pub const fn named(number: u64) -> Self {
        Self(number)
    }
}

impl Ticket {
    /// As a number.
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// The place that a caller names by number. Naming one does not make one.
    pub const fn named(number: u64) -> Self {
        Self(number)
    }
}

impl SessionId {
    /// As a number.
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// The session that a caller names by number. Naming one does not make one.
    pub const fn named(number: u64) -> Self {
        Self(number)
    }
}

impl Ownership {
    /// The open file that it belongs to, or may come to belong to.
    pub const fn open(self) -> Option<OpenId> {
        match self {
            Self::Client | Self::Exclusive(None) => None,
            Self::Exclusive(Some(open)) | Self::OpenFile(open) => Some(open),
        }
    }
}

impl LeaseTerms {
    /// The same, running from `now`.
    pub fn begin(self, now: Time) -> Lifetime {
        match self {
            Self::Own(ttl, grace) => Lifetime::Own { ttl, grace, expires_at: now + ttl.span() },
            Self::Session(id) => Lifetime::Session(id),
        }
    }
}

/// When a lease ends, whatever keeps it alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ends {
    /// From here the lock is in grace.
    pub expires_at: Time,
    /// From here it is another's.
    pub grace_until: Time,
    /// How long a renewal lasts.
    pub ttl: Ttl,
    /// How long the grace is.
    pub grace: Grace,
}

impl Ends {
    /// Where a lease that ends so stands at `now`.
    pub fn phase(&self, now: Time) -> Phase {
        match now {
            _ if now < self.expires_at => Phase::Held,
            _ if now < self.grace_until => Phase::Grace,
            _ => Phase::Free,
        }
    }

    /// The time it still has before it expires.
    pub const fn left(&self, now: Time) -> Span {
        self.expires_at.since(now)
    }
}

impl Mode {
    /// As written in statuses and commands.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Exclusive => "exclusive",
            Self::Shared => "shared",
        }
    }
}

impl Phase {
    /// As written in statuses.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Held => "held",
            Self::Grace => "grace",
        }
    }
}

/// Why a live lock is taken away: a sentence, never nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StealReason(Arc<str>);

impl StealReason {
    /// The reason that `text` gives, if it gives one.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let fits = !text.is_empty() && text.len() <= NOTE_BYTES_MAX;
        (fits && !text.chars().any(char::is_control)).then(|| Self(text.into()))
    }

    /// As text.
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
