//! Opens files, and makes new ones.

use super::super::gate::Pass;
use super::super::linux_disk::{copy_extended_attributes, id_in, open_below, stat, stat_at};
use super::close_rule::Saving;
use super::folder_view::{FolderView, Located, LocatedFile, MayWait, errno, stale};
use super::open_file::{Content, OpenFile};
use crate::fuse::kernel::file_system::{Done, NameIn};
use crate::fuse::kernel::user_shares::{Pool, Share};
use crate::fuse::kernel::values::{Errno, NodeEntry, NodeType, Opened, OpenedFlags, Requester};
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Uid};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// Whether the flags of an open ask for write access.
pub(super) const fn writes(flags: i32) -> bool {
    flags & libc::O_ACCMODE != libc::O_RDONLY
}

/// Returns the flags with which a file of the folder is opened for a program: never `O_TRUNC`,
/// since the file is checked first, and never an open that blocks.
fn access_of(flags: i32) -> OFlags {
    let access = match flags & libc::O_ACCMODE {
        libc::O_WRONLY => OFlags::WRONLY,
        libc::O_RDWR => OFlags::RDWR,
        _ => OFlags::RDONLY,
    };
    access | OFlags::NONBLOCK | OFlags::NOCTTY
}

/// Makes a file that a caller has made the caller's own. A set-gid directory decides about the
/// group.
pub(super) fn give_to_caller(
    file: &impl AsFd,
    name: &OsStr,
    who: Requester,
    dir: &OwnedFd,
) -> io::Result<()> {
    if !crate::fuse::kernel::own_user::is_root() {
        return Ok(());
    }
    let inherits = u32::from(stat(dir.as_fd())?.stx_mode) & libc::S_ISGID != 0;
    let group = (!inherits).then(|| Gid::from_raw(who.gid));
    let flags = AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW;
    Ok(rustix::fs::chownat(file, name, Some(Uid::from_raw(who.uid)), group, flags)?)
}

impl FolderView {
    pub(super) async fn open_file(&self, who: Requester, ino: u64, flags: i32) -> Done<Opened> {
        if let Some(opened) = self.open_control(who, ino, flags) {
            return opened;
        }
        let path = self.nodes.path(ino).unwrap_or_default();
        let share = self.share(Pool::FolderFiles, who, &path)?;
        if !writes(flags) {
            return self.open_for_reading(ino, flags, share);
        }
        let pass = self.pass(who, &path, MayWait::Long).await?;
        let located = self.locate(ino)?;
        if let Located::Saving(saving) = &located.located {
            return self.open_saving(&pass, ino, saving, (flags, share));
        }
        let truncates = flags & libc::O_TRUNC != 0;
        let is_whole = super::attributes::type_in(&located.found) == NodeType::RegularFile
            && located.found.stx_nlink == 1
            && !self.policy.in_place.matches(&located.path);
        if truncates && is_whole {
            return self.replace(&pass, (who, share), ino, &located);
        }
        self.open_in_place(&pass, ino, &located, (flags, share))
    }

    fn open_for_reading(&self, ino: u64, flags: i32, share: Share) -> Done<Opened> {
        let located = self.locate(ino)?;
        let content = match &located.located {
            Located::Saving(saving) => Content::Saving(Arc::clone(saving)),
            Located::Path(_) | Located::Open(_) => Content::InPlace(self.reopen(&located, flags)?),
        };
        let open = OpenFile { ino, content, tenure: None, _share: share };
        Ok(self.opened(open, OpenedFlags::FOPEN_KEEP_CACHE | OpenedFlags::FOPEN_NOFLUSH))
    }

