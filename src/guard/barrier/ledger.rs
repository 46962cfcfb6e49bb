//! The ledger: what this machine knows of the versions in its copy of the folder, and how far it
//! has followed the markers.

use super::change_log::ChangeLog;
use super::content_digest::ContentDigest;
use super::folder_path::FolderPath;
use super::handover::{HandoverId, MarkerCounts};
use super::marker::Acceptance;
use super::marker_name::{MarkerKind, MarkerLink, MarkerName};
use super::tree::FileStamp;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The maximum number of own handovers that a ledger remembers. Only the last one matters, and
/// those that were sent after it without an answer.
pub(crate) const OWN_HANDOVERS_MAX: usize = 64;

/// A file as this machine last verified or published it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct LedgerEntry {
    /// The file that was hashed.
    pub(crate) stamp: FileStamp,
    /// The digest of its content.
    pub(crate) digest: ContentDigest,
    /// The marker that names this version.
    pub(crate) from: MarkerName,
}

/// A change of one path in the ledger; `None`: the path is gone.
pub(crate) type LedgerUpdate = (FolderPath, Option<LedgerEntry>);

/// The knowledge of this machine about the folder. It is on the disk before a handover that it
/// contains is sent, and before a marker is named by one.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(crate) struct Ledger {
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
    pub(crate) fn log(&self) -> &ChangeLog {
        &self.log
    }

    /// Returns the log of changes, for a change.
    pub(crate) fn log_mut(&mut self) -> &mut ChangeLog {
        &mut self.log
    }

    /// Returns the last marker that was verified or written here.
    pub(crate) fn verified(&self) -> Option<MarkerLink> {
        self.verified
    }

    /// Returns the last checkpoint, and the markers since then.
    pub(crate) fn since_checkpoint(&self) -> (Option<MarkerLink>, MarkerCounts) {
        (self.checkpoint, self.counts)
    }

    /// Whether this machine wrote a handover.
    pub(crate) fn is_own(&self, id: HandoverId) -> bool {
        self.own.contains(&id)
    }

    /// Records a handover before it is sent.
    pub(crate) fn record_own(&mut self, id: HandoverId) {
        if self.own.len() >= OWN_HANDOVERS_MAX {
            self.own.pop_front();
        }
        self.own.push_back(id);
    }

    /// Whether this machine wrote any handover.
    pub(crate) fn has_own(&self) -> bool {
        !self.own.is_empty()
    }

    /// Records that a marker has ended the tenure of an own handover.
    pub(crate) fn end(&mut self, id: HandoverId) {
        self.closed = Some(id);
    }

    /// Records a marker of this machine that is on the disk, and on which the next one builds. The
    /// log still has the changes that it names.
    pub(crate) fn build_on(&mut self, link: MarkerLink) {
        self.verified = Some(link);
        if link.name.kind == MarkerKind::Checkpoint {
            (self.checkpoint, self.counts) = (Some(link), MarkerCounts::default());
        }
    }

    /// Returns what the ledger knows of a path.
    pub(crate) fn entry(&self, path: &FolderPath) -> Option<&LedgerEntry> {
        self.files.get(path)
    }

    /// Returns all paths of the ledger.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &FolderPath> {
        self.files.keys()
    }

    /// Returns the number of files in the ledger.
    pub(crate) fn file_count(&self) -> usize {
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
    pub(crate) fn accept_ignored(&mut self, paths: impl IntoIterator<Item = FolderPath>) {
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
    pub(crate) fn log_renamed_dir(&mut self, from: &FolderPath, to: &FolderPath) {
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
    pub(crate) fn log_removed_dir(&mut self, dir: &FolderPath) {
        let known = self.files.keys().chain(self.log.changed.keys());
        let below: Vec<_> = known.filter(|path| path.is_below(dir)).cloned().collect();
        for path in &below {
            self.log.end(path, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::tenure::TenureId;
    use super::super::marker_name::MarkerKind;
    use super::super::test_tree::path;
    use super::*;
    use crate::engine::Token;

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
