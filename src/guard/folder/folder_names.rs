//! Changes of names in the folder: renames and removals. A foreign version that would lose its last
//! name by one of them, or by a publish, is moved to the lost files.

use super::folder_changes::stamp_of_file;
use super::folder_guard::FolderGuard;
use crate::guard::disk::operations::{Disk, FileStat, FolderName, IfThere, Place};
use crate::guard::lost_files::LostReason;
use crate::guard::stage::gate::Pass;
use crate::guard::stage::publish::{PublishError, Stage};
use crate::guard::stage::staged_file::{Make, Removed};
use std::ffi::OsStr;
use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;

fn stale() -> io::Error {
    io::Error::from_raw_os_error(libc::ESTALE)
}

impl<D: Disk> FolderGuard<D> {
    pub(super) fn stage_of(&self, pass: &Pass<'_>) -> Option<Arc<Stage<D>>> {
        self.stage.read().clone().filter(|stage| stage.tenure == pass.tenure())
    }

    /// Whether a file of the folder was changed past the view in this tenure.
    pub(crate) fn is_foreign(&self, found: &FileStat) -> bool {
        self.stage.read().as_ref().is_some_and(|stage| stage.own.is_foreign(found))
    }

    /// Returns a time before which no change is made from now on, as the folder's file system
    /// counts the times of changes.
    pub(super) fn change_time(&self) -> io::Result<i128> {
        let file = self.disk.unnamed_file(self.lost.dir(), 0o600)?;
        Ok(self.disk.stat_file(&file)?.changed)
    }

    /// Says that the folder was compared with what should be there: what was changed before `since`
    /// is not foreign.
    pub(in crate::guard) fn compared(&self, since: i128) {
        if let Some(stage) = &*self.stage.read() {
            stage.own.compared(since);
        }
    }

    /// Records the version of a file that a program of the view has left.
    pub(crate) fn record_own(&self, found: &FileStat) {
        if let Some(stage) = &*self.stage.read() {
            stage.own.record(found, false);
        }
    }

    /// Gives a file a new inode with the same content: programs that have it open keep the old one.
    /// Fails where other machines may have it open in tenures that live on.
    pub(crate) fn give_new_inode(&self, path: &OsStr) -> io::Result<()> {
        if self.is_shared_mode {
            return Err(io::Error::other("other machines may change it now (--mode shared)"));
        }
        let Some(stage) = self.stage.read().clone() else { return Err(stale()) };
        if let Some(renewed) = self.fence(&|| true).renew_inode(&stage.in_place, path)? {
            stage.own.record(&renewed, false);
        }
        Ok(())
    }

    /// Returns the numbers and the paths of the versions that were replaced and put aside since the
    /// last call, and the reasons.
    pub(crate) fn take_displaced(&self) -> Vec<(u64, String, LostReason)> {
        std::mem::take(&mut *self.displaced.lock())
    }

    /// Moves a file or directory of the folder. Each place has its path in the folder. On shared
    /// storage the file goes through the stage, so that a late rename of an older tenure fails,
    /// with ESTALE. It does so as well if it would replace a foreign version.
    pub(crate) fn rename(
        &self,
        pass: &Pass<'_>,
        from: FolderName<'_, D::Dir>,
        to: FolderName<'_, D::Dir>,
        if_there: IfThere,
    ) -> io::Result<()> {
        let Some(stage) = self.stage_of(pass) else { return Err(stale()) };
        let moved = self.disk.stat(from.at)?;
        let there = self.disk.stat(to.at).ok().filter(|_| if_there == IfThere::Replace);
        if there.as_ref().is_some_and(|there| there.id == moved.id) {
            // A rename between two names of one file does nothing; by way of the stage it would
            // remove one of them.
            return Ok(());
        }
        let is_own = moved.is_file && !stage.own.is_foreign(&moved);
        let is_kept = |it: &FileStat| !moved.is_dir && self.is_kept(&stage, it, pass.owner());
        let keeps_there = there.as_ref().is_some_and(is_kept);
        self.log_rename(from.path, &moved, to.path, there.as_ref(), false)?;
        if self.is_shared_storage || keeps_there {
            let renamed = stage.rename(&*self.disk, from, to, if_there, &is_kept);
            if let Some(name) = renamed.map_err(|error| self.rename_error(error))? {
                self.keep_displaced(&stage, pass.owner(), &name, to.path);
            }
        } else {
            self.disk.rename(from.at, to.at, if_there)?;
        }
        self.log_renamed(from.path, None, to.path, &moved);
        if is_own {
            stage.own.record(&moved, false);
        }
        Ok(())
    }

