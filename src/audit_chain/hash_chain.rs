//! The lines of a chain.
//!
//! The head of an audit log, as text that a person can read.
//!
//! ```text
//! latchfs audit 1
//! first 1
//! last 730 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
//! sum 1a2b3c4d
//! ```

use crate::audit_chain::check::AUDIT_NAME;
use crate::storage::atomic_file::with_sum;
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;
use std::{fmt, io};

/// The field with the digest of its line.
const OWN: &str = "record_hash";
/// The field with the digest of the line before.
const PREVIOUS: &str = "prev_hash";
/// The field with the version of the line.
const VERSION_FIELD: &str = "v";
/// The version of the lines and of the head.
pub(super) const AUDIT_VERSION: u64 = 1;
/// The field with the number of the line in the chain.
const EVENT: &str = "event_id";

/// The digest of a line: 64 hexadecimal digits as text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RecordHash(String);

impl RecordHash {
    /// Returns the digest of bytes.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self::from_hasher(Sha256::new_with_prefix(bytes))
    }

    pub(super) fn from_hasher(hasher: Sha256) -> Self {
        Self(format!("{:x}", hasher.finalize()))
    }

    /// Parses 64 hexadecimal digits in lower case.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        (text.len() == 64 && text.bytes().all(is_digit)).then(|| Self(text.to_owned()))
    }
}

impl fmt::Display for RecordHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// An entry of an audit log.
#[derive(Debug, Default)]
pub(crate) struct ChainEntry<'a> {
    /// The wall-clock time, for people.
    pub(crate) timestamp: String,
    /// The action.
    pub(crate) operation: &'a str,
    /// The client or the user that has caused the event.
    pub(crate) actor: &'a str,
    /// The lock, file, client or node that the event concerns.
    pub(crate) target: Option<String>,
    /// The fencing token of the tenure.
    pub(crate) fencing_token: Option<u64>,
    /// The session in the lock service.
    pub(crate) session_id: Option<String>,
    /// The reason that a person gave, or what happened.
    pub(crate) reason: Option<&'a str>,
    /// Fields that only one kind of audit log has.
    pub(crate) more: Map<String, Value>,
}

/// A place in a chain: the number of a line, and its digest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ChainLink {
    pub(crate) event: u64,
    pub(crate) hash: RecordHash,
}

/// The end of a chain, to which lines are added.
#[derive(Debug, Clone)]
pub(crate) struct AuditChain {
    last: ChainLink,
}

impl AuditChain {
    /// Continues a chain after the last line of the log, or after the line that the head names if
    /// the log has lost that one: the gap in the numbers shows it for ever after.
    pub(crate) fn resume(head: Option<ChainLink>, last: Option<ChainLink>) -> Self {
        let head = head.filter(|head| head.event > 0);
        let known = match (head, last) {
            (Some(head), Some(last)) if last.event < head.event => Some(head),
            (head, last) => last.or(head),
        };
        Self { last: known.unwrap_or(ChainLink { event: 0, hash: RecordHash::of(b"") }) }
    }

    /// Returns the last line.
    pub(crate) const fn last(&self) -> &ChainLink {
        &self.last
    }

    /// Adds an entry to the chain, and returns its line with the line feed.
    pub(crate) fn add(&mut self, entry: ChainEntry<'_>) -> String {
        let mut fields: BTreeMap<String, Value> = entry.more.into_iter().collect();
        let event = self.last.event + 1;
        for (name, value) in [
            (VERSION_FIELD, AUDIT_VERSION.into()),
            (EVENT, event.into()),
            ("timestamp", entry.timestamp.into()),
            ("operation", entry.operation.into()),
            ("actor", entry.actor.into()),
            ("target", entry.target.into()),
            ("fencing_token", entry.fencing_token.into()),
            ("session_id", entry.session_id.into()),
            ("reason", entry.reason.into()),
            (PREVIOUS, self.last.hash.to_string().into()),
        ] {
            fields.insert(name.to_owned(), value);
        }
        let hash = RecordHash::of(canonical(&fields).as_bytes());
        fields.insert(OWN.to_owned(), hash.to_string().into());
        self.last = ChainLink { event, hash };
        canonical(&fields) + "\n"
    }
}

/// Returns the fields as canonical JSON. The values have no fields themselves.
fn canonical(fields: &BTreeMap<String, Value>) -> String {
    let fields = fields.iter().map(|(name, value)| format!("{}:{value}", Value::from(&**name)));
    format!("{{{}}}", fields.collect::<Vec<_>>().join(","))
}

/// A line as it was read.
pub(super) enum ReadLine {
    /// A line of the chain.
    Chained(ChainedLine),
    /// A line of this version of the format, which this latchfs does not know.
    OtherVersion(u64),
    /// A text that is no line of an audit log.
    Unreadable,
}

/// A line that says that it belongs to a chain.
pub(super) struct ChainedLine {
    pub(super) event: u64,
    pub(super) previous: RecordHash,
    /// The digest that the line says it has.
    pub(super) named: RecordHash,
    /// The digest that was computed from the line.
    pub(super) own: RecordHash,
    /// Whether the line is as it was written.
    pub(super) is_whole: bool,
}

