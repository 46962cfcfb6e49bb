//! The file of the ledger: all that it knows, followed by a digest of these bytes.

use super::super::tenure::TenureId;
use super::change_log::{ChangeLog, ChangeProgress, LoggedChange};
use super::content_digest::ContentDigest;
use super::folder_path::FolderPath;
use super::handover::{HandoverId, MarkerCounts};
use super::ledger::{Ledger, LedgerEntry, OWN_HANDOVERS_MAX};
use super::marker::{Acceptance, MARKER_TEXT_BYTES_MAX};
use super::marker_name::{MarkerKind, MarkerLink, MarkerName};
use super::tree::FileStamp;
use crate::engine::Token;
use std::fmt;

/// The beginning of the file, with its version.
const MAGIC: &[u8] = b"latchfs ledger ";
/// The version of the file, which follows [`MAGIC`] and is followed by a line feed.
const VERSION: u32 = 1;
/// The maximum size of the file in bytes.
pub(crate) const LEDGER_BYTES_MAX: u64 = 512 * 1_024 * 1_024;

/// Why a file is no ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LedgerError {
    /// The file is too large.
    TooLarge,
    /// The file is of another version: this one.
    Version(u32),
    /// The file is damaged.
    Damaged,
}

impl fmt::Display for LedgerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge => write!(f, "the ledger has more than {LEDGER_BYTES_MAX} bytes"),
            Self::Version(found) => write!(
                f,
                "the ledger has version {found}, and this latchfs knows version {VERSION}; run the \
                 latchfs that wrote it"
            ),
            Self::Damaged => f.write_str(
                "the ledger is damaged; remove it, and the folder is compared with its markers \
                 as on a new machine",
            ),
        }
    }
}

/// Returns the beginning of the file: its first line.
fn head() -> Vec<u8> {
    [MAGIC, format!("{VERSION}\n").as_bytes()].concat()
}

/// Returns the version in the first line of a ledger; `None` if the bytes are no ledger.
fn version_in(bytes: &[u8]) -> Option<u32> {
    let rest = bytes.strip_prefix(MAGIC)?;
    let end = rest.iter().position(|byte| *byte == b'\n')?;
    std::str::from_utf8(&rest[..end]).ok()?.parse().ok()
}

/// Writes values one after the other.
struct LedgerWriter(Vec<u8>);

impl LedgerWriter {
    fn byte(&mut self, value: u8) {
        self.0.push(value);
    }

    fn number(&mut self, value: u64) {
        self.0.extend(value.to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.0.extend(text.as_bytes());
    }

    fn option<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T)) {
        self.byte(u8::from(value.is_some()));
        if let Some(value) = value {
            write(self, value);
        }
    }

    fn name(&mut self, name: MarkerName) {
        self.byte(u8::from(name.kind == MarkerKind::Checkpoint));
        self.number(name.tenure.engine);
        self.number(name.tenure.token.as_u64());
        self.number(name.number);
    }

    fn link(&mut self, link: MarkerLink) {
        self.name(link.name);
        self.0.extend(link.digest.0);
    }

    fn stamp(&mut self, stamp: FileStamp) {
        self.number(stamp.size);
        self.0.extend(stamp.mtime.to_le_bytes());
        self.number(stamp.inode);
    }

    fn id(&mut self, id: HandoverId) {
        self.0.extend(id.0.to_le_bytes());
    }
}

/// Reads values one after the other. Nothing takes more memory than the bytes that are left.
struct LedgerReader<'a>(&'a [u8]);

impl LedgerReader<'_> {
    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], LedgerError> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or(LedgerError::Damaged)?;
        self.0 = rest;
        Ok(*bytes)
    }

    fn flag(&mut self) -> Result<bool, LedgerError> {
        match self.bytes()? {
            [0] => Ok(false),
            [1] => Ok(true),
            _ => Err(LedgerError::Damaged),
        }
    }

    fn number(&mut self) -> Result<u64, LedgerError> {
        self.bytes().map(u64::from_le_bytes)
    }

    fn text(&mut self) -> Result<&str, LedgerError> {
        let length = usize::try_from(self.number()?).map_err(|_| LedgerError::Damaged)?;
        let (text, rest) = self.0.split_at_checked(length).ok_or(LedgerError::Damaged)?;
        self.0 = rest;
        std::str::from_utf8(text).map_err(|_| LedgerError::Damaged)
    }

    fn path(&mut self) -> Result<FolderPath, LedgerError> {
        let text = self.text()?;
        let path = FolderPath::parse(text).map_err(|_| LedgerError::Damaged)?;
        if path.as_str() == text { Ok(path) } else { Err(LedgerError::Damaged) }
    }

    fn option<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, LedgerError>,
    ) -> Result<Option<T>, LedgerError> {
        if self.flag()? { read(self).map(Some) } else { Ok(None) }
    }

    fn name(&mut self) -> Result<MarkerName, LedgerError> {
        let kind = if self.flag()? { MarkerKind::Checkpoint } else { MarkerKind::Marker };
        let (engine, token) = (self.number()?, Token::named(self.number()?));
        Ok(MarkerName { kind, tenure: TenureId { engine, token }, number: self.number()? })
    }

    fn link(&mut self) -> Result<MarkerLink, LedgerError> {
        Ok(MarkerLink { name: self.name()?, digest: ContentDigest(self.bytes()?) })
    }

    fn stamp(&mut self) -> Result<FileStamp, LedgerError> {
        let (size, mtime) = (self.number()?, i128::from_le_bytes(self.bytes()?));
        Ok(FileStamp { size, mtime, inode: self.number()? })
    }

    fn id(&mut self) -> Result<HandoverId, LedgerError> {
        Ok(HandoverId(u128::from_le_bytes(self.bytes()?)))
    }
}

