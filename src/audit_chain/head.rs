//! The head of an audit log, as text that a person can read.
//!
//! ```text
//! latchfs audit 1
//! first 1
//! last 730 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
//! sum 1a2b3c4d
//! ```

use super::chain::{AUDIT_VERSION, AuditChain, ChainLink, RecordHash, other_version};
use crate::storage::atomic_file::with_sum;
use std::io;

/// The text before the version.
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
