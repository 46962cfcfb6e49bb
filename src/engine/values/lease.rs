//! The parts of a held lock: the lease, its token, its ownership and its lifetime.
//!
//! Allocates tokens and session ids from one counter, so that both are unique.
//!
//! The ttl and the grace of a lease, validated once, and the syntax of durations.

use super::details::Details;
use super::name::ClientId;
use crate::time::{Span, Time};
use crate::values::details::NOTE_BYTES_MAX;
use std::fmt;
use std::sync::Arc;

/// The fencing token under which a client holds a lock. Each time a client gets a lock, it gets a
/// new token, higher than all earlier ones. No token is reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub(crate) u64);

/// The highest token. Tokens stay below 2^53, so that JSON readers keep them exact.
pub const TOKEN_MAX: u64 = (1 << 53) - 1;

/// The id of a session, to which leases can be bound. Session ids come from the same counter as
/// tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub(crate) u64);

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
pub struct Ticket(pub(crate) u64);

/// Whether a lock has one holder or several, and how many at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mode {
    /// The lock has one holder.
    Exclusive,
    /// Any number of clients hold the lock at the same time, all in shared mode.
    Shared,
    /// At most this many clients hold the lock at the same time, each in a seat of its own.
    Seats(Seats),
}

/// The number of seats of a lock: how many clients may hold it at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seats(u16);

impl Seats {
    /// The lowest number of seats.
    pub const MIN: u16 = 1;
    /// The highest number of seats: each acquire scans all holders.
    pub const MAX: u16 = 1_000;

    /// Returns this number of seats, or the sentence that says the bounds.
    pub fn new(max: u64) -> Result<Self, String> {
        let seats = u16::try_from(max).ok();
        let seats = seats.filter(|max| (Self::MIN..=Self::MAX).contains(max));
        let bounds = || format!("a lock has {} to {} seats, not {max}", Self::MIN, Self::MAX);
        seats.map(Self).ok_or_else(bounds)
    }

    /// Returns the number of seats.
    pub const fn get(self) -> u16 {
        self.0
    }
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
    /// The number of the holder's seat, from 0 on; `None` if the lock has no seats.
    pub seat: Option<u16>,
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
            Self::Seats(_) => "seats",
        }
    }

    /// Returns the number of seats of a lock in this mode, if it has seats.
    pub const fn seats(self) -> Option<u16> {
        match self {
            Self::Exclusive | Self::Shared => None,
            Self::Seats(seats) => Some(seats.get()),
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

/// The counter of tokens and session ids. It only rises; a restart must never set it back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TokenAllocator {
    next: u64,
}

impl Default for TokenAllocator {
    /// The first token is 1: programs use 0 for "none".
    fn default() -> Self {
        Self { next: 1 }
    }
}

impl TokenAllocator {
    /// Returns an allocator whose next token or session id is `next`.
    pub(crate) const fn at(next: u64) -> Self {
        Self { next }
    }

    /// Returns the next token without allocating it.
    pub(crate) const fn upcoming(&self) -> u64 {
        self.next
    }

    /// Returns how many tokens can still be allocated.
    pub(crate) const fn left(&self) -> u64 {
        (TOKEN_MAX + 1).saturating_sub(self.next)
    }

    /// Raises the next token or session id to `floor`, if it is lower.
    pub(crate) fn raise(&mut self, floor: u64) {
        self.next = self.next.max(floor);
    }

    /// Allocates a token.
    pub(crate) fn token(&mut self) -> Token {
        Token(self.take())
    }

    /// Allocates a session id.
    pub(crate) fn session(&mut self) -> SessionId {
        SessionId(self.take())
    }

    fn take(&mut self) -> u64 {
        assert!(self.next <= TOKEN_MAX, "commands are refused before the mint runs dry");
        self.next += 1;
        self.next - 1
    }
}

/// The shortest ttl: shorter leases could expire between two renewals on a busy machine.
pub const TTL_MIN: Span = Span::from_secs(1);
/// The longest ttl. A live program renews; nobody would remember the purpose of an older lease.
pub const TTL_MAX: Span = Span::from_secs(24 * 3_600);
/// The ttl of a request that names none.
pub const TTL_DEFAULT: Ttl = Ttl(Span::from_secs(30));
/// The grace of a request that names none.
pub const GRACE_DEFAULT: Grace = Grace(Span::from_secs(5));

/// The grace of leases that were bound to client processes by a daemon, once that daemon is gone:
/// time for the next daemon to bind the leases to the client processes that are still alive.
pub const GRACE_OF_PROCESS: Grace = Grace(Span::from_secs(5));
/// The grace of the lock of a guarded folder: a clock skew of two seconds, and a second in which a
/// late steal does no harm.
pub const GRACE_OF_FOLDER: Grace = Grace(Span::from_secs(3));

/// How long a lease lasts without renewal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ttl(Span);

/// How long after the expiry only the previous holder may take the lock back. May be zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Grace(Span);

/// Why a text or a length is not a valid ttl, grace or duration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TermError {
    /// The text is not of the form `1m30s`.
    NotADuration,
    /// The ttl is below [`TTL_MIN`], or the duration is negative.
    TooShort,
    /// The duration is above [`TTL_MAX`].
    TooLong,
}