impl Ledger {
    /// Returns the bytes of the ledger's file.
    pub(crate) fn save(&self) -> Vec<u8> {
        let mut to = LedgerWriter(head());
        to.option(self.verified, LedgerWriter::link);
        to.option(self.checkpoint, LedgerWriter::link);
        to.number(self.counts.markers);
        to.number(self.counts.paths);
        to.option(self.closed, LedgerWriter::id);
        to.option(self.accepted.as_ref(), |to, accepted| {
            to.id(accepted.handover);
            to.text(&accepted.reason);
        });
        to.number(self.own.len() as u64);
        self.own.iter().for_each(|id| to.id(*id));
        to.number(self.files.len() as u64);
        for (path, entry) in &self.files {
            to.text(path.as_str());
            to.stamp(entry.stamp);
            to.0.extend(entry.digest.0);
            to.name(entry.from);
        }
        to.number(self.given_up.len() as u64);
        self.given_up.iter().for_each(|path| to.text(path.as_str()));
        to.byte(u8::from(self.log.is_whole));
        to.number(self.log.number);
        to.number(self.log.changed.len() as u64);
        for (path, change) in &self.log.changed {
            to.text(path.as_str());
            to.option(change.after, LedgerWriter::stamp);
            match change.progress {
                ChangeProgress::Done => to.byte(0),
                ChangeProgress::UnderWay { before } => {
                    to.byte(1);
                    to.option(before, LedgerWriter::stamp);
                }
            }
            to.byte(u8::from(change.is_accepted));
            to.number(change.number);
        }
        let digest = ContentDigest::of(&to.0);
        to.0.extend(digest.0);
        to.0
    }

    /// Reads the bytes of the ledger's file.
    pub(crate) fn load(bytes: &[u8]) -> Result<Self, LedgerError> {
        if bytes.len() as u64 > LEDGER_BYTES_MAX {
            return Err(LedgerError::TooLarge);
        }
        let version = version_in(bytes).ok_or(LedgerError::Damaged)?;
        if version != VERSION {
            return Err(LedgerError::Version(version));
        }
        let (content, digest) = bytes.split_last_chunk().ok_or(LedgerError::Damaged)?;
        if ContentDigest::of(content) != ContentDigest(*digest) {
            return Err(LedgerError::Damaged);
        }
        let mut from = LedgerReader(content.strip_prefix(&*head()).ok_or(LedgerError::Damaged)?);
        let mut ledger = Self {
            verified: from.option(LedgerReader::link)?,
            checkpoint: from.option(LedgerReader::link)?,
            counts: MarkerCounts { markers: from.number()?, paths: from.number()? },
            closed: from.option(LedgerReader::id)?,
            accepted: from.option(|from| {
                let (handover, reason) = (from.id()?, from.text()?.to_owned());
                let is_short = reason.len() <= MARKER_TEXT_BYTES_MAX;
                let acceptance = is_short.then_some(Acceptance { handover, reason });
                acceptance.ok_or(LedgerError::Damaged)
            })?,
            ..Self::default()
        };
        let own = from.number()?;
        if own > OWN_HANDOVERS_MAX as u64 {
            return Err(LedgerError::Damaged);
        }
        for _ in 0..own {
            ledger.own.push_back(from.id()?);
        }
        for _ in 0..from.number()? {
            let (path, stamp) = (from.path()?, from.stamp()?);
            let (digest, from) = (ContentDigest(from.bytes()?), from.name()?);
            let is_next = ledger.files.last_key_value().is_none_or(|(last, _)| *last < path);
            if !is_next {
                return Err(LedgerError::Damaged);
            }
            ledger.files.insert(path, LedgerEntry { stamp, digest, from });
        }
        for _ in 0..from.number()? {
            let path = from.path()?;
            if ledger.given_up.last().is_some_and(|last| *last >= path) {
                return Err(LedgerError::Damaged);
            }
            ledger.given_up.insert(path);
        }
        ledger.log = load_log(&mut from)?;
        if from.0.is_empty() { Ok(ledger) } else { Err(LedgerError::Damaged) }
    }
}