    /// Opens the data of a located file, and checks that it is the same file.
    fn reopen(&self, located: &LocatedFile, flags: i32) -> Done<File> {
        let access = access_of(flags);
        let opened = match &located.located {
            Located::Path(_) => {
                open_below(self.root(), &located.path, access).map_err(|e| stale(&e))
            }
            Located::Saving(_) | Located::Open(_) => {
                let path = super::super::linux_disk::path_of(located.as_fd());
                rustix::fs::open(path, access | OFlags::CLOEXEC, Mode::empty())
                    .map_err(|error| Errno::from_i32(error.raw_os_error()))
            }
        }?;
        let found = stat(opened.as_fd()).map_err(|error| errno(&error))?;
        if id_in(&found) != id_in(&located.found) {
            return Err(Errno::ESTALE);
        }
        Ok(File::from(opened))
    }

    /// Opens a file for writing that is not published yet: all programs share the one new version.
    fn open_saving(
        &self,
        pass: &Pass<'_>,
        ino: u64,
        saving: &Arc<Saving>,
        (flags, share): (i32, Share),
    ) -> Done<Opened> {
        if saving.staged.tenure != pass.tenure() {
            return Err(Errno::ESTALE);
        }
        if flags & libc::O_TRUNC != 0 {
            saving.staged.file.set_len(0).map_err(|error| errno(&error))?;
        }
        let content = Content::Saving(Arc::clone(saving));
        Ok(self.opened_for_writing(OpenFile {
            ino,
            content,
            tenure: Some(pass.tenure()),
            _share: share,
        }))
    }

    fn open_in_place(
        &self,
        pass: &Pass<'_>,
        ino: u64,
        located: &LocatedFile,
        (flags, share): (i32, Share),
    ) -> Done<Opened> {
        let file = self.reopen(located, flags)?;
        if flags & libc::O_TRUNC != 0 {
            self.name_in_place(pass, ino, &located.path)?;
            file.set_len(0).map_err(|error| errno(&error))?;
        }
        let content = Content::InPlace(file);
        Ok(self.opened_for_writing(OpenFile {
            ino,
            content,
            tenure: Some(pass.tenure()),
            _share: share,
        }))
    }

    /// Begins a new version of a file that a program rewrites as a whole. If another program has
    /// the old version open, the file gets a second node, which the kernel looks up after ESTALE:
    /// the reads of the other program must not mix the two versions.
    fn replace(
        &self,
        pass: &Pass<'_>,
        (who, share): (Requester, Share),
        ino: u64,
        located: &LocatedFile,
    ) -> Done<Opened> {
        let (dir, _) = self.directory_of(ino)?;
        let mode = u32::from(located.found.stx_mode) & 0o7777;
        let wanted = (who.uid, located.path.as_os_str(), false);
        let staged = self.guard.stage_file(pass, &dir, mode, wanted);
        let staged = staged.map_err(|error| errno(&error))?;
        Self::copy_attributes(located, &staged.file).map_err(|error| errno(&error))?;
        let found = stat(staged.file.as_fd()).map_err(|error| errno(&error))?;
        let saving = Saving::new(staged, who.pid);
        if !self.nodes.replace_by_saving(ino, id_in(&found), &saving) {
            self.nodes.split(ino);
            return Err(Errno::ESTALE);
        }
        let content = Content::Saving(saving);
        Ok(self.opened_for_writing(OpenFile {
            ino,
            content,
            tenure: Some(pass.tenure()),
            _share: share,
        }))
    }

    /// Opens the directory of a node, and returns the name of the node there. The path of the
    /// directory may lead to another one by now.
    pub(super) fn directory_of(&self, ino: u64) -> Done<(OwnedFd, OsString)> {
        let (parent, name) = self.nodes.place(ino).ok_or(Errno::ESTALE)?;
        Ok((self.directory(parent)?.0, name))
    }

    /// Gives the owner, the permissions and the extended attributes of the old version to the new
    /// one, as `O_TRUNC` keeps them.
    fn copy_attributes(located: &LocatedFile, new: &File) -> io::Result<()> {
        let found = &located.found;
        if crate::fuse::kernel::own_user::is_root() {
            let (user, group) = (Uid::from_raw(found.stx_uid), Gid::from_raw(found.stx_gid));
            rustix::fs::fchown(new, Some(user), Some(group))?;
        }
        rustix::fs::fchmod(new, Mode::from_raw_mode(u32::from(found.stx_mode) & 0o7777))?;
        copy_extended_attributes(located.as_fd(), new.as_fd())
    }

