//! Files that belong to this machine, for example the swap files of an editor. They are kept in the
//! state directory, bound to the directory of the folder in which they were made, and shown in the
//! view as if they lay there. No lock is needed to change them, and they never reach the folder.
//!
//! A file of the folder that had such a name before stays a file of the folder.

use crate::guard::disk::acting_as;
use crate::guard::disk::linux_disk::{id_in, list, reopen, stat, stat_at};
use crate::guard::disk::operations::{FolderName, Place};
use crate::guard::stage::gate::Pass;
use crate::guard::view::folder_view::{FolderView, MayWait, errno};
use crate::guard::view::parts::attributes::{access_of, create_in};
use crate::guard::view::parts::open_file::{Content, OpenFile, Opening};
use kernel::file_system::{Done, NameIn};
use kernel::file_system::{Errno, NodeEntry, Opened, Requester};
use kernel::handles::Full;
use rustix::fs::{FileType, Statx};
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// The directory in which a name of the view lies, or is about to be made.
pub(in crate::guard::view) struct Spot<'a> {
    /// The name, as the kernel knows it.
    pub(in crate::guard::view) at: NameIn<'a>,
    /// The directory, in the folder or among the local files.
    pub(in crate::guard::view) dir: OwnedFd,
    /// The path of the name in the view.
    pub(in crate::guard::view) path: PathBuf,
    /// Whether the file is local.
    pub(in crate::guard::view) is_local: bool,
}

impl Spot<'_> {
    /// Returns the name in its directory on the disk.
    pub(in crate::guard::view) fn place(&self) -> Place<'_, OwnedFd> {
        Place::new(&self.dir, self.at.name)
    }

    /// Returns the name as one of the folder.
    pub(in crate::guard::view) fn folder_name(&self) -> FolderName<'_, OwnedFd> {
        FolderName { at: self.place(), path: self.path.as_os_str() }
    }
}

impl FolderView {
    /// Whether a new file of this name in a directory of the folder is local. The shared memory of
    /// an `SQLite` database is local only beside the database's log.
    fn is_for_local(&self, parent: u64, dir: &OwnedFd, path: &Path, name: &OsStr) -> bool {
        if !self.local.patterns.matches(path) {
            return false;
        }
        let Some(stem) = name.as_bytes().strip_suffix(b"-shm") else { return true };
        let log = OsString::from_vec([stem, b"-wal"].concat());
        self.nodes.saving_at(parent, &log).is_some() || stat_at(dir.as_fd(), &log).is_ok()
    }

