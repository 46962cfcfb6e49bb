//! The ttl and the grace of a lease, validated once, and the syntax of durations.

use crate::time::Span;
use std::fmt;

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
