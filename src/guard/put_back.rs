//! Puts the wanted content of a file back that lost against a change from elsewhere and stands
//! under the name of a conflict copy (`guard accept PATH --from COPY`).

use super::barrier::folder_path::FolderPath;
use super::barrier::handover::PreviousTenure;
use super::barrier::missing::MissingBecause;
use super::disk::{Disk, Place};
use super::folder_barrier::Arrival;
use super::folder_changes::FolderBarrier;
use super::folder_guard::FolderGuard;
use super::lost_files::{LostDescription, LostReason};
use super::stage::{PublishError, Stage};
use super::tenure::TenureId;
use crate::base::said;
use std::ffi::OsStr;
use std::io;

/// The mode of the new file before it gets that of the copy.
const MODE_AT_FIRST: u32 = 0o600;

impl<D: Disk> FolderGuard<D> {
    /// Puts the content of `copy` in the place of `path`, if the barrier says that this is the
    /// content which is missing there. What stands there is moved to the lost files. The gate is
    /// closed, and the lock is held. The folder must be compared again afterwards: the copy may
    /// have been changed meanwhile.
    pub(super) fn put_back(
        &self,
        barrier: &FolderBarrier<D>,
        (previous, tenure): (&PreviousTenure, TenureId),
        (path, copy): (&FolderPath, &FolderPath),
    ) -> Result<(), String> {
        let Arrival::NotArrived(arrival) = barrier.look(previous, tenure.engine)? else {
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
        self.replace_by(tenure, (path, copy)).map_err(|error| failed(&error))
    }

    fn replace_by(
        &self,
        tenure: TenureId,
        (path, copy): (&FolderPath, &FolderPath),
    ) -> io::Result<()> {
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
        let found = self.disk().look(at)?;
        let (path, tenure) = (OsStr::new(path.as_str()), Some(stage.tenure));
        let about = LostDescription::now(path, found.uid, tenure, LostReason::PutBack);
        self.lost().keep_name(self.disk(), at, &about).map(drop)
    }
}
