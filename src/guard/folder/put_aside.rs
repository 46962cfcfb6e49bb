//! Puts files aside that will not be published, and unread versions that a save replaces: they go
//! to the lost files, where the oldest are dropped first.
//!
//! Puts content back: a lost file that a person restores, and the wanted content of a file that
//! lost against a change from elsewhere and stands under the name of a conflict copy (`guard accept
//! PATH --from COPY`).
//!
//! Keeps copies of files whose tenure ended before other machines knew of them. They are among the
//! lost files, since the versions of other machines may win. Those that a late marker names are
//! removed when the markers of a later tenure build on it.

use super::folder_barrier::Arrival;
use super::folder_changes::{FolderBarrier, stamp_of_file};
use super::folder_guard::{FolderGuard, SaveError};
use super::unread::{UnreadPolicy, UnreadRefusal};
use crate::base::said;
use crate::guard::barrier_store::small_files::digest_of;
use crate::guard::disk::operations::{Disk, FileStat, IfThere, Place};
use crate::guard::lost_files::{KnownLost, LostDescription, LostReason};
use crate::guard::stage::fence::leads_to_no_file;
use crate::guard::stage::gate::Pass;
use crate::guard::stage::publish::{PublishError, Stage};
use crate::guard::stage::staged_file::{PutAside, SaveState, StagedFile};
use crate::guard::tenure::Owner;
use barrier::folder_path::FolderPath;
use barrier::handover::PreviousTenure;
use barrier::ready::MissingBecause;
use barrier::tenure_id::TenureId;
use std::ffi::OsStr;
use std::io;
use std::sync::atomic::Ordering;

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

/// The mode of the new file before it gets that of the copy.
const MODE_AT_FIRST: u32 = 0o600;

impl<D: Disk> FolderGuard<D> {
    /// Puts the content of `copy` in the place of `path`, if the barrier says that this is the
    /// content which is missing there. A file that stands there is moved to the lost files. The
    /// gate is closed, and the lock is held. The folder must be compared again afterwards: the copy
    /// may have been changed meanwhile.
    pub(in crate::guard) fn put_back(
        &self,
        barrier: &FolderBarrier<D>,
        previous: &PreviousTenure,
        tenure: TenureId,
        path: &FolderPath,
        copy: &FolderPath,
    ) -> Result<(), String> {
        let Arrival::NotArrived(arrival) = barrier.check_arrival(previous, tenure.engine)? else {
            return Err(format!("'{path}' is not one of the files that are missing"));
        };
        let has_content = |because: &MissingBecause| match because {
            MissingBecause::Overwritten { copy: found } => found == copy,
            _ => false,
        };
        let mut missing = arrival.missing.paths.iter();
        if !missing.any(|it| it.path == *path && has_content(&it.because)) {
            return Err(format!(
                "'{copy}' is no conflict copy with the content that '{path}' should have; \
                 'latchfs guard status' names the copy that has it"
            ));
        }
        let failed = |error: &io::Error| format!("'{path}' can't be put back: {}", said(error));
        self.replace_by(tenure, path, copy).map_err(|error| failed(&error))
    }

    fn replace_by(&self, tenure: TenureId, path: &FolderPath, copy: &FolderPath) -> io::Result<()> {
        let disk = self.disk();
        let (from_dir, from_name) = disk.open_parent(self.folder(), OsStr::new(copy.as_str()))?;
        let from = disk.open_to_read(Place::new(&from_dir, &from_name))?;
        let (dir, name) = disk.open_parent(self.folder(), OsStr::new(path.as_str()))?;
        let at = Place::new(&dir, &name);
        let bytes = disk.allocated(at).unwrap_or(0);
        self.lost.refresh(disk)?;
        self.space.has_room_for_lost(bytes).map_err(|full| io::Error::other(full.to_string()))?;
        let file = disk.unnamed_file(&dir, MODE_AT_FIRST)?;
        disk.copy(&from, &file)?;
        disk.sync_file(&file)?;
        let is_lost = || io::Error::other("the lock was lost meanwhile");
        if self.gate().is_past_deadline() {
            return Err(is_lost());
        }
        let stage = self.stage.read().clone().filter(|stage| stage.tenure == tenure);
        let stage = stage.ok_or_else(is_lost)?;
        match stage.displace(disk, at, OsStr::new(path.as_str())) {
            Err(PublishError::Disk(error)) if error.kind() == io::ErrorKind::NotFound => {}
            Err(PublishError::Disk(error) | PublishError::Stays { error, .. }) => {
                return Err(error);
            }
            Err(PublishError::Fenced { .. }) => return Err(is_lost()),
            Ok(name) => self.keep_replaced(&stage, &name, path)?,
        }
        disk.link(&file, at)?;
        disk.sync_dir(&dir)
    }

    /// Moves a version to the lost files from the stage, where nobody can exchange it.
    fn keep_replaced(&self, stage: &Stage<D>, name: &OsStr, path: &FolderPath) -> io::Result<()> {
        let at = stage.displaced(name);
        let found = self.disk().stat(at)?;
        let (path, tenure) = (OsStr::new(path.as_str()), Some(stage.tenure));
        let about = LostDescription::now(path, found.uid, tenure, LostReason::PutBack);
        self.lost().keep_name(self.disk(), at, &about).map(drop)
    }
}

