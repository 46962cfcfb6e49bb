//! The files that make up the state: at most one snapshot, and the journals after it.
//!
//! The thread that appends records shares the manifest with the thread that makes the next
//! snapshot.
//!
//! Files that hold one number with a checksum, as text that a person can read.
//!
//! ```text
//! latchfs tokens 1
//! reserved 8192
//! sum 1a2b3c4d
//! ```

use super::atomic_file::with_sum;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The only version of the file format that this program knows.
pub(super) const VERSION: u32 = 1;

/// A number that is stored in its own file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NumberFile {
    /// The upper limit of the fencing tokens: tokens below this number may have been issued.
    Tokens(u64),
    /// The mark of a clean shutdown, with the generation (the number in the name of the last
    /// journal) at the time when the directory was closed.
    Clean(u64),
}

/// Why a text is not a valid number file.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NumberFileError {
    /// The file has another format version, the one in this variant.
    Version(u32),
    /// The text is invalid in any other way.
    Damaged,
}

impl NumberFile {
    pub(super) const TOKENS: &'static str = "tokens";
    pub(super) const CLEAN: &'static str = "clean";

    /// Returns the file name under which the number is stored.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Tokens(_) => Self::TOKENS,
            Self::Clean(_) => Self::CLEAN,
        }
    }

    /// Returns the content of the file: the number as text, and a checksum.
    pub(super) fn to_text(self) -> String {
        let (field, number) = match self {
            Self::Tokens(ceiling) => ("reserved", ceiling),
            Self::Clean(generation) => ("generation", generation),
        };
        let text = format!("latchfs {} {VERSION}\n{field} {number}\n", self.name());
        with_sum(&text)
    }

    /// Parses the content `text` of the number file `name`.
    pub(super) fn parse(name: &str, text: &[u8]) -> Result<Self, NumberFileError> {
        let text = std::str::from_utf8(text).map_err(|_| NumberFileError::Damaged)?;
        let mut lines = text.lines();
        let first = lines.next().unwrap_or_default();
        let version = first
            .strip_prefix("latchfs ")
            .and_then(|rest| rest.strip_prefix(name))
            .and_then(|rest| rest.trim_start().parse::<u32>().ok())
            .ok_or(NumberFileError::Damaged)?;
        if version != VERSION {
            return Err(NumberFileError::Version(version));
        }
        let number = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok());
        let number = number.ok_or(NumberFileError::Damaged)?;
        let sheet = match name {
            Self::TOKENS => Self::Tokens(number),
            Self::CLEAN => Self::Clean(number),
            _ => return Err(NumberFileError::Damaged),
        };
        // A number can be written in only one way. So comparing the file with the text that this
        // number would have checks the checksum, the field name and every space.
        if sheet.to_text() == text { Ok(sheet) } else { Err(NumberFileError::Damaged) }
    }
}

/// The last snapshot of the state directory, to which the records of later journals are added.
#[derive(Debug, Clone, Copy)]
pub(super) struct Base {
    pub(super) generation: u64,
    pub(super) bytes: u64,
}

/// A journal that receives no more records.
#[derive(Debug, Clone, Copy)]
pub(super) struct SealedJournal {
    pub(super) generation: u64,
    /// The sequence number of the first record after this journal.
    pub(super) limit_seq: u64,
}

/// The files that precede the current journal: the last snapshot, and the journals after it that
/// receive no more records.
#[derive(Debug)]
pub(super) struct Manifest {
    files: Mutex<(Option<Base>, Vec<SealedJournal>)>,
    /// The length in bytes of the last snapshot. An atomic outside of the mutex, because it may be
    /// read after every record.
    base_bytes: AtomicU64,
    busy: AtomicBool,
}

/// The exclusive right to make the next snapshot, until it is dropped.
#[derive(Debug)]
pub(super) struct SnapshotClaim(Arc<Manifest>);

impl Manifest {
    pub(super) fn new(base: Option<Base>, parts: Vec<SealedJournal>) -> Self {
        let base_bytes = AtomicU64::new(base.map_or(0, |base| base.bytes));
        Self { files: Mutex::new((base, parts)), base_bytes, busy: AtomicBool::new(false) }
    }

    pub(super) fn base_bytes(&self) -> u64 {
        self.base_bytes.load(Ordering::Relaxed)
    }

    pub(super) fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Relaxed)
    }

    pub(super) fn seal(&self, part: SealedJournal) {
        self.files.lock().1.push(part);
    }

    pub(super) fn claim(chain: &Arc<Self>) -> Option<SnapshotClaim> {
        let taken = chain.busy.swap(true, Ordering::Acquire);
        (!taken).then(|| SnapshotClaim(Arc::clone(chain)))
    }
}

impl SnapshotClaim {
    /// Returns the files to build the snapshot from: the last snapshot, and the journals after it
    /// that receive no more records.
    pub(super) fn files(&self) -> (Option<Base>, Vec<SealedJournal>) {
        self.0.files.lock().clone()
    }

    /// Makes `base` the last snapshot, and drops the journals that it makes obsolete from the
    /// manifest.
    pub(super) fn replace(&self, base: Base) {
        let mut files = self.0.files.lock();
        files.0 = Some(base);
        files.1.retain(|part| part.generation >= base.generation);
        self.0.base_bytes.store(base.bytes, Ordering::Relaxed);
    }
}

impl Drop for SnapshotClaim {
    fn drop(&mut self) {
        self.0.busy.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_file_is_read_back_and_a_changed_one_is_rejected() {
        let text = NumberFile::Tokens(8192).to_text();
        assert!(text.starts_with("latchfs tokens 1\nreserved 8192\nsum "), "{text}");
        assert_eq!(NumberFile::parse("tokens", text.as_bytes()), Ok(NumberFile::Tokens(8192)));
        assert_eq!(NumberFile::parse("clean", text.as_bytes()), Err(NumberFileError::Damaged));
        for at in 0..text.len() {
            assert!(NumberFile::parse("tokens", &text.as_bytes()[..at]).is_err(), "cut at {at}");
            for bit in 0..8 {
                let mut bytes = text.clone().into_bytes();
                bytes[at] ^= 1 << bit;
                assert!(NumberFile::parse("tokens", &bytes).is_err(), "byte {at}, bit {bit}");
            }
        }
    }

    #[test]
    fn another_version_is_reported() {
        let text = b"latchfs tokens 2\nsomething else\n";
        assert_eq!(NumberFile::parse("tokens", text), Err(NumberFileError::Version(2)));
    }
}
