//! Renames of directories, as the sync barrier logs them: each file below has another path.

use super::barrier::folder_path::FolderPath;
use super::barrier::tree::{FileStamp, FolderTree as _, FoundFile};
use super::barrier_store::change_record::ChangeRecord;
use super::disk::Disk;
use super::folder_changes::{BarrierState, FolderBarrier};
use crate::base::said;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io;

fn folder_path(path: &OsStr) -> Option<FolderPath> {
    FolderPath::parse(path.to_str()?).ok()
}

impl<D: Disk> BarrierState<D> {
    /// Returns the paths of a renamed directory if the ledger and the log know all files below that
    /// have a path for markers: no file below was ignored before and is not any more.
    fn plain_rename(&self, from: &OsStr, to: &OsStr) -> Option<(FolderPath, FolderPath)> {
        let paths = (self.marked_path(from)?, self.marked_path(to)?);
        self.own_coverage().is_same_everywhere().then_some(paths)
    }

    /// Returns the paths below two directories that the ledger and the log know.
    fn known_below(&self, dirs: [&OsStr; 2]) -> impl Iterator<Item = &FolderPath> {
        let dirs = dirs.map(folder_path);
        let all = self.ledger.paths().chain(self.ledger.log().paths());
        all.filter(move |path| dirs.iter().flatten().any(|dir| path.is_below(dir)))
    }
}

impl<D: Disk> FolderBarrier<D> {
    /// Logs that a directory is about to be renamed, or to be exchanged with another file.
    pub(super) fn begin_dir_rename(
        &self,
        (from, to): (&OsStr, &OsStr),
        is_exchange: bool,
    ) -> io::Result<()> {
        let mut state = self.state.lock();
        let mut tree = self.tree();
        // The files below that are changed in place keep their versions under the new path.
        state.settle_in_place(|path| Some(tree.look(path).ok()??.stamp));
        if let Some((from, to)) = state.plain_rename(from, to).filter(|_| !is_exchange) {
            return state.record(&ChangeRecord::RenamedDir { from, to });
        }
        state.ledger.log_mut().note_unnamed();
        Ok(())
    }

    /// Logs each file below a directory that was renamed, or exchanged with another file, unless
    /// the log has them already.
    pub(super) fn end_dir_rename(&self, (from, to): (&OsStr, &OsStr), is_exchange: bool) {
        if !is_exchange && self.state.lock().plain_rename(from, to).is_some() {
            return;
        }
        let mut found: BTreeMap<FolderPath, FileStamp> = BTreeMap::new();
        for dir in [from, to] {
            let mut visit = |path, file: FoundFile| {
                found.insert(path, file.stamp);
            };
            if let Err(error) = self.tree().walk_below(dir, &mut visit) {
                // The list of the next marker compares the whole folder.
                log::warn!("the files of a renamed directory can't be read: {}", said(&error));
                return;
            }
        }
        let mut state = self.state.lock();
        let known = state.known_below([from, to]);
        let coverage = state.own_coverage();
        let all = known.chain(found.keys()).filter(|path| coverage.covers_change(path));
        let paths: BTreeSet<_> = all.cloned().collect();
        for path in paths {
            let after = found.get(&path).copied();
            state.end(path, after);
        }
    }
}
