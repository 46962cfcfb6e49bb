//! Puts files aside that will not be published: they go to the lost files.
//!
//! Keeps unread versions that a save replaces: among the lost files, up to a number of bytes, the
//! oldest are dropped first.

use super::folder_changes::stamp_of_file;
use super::folder_guard::FolderGuard;
use super::unread::{UnreadPolicy, UnreadRefusal};
use crate::guard::barrier_store::small_files::digest_of;
use crate::guard::disk::operations::{Disk, FileStat, Place};
use crate::guard::lost_files::{KnownLost, LostDescription, LostReason};
use crate::guard::stage::publish::Stage;
use crate::guard::stage::staged_file::{PutAside, SaveState, StagedFile};
use crate::guard::tenure::Owner;
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

    pub(in crate::guard) fn keep(
        &self,
        staged: &StagedFile<D>,
        path: &OsStr,
        reason: LostReason,
    ) -> SaveState {
        let about = LostDescription::now(path, staged.uid, Some(staged.tenure), reason);
        let kept = self.lost.keep_file(&*self.disk, &staged.file, &about);
        Self::kept(staged, path, kept)
    }

    pub(in crate::guard) fn kept(
        staged: &StagedFile<D>,
        path: &OsStr,
        kept: io::Result<u64>,
    ) -> SaveState {
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

/// The maximum size of a replaced version that is compared with the one that the markers name. A
/// longer one is kept: a save waits for the comparison.
pub(crate) const COMPARED_BYTES_MAX: u64 = 8 << 20;

impl<D: Disk> FolderGuard<D> {
    /// Says what becomes of unread versions that a save replaces.
    pub(crate) fn with_unread(mut self, policy: UnreadPolicy) -> Self {
        self.unread_policy = policy;
        self
    }

    /// Records that a program of an owner has opened a file for reading.
    pub(crate) fn note_read(&self, found: &FileStat, owner: impl FnOnce() -> Owner) {
        let Some(barrier) = self.barrier() else { return };
        let is_held = self.gate().tenure().is_some();
        if !barrier.unread.is_watching(is_held) {
            return;
        }
        if let Some(version) = stamp_of_file(found) {
            barrier.unread.opened(version, owner(), is_held);
        }
    }

    /// Whether a file is a version of another machine that no program of the owner has opened.
    pub(in crate::guard) fn is_unread(&self, found: &FileStat, owner: Owner) -> bool {
        let Some(barrier) = self.barrier() else { return false };
        found.links == 1
            && stamp_of_file(found).is_some_and(|version| barrier.unread.is_unread(&version, owner))
    }

    /// Fails if a save must not replace a file, because it is an unread version.
    pub(crate) fn check_unread(&self, there: &FileStat, owner: Owner) -> Result<(), UnreadRefusal> {
        if !self.is_unread(there, owner) {
            return Ok(());
        }
        let UnreadPolicy { is_careful, keep_bytes: max } = self.unread_policy;
        if is_careful {
            return Err(UnreadRefusal::Careful);
        }
        if there.size > max { Err(UnreadRefusal::TooLarge { max }) } else { Ok(()) }
    }

    /// Moves a version that was displaced into the stage to the lost files: a foreign one, or one
    /// that no program has opened.
    pub(super) fn keep_displaced(
        &self,
        stage: &Stage<D>,
        owner: Owner,
        name: &OsStr,
        path: &OsStr,
    ) {
        let at = stage.displaced(name);
        let Ok(found) = self.disk.stat(at) else {
            // The fence of a later tenure has moved the version to the lost files.
            return;
        };
        // Its move into the stage has changed its ctime, so that it looks foreign in any case.
        // Where many machines write, each keeps a share of what it has replaced.
        let is_unread = self.is_shared_mode || self.is_unread(&found, owner);
        let reason = if is_unread { LostReason::Unread } else { LostReason::Foreign };
        if reason == LostReason::Foreign && self.is_as_published(at, path, &found) {
            if let Err(error) = self.disk.remove_file(at) {
                log::warn!("an older {} stays in the stage: {error}", path.display());
            }
            return;
        }
        if reason == LostReason::Unread
            && let Err(error) = self.make_room_for_unread(found.size)
        {
            log::warn!("older versions that no program has opened stay: {error}");
        }
        let about = LostDescription::now(path, found.uid, Some(stage.tenure), reason);
        match self.lost.keep_name(&*self.disk, at, &about) {
            Ok(number) => {
                if let (LostReason::Unread, Some(kept)) = (reason, &mut *self.unread_kept.lock()) {
                    kept.push_back((number, found.size));
                }
                self.displaced.lock().push((number, path.to_string_lossy().into_owned(), reason));
            }
            // The version stays in the stage, from which the next fence moves it.
            Err(error) => log::error!("an older {} stays in the stage: {error}", path.display()),
        }
    }

    /// Whether a file that a change has displaced is the version that the markers name for its
    /// path. It looks foreign if it arrived while the folder was compared, or if the sync tool has
    /// set its time since.
    fn is_as_published(&self, at: Place<'_, D::Dir>, path: &OsStr, found: &FileStat) -> bool {
        let Some(published) = self.barrier().and_then(|barrier| barrier.published(path)) else {
            return false;
        };
        let Some(stamp) = stamp_of_file(found) else { return false };
        if stamp == published.stamp {
            return true;
        }
        if stamp.size != published.stamp.size || stamp.size > COMPARED_BYTES_MAX {
            return false;
        }
        let digest = self.disk.open_to_read(at).and_then(|file| {
            let found = self.disk.stat_file(&file)?;
            digest_of(&*self.disk, &file, &found)
        });
        digest.is_ok_and(|digest| digest == Some(published.digest))
    }

    /// Drops the oldest unread versions until there is room for so many bytes more.
    fn make_room_for_unread(&self, bytes: u64) -> io::Result<()> {
        let mut kept = self.unread_kept.lock();
        let kept = match &mut *kept {
            Some(kept) => kept,
            unknown => {
                let of = |number, file: &KnownLost| file.is_unread().then_some((number, file.size));
                unknown.insert(self.lost.find(&*self.disk, of)?.into())
            }
        };
        let mut all: u64 = kept.iter().map(|(_, size)| size).sum();
        while all.saturating_add(bytes) > self.unread_policy.keep_bytes {
            let Some((number, size)) = kept.pop_front() else { break };
            match self.lost.remove(&*self.disk, number) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                // A person may have dropped the lost file before.
                _ => all -= size,
            }
        }
        Ok(())
    }

    /// Whether a version must be kept that is about to lose its name by a change of an owner.
    pub(in crate::guard) fn is_kept(
        &self,
        stage: &Stage<D>,
        there: &FileStat,
        owner: Owner,
    ) -> bool {
        stage.own.is_foreign(there)
            || self.is_unread(there, owner) && there.size <= self.unread_policy.keep_bytes
    }
}
