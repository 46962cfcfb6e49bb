//! Puts files aside that will not be published: they go to the lost files.

use super::disk::Disk;
use super::folder_guard::FolderGuard;
use super::lost_files::{LostDescription, LostReason};
use super::staged_file::{PutAside, SaveState, StagedFile};
use std::ffi::OsStr;
use std::io;

impl<D: Disk> FolderGuard<D> {
    /// Puts a file aside that will not be published, unless it was published or put aside already.
    /// Returns its number among the lost files.
    pub(crate) fn put_aside(&self, staged: &StagedFile<D>, reason: LostReason) -> Option<u64> {
        staged.change(|save, path| {
            if matches!(save, SaveState::Unpublished | SaveState::Spoiled(_)) {
                *save = self.keep(staged, path, reason);
            }
            match save {
                SaveState::PutAside(number) => *number,
                _ => None,
            }
        })
    }

    pub(super) fn keep(
        &self,
        staged: &StagedFile<D>,
        path: &OsStr,
        reason: LostReason,
    ) -> SaveState {
        let about = LostDescription::now(path, staged.uid, Some(staged.tenure), reason);
        let kept = self.lost.keep_file(&*self.disk, &staged.file, &about);
        Self::kept(staged, path, kept)
    }

    pub(super) fn kept(staged: &StagedFile<D>, path: &OsStr, kept: io::Result<u64>) -> SaveState {
        match kept {
            Ok(number) => {
                staged.give_space();
                SaveState::PutAside(Some(number))
            }
            Err(error) => {
                log::error!("the unpublished content of {} is lost: {error}", path.display());
                SaveState::PutAside(None)
            }
        }
    }

    pub(super) fn put_aside_all(&self) -> PutAside {
        let all = std::mem::take(&mut *self.unpublished.lock());
        let mut aside = PutAside::default();
        for staged in all.into_values().filter_map(|staged| staged.upgrade()) {
            if !matches!(staged.save_state(), SaveState::Unpublished | SaveState::Spoiled(_)) {
                continue;
            }
            let path = staged.path().to_string_lossy().into_owned();
            match self.put_aside(&staged, LostReason::TenureOver) {
                Some(number) => aside.kept.push((number, path)),
                None => aside.failed.push(path),
            }
        }
        aside
    }
}