    pub(super) async fn create_file(
        &self,
        who: Requester,
        at: NameIn<'_>,
        mode: u32,
        flags: i32,
    ) -> Done<(NodeEntry, Opened)> {
        self.check_name(who, at)?;
        let path = self.path_in(at.parent, at.name)?;
        let share = self.share(Pool::FolderFiles, who, &path)?;
        let pass = self.pass(who, &path, MayWait::Briefly).await?;
        let (dir, _) = self.directory(at.parent)?;
        let is_exclusive = flags & libc::O_EXCL != 0;
        let exists = self.nodes.saving_at(at.parent, at.name).is_some()
            || stat_at(dir.as_fd(), at.name).is_ok();
        if exists {
            // The kernel did not know the name: another program has made it meanwhile.
            drop((pass, share));
            if is_exclusive {
                return Err(Errno::EEXIST);
            }
            let entry = self.look_up(at)?;
            let opened = self.open_file(who, entry.attr.ino.0, flags).await?;
            return Ok((entry, opened));
        }
        if self.policy.in_place.matches(&path) {
            return self.create_in_place(&pass, (who, share), (at, &dir), (mode, flags));
        }
        let wanted = (who.uid, path.as_os_str(), is_exclusive);
        let staged = self.guard.stage_file(&pass, &dir, mode, wanted);
        let staged = staged.map_err(|error| errno(&error))?;
        give_to_caller(&staged.file, OsStr::new(""), who, &dir).map_err(|error| errno(&error))?;
        let found = stat(staged.file.as_fd()).map_err(|error| errno(&error))?;
        let saving = Saving::new(staged, who.pid);
        let ino = self.nodes.add_saving(at.parent, at.name, id_in(&found), Arc::clone(&saving));
        let content = Content::Saving(saving);
        let opened = self.opened_for_writing(OpenFile {
            ino,
            content,
            tenure: Some(pass.tenure()),
            _share: share,
        });
        Ok((Self::entry(ino, &found), opened))
    }

    /// Makes a file that is written in place from the start, for example a log.
    fn create_in_place(
        &self,
        pass: &Pass<'_>,
        (who, share): (Requester, Share),
        (at, dir): (NameIn<'_>, &OwnedFd),
        (mode, flags): (u32, i32),
    ) -> Done<(NodeEntry, Opened)> {
        let access = access_of(flags) | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let file = rustix::fs::openat(
            dir,
            at.name,
            access | OFlags::CLOEXEC,
            Mode::from_raw_mode(mode & 0o7777),
        );
        let file = File::from(file.map_err(|error| Errno::from_i32(error.raw_os_error()))?);
        give_to_caller(&file, OsStr::new(""), who, dir).map_err(|error| errno(&error))?;
        let found = stat(file.as_fd()).map_err(|error| errno(&error))?;
        let ino = self.nodes.found(at.parent, at.name, id_in(&found));
        let content = Content::InPlace(file);
        let opened = self.opened_for_writing(OpenFile {
            ino,
            content,
            tenure: Some(pass.tenure()),
            _share: share,
        });
        Ok((Self::entry(ino, &found), opened))
    }

    fn opened_for_writing(&self, open: OpenFile) -> Opened {
        self.tenures.count_writer(true);
        self.opened(open, OpenedFlags::FOPEN_KEEP_CACHE)
    }

    fn opened(&self, open: OpenFile, flags: OpenedFlags) -> Opened {
        let (fh, ino) = (self.numbers.next(), open.ino);
        self.files.insert(fh, open);
        if let Some(open) = self.files.get(fh) {
            self.nodes.opened(ino, &open);
        }
        Opened { fh, flags }
    }
}