fn load_log(from: &mut LedgerReader<'_>) -> Result<ChangeLog, LedgerError> {
    let (is_whole, number) = (from.flag()?, from.number()?);
    let mut log = ChangeLog { number, is_whole, ..ChangeLog::default() };
    for _ in 0..from.number()? {
        let path = from.path()?;
        let after = from.option(LedgerReader::stamp)?;
        let progress = if from.flag()? {
            ChangeProgress::UnderWay { before: from.option(LedgerReader::stamp)? }
        } else {
            ChangeProgress::Done
        };
        let (is_accepted, number) = (from.flag()?, from.number()?);
        let is_next = log.changed.last_key_value().is_none_or(|(last, _)| *last < path);
        if !is_next || number > log.number {
            return Err(LedgerError::Damaged);
        }
        log.changed.insert(path, LoggedChange { after, progress, is_accepted, number });
    }
    Ok(log)
}

#[cfg(test)]
mod tests {
    use super::super::test_markers::{TestMarkers, is};
    use super::super::test_tree::path;
    use super::*;

    fn ledger() -> Ledger {
        let first = TestMarkers::default().checkpoint(1, None, &[is("a", b"1")]);
        let stamp = FileStamp { size: 1, mtime: -5, inode: 9 };
        let entry = LedgerEntry { stamp, digest: ContentDigest::of(b"1"), from: first.name };
        let mut ledger = Ledger {
            verified: Some(first),
            checkpoint: Some(first),
            counts: MarkerCounts { markers: 2, paths: 3 },
            closed: Some(HandoverId(4)),
            accepted: Some(Acceptance { handover: HandoverId(5), reason: "lost".to_owned() }),
            ..Ledger::default()
        };
        ledger.record_own(HandoverId(4));
        ledger.record_own(HandoverId(u128::MAX));
        ledger.update(vec![(path("a"), Some(entry)), (path("d/b"), Some(entry))]);
        ledger.given_up.extend([path("x.o"), path("y.o")]);
        ledger.log_mut().begin(&path("a"), Some(stamp), None);
        ledger.log_mut().end(&path("c"), None);
        ledger.log_mut().accept(&path("d/b"), Some(stamp));
        ledger
    }

    /// Returns the content with a digest that fits.
    fn sealed(content: &[u8]) -> Vec<u8> {
        [content, &ContentDigest::of(content).0].concat()
    }

    #[test]
    fn a_ledger_is_read_as_it_was_written() {
        for ledger in [ledger(), Ledger::default()] {
            let bytes = ledger.save();
            let read = Ledger::load(&bytes).expect("written above");
            assert_eq!((&read, read.save()), (&ledger, bytes));
        }
    }

    #[test]
    fn each_damaged_byte_is_found() {
        let bytes = ledger().save();
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert!(Ledger::load(&damaged).is_err(), "byte {at}");
            assert!(Ledger::load(&bytes[..at]).is_err(), "the first {at} bytes");
        }
        let mut longer = bytes.clone();
        longer.push(0);
        assert_eq!(Ledger::load(&longer), Err(LedgerError::Damaged));
        let other = LedgerError::Version(2);
        assert_eq!(Ledger::load(b"latchfs ledger 2\n"), Err(other));
        let said = other.to_string();
        assert!(said.contains("version 2, and this latchfs knows version 1"), "{said}");
    }

    #[test]
    fn a_ledger_whose_digest_fits_is_read_strictly() {
        let bytes = ledger().save();
        let content = &bytes[..bytes.len() - 32];
        assert!(Ledger::load(&sealed(content)).is_ok());
        assert_eq!(Ledger::load(&sealed(&[content, b"x"].concat())), Err(LedgerError::Damaged));
        for at in head().len()..content.len() {
            let mut changed = content.to_vec();
            changed[at] ^= 0x80;
            let changed = sealed(&changed);
            if let Ok(read) = Ledger::load(&changed) {
                assert_eq!(read.save(), changed, "byte {at}: a ledger has one encoding");
            }
            assert!(Ledger::load(&sealed(&content[..at])).is_err(), "the first {at} bytes");
        }
    }

    #[test]
    fn a_ledger_has_a_bound() {
        let mut bytes = head();
        bytes.resize(LEDGER_BYTES_MAX as usize + 1, 0);
        assert_eq!(Ledger::load(&bytes), Err(LedgerError::TooLarge));
        let said = LedgerError::TooLarge.to_string();
        assert!(said.contains("536870912 bytes"), "{said}");
    }
}