impl<D: Disk> FolderGuard<D> {
    /// Publishes a file without a name that was made for this place.
    pub(crate) fn publish_made(
        &self,
        pass: &Pass<'_>,
        copy: &D::File,
        to: Place<'_, D::Dir>,
        path: &OsStr,
        if_there: IfThere,
    ) -> Result<(), PublishError> {
        let Some(stage) = self.stage_of(pass) else {
            return Err(PublishError::Fenced { is_kept: false });
        };
        self.log_publish(copy, to, path).map_err(|error| match error {
            SaveError::Disk(error) => PublishError::Disk(error),
            _ => PublishError::Disk(io::Error::other("the change can't be logged")),
        })?;
        let is_kept = |there: &FileStat| self.is_kept(&stage, there, pass.owner());
        let published = stage.publish(&*self.disk, copy, to, path, if_there, &is_kept);
        let displaced = published.map_err(|error| match error {
            PublishError::Stays { name, error } => {
                // The copy has no second name, so a failed removal leaves it to the next fence.
                let _ = self.disk.remove_file(stage.displaced(&name));
                PublishError::Disk(error)
            }
            error => error,
        })?;
        self.log_published(copy, path);
        if let Some(name) = displaced {
            self.keep_displaced(&stage, pass.owner(), &name, path);
        }
        Ok(())
    }
}

impl<D: Disk> FolderGuard<D> {
    /// Copies files of the folder to the lost files: all of them, or none. A caller that tries
    /// again and again fills no disk. `late_marker`: the file of the marker that will name them.
    pub(super) fn keep_copies(
        &self,
        paths: &[&FolderPath],
        late_marker: Option<&str>,
    ) -> Result<(), String> {
        let failed = |path: &FolderPath, error: &io::Error| {
            format!("{path} can't be copied to the lost files: {}", said(error))
        };
        let mut bytes: u64 = 0;
        for path in paths {
            let found = self.to_copy(path).map_err(|error| failed(path, &error))?;
            bytes = bytes.saturating_add(found.map_or(0, |(_, found)| found.size));
        }
        let counted = self.lost.refresh(&*self.disk);
        counted.map_err(|error| format!("the lost files can't be counted: {error}"))?;
        let room = self.space.has_room_for_lost(bytes);
        room.map_err(|full| format!("what other machines do not know can't be kept: {full}"))?;
        let mut kept = Vec::new();
        for path in paths {
            match self.keep_copy(path, late_marker) {
                Ok(number) => kept.extend(number),
                Err(error) => {
                    for number in kept {
                        // The files that stay count among the lost files.
                        let _ = self.lost.remove(&*self.disk, number);
                    }
                    return Err(failed(path, &error));
                }
            }
        }
        self.may_have_late_copies.fetch_or(late_marker.is_some(), Ordering::Relaxed);
        Ok(())
    }

    /// Opens a file of the folder that is to be copied, if there is one.
    fn to_copy(&self, path: &FolderPath) -> io::Result<Option<(D::File, FileStat)>> {
        let parent = self.disk.open_parent(self.folder(), OsStr::new(path.as_str()));
        let opened = parent.and_then(|(dir, name)| self.disk.open_to_read(Place::new(&dir, &name)));
        match opened {
            Err(error) if leads_to_no_file(&error) => Ok(None),
            file => {
                let file = file?;
                let found = self.disk.stat_file(&file)?;
                Ok(Some((file, found)))
            }
        }
    }

    fn keep_copy(&self, path: &FolderPath, late_marker: Option<&str>) -> io::Result<Option<u64>> {
        let Some((file, found)) = self.to_copy(path)? else { return Ok(None) };
        let copy = self.disk.unnamed_file(self.lost.dir(), 0o600)?;
        self.disk.copy(&file, &copy)?;
        let about = LostDescription {
            late_marker: late_marker.map(str::to_owned),
            ..LostDescription::now(OsStr::new(path.as_str()), found.uid, None, LostReason::Untold)
        };
        self.lost.keep_file(&*self.disk, &copy, &about).map(Some)
    }

    /// Removes the copies whose late marker the markers of the last tenure build on. The folder is
    /// ready: everything that these markers name has arrived.
    pub(super) fn remove_marked_copies(
        &self,
        barrier: &FolderBarrier<D>,
        previous: &PreviousTenure,
    ) {
        if !self.may_have_late_copies.load(Ordering::Relaxed) {
            return;
        }
        let removed = self.late_copies().and_then(|copies| {
            self.may_have_late_copies.store(!copies.is_empty(), Ordering::Relaxed);
            let markers: Vec<&str> = copies.iter().map(|(_, marker)| marker.as_str()).collect();
            let marked = barrier.built_on(previous, &markers);
            for (number, _) in copies.iter().filter(|(_, marker)| marked.contains(marker)) {
                self.lost.remove(&*self.disk, *number)?;
            }
            Ok(())
        });
        if let Err(error) = removed {
            log::warn!("copies that a late marker names stay among the lost files: {error}");
        }
    }

    /// Returns the copies that a late marker names, with the file of the marker.
    fn late_copies(&self) -> io::Result<Vec<(u64, String)>> {
        let disk = &*self.disk;
        let found =
            self.lost.find(disk, |number, file| file.has_late_marker().then_some(number))?;
        let marker = |number| self.lost.description(disk, number).ok()?.late_marker;
        Ok(found.into_iter().filter_map(|number| Some((number, marker(number)?))).collect())
    }
}
