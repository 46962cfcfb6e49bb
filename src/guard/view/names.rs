//! Changes of names: directories, links, renames and removals.

use super::super::linux_disk::{id_in, path_of, stat, stat_at};
use super::super::lost_files::LostReason;
use super::folder_view::{FolderView, Located, MayWait, errno};
use crate::fuse::kernel::caller_identity::as_caller;
use crate::fuse::kernel::file_system::{Done, NameIn};
use crate::fuse::kernel::values::{Errno, NodeEntry, RenameFlags, Requester};
use rustix::fs::{AtFlags, CWD, FileType, Mode, RenameFlags as DiskFlags};
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};

fn os(error: rustix::io::Errno) -> Errno {
    Errno::from_i32(error.raw_os_error())
}

/// Removes a name as the caller. The sticky bit of the directory then decides about the file that
/// has the name now, and not about the one that the kernel knows.
fn remove(who: Requester, (dir, name): (&OwnedFd, &OsStr), flags: AtFlags) -> Done<()> {
    let removed = as_caller(who, || Ok(rustix::fs::unlinkat(dir, name, flags)?));
    removed.map_err(|error| errno(&error))
}

/// Renames a file as the caller, for the same reason.
fn rename(
    who: Requester,
    (old, from): (&OwnedFd, &OsStr),
    (new, to): (&OwnedFd, &OsStr),
    flags: DiskFlags,
) -> Done<()> {
    let renamed = as_caller(who, || Ok(rustix::fs::renameat_with(old, from, new, to, flags)?));
    renamed.map_err(|error| errno(&error))
}

impl FolderView {
    /// Makes a name in a directory by `make`, under the gate, as the caller.
    async fn make(
        &self,
        who: Requester,
        at: NameIn<'_>,
        make: impl FnOnce(&OwnedFd, &OsStr) -> rustix::io::Result<()>,
    ) -> Done<NodeEntry> {
        self.check_name(who, at)?;
        let path = self.path_in(at.parent, at.name)?;
        let _pass = self.pass(who, &path, MayWait::Briefly).await?;
        if self.nodes.saving_at(at.parent, at.name).is_some() {
            return Err(Errno::EEXIST);
        }
        let (dir, _) = self.directory(at.parent)?;
        as_caller(who, || Ok(make(&dir, at.name)?)).map_err(|error| errno(&error))?;
        let opened = rustix::fs::openat(
            &dir,
            at.name,
            rustix::fs::OFlags::PATH | rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::CLOEXEC,
            Mode::empty(),
        );
        let opened = opened.map_err(os)?;
        let found = stat(opened.as_fd()).map_err(|error| errno(&error))?;
        let ino = self.nodes.found(at.parent, at.name, id_in(&found));
        Ok(Self::entry(ino, &found))
    }

    pub(super) async fn make_dir(
        &self,
        who: Requester,
        at: NameIn<'_>,
        mode: u32,
    ) -> Done<NodeEntry> {
        let mode = Mode::from_raw_mode(mode & 0o7777);
        self.make(who, at, |dir, name| rustix::fs::mkdirat(dir, name, mode)).await
    }

    pub(super) async fn make_symlink(
        &self,
        who: Requester,
        at: NameIn<'_>,
        target: &OsStr,
    ) -> Done<NodeEntry> {
        self.make(who, at, |dir, name| rustix::fs::symlinkat(target, dir, name)).await
    }

    pub(super) async fn make_node(
        &self,
        who: Requester,
        at: NameIn<'_>,
        mode: u32,
        device: u32,
    ) -> Done<NodeEntry> {
        let kind = FileType::from_raw_mode(mode);
        let permissions = Mode::from_raw_mode(mode & 0o7777);
        let device = u64::from(device);
        let make =
            |dir: &OwnedFd, name: &OsStr| rustix::fs::mknodat(dir, name, kind, permissions, device);
        self.make(who, at, make).await
    }