impl Ttl {
    /// Returns a ttl of this length, if it is within bounds.
    pub fn new(span: Span) -> Result<Self, TermError> {
        match span {
            _ if span < TTL_MIN => Err(TermError::TooShort),
            _ if span > TTL_MAX => Err(TermError::TooLong),
            _ => Ok(Self(span)),
        }
    }

    /// Parses a ttl such as `60s` or `1m30s`.
    pub fn parse(text: &str) -> Result<Self, TermError> {
        Self::new(parse_span(text)?)
    }

    /// Returns the length of the ttl.
    pub const fn span(self) -> Span {
        self.0
    }
}

impl Grace {
    /// A grace of zero length: another client may acquire the lock as soon as the lease expires.
    pub const NONE: Self = Self(Span::ZERO);

    /// Returns a grace of this length, if it is within bounds.
    pub fn new(span: Span) -> Result<Self, TermError> {
        if span > TTL_MAX { Err(TermError::TooLong) } else { Ok(Self(span)) }
    }

    /// Parses a grace such as `5s` or `0s`.
    pub fn parse(text: &str) -> Result<Self, TermError> {
        Self::new(parse_span(text)?)
    }

    /// Returns the length of the grace.
    pub const fn span(self) -> Span {
        self.0
    }
}

/// Whether `text` is meant as a duration, well formed or not: true for `60s` and `-5m`, false for
/// `60` and `hi`.
pub fn looks_like_a_duration(text: &str) -> bool {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    let first = digits.strip_prefix('.').unwrap_or(digits);
    first.starts_with(|c: char| c.is_ascii_digit())
        && digits.chars().all(|c| {
            c.is_ascii_digit()
                || matches!(c, '.' | 'h' | 'm' | 's' | 'u' | 'n' | '\u{b5}' | '\u{3bc}')
        })
        && digits.ends_with(['h', 'm', 's'])
}

/// Parses durations such as `1h`, `1d`, `1m30s`, `1.5h`, `500ms`: numbers with units, in any order,
/// as Go's `ParseDuration` does.
pub fn parse_span(text: &str) -> Result<Span, TermError> {
    if text.starts_with('-') && looks_like_a_duration(text) {
        return Err(TermError::TooShort);
    }
    let text = text.strip_prefix('+').unwrap_or(text);
    let mut rest = text;
    let mut total: u64 = 0;
    while !rest.is_empty() || text.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.');
        let (number, tail) = rest.split_at(end.ok_or(TermError::NotADuration)?);
        let unit_end = tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit_end);
        let nanos = scaled(number, unit)?;
        total = total.checked_add(nanos).ok_or(TermError::TooLong)?;
        rest = tail;
    }
    Ok(Span::from_nanos(total))
}