    /// Logs that a file or directory is about to be renamed. `there` is the file that it replaces,
    /// or with which it is exchanged.
    pub(crate) fn log_rename(
        &self,
        path: &OsStr,
        moved: &FileStat,
        new_path: &OsStr,
        there: Option<&FileStat>,
        is_exchange: bool,
    ) -> io::Result<()> {
        let Some(barrier) = self.barrier() else { return Ok(()) };
        if moved.is_dir || is_exchange && there.is_some_and(|there| there.is_dir) {
            barrier.begin_dir_rename(path, new_path, is_exchange)?;
        }
        let (stamp, before) = (stamp_of_file(moved), there.and_then(stamp_of_file));
        if stamp.is_some() || before.is_some() {
            barrier.begin_change(path, stamp, None)?;
            barrier.begin_change(new_path, before, stamp)?;
        }
        Ok(())
    }

    /// Logs that a file was renamed. `back` is the file that has the old name now.
    pub(crate) fn log_renamed(
        &self,
        path: &OsStr,
        back: Option<&FileStat>,
        new_path: &OsStr,
        moved: &FileStat,
    ) {
        let Some(barrier) = self.barrier() else { return };
        if moved.is_dir || back.is_some_and(|back| back.is_dir) {
            barrier.end_dir_rename(path, new_path, back.is_some());
        }
        let (stamp, back) = (stamp_of_file(moved), back.and_then(stamp_of_file));
        if stamp.is_some() || back.is_some() {
            barrier.end_change(path, back);
            barrier.end_change(new_path, stamp);
        }
    }

    /// Logs that a new file is about to get a name, or has got it.
    pub(crate) fn log_made(&self, path: &OsStr, made: Option<&FileStat>) -> io::Result<()> {
        let Some(barrier) = self.barrier() else { return Ok(()) };
        match made {
            None => barrier.begin_change(path, None, None),
            Some(made) => {
                barrier.end_change(path, stamp_of_file(made));
                Ok(())
            }
        }
    }

    fn rename_error(&self, error: PublishError) -> io::Error {
        match error {
            PublishError::Disk(error) | PublishError::Stays { error, .. } => error,
            PublishError::Fenced { .. } => {
                self.is_fenced.store(true, Ordering::Release);
                stale()
            }
        }
    }

    /// Makes a name in the folder by `make`: a directory, a link or a device. On shared storage it
    /// is made in the stage, so that one of an older tenure never appears late.
    pub(crate) fn make_name(
        &self,
        pass: &Pass<'_>,
        at: Place<'_, D::Dir>,
        make: Make<'_, D::Dir>,
    ) -> io::Result<()> {
        if !self.is_shared_storage {
            return make(at);
        }
        let Some(stage) = self.stage_of(pass) else { return Err(stale()) };
        let named = stage.make_name(&*self.disk, at, make);
        named.map_err(|error| self.rename_error(error))
    }

    /// Removes an empty directory.
    pub(crate) fn remove_dir(
        &self,
        pass: &Pass<'_>,
        name: FolderName<'_, D::Dir>,
    ) -> io::Result<()> {
        if !self.is_shared_storage {
            return self.disk.remove_dir(name.at);
        }
        let Some(stage) = self.stage_of(pass) else { return Err(stale()) };
        // A full directory stays where it is: other programs would miss it meanwhile.
        let (dir, mut is_full) = (self.disk.open_dir(name.at)?, false);
        let _ = self.disk.visit_entries(&dir, &mut |_| {
            is_full = true;
            ControlFlow::Break(())
        });
        if is_full {
            return Err(io::Error::from_raw_os_error(libc::ENOTEMPTY));
        }
        let removed = stage.remove_name(&*self.disk, name, Removed::Dir);
        removed.map_err(|error| self.rename_error(error))
    }

    /// Removes the name of a file. A version that must be kept goes to the lost files.
    pub(crate) fn remove_file(
        &self,
        pass: &Pass<'_>,
        FolderName { at, path }: FolderName<'_, D::Dir>,
    ) -> io::Result<()> {
        let Some(stage) = self.stage_of(pass) else { return Err(stale()) };
        let found = self.disk.stat(at)?;
        stage.note_removed(path, &found);
        let was_own = !stage.own.is_foreign(&FileStat { links: 1, ..found });
        if let (Some(barrier), true) = (self.barrier(), found.is_file) {
            barrier.begin_change(path, stamp_of_file(&found), None)?;
        }
        if self.is_kept(&stage, &found, pass.owner()) {
            let displaced = stage.displace(&*self.disk, at, path);
            let name = displaced.map_err(|error| self.rename_error(error))?;
            self.keep_displaced(&stage, pass.owner(), &name, path);
        } else if self.is_shared_storage {
            let removed = stage.remove_name(&*self.disk, FolderName { at, path }, Removed::File);
            removed.map_err(|error| self.rename_error(error))?;
        } else {
            self.disk.remove_file(at)?;
        }
        if let (Some(barrier), true) = (self.barrier(), found.is_file) {
            barrier.end_change(path, None);
        }
        if found.links > 1 && was_own {
            // The removal has changed the time of the file, which has another name.
            stage.own.record(&found, false);
        } else {
            stage.own.forget(&found);
        }
        Ok(())
    }
}
