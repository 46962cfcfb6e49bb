//! The ledger: what this machine knows of the versions in its copy of the folder, and how far it
//! has followed the markers.
//!
//! The paths that this machine has changed and that no marker names yet.
//!
//! The file of the ledger: all that it knows, followed by a digest of these bytes.

use super::folder_path::FolderPath;
use super::handover::{HandoverId, MarkerCounts};
use super::marker::{Acceptance, MARKER_TEXT_BYTES_MAX};
use crate::folder_path::{ContentDigest, FileStamp};
use crate::marker::{MarkerKind, MarkerLink, MarkerName};
use crate::tenure_id::TenureId;
use engine::Token;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

/// The maximum number of own handovers that a ledger remembers. Only the last one matters, and
/// those that were sent after it without an answer.
pub(crate) const OWN_HANDOVERS_MAX: usize = 64;

/// A file as this machine last verified or published it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LedgerEntry {
    /// The file that was hashed.
    pub stamp: FileStamp,
    /// The digest of its content.
    pub digest: ContentDigest,
    /// The marker that names this version.
    pub from: MarkerName,
}

/// A change of one path in the ledger; `None`: the path is gone.
pub(crate) type LedgerUpdate = (FolderPath, Option<LedgerEntry>);

/// The knowledge of this machine about the folder. It is on the disk before a handover that it
/// contains is sent, and before a marker is named by one.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Ledger {
    /// The files as of the last verified marker, without the changes of the log.
    pub(super) files: BTreeMap<FolderPath, LedgerEntry>,
    /// The ids of handovers that were written here, the newest last.
    pub(super) own: VecDeque<HandoverId>,
    /// The last marker that was verified or written here.
    pub(super) verified: Option<MarkerLink>,
    /// The last checkpoint at or before that marker.
    pub(super) checkpoint: Option<MarkerLink>,
    /// The markers since that checkpoint.
    pub(super) counts: MarkerCounts,
    /// The own handover of a tenure that a late marker has ended.
    pub(super) closed: Option<HandoverId>,
    /// An acceptance that no marker names yet.
    pub(super) accepted: Option<Acceptance>,
    /// The paths that were given up: a person accepted that a rule ignores them.
    pub(super) given_up: BTreeSet<FolderPath>,
    /// The changes that no marker names yet.
    pub(super) log: ChangeLog,
}

impl Ledger {
    /// Returns the log of changes.
    pub fn log(&self) -> &ChangeLog {
        &self.log
    }

    /// Returns the log of changes, for a change.
    pub fn log_mut(&mut self) -> &mut ChangeLog {
        &mut self.log
    }

    /// Returns the last marker that was verified or written here.
    pub fn verified(&self) -> Option<MarkerLink> {
        self.verified
    }

    /// Returns the last checkpoint, and the markers since then.
    pub fn since_checkpoint(&self) -> (Option<MarkerLink>, MarkerCounts) {
        (self.checkpoint, self.counts)
    }

    /// Whether this machine wrote a handover.
    pub fn is_own(&self, id: HandoverId) -> bool {
        self.own.contains(&id)
    }

    /// Records a handover before it is sent.
    pub fn record_own(&mut self, id: HandoverId) {
        if self.own.len() >= OWN_HANDOVERS_MAX {
            self.own.pop_front();
        }
        self.own.push_back(id);
    }

    /// Whether this machine wrote any handover.
    pub fn has_own(&self) -> bool {
        !self.own.is_empty()
    }

    /// Records that a marker has ended the tenure of an own handover.
    pub fn end(&mut self, id: HandoverId) {
        self.closed = Some(id);
    }

    /// Records a marker of this machine that is on the disk, and on which the next one builds. The
    /// log still has the changes that it names.
    pub fn build_on(&mut self, link: MarkerLink) {
        self.verified = Some(link);
        if link.name.kind == MarkerKind::Checkpoint {
            (self.checkpoint, self.counts) = (Some(link), MarkerCounts::default());
        }
    }

    /// Returns what the ledger knows of a path.
    pub fn entry(&self, path: &FolderPath) -> Option<&LedgerEntry> {
        self.files.get(path)
    }

