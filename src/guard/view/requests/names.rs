//! Changes of names: directories, links, renames and removals.

use super::local_files::Spot;
use crate::guard::disk::acting_as::{making, naming};
use crate::guard::disk::linux_disk::{id_in, path_of, stat, stat_at, stat_in};
use crate::guard::disk::operations::{FolderName, IfThere, Place};
use crate::guard::folder::folder_guard::SaveError;
use crate::guard::lost_files::LostReason;
use crate::guard::stage::gate::Pass;
use crate::guard::view::folder_view::{FolderView, Located, MayWait, errno};
use crate::guard::view::parts::attributes::mode_in;
use kernel::file_system::{Done, NameIn};
use kernel::file_system::{Errno, NewMode, NodeEntry, RenameFlags, Requester};
use rustix::fs::{AtFlags, CWD, FileType, Mode, RenameFlags as DiskFlags, Statx};
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

fn os(error: rustix::io::Errno) -> Errno {
    Errno::from_i32(error.raw_os_error())
}

/// Removes a name as the caller. The sticky bit of the directory then decides about the file that
/// has the name now, and not about the one that the kernel knows.
fn remove(who: Requester, at: Place<'_, OwnedFd>, flags: AtFlags) -> std::io::Result<()> {
    naming(who.into(), || Ok(rustix::fs::unlinkat(at.dir, at.name, flags)?))
}

/// Renames a file as the caller, for the same reason.
fn rename(
    who: Requester,
    from: Place<'_, OwnedFd>,
    to: Place<'_, OwnedFd>,
    flags: DiskFlags,
) -> Done<()> {
    let rename = || Ok(rustix::fs::renameat_with(from.dir, from.name, to.dir, to.name, flags)?);
    naming(who.into(), rename).map_err(|error| errno(&error))
}

/// Whether attributes are those of a directory.
fn is_dir(found: &Statx) -> bool {
    FileType::from_raw_mode(u32::from(found.stx_mode)) == FileType::Directory
}