    pub(super) async fn remove_file(&self, who: Requester, at: NameIn<'_>) -> Done<()> {
        self.check_name(who, at)?;
        let path = self.path_in(at.parent, at.name)?;
        let _pass = self.pass(who, &path, MayWait::Briefly).await?;
        let (dir, _) = self.directory(at.parent)?;
        if let Some((ino, _)) = self.nodes.saving_at(at.parent, at.name) {
            // An older version may be in the folder under the same name.
            match remove(who, (&dir, at.name), AtFlags::empty()) {
                Ok(()) | Err(Errno::ENOENT) => {}
                Err(error) => return Err(error),
            }
            self.nodes.removed(ino, (at.parent, at.name));
            return Ok(());
        }
        let found = stat_at(dir.as_fd(), at.name).map_err(|error| errno(&error))?;
        remove(who, (&dir, at.name), AtFlags::empty())?;
        if let Some(ino) = self.nodes.of_file(id_in(&found)) {
            self.nodes.removed(ino, (at.parent, at.name));
        }
        Ok(())
    }

    pub(super) async fn remove_dir(&self, who: Requester, at: NameIn<'_>) -> Done<()> {
        self.check_name(who, at)?;
        let path = self.path_in(at.parent, at.name)?;
        let _pass = self.pass(who, &path, MayWait::Briefly).await?;
        let (dir, _) = self.directory(at.parent)?;
        let found = stat_at(dir.as_fd(), at.name).map_err(|error| errno(&error))?;
        let ino = self.nodes.of_file(id_in(&found));
        if ino.is_some_and(|ino| !self.nodes.savings_in(ino).is_empty()) {
            return Err(Errno::ENOTEMPTY);
        }
        remove(who, (&dir, at.name), AtFlags::REMOVEDIR)?;
        if let Some(ino) = ino {
            self.nodes.removed(ino, (at.parent, at.name));
        }
        Ok(())
    }

    pub(super) async fn rename_entry(
        &self,
        who: Requester,
        from: NameIn<'_>,
        to: NameIn<'_>,
        flags: RenameFlags,
    ) -> Done<()> {
        self.check_name(who, from)?;
        self.check_name(who, to)?;
        let path = self.path_in(from.parent, from.name)?;
        let pass = self.pass(who, &path, MayWait::Briefly).await?;
        let flags = DiskFlags::from_bits_retain(flags.bits());
        if let Some((ino, _)) = self.nodes.saving_at(from.parent, from.name) {
            return self.rename_saving(who, ino, (from, to), flags);
        }
        let (old, new) = (self.directory(from.parent)?.0, self.directory(to.parent)?.0);
        if let Some((ino, saving)) = self.nodes.saving_at(to.parent, to.name) {
            if flags.contains(DiskFlags::NOREPLACE) {
                return Err(Errno::EEXIST);
            }
            // The version that is being written loses against the file that gets its name.
            self.nodes.removed(ino, (to.parent, to.name));
            if flags.contains(DiskFlags::EXCHANGE) {
                self.guard.put_aside(&saving.staged, LostReason::Foreign);
                return Err(Errno::EBUSY);
            }
        }
        let moved = stat_at(old.as_fd(), from.name).map_err(|error| errno(&error))?;
        let replaced = stat_at(new.as_fd(), to.name).ok();
        let (source, target) = (
            super::super::disk::Place::new(&old, from.name),
            super::super::disk::Place::new(&new, to.name),
        );
        if flags.is_empty() || flags == DiskFlags::NOREPLACE {
            let if_there = if flags.is_empty() {
                super::super::disk::IfThere::Replace
            } else {
                super::super::disk::IfThere::Fail
            };
            let new_path = self.path_in(to.parent, to.name)?;
            let (source, target) = ((source, path.as_os_str()), (target, new_path.as_os_str()));
            let renamed = as_caller(who, || self.guard.rename(&pass, source, target, if_there));
            renamed.map_err(|error| errno(&error))?;
        } else {
            rename(who, (&old, from.name), (&new, to.name), flags)?;
        }
        self.note_rename((from, to), &moved, replaced.as_ref(), flags);
        Ok(())
    }