    /// Returns all paths of the ledger.
    pub fn paths(&self) -> impl Iterator<Item = &FolderPath> {
        self.files.keys()
    }

    /// Returns the number of files in the ledger.
    pub fn file_count(&self) -> usize {
        self.files.len()
    }

    /// Whether a path was given up, and no guard has published it since.
    pub(crate) fn is_given_up(&self, path: &FolderPath) -> bool {
        self.given_up.contains(path)
    }

    /// Forgets what is known of a path that a rule ignores, and that a person has given up.
    pub(super) fn give_up(&mut self, path: FolderPath) {
        self.files.remove(&path);
        self.log.changed.remove(&path);
        self.given_up.insert(path);
    }

    /// Gives up paths that a person has accepted as ignored. The next marker is a checkpoint, which
    /// says so to the other machines.
    pub fn accept_ignored(&mut self, paths: impl IntoIterator<Item = FolderPath>) {
        paths.into_iter().for_each(|path| self.give_up(path));
        self.log.accept_whole();
    }

    /// Records the versions of some paths.
    pub(super) fn update(&mut self, updates: Vec<LedgerUpdate>) {
        for (path, entry) in updates {
            self.given_up.remove(&path);
            match entry {
                Some(entry) => self.files.insert(path, entry),
                None => self.files.remove(&path),
            };
        }
    }

    /// Records the changes of a renamed directory: each file below it is a change under its old and
    /// under its new name.
    pub fn log_renamed_dir(&mut self, from: &FolderPath, to: &FolderPath) {
        let mut below: BTreeMap<FolderPath, Option<FileStamp>> = BTreeMap::new();
        let known = self.files.iter().filter(|(path, _)| path.is_below(from));
        below.extend(known.map(|(path, entry)| (path.clone(), Some(entry.stamp))));
        let logged = self.log.changed.iter().filter(|(path, _)| path.is_below(from));
        below.extend(logged.map(|(path, change)| (path.clone(), change.after)));
        for (path, stamp) in below {
            self.log.end(&path, None);
            // A path that became too long can be no part of the folder's content.
            if let (Some(Ok(moved)), Some(_)) = (path.moved(from, to), stamp) {
                self.log.end(&moved, stamp);
            }
        }
    }

    /// Records the changes of a removed directory: each file below it.
    pub fn log_removed_dir(&mut self, dir: &FolderPath) {
        let known = self.files.keys().chain(self.log.changed.keys());
        let below: Vec<_> = known.filter(|path| path.is_below(dir)).cloned().collect();
        for path in &below {
            self.log.end(path, None);
        }
    }
}

/// How far a change has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ChangeProgress {
    /// The change has been made.
    Done,
    /// The change is about to be made, or was interrupted.
    UnderWay {
        /// The file before the change.
        before: Option<FileStamp>,
    },
}

/// A changed path.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LoggedChange {
    /// The file after the change; `None` if the path is gone.
    pub after: Option<FileStamp>,
    /// Whether the change may still be under way.
    pub progress: ChangeProgress,
    /// Whether a person accepted the path as it stands, and no program changed it.
    pub(crate) is_accepted: bool,
    /// The number of the change, in the order of the log.
    pub number: u64,
}

impl LoggedChange {
    /// Whether the file that has the path now is one that this change left.
    pub(crate) fn fits(&self, found: Option<FileStamp>) -> bool {
        self.after == found || self.progress == ChangeProgress::UnderWay { before: found }
    }
}

/// The log of changes since the last marker.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct ChangeLog {
    pub(super) changed: BTreeMap<FolderPath, LoggedChange>,
    /// The number of the newest change.
    pub(super) number: u64,
    /// Whether a person accepted the whole folder as it stands: the next marker names every path.
    pub(super) is_whole: bool,
    /// The number of the newest change whose paths are not known, for which the next marker is
    /// written although no path is logged; 0 if there is none. It is in no file: a guard that is
    /// killed compares the whole folder for its late marker.
    pub(super) unnamed: u64,
}