impl FolderView {
    /// Makes a name by `make`; by way of the stage where that is needed. Local files have no pass.
    pub(in crate::guard::view) fn make_name(
        &self,
        pass: Option<&Pass<'_>>,
        at: Place<'_, OwnedFd>,
        make: &dyn Fn(Place<'_, OwnedFd>) -> std::io::Result<()>,
    ) -> Done<()> {
        let named = pass.map_or_else(|| make(at), |pass| self.guard.make_name(pass, at, make));
        named.map_err(|error| errno(&error))
    }

    /// Makes a name in a directory by `make`, under the gate, as the caller.
    async fn make(
        &self,
        who: Requester,
        at: NameIn<'_>,
        mode: NewMode,
        kind: FileType,
        make: impl Fn(&OwnedFd, &OsStr, Mode) -> rustix::io::Result<()>,
    ) -> Done<NodeEntry> {
        self.check_name(who, at)?;
        let spot = self.spot(at, true)?;
        self.check_twin(who, &spot, None)?;
        self.check_local_share(who, &spot)?;
        let pass = self.pass_to(who, &spot).await?;
        if self.nodes.saving_at(at.parent, at.name).is_some() {
            return Err(Errno::EEXIST);
        }
        let permissions = Mode::from_raw_mode(mode_in(&spot.dir, mode) & 0o7777);
        // Markers name regular files only.
        let is_logged = kind == FileType::RegularFile && !spot.is_local;
        let log = |made| {
            let logged =
                if is_logged { self.guard.log_made(spot.path.as_os_str(), made) } else { Ok(()) };
            logged.map_err(|error| errno(&error))
        };
        log(None)?;
        let make =
            |at: Place<'_, OwnedFd>| making(who.into(), || Ok(make(at.dir, at.name, permissions)?));
        self.make_name(pass.as_ref(), spot.place(), &make)?;
        let opened = rustix::fs::openat(
            &spot.dir,
            at.name,
            rustix::fs::OFlags::PATH | rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::CLOEXEC,
            Mode::empty(),
        );
        let opened = opened.map_err(os)?;
        let found = stat(opened.as_fd()).map_err(|error| errno(&error))?;
        log(Some(&stat_in(&found)))?;
        if spot.is_local {
            self.local.shares.note(&found);
        } else {
            self.guard.record_own(&stat_in(&found));
        }
        let ino = self.nodes.found(at.parent, at.name, id_in(&found), spot.is_local);
        Ok(self.entry(ino, &found, self.cached_for()))
    }

    pub(in crate::guard::view) async fn make_dir(
        &self,
        who: Requester,
        at: NameIn<'_>,
        mode: NewMode,
    ) -> Done<NodeEntry> {
        let make = |dir: &OwnedFd, name: &OsStr, mode| rustix::fs::mkdirat(dir, name, mode);
        self.make(who, at, mode, FileType::Directory, make).await
    }

    pub(in crate::guard::view) async fn make_symlink(
        &self,
        who: Requester,
        at: NameIn<'_>,
        target: &OsStr,
    ) -> Done<NodeEntry> {
        let mode = NewMode { mode: 0o777, umask: 0 };
        let make = |dir: &OwnedFd, name: &OsStr, _| rustix::fs::symlinkat(target, dir, name);
        self.make(who, at, mode, FileType::Symlink, make).await
    }

    pub(in crate::guard::view) async fn make_node(
        &self,
        who: Requester,
        at: NameIn<'_>,
        mode: NewMode,
        device: u32,
    ) -> Done<NodeEntry> {
        let kind = FileType::from_raw_mode(mode.mode);
        let device = u64::from(device);
        let make = |dir: &OwnedFd, name: &OsStr, permissions| {
            rustix::fs::mknodat(dir, name, kind, permissions, device)
        };
        self.make(who, at, mode, kind, make).await
    }

    pub(in crate::guard::view) async fn remove_file(
        &self,
        who: Requester,
        at: NameIn<'_>,
    ) -> Done<()> {
        self.check_name(who, at)?;
        let spot = self.spot(at, false)?;
        let pass = self.pass_to(who, &spot).await?;
        self.check_parted(who, &spot.path)?;
        let saving = self.nodes.saving_at(at.parent, at.name);
        let found = stat_at(spot.dir.as_fd(), at.name);
        if let (Ok(found), true) = (&found, pass.is_some()) {
            self.check_room_to_keep(who, &spot.path, found)?;
        }
        let removed = match (&found, &pass) {
            (Err(error), _) => {
                Err(std::io::Error::from_raw_os_error(error.raw_os_error().unwrap_or(libc::EIO)))
            }
            (Ok(_), None) => remove(who, spot.place(), AtFlags::empty()),
            (Ok(found), Some(pass)) => {
                self.note_open(found);
                let remove = || self.guard.remove_file(pass, spot.folder_name());
                let removed = naming(who.into(), remove);
                self.tell_displaced(who);
                removed
            }
        };
        match removed {
            // An older version may be in the folder under the name of one that is being saved.
            Err(error) if saving.is_some() && error.kind() == std::io::ErrorKind::NotFound => {}
            removed => removed.map_err(|error| errno(&error))?,
        }
        if let (Ok(found), true) = (&found, spot.is_local) {
            self.local.shares.removed(found);
        }
        let removed = match (saving, found) {
            (Some((ino, _)), _) => Some(ino),
            (None, Ok(found)) => self.nodes.of_file(id_in(&found)),
            (None, Err(_)) => None,
        };
        if let Some(ino) = removed {
            self.nodes.removed(ino, at);
            self.names_changed();
        }
        Ok(())
    }

    pub(in crate::guard::view) async fn remove_dir(
        &self,
        who: Requester,
        at: NameIn<'_>,
    ) -> Done<()> {
        self.check_name(who, at)?;
        let spot = self.spot(at, false)?;
        let pass = self.pass_to(who, &spot).await?;
        let removed = self.remove_dir_now(who, &spot, pass)?;
        if spot.is_local {
            self.local.shares.removed(&removed);
        } else {
            self.remove_local_of(who, &removed).await;
        }
        Ok(())
    }

    /// Removes a directory. Returns its attributes from before.
    fn remove_dir_now(
        &self,
        who: Requester,
        spot: &Spot<'_>,
        pass: Option<Pass<'_>>,
    ) -> Done<Statx> {
        let Spot { at, dir, path, .. } = spot;
        let found = stat_at(dir.as_fd(), at.name).map_err(|error| errno(&error))?;
        let ino = self.nodes.of_file(id_in(&found));
        if let Some(ino) = ino {
            if !self.nodes.savings_in(ino).is_empty() {
                return Err(Errno::ENOTEMPTY);
            }
            if !spot.is_local {
                self.check_no_local_dir(ino, &self.directory(ino)?.0, path)?;
            }
        }
        let removed = match &pass {
            None => remove(who, spot.place(), AtFlags::REMOVEDIR),
            Some(pass) => naming(who.into(), || self.guard.remove_dir(pass, spot.folder_name())),
        };
        removed.map_err(|error| errno(&error))?;
        if let Some(ino) = ino {
            self.nodes.removed_dir(ino, *at, &found);
        }
        drop(pass);
        Ok(found)
    }

    pub(in crate::guard::view) async fn rename_entry(
        &self,
        who: Requester,
        from: NameIn<'_>,
        to: NameIn<'_>,
        flags: RenameFlags,
    ) -> Done<()> {
        if let Some(replaced) = self.rename_now(who, from, to, flags).await? {
            // All files in it were local.
            self.remove_local_of(who, &replaced).await;
        }
        Ok(())
    }

    /// Renames a file or directory. Returns the directory that it has replaced.
    async fn rename_now(
        &self,
        who: Requester,
        from: NameIn<'_>,
        to: NameIn<'_>,
        flags: RenameFlags,
    ) -> Done<Option<Statx>> {
        self.check_name(who, from)?;
        self.check_name(who, to)?;
        let (old, new) = (self.spot(from, false)?, self.spot(to, true)?);
        self.check_twin(who, &new, Some(from))?;
        let flags = DiskFlags::from_bits_retain(flags.bits());
        if old.is_local || new.is_local {
            return self.rename_local(who, &old, &new, flags).map(|()| None);
        }
        let pass = self.pass(who, &old.path, MayWait::Briefly).await?;
        self.check_parted(who, &old.path)?;
        self.check_parted(who, &new.path)?;
        if let Some((ino, _)) = self.nodes.saving_at(from.parent, from.name) {
            return self.rename_saving(who, &pass, ino, from, to, flags).map(|()| None);
        }
        if let Some((ino, saving)) = self.nodes.saving_at(to.parent, to.name) {
            if flags.contains(DiskFlags::NOREPLACE) {
                return Err(Errno::EEXIST);
            }
            // The version that is being written loses against the file that gets its name.
            self.nodes.removed(ino, to);
            if flags.contains(DiskFlags::EXCHANGE) {
                self.guard.put_aside(&saving.staged, LostReason::NameTaken);
                return Err(Errno::EBUSY);
            }
        }
        let moved = stat_at(old.dir.as_fd(), from.name).map_err(|error| errno(&error))?;
        let replaced = stat_at(new.dir.as_fd(), to.name).ok();
        if flags.is_empty() || flags == DiskFlags::NOREPLACE {
            let if_there = if flags.is_empty() { IfThere::Replace } else { IfThere::Fail };
            self.check_unread(who, &pass, &new.path, replaced.as_ref())?;
            replaced.iter().try_for_each(|it| self.check_room_to_keep(who, &new.path, it))?;
            let (source, target) = (old.folder_name(), new.folder_name());
            for found in [Some(&moved), replaced.as_ref()].into_iter().flatten() {
                self.note_open(found);
            }
            let renamed = naming(who.into(), || self.guard.rename(&pass, source, target, if_there));
            self.tell_displaced(who);
            renamed.map_err(|error| errno(&error))?;
        } else {
            let is_own = [Some(&moved), replaced.as_ref()]
                .map(|found| found.map(stat_in).filter(|stat| !self.guard.is_foreign(stat)));
            self.exchange(who, &old, &new, &moved, replaced.as_ref(), flags)?;
            is_own.iter().flatten().for_each(|stat| self.guard.record_own(stat));
        }
        self.note_rename(from, to, &moved, replaced.as_ref(), flags);
        let is_replaced = !flags.contains(DiskFlags::EXCHANGE);
        Ok(replaced.filter(|it| is_replaced && is_dir(it)))
    }

    /// Fails if a file is about to lose its name that would be kept among the lost files, and its
    /// owner has too many of them. Root and the user who runs the guard may do that.
    fn check_room_to_keep(&self, who: Requester, path: &Path, found: &Statx) -> Done<()> {
        if self.user(who).is_administrator() || !self.guard.is_foreign(&stat_in(found)) {
            return Ok(());
        }
        let checked = self.guard.check_space(found.stx_uid);
        checked.map_err(|full| self.say(who, path, Errno::ENOSPC, &full))
    }

    /// Exchanges two names, or renames one with another flag, and logs that.
    fn exchange(
        &self,
        who: Requester,
        old: &Spot<'_>,
        new: &Spot<'_>,
        moved: &Statx,
        there: Option<&Statx>,
        flags: DiskFlags,
    ) -> Done<()> {
        let (moved, there) = (stat_in(moved), there.map(stat_in));
        let (path, new_path) = (old.path.as_os_str(), new.path.as_os_str());
        if self.guard.is_shared_storage() {
            // No such rename can leave a stage. A file system without these flags answers the same.
            return Err(Errno::EINVAL);
        }
        let is_exchange = flags.contains(DiskFlags::EXCHANGE);
        let logged = self.guard.log_rename(path, &moved, new_path, there.as_ref(), is_exchange);
        logged.map_err(|error| errno(&error))?;
        rename(who, old.place(), new.place(), flags)?;
        let back = there.filter(|_| is_exchange);
        self.guard.log_renamed(path, back.as_ref(), new_path, &moved);
        Ok(())
    }

    /// Renames a local file. One that is to be in the folder is copied by its program.
    fn rename_local(
        &self,
        who: Requester,
        old: &Spot<'_>,
        new: &Spot<'_>,
        flags: DiskFlags,
    ) -> Done<()> {
        if old.is_local != new.is_local {
            return Err(Errno::EXDEV);
        }
        let moved = stat_at(old.dir.as_fd(), old.at.name).map_err(|error| errno(&error))?;
        let replaced = stat_at(new.dir.as_fd(), new.at.name).ok();
        rename(who, old.place(), new.place(), flags)?;
        let is_lost =
            |it: &&Statx| !flags.contains(DiskFlags::EXCHANGE) && id_in(it) != id_in(&moved);
        replaced.as_ref().filter(is_lost).into_iter().for_each(|it| self.local.shares.removed(it));
        self.note_rename(old.at, new.at, &moved, replaced.as_ref(), flags);
        Ok(())
    }

    fn note_rename(
        &self,
        from: NameIn<'_>,
        to: NameIn<'_>,
        moved: &Statx,
        replaced: Option<&Statx>,
        flags: DiskFlags,
    ) {
        let other = replaced.and_then(|found| Some((self.nodes.of_file(id_in(found))?, found)));
        if let Some(ino) = self.nodes.of_file(id_in(moved)) {
            self.nodes.renamed(ino, from, to);
            match other.filter(|(other, _)| *other != ino) {
                Some((other, _)) if flags.contains(DiskFlags::EXCHANGE) => {
                    self.nodes.renamed(other, to, from);
                }
                Some((other, found)) if is_dir(found) => self.nodes.removed_dir(other, to, found),
                Some((other, _)) => self.nodes.removed(other, to),
                None => {}
            }
        }
        self.names_changed();
    }

    /// Renames a file that is not published yet: it appears under its new name, and at once.
    fn rename_saving(
        &self,
        who: Requester,
        pass: &Pass<'_>,
        ino: u64,
        from: NameIn<'_>,
        to: NameIn<'_>,
        flags: DiskFlags,
    ) -> Done<()> {
        let (dir, _) = self.directory(to.parent)?;
        let known = self.nodes.known(ino)?;
        let Some(saving) = known.saving else { return Err(Errno::ESTALE) };
        let there = stat_at(dir.as_fd(), to.name).ok();
        if flags.contains(DiskFlags::EXCHANGE) {
            self.publish(who, ino, &saving, false)?;
            let (old, new) = (self.spot(from, false)?, self.spot(to, true)?);
            let moved = stat(saving.staged.file.as_fd()).map_err(|error| errno(&error))?;
            self.exchange(who, &old, &new, &moved, there.as_ref(), flags)?;
            self.note_rename(from, to, &moved, there.as_ref(), flags);
            return Ok(());
        }
        if there.is_some() && flags.contains(DiskFlags::NOREPLACE) {
            return Err(Errno::EEXIST);
        }
        if there.as_ref().is_some_and(is_dir) {
            return Err(Errno::EISDIR);
        }
        // The old name may have an older version in the folder, which the rename removes.
        let (old, old_path) =
            (self.directory(from.parent)?.0, self.path_in(from.parent, from.name)?);
        self.nodes.renamed(ino, from, to);
        let path = self.path_in(to.parent, to.name)?;
        saving.staged.rename(path.as_os_str());
        self.publish(who, ino, &saving, false)?;
        let older = FolderName { at: Place::new(&old, from.name), path: old_path.as_os_str() };
        let removed = naming(who.into(), || self.guard.remove_file(pass, older));
        self.tell_displaced(who);
        match removed {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(errno(&error)),
            _ => Ok(()),
        }
    }

    pub(in crate::guard::view) async fn make_link(
        &self,
        who: Requester,
        ino: u64,
        to: NameIn<'_>,
    ) -> Done<NodeEntry> {
        self.check_name(who, to)?;
        self.check_no_snapshot(ino)?;
        let spot = self.spot(to, true)?;
        self.check_twin(who, &spot, None)?;
        self.check_local_share(who, &spot)?;
        if spot.is_local != self.nodes.is_local(ino) {
            return Err(Errno::EXDEV);
        }
        let pass = self.pass_to(who, &spot).await?;
        let located = self.locate(ino)?;
        if let Located::Saving(saving) = &located.located {
            self.publish(who, ino, saving, false)?;
        }
        let is_changed =
            pass.as_ref().is_some_and(|pass| self.nodes.is_changed(ino, pass.tenure()));
        if is_changed && self.guard.is_shared_storage() {
            return Err(self.unsaved(who, &located.path, &SaveError::Linked));
        }
        if self.nodes.saving_at(to.parent, to.name).is_some() {
            return Err(Errno::EEXIST);
        }
        let dir = &spot.dir;
        let from = path_of(located.as_fd());
        let log = |made| {
            let is_logged = !spot.is_local;
            let path = spot.path.as_os_str();
            let logged = if is_logged { self.guard.log_made(path, made) } else { Ok(()) };
            logged.map_err(|error| errno(&error))
        };
        log(None)?;
        let follow = AtFlags::SYMLINK_FOLLOW;
        let make =
            |at: Place<'_, OwnedFd>| Ok(rustix::fs::linkat(CWD, &from, at.dir, at.name, follow)?);
        self.make_name(pass.as_ref(), spot.place(), &make)?;
        log(Some(&stat_in(&located.found)))?;
        self.note_change(&located.found, located.as_fd());
        let found = stat_at(dir.as_fd(), to.name).map_err(|error| errno(&error))?;
        if spot.is_local {
            self.local.shares.note(&found);
        }
        let ino = self.nodes.found(to.parent, to.name, id_in(&found), spot.is_local);
        self.names_changed();
        Ok(self.entry(ino, &found, self.cached_for()))
    }
}
