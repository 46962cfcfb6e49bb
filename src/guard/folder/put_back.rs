//! Puts the wanted content of a file back that lost against a change from elsewhere and stands
//! under the name of a conflict copy (`guard accept PATH --from COPY`).
//!
//! Publishes copies of files, for example of lost ones that a person restores.
//!
//! The copies of files whose tenure ended before other machines knew of them. They are among the
//! lost files, since the versions of other machines may win. Those that a late marker names are
//! removed when the markers of a later tenure build on it.

use super::folder_barrier::Arrival;
use super::folder_changes::FolderBarrier;
use super::folder_guard::{FolderGuard, SaveError};
use crate::base::said;
use crate::guard::barrier::folder_path::FolderPath;
use crate::guard::barrier::handover::PreviousTenure;
use crate::guard::barrier::ready::MissingBecause;
use crate::guard::disk::operations::{Disk, FileStat, IfThere, Place};
use crate::guard::lost_files::{LostDescription, LostReason};
use crate::guard::stage::fence::leads_to_no_file;
use crate::guard::stage::gate::Pass;
use crate::guard::stage::publish::{PublishError, Stage};
use crate::guard::tenure::TenureId;
use std::ffi::OsStr;
use std::io;
use std::sync::atomic::Ordering;

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