    fn note_rename(
        &self,
        (from, to): (NameIn<'_>, NameIn<'_>),
        moved: &rustix::fs::Statx,
        replaced: Option<&rustix::fs::Statx>,
        flags: DiskFlags,
    ) {
        let (old, new) = ((from.parent, from.name), (to.parent, to.name));
        let other = replaced.and_then(|found| self.nodes.of_file(id_in(found)));
        if let Some(ino) = self.nodes.of_file(id_in(moved)) {
            self.nodes.renamed(ino, old, new);
            if let Some(other) = other.filter(|other| *other != ino) {
                if flags.contains(DiskFlags::EXCHANGE) {
                    self.nodes.renamed(other, new, old);
                } else {
                    self.nodes.removed(other, new);
                }
            }
        }
    }

    /// Renames a file that is not published yet: it appears under its new name, and at once.
    fn rename_saving(
        &self,
        who: Requester,
        ino: u64,
        (from, to): (NameIn<'_>, NameIn<'_>),
        flags: DiskFlags,
    ) -> Done<()> {
        let (dir, _) = self.directory(to.parent)?;
        let known = self.nodes.known(ino)?;
        let Some(saving) = known.saving else { return Err(Errno::ESTALE) };
        let there = stat_at(dir.as_fd(), to.name).ok();
        if flags.contains(DiskFlags::EXCHANGE) {
            self.publish(who, ino, &saving, false)?;
            let old = self.directory(from.parent)?.0;
            rename(who, (&old, from.name), (&dir, to.name), flags)?;
            let moved = stat(saving.staged.file.as_fd()).map_err(|error| errno(&error))?;
            self.note_rename((from, to), &moved, there.as_ref(), flags);
            return Ok(());
        }
        if there.is_some() && flags.contains(DiskFlags::NOREPLACE) {
            return Err(Errno::EEXIST);
        }
        let is_dir = there.as_ref().is_some_and(|found| {
            FileType::from_raw_mode(u32::from(found.stx_mode)) == FileType::Directory
        });
        if is_dir {
            return Err(Errno::EISDIR);
        }
        // The old name may have an older version in the folder, which the rename removes.
        let old = self.directory(from.parent)?.0;
        self.nodes.renamed(ino, (from.parent, from.name), (to.parent, to.name));
        let path = self.path_in(to.parent, to.name)?;
        saving.staged.rename(path.as_os_str());
        self.publish(who, ino, &saving, false)?;
        match remove(who, (&old, from.name), AtFlags::empty()) {
            Err(Errno::ENOENT) => Ok(()),
            removed => removed,
        }
    }

    pub(super) async fn make_link(
        &self,
        who: Requester,
        ino: u64,
        to: NameIn<'_>,
    ) -> Done<NodeEntry> {
        self.check_name(who, to)?;
        let path = self.path_in(to.parent, to.name)?;
        let _pass = self.pass(who, &path, MayWait::Briefly).await?;
        let located = self.locate(ino)?;
        if let Located::Saving(saving) = &located.located {
            self.publish(who, ino, saving, false)?;
        }
        if self.nodes.saving_at(to.parent, to.name).is_some() {
            return Err(Errno::EEXIST);
        }
        let (dir, _) = self.directory(to.parent)?;
        let from = path_of(located.as_fd());
        rustix::fs::linkat(CWD, from, &dir, to.name, AtFlags::SYMLINK_FOLLOW).map_err(os)?;
        let found = stat_at(dir.as_fd(), to.name).map_err(|error| errno(&error))?;
        let ino = self.nodes.found(to.parent, to.name, id_in(&found));
        Ok(Self::entry(ino, &found))
    }
}
