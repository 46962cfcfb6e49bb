//! The copies of files whose tenure ended before other machines knew of them. They are among the
//! lost files, since the versions of other machines may win. Those that a late marker names are
//! removed when the markers of a later tenure build on it.

use super::barrier::folder_path::FolderPath;
use super::barrier::handover::PreviousTenure;
use super::disk::{Disk, Look, Place};
use super::fence::leads_to_no_file;
use super::folder_changes::FolderBarrier;
use super::folder_guard::FolderGuard;
use super::lost_files::{LostDescription, LostReason};
use crate::base::said;
use std::ffi::OsStr;
use std::io;
use std::sync::atomic::Ordering;

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
                        // What stays counts among the lost files.
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
    fn to_copy(&self, path: &FolderPath) -> io::Result<Option<(D::File, Look)>> {
        let parent = self.disk.open_parent(self.folder(), OsStr::new(path.as_str()));
        let opened = parent.and_then(|(dir, name)| self.disk.open_to_read(Place::new(&dir, &name)));
        match opened {
            Err(error) if leads_to_no_file(&error) => Ok(None),
            file => {
                let file = file?;
                let found = self.disk.look_file(&file)?;
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
    pub(super) fn remove_told_copies(&self, barrier: &FolderBarrier<D>, previous: &PreviousTenure) {
        if !self.may_have_late_copies.load(Ordering::Relaxed) {
            return;
        }
        let removed = self.late_copies().and_then(|copies| {
            self.may_have_late_copies.store(!copies.is_empty(), Ordering::Relaxed);
            let markers: Vec<&str> = copies.iter().map(|(_, marker)| marker.as_str()).collect();
            let told = barrier.built_on(previous, &markers);
            for (number, _) in copies.iter().filter(|(_, marker)| told.contains(marker)) {
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