    /// Returns where a name of the view lies. With `may_make` the name may be a new one.
    pub(super) fn spot<'a>(&self, at: NameIn<'a>, may_make: bool) -> Done<Spot<'a>> {
        let (dir, parent) = self.directory(at.parent)?;
        let path = parent.join(at.name);
        if self.nodes.is_local(at.parent) {
            return Ok(Spot { at, dir, path, is_local: true });
        }
        if !self.is_for_local(at.parent, &dir, &path, at.name) {
            return Ok(Spot { at, dir, path, is_local: false });
        }
        let beside = self.local.beside(dir.as_fd()).map_err(|error| errno(&error))?;
        if let Some(dir) = &beside
            && stat_at(dir.as_fd(), at.name).is_ok()
        {
            let dir = dir.try_clone().map_err(|error| errno(&error))?;
            let spot = Spot { at, dir, path, is_local: true };
            let is_dropped = self.drop_shared_memory(&spot)?;
            return if is_dropped && !may_make { Err(Errno::ENOENT) } else { Ok(spot) };
        }
        if self.nodes.saving_at(at.parent, at.name).is_some()
            || stat_at(dir.as_fd(), at.name).is_ok()
        {
            return Ok(Spot { at, dir, path, is_local: false });
        }
        if !may_make {
            return Err(Errno::ENOENT);
        }
        let made = match beside {
            Some(beside) => Ok(beside),
            None => self.local.make_beside(dir.as_fd(), &parent),
        };
        Ok(Spot { at, dir: made.map_err(|error| errno(&error))?, path, is_local: true })
    }

    /// Lets a change of a name pass the gate. A local file needs no pass.
    pub(super) async fn pass_to(&self, who: Requester, spot: &Spot<'_>) -> Done<Option<Pass<'_>>> {
        if spot.is_local {
            return Ok(None);
        }
        self.pass(who, &spot.path, MayWait::Briefly).await.map(Some)
    }

    /// Returns the names and types of the local files in a directory of the folder.
    pub(super) fn local_entries(
        &self,
        ino: u64,
        dir: &OwnedFd,
        path: &Path,
    ) -> Done<Vec<(OsString, FileType)>> {
        if self.nodes.is_local(ino) || self.nodes.is_snapshot(ino) {
            return Ok(Vec::new());
        }
        let beside = self.local.beside(dir.as_fd()).map_err(|error| errno(&error))?;
        let Some(beside) = beside else { return Ok(Vec::new()) };
        let listed = list(beside.as_fd()).map_err(|error| errno(&error))?;
        let is_shown =
            |name: &OsString| self.is_for_local(ino, dir, &path.join(name), name.as_os_str());
        Ok(listed
            .into_iter()
            .filter(|(name, ..)| is_shown(name))
            .map(|(name, _, kind)| (name, kind))
            .collect())
    }

    /// Refuses to remove a directory of the folder in which a local directory lies.
    pub(super) fn check_no_local_dir(&self, ino: u64, dir: &OwnedFd, path: &Path) -> Done<()> {
        let entries = self.local_entries(ino, dir, path)?;
        if entries.iter().any(|(_, kind)| *kind == FileType::Directory) {
            return Err(Errno::ENOTEMPTY);
        }
        Ok(())
    }

    /// Removes the local files of a directory of the folder that was removed.
    pub(super) async fn remove_local_of(&self, who: Requester, found: &Statx) {
        match self.local.removed(found) {
            Ok(None) => {}
            Ok(Some(gone)) => {
                let removed = self.slowly(who, move |view| {
                    view.local.remove_gone(&gone);
                    Ok(())
                });
                // The next start of the guard removes what stays.
                let _ = removed.await;
            }
            Err(error) => log::warn!("the local files of a removed directory stay: {error}"),
        }
    }

    /// Whether a directory of the folder has local files.
    pub(in crate::guard::view) fn has_local_files(&self, ino: u64) -> bool {
        !self.nodes.is_local(ino)
            && self.directory(ino).is_ok_and(|(dir, _)| {
                self.local.beside(dir.as_fd()).is_ok_and(|beside| beside.is_some())
            })
    }

    /// Fails if a user may make no further name at a place among the local files.
    pub(super) fn check_local_share(&self, who: Requester, spot: &Spot<'_>) -> Done<()> {
        if !spot.is_local {
            return Ok(());
        }
        let checked = self.local.shares.check(who.uid);
        checked.map_err(|full| self.say(who, &spot.path, Errno::ENOSPC, &full))
    }

    /// Records that there is no space for the content of a local file. Returns the errno.
    pub(super) fn no_local_space(&self, who: Requester, ino: u64, full: &Full) -> Errno {
        let path = self.nodes.path(ino).unwrap_or_default();
        self.say(who, &path, Errno::ENOSPC, full)
    }

    /// Opens a local file for writing.
    pub(super) fn open_local(
        &self,
        Opening { who, share }: Opening,
        ino: u64,
        flags: i32,
    ) -> Done<Opened> {
        let located = self.locate_found(who, ino)?;
        let file = reopen(located.as_fd(), access_of(flags)).map_err(|error| errno(&error))?;
        if flags & libc::O_TRUNC != 0 {
            acting_as::content(who.into(), || file.set_len(0)).map_err(|error| errno(&error))?;
        }
        let used = self.local.shares.note(&stat(file.as_fd()).map_err(|error| errno(&error))?);
        let content = Content::Local(file, used);
        Ok(self.opened(OpenFile::new(ino, content, None, Opening { who, share })))
    }

    /// Makes a local file.
    pub(super) fn create_local(
        &self,
        Opening { who, share }: Opening,
        spot: &Spot<'_>,
        mode: u32,
        flags: i32,
    ) -> Done<(NodeEntry, Opened)> {
        self.check_local_share(who, spot)?;
        let file = create_in(who, spot.place(), mode, flags)?;
        let found = stat(file.as_fd()).map_err(|error| errno(&error))?;
        self.made_shared_memory(who, spot.at, &spot.path, id_in(&found))?;
        let ino = self.nodes.found(spot.at.parent, spot.at.name, id_in(&found), true);
        let used = self.local.shares.note(&found);
        let content = Content::Local(file, used);
        let opened = self.opened(OpenFile::new(ino, content, None, Opening { who, share }));
        Ok((self.entry(ino, &found, self.cached_for()), opened))
    }
}
