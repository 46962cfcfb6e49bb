//! The paths that this machine has changed and that no marker names yet.

use super::folder_path::FolderPath;
use super::tree::FileStamp;
use std::collections::BTreeMap;

/// How far a change has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum ChangeProgress {
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
pub(crate) struct LoggedChange {
    /// The file after the change; `None` if the path is gone.
    pub(crate) after: Option<FileStamp>,
    /// Whether the change may still be under way.
    pub(crate) progress: ChangeProgress,
    /// Whether a person accepted the path as it stands, and no program changed it.
    pub(crate) is_accepted: bool,
    /// The number of the change, in the order of the log.
    pub(crate) number: u64,
}

impl LoggedChange {
    /// Whether the file that has the path now is one that this change left.
    pub(crate) fn fits(&self, found: Option<FileStamp>) -> bool {
        self.after == found || self.progress == ChangeProgress::UnderWay { before: found }
    }
}

/// The log of changes since the last marker.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(crate) struct ChangeLog {
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
    pub(crate) fn is_empty(&self) -> bool {
        self.changed.is_empty() && !self.is_whole && self.unnamed == 0
    }

    /// Returns the number of the newest change.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Returns what is known of a path.
    pub(crate) fn get(&self, path: &FolderPath) -> Option<&LoggedChange> {
        self.changed.get(path)
    }

    /// Returns the changed paths.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &FolderPath> {
        self.changed.keys()
    }

    fn insert(&mut self, path: FolderPath, mut change: LoggedChange) {
        self.number += 1;
        change.number = self.number;
        self.changed.insert(path, change);
    }

    /// Records that a path is about to be changed. A file with several names is one change for each
    /// of them.
    pub(crate) fn begin(
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
    pub(crate) fn end(&mut self, path: &FolderPath, after: Option<FileStamp>) {
        let progress = ChangeProgress::Done;
        let change = LoggedChange { after, progress, is_accepted: false, number: 0 };
        self.insert(path.clone(), change);
    }

    /// Records that a person accepted a path as it stands. A change of a program that the log knows
    /// already stays in it.
    pub(crate) fn accept(&mut self, path: &FolderPath, found: Option<FileStamp>) {
        if self.changed.get(path).is_some_and(|change| change.fits(found) && !change.is_accepted) {
            return;
        }
        let progress = ChangeProgress::Done;
        let change = LoggedChange { after: found, progress, is_accepted: true, number: 0 };
        self.insert(path.clone(), change);
    }

    /// Records that a person accepted the whole folder as it stands.
    pub(crate) fn accept_whole(&mut self) {
        self.is_whole = true;
    }

    /// Records a change whose paths are not known. The list of a marker compares the whole folder,
    /// and names what was changed.
    pub(crate) fn note_unnamed(&mut self) {
        self.number += 1;
        self.unnamed = self.number;
    }

    /// Forgets the changes up to a number, which a marker names.
    pub(crate) fn forget_to(&mut self, number: u64) {
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

#[cfg(test)]
mod tests {
    use super::super::test_tree::path;
    use super::*;

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