/// Returns `number` units in nanoseconds, by integer arithmetic only, so that every replica reads
/// `1.1s` alike.
fn scaled(number: &str, unit: &str) -> Result<u64, TermError> {
    let per_unit: u64 = match unit {
        "d" => 86_400_000_000_000,
        "h" => 3_600_000_000_000,
        "m" => 60_000_000_000,
        "s" => 1_000_000_000,
        "ms" => 1_000_000,
        // The micro sign, and the Greek letter.
        "us" | "\u{b5}s" | "\u{3bc}s" => 1_000,
        "ns" => 1,
        _ => return Err(TermError::NotADuration),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return Err(TermError::NotADuration);
    }
    let mut nanos = match whole {
        "" => 0,
        _ => whole.parse::<u64>().map_err(|_| TermError::TooLong)?,
    }
    .checked_mul(per_unit)
    .ok_or(TermError::TooLong)?;
    let mut place = per_unit;
    for digit in fraction.bytes() {
        place /= 10;
        nanos = nanos.saturating_add(u64::from(digit - b'0') * place);
    }
    Ok(nanos)
}

impl fmt::Display for TermError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotADuration => write!(f, "a duration reads like 30s, 1m30s or 1.5h"),
            Self::TooShort => write!(f, "a ttl is at least {TTL_MIN}"),
            Self::TooLong => write!(f, "a ttl or grace is at most {TTL_MAX}"),
        }
    }
}

impl std::error::Error for TermError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_parse_with_units() {
        let millis = |text| parse_span(text).map(Span::as_millis);
        assert_eq!(millis("30s"), Ok(30_000));
        assert_eq!(millis("1m30s"), Ok(90_000));
        assert_eq!(millis("1.5h"), Ok(5_400_000));
        assert_eq!(millis("1d2h"), Ok(26 * 3_600_000));
        assert_eq!(millis("500ms"), Ok(500));
        assert_eq!(millis("0s"), Ok(0));
        assert_eq!(millis(".5s"), Ok(500));
        for text in ["2000000000ns", "2000000us", "2000000µs", "2000000μs", "+2s", "1s1000ms"] {
            assert_eq!(millis(text), Ok(2_000), "{text}");
        }
        for wrong in ["", "30", "s", "1x", "1.2.3s", ".s", "1s30", "1 s", "+", "+-1s", "1ss"] {
            assert_eq!(millis(wrong), Err(TermError::NotADuration), "{wrong:?}");
        }
        assert_eq!(millis("-5s"), Err(TermError::TooShort));
        assert_eq!(millis("99999999999999999999h"), Err(TermError::TooLong));
        assert_eq!(millis("9999999999999h"), Err(TermError::TooLong));
        assert_eq!(millis("999999999d"), Err(TermError::TooLong));
    }

    #[test]
    fn a_ttl_has_bounds() {
        assert_eq!(Ttl::parse("500ms"), Err(TermError::TooShort));
        assert_eq!(Ttl::parse("0s"), Err(TermError::TooShort));
        assert_eq!(Ttl::parse("25h"), Err(TermError::TooLong));
        assert!(Ttl::parse("1s").is_ok() && Ttl::parse("24h").is_ok());
        assert!(Grace::parse("0s").is_ok());
    }

    #[test]
    fn a_pid_is_no_duration() {
        assert!(looks_like_a_duration("60s") && looks_like_a_duration("-5s"));
        assert!(looks_like_a_duration(".5h") && looks_like_a_duration("+5000000µs"));
        for text in ["60", "s", "hello", "12 s", "host:12"] {
            assert!(!looks_like_a_duration(text), "{text:?}");
        }
    }
}