impl ChangeLog {
    /// Whether the markers name every change.
    pub fn is_empty(&self) -> bool {
        self.changed.is_empty() && !self.is_whole && self.unnamed == 0
    }

    /// Returns the number of the newest change.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns what is known of a path.
    pub fn get(&self, path: &FolderPath) -> Option<&LoggedChange> {
        self.changed.get(path)
    }

    /// Returns the changed paths.
    pub fn paths(&self) -> impl Iterator<Item = &FolderPath> {
        self.changed.keys()
    }

    fn insert(&mut self, path: FolderPath, mut change: LoggedChange) {
        self.number += 1;
        change.number = self.number;
        self.changed.insert(path, change);
    }

    /// Records that a path is about to be changed. A file with several names is one change for each
    /// of them.
    pub fn begin(
        &mut self,
        path: &FolderPath,
        before: Option<FileStamp>,
        after: Option<FileStamp>,
    ) {
        let progress = ChangeProgress::UnderWay { before };
        let change = LoggedChange { after, progress, is_accepted: false, number: 0 };
        self.insert(path.clone(), change);
    }

    /// Records how a change left a path.
    pub fn end(&mut self, path: &FolderPath, after: Option<FileStamp>) {
        let progress = ChangeProgress::Done;
        let change = LoggedChange { after, progress, is_accepted: false, number: 0 };
        self.insert(path.clone(), change);
    }

    /// Records that a person accepted a path as it stands. A change of a program that the log knows
    /// already stays in it.
    pub fn accept(&mut self, path: &FolderPath, found: Option<FileStamp>) {
        if self.changed.get(path).is_some_and(|change| change.fits(found) && !change.is_accepted) {
            return;
        }
        let progress = ChangeProgress::Done;
        let change = LoggedChange { after: found, progress, is_accepted: true, number: 0 };
        self.insert(path.clone(), change);
    }

    /// Records that a person accepted the whole folder as it stands.
    pub fn accept_whole(&mut self) {
        self.is_whole = true;
    }

    /// Records a change whose paths are not known. The list of a marker compares the whole folder,
    /// and names what was changed.
    pub fn note_unnamed(&mut self) {
        self.number += 1;
        self.unnamed = self.number;
    }

    /// Forgets the changes up to a number, which a marker names.
    pub fn forget_to(&mut self, number: u64) {
        self.changed.retain(|_, change| change.number > number);
        self.is_whole = false;
        if self.unnamed <= number {
            self.unnamed = 0;
        }
        if self.is_empty() {
            self.number = 0;
        }
    }