impl ReadLine {
    /// Reads a line, which is given without its line feed.
    pub(super) fn parse(line: &[u8]) -> Self {
        let Ok(fields) = serde_json::from_slice::<Map<String, Value>>(line) else {
            return Self::Unreadable;
        };
        let mut fields: BTreeMap<String, Value> = fields.into_iter().collect();
        match fields.get(VERSION_FIELD).and_then(Value::as_u64) {
            Some(AUDIT_VERSION) => {}
            Some(found) => return Self::OtherVersion(found),
            None => return Self::Unreadable,
        }
        let whole = canonical(&fields);
        let hash = |value: Option<&Value>| RecordHash::parse(value?.as_str()?);
        let named = fields.remove(OWN);
        let own = RecordHash::of(canonical(&fields).as_bytes());
        let found = (
            fields.get(EVENT).and_then(Value::as_u64),
            hash(fields.get(PREVIOUS)),
            hash(named.as_ref()),
        );
        let (Some(event), Some(previous), Some(named)) = found else { return Self::Unreadable };
        let is_whole = named == own && whole.as_bytes() == line && event > 0;
        Self::Chained(ChainedLine { event, previous, named, own, is_whole })
    }
}

/// Returns the place of the last line of `bytes` that belongs to a chain and is as it was written.
/// Fails if a line of another version comes after it.
pub(crate) fn last_link(bytes: &[u8]) -> io::Result<Option<ChainLink>> {
    for line in bytes.split(|byte| *byte == b'\n').rev() {
        match ReadLine::parse(line) {
            ReadLine::Chained(line) if line.is_whole => {
                return Ok(Some(ChainLink { event: line.event, hash: line.named }));
            }
            ReadLine::OtherVersion(found) => return Err(other_version(AUDIT_NAME, found)),
            ReadLine::Chained(_) | ReadLine::Unreadable => {}
        }
    }
    Ok(None)
}

/// Returns the error for a file of an audit log that has another version.
pub(super) fn other_version(file: &str, found: u64) -> io::Error {
    let why = format!(
        "{file} has version {found}, and this latchfs knows version {AUDIT_VERSION}; move the log \
         away, or use the latchfs that wrote it"
    );
    io::Error::new(io::ErrorKind::Unsupported, why)
}

/// Returns the number of the first line that belongs to a chain.
pub(crate) fn first_event(
    lines: impl Iterator<Item = io::Result<Vec<u8>>>,
) -> io::Result<Option<u64>> {
    for line in lines {
        if let ReadLine::Chained(line) = ReadLine::parse(&line?) {
            return Ok(Some(line.event));
        }
    }
    Ok(None)
}

/// The text before the version in the file of the head.
const MAGIC: &str = "latchfs audit ";

/// The numbers of the first line that must be there and of the last one, with the digest of the
/// last one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AuditHead {
    /// No line from this number on may be missing: older ones may have been rotated away.
    pub(crate) first: u64,
    /// The last line; number 0 if there is none yet.
    pub(crate) last: ChainLink,
}

impl AuditHead {
    /// The file name of the head.
    pub(crate) const NAME: &'static str = "audit.head";
    /// The highest length of the file.
    pub(crate) const BYTES_MAX: u64 = 256;

    /// Returns the head of a chain whose oldest line that must be there has the number `first`.
    pub(crate) fn of(chain: &AuditChain, first: u64) -> Self {
        Self { first, last: chain.last().clone() }
    }

    /// Returns the content of the file.
    pub(crate) fn to_text(&self) -> String {
        let ChainLink { event, hash } = &self.last;
        let first = self.first;
        with_sum(&format!("{MAGIC}{AUDIT_VERSION}\nfirst {first}\nlast {event} {hash}\n"))
    }

    /// Parses the content of the file. A damaged one is none, and one of another version an error.
    pub(crate) fn parse(text: &[u8]) -> io::Result<Option<Self>> {
        let Some(text) = std::str::from_utf8(text).ok() else { return Ok(None) };
        let version = text.lines().next().and_then(|line| line.strip_prefix(MAGIC));
        match version.and_then(|version| version.parse().ok()) {
            Some(AUDIT_VERSION) => Ok(Self::parse_lines(text)),
            Some(found) => Err(other_version(Self::NAME, found)),
            None => Ok(None),
        }
    }

    fn parse_lines(text: &str) -> Option<Self> {
        if text.len() as u64 > Self::BYTES_MAX {
            return None;
        }
        let mut lines = text.lines().skip(1);
        let first = lines.next()?.strip_prefix("first ")?.parse().ok()?;
        let (event, hash) = lines.next()?.strip_prefix("last ")?.split_once(' ')?;
        let last = ChainLink { event: event.parse().ok()?, hash: RecordHash::parse(hash)? };
        let head = Self { first, last };
        (head.to_text() == text).then_some(head)
    }
}