    /// Forgets all changes.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

/// The beginning of the ledger's file, which its version follows.
const MAGIC: &[u8] = b"latchfs ledger ";
/// The version of the file, which follows [`MAGIC`] and is followed by a line feed.
const VERSION: u32 = 1;
/// The maximum size of the file in bytes.
pub const LEDGER_BYTES_MAX: u64 = 512 * 1_024 * 1_024;

/// Why a file is no ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LedgerError {
    /// The file is too large.
    TooLarge,
    /// The file has another version, which is the value.
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
    pub fn save(&self) -> Vec<u8> {
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
    pub fn load(bytes: &[u8]) -> Result<Self, LedgerError> {
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
    use super::*;
    use crate::marker::MarkerKind;
    use crate::tenure_id::TenureId;
    use crate::test_markers::path;
    use engine::Token;

    fn entry(inode: u64) -> LedgerEntry {
        let tenure = TenureId { engine: 1, token: Token::named(1) };
        let from = MarkerName { kind: MarkerKind::Marker, tenure, number: 1 };
        let stamp = FileStamp { size: 1, mtime: 1, inode };
        LedgerEntry { stamp, digest: ContentDigest::of(b"x"), from }
    }

    #[test]
    fn own_handovers_have_a_bound() {
        let mut ledger = Ledger::default();
        (0..=OWN_HANDOVERS_MAX as u128).for_each(|id| ledger.record_own(HandoverId(id)));
        assert!(!ledger.is_own(HandoverId(0)) && ledger.is_own(HandoverId(1)));
        assert!(ledger.is_own(HandoverId(OWN_HANDOVERS_MAX as u128)));
        assert_eq!(ledger.own.len(), OWN_HANDOVERS_MAX);
    }

    #[test]
    fn each_file_below_a_renamed_directory_has_two_names() {
        let mut ledger = Ledger::default();
        ledger.update(vec![(path("d/a"), Some(entry(1))), (path("db"), Some(entry(2)))]);
        ledger.log.end(&path("d/new"), Some(entry(3).stamp));
        ledger.log.end(&path("d/gone"), None);
        ledger.log_renamed_dir(&path("d"), &path("e/f"));
        let logged: Vec<_> = ledger
            .log
            .changed
            .iter()
            .map(|(path, change)| (path.as_str(), change.after.map(|stamp| stamp.inode)))
            .collect();
        assert_eq!(
            logged,
            [
                ("d/a", None),
                ("d/gone", None),
                ("d/new", None),
                ("e/f/a", Some(1)),
                ("e/f/new", Some(3))
            ]
        );
    }

    #[test]
    fn each_file_below_a_removed_directory_is_gone() {
        let mut ledger = Ledger::default();
        ledger.update(vec![(path("d/a"), Some(entry(1))), (path("db"), Some(entry(2)))]);
        ledger.log.end(&path("d/new"), Some(entry(3).stamp));
        ledger.log_removed_dir(&path("d"));
        assert_eq!(ledger.log.paths().collect::<Vec<_>>(), [&path("d/a"), &path("d/new")]);
        assert!(ledger.log.paths().all(|at| ledger.log.get(at).is_some_and(|it| it.fits(None))));
        ledger.update(vec![(path("d/a"), None)]);
        assert_eq!(ledger.file_count(), 1);
    }
}

#[cfg(test)]
mod change_log_tests {
    use super::*;
    use crate::test_markers::path;

    fn stamp(inode: u64) -> FileStamp {
        FileStamp { size: 1, mtime: 1, inode }
    }

    #[test]
    fn a_change_under_way_fits_both_versions() {
        let mut log = ChangeLog::default();
        log.begin(&path("a"), Some(stamp(1)), Some(stamp(2)));
        let fits = |log: &ChangeLog, inode| log.get(&path("a")).is_some_and(|at| at.fits(inode));
        assert!(
            fits(&log, Some(stamp(1))) && fits(&log, Some(stamp(2))) && !fits(&log, Some(stamp(3)))
        );
        log.end(&path("a"), Some(stamp(2)));
        assert!(!fits(&log, Some(stamp(1))) && fits(&log, Some(stamp(2))) && !fits(&log, None));
    }

    #[test]
    fn a_change_after_the_list_was_closed_stays() {
        let mut log = ChangeLog::default();
        log.end(&path("a"), Some(stamp(1)));
        log.end(&path("b"), None);
        let listed = log.number();
        log.end(&path("b"), Some(stamp(2)));
        log.accept_whole();
        log.forget_to(listed);
        assert_eq!(log.paths().collect::<Vec<_>>(), [&path("b")]);
        log.forget_to(log.number());
        assert!(log.is_empty());
    }

    #[test]
    fn a_change_without_a_known_path_needs_a_marker() {
        let mut log = ChangeLog::default();
        log.note_unnamed();
        let listed = log.number();
        log.note_unnamed();
        log.forget_to(listed);
        assert!(!log.is_empty(), "a change came after the list was closed");
        log.forget_to(log.number());
        assert!(log.is_empty());
    }

    #[test]
    fn an_acceptance_does_not_hide_a_change_of_a_program() {
        let mut log = ChangeLog::default();
        log.end(&path("a"), Some(stamp(1)));
        log.accept(&path("a"), Some(stamp(1)));
        assert!(log.get(&path("a")).is_some_and(|change| !change.is_accepted));
        log.accept(&path("a"), Some(stamp(2)));
        log.accept(&path("b"), None);
        assert!(["a", "b"].iter().all(|at| log.get(&path(at)).is_some_and(|it| it.is_accepted)));
    }
}

#[cfg(test)]
mod ledger_file_tests {
    use super::super::test_markers::{TestMarkers, is};
    use super::*;
    use crate::test_markers::path;

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
