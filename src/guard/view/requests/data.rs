//! Reads and writes of open files.

use crate::guard::disk::acting_as;
use crate::guard::disk::linux_disk::{allocated_in, stat};
use crate::guard::folder::folder_guard::SaveError;
use crate::guard::lost_files::GrowingPart;
use crate::guard::stage::gate::{Closed, Pass};
use crate::guard::stage::staged_file::SaveState;
use crate::guard::view::folder_view::{FolderView, errno};
use crate::guard::view::parts::close_rule::Saving;
use crate::guard::view::parts::open_file::{Content, OpenFile};
use kernel::file_system::{Done, FileOffset};
use kernel::file_system::{Errno, ReadBytes, ReadRequest, Requester, WriteRequest};
use rustix::fs::{FallocateFlags, SeekFrom};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Whether a system call failed because it can't do what the program requests: nothing is lost, and
/// many programs then try another call.
fn is_refusal(error: &io::Error) -> bool {
    let refusals =
        [libc::EINVAL, libc::EOPNOTSUPP, libc::ENOSYS, libc::EXDEV, libc::EFBIG, libc::EPERM];
    error.raw_os_error().is_some_and(|code| refusals.contains(&code))
}

/// How an operation changes the content of an open file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::guard::view) struct ContentChange {
    /// Whether the kernel writes a page back that a program changed through a mapping.
    pub(in crate::guard::view) is_writeback: bool,
    /// The part of the file that may get content.
    pub(in crate::guard::view) part: GrowingPart,
}

impl ContentChange {
    /// Returns a change by a program, of a part that takes space wherever the file has its own.
    const fn anywhere(offset: u64, bytes: u64) -> Self {
        let part = GrowingPart { offset, bytes, is_dense: false };
        Self { is_writeback: false, part }
    }

    /// A change by a program that adds no content.
    pub(in crate::guard::view) const NOTHING: Self =
        Self { is_writeback: false, part: GrowingPart::NONE };
}

impl FolderView {
    pub(in crate::guard::view) fn open_of(&self, fh: u64) -> Done<Arc<OpenFile>> {
        self.files.get(fh).ok_or(Errno::EBADF)
    }

    pub(in crate::guard::view) fn read_file(
        open: &OpenFile,
        asked: ReadRequest,
    ) -> Done<ReadBytes> {
        let Some(file) = open.file() else { return Err(Errno::EBADF) };
        let mut bytes = vec![0; asked.size as usize];
        let mut filled = 0;
        while filled < bytes.len() {
            match file.read_at(&mut bytes[filled..], asked.offset + filled as u64) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(errno(&error)),
            }
        }
        bytes.truncate(filled);
        Ok(ReadBytes::from(bytes))
    }

    pub(in crate::guard::view) fn write_file(
        &self,
        who: Requester,
        asked: WriteRequest,
        data: &[u8],
    ) -> Done<u32> {
        let open = self.open_of(asked.fh)?;
        let part = GrowingPart { offset: asked.offset, bytes: data.len() as u64, is_dense: true };
        let of = ContentChange { is_writeback: asked.from_cache, part };
        let changed = self.change(who, &open, of, |file| file.write_all_at(data, asked.offset));
        Self::spoil_if_full(&open, changed)?;
        Ok(data.len() as u32)
    }

    /// Spoils a file that is not published yet if there was no space for its content.
    fn spoil_if_full<T>(open: &OpenFile, changed: Done<T>) -> Done<T> {
        if let (Err(Errno::ENOSPC), Some(saving)) = (&changed, open.saving()) {
            saving.staged.spoil(libc::ENOSPC);
        }
        changed
    }

    /// Changes the content of an open file, if the gate lets the change pass. A failed change
    /// spoils a file that is not published yet, unless the call was only refused.
    pub(in crate::guard::view) fn change<T>(
        &self,
        who: Requester,
        open: &OpenFile,
        of: ContentChange,
        change: impl FnOnce(&File) -> io::Result<T>,
    ) -> Done<T> {
        if let Content::Local(file, used) = &open.content {
            let uid = (!of.is_writeback).then_some(who.uid);
            used.reserve(uid, of.part).map_err(|full| self.no_local_space(who, open.ino, &full))?;
            let changed =
                acting_as::content(open.user, || change(file)).map_err(|error| errno(&error));
            if let Ok(found) = stat(file.as_fd()) {
                used.settle(uid.unwrap_or(found.stx_uid), &found);
            }
            return changed;
        }
        let Some(tenure) = open.tenure() else { return Err(Errno::EBADF) };
        let Some(file) = open.file() else { return Err(Errno::EBADF) };
        let is_writeback = of.is_writeback;
        let passed = self.pass_open(who, open, tenure, is_writeback);
        if passed.is_err() && is_writeback {
            self.end_dormant(open.ino);
        }
        let pass = passed?;
        let unpublished =
            open.saving().filter(|saving| saving.staged.save_state() == SaveState::Unpublished);
        if let Some(saving) = unpublished {
            if is_writeback {
                saving.was_written_back();
            } else {
                saving.wrote(&mut *(self.processes)(open.ino), who.pid);
            }
            self.reserve(who, saving, of)?;
        } else {
            open.has_changed.store(true, Ordering::Release);
            self.check_in_place(&pass, who, open)?;
        }
        let changed = acting_as::content(open.user, || change(file)).map_err(|error| {
            if let Some(saving) = unpublished.filter(|_| !is_refusal(&error)) {
                saving.staged.spoil(error.raw_os_error().unwrap_or(libc::EIO));
            }
            errno(&error)
        });
        if let Some(saving) = unpublished {
            Self::settle_saving(who, saving);
        }
        let changed = changed?;
        if unpublished.is_none() && self.guard.gate().is_past_deadline() {
            // The machine was stopped during the change. A later tenure may have given the file a
            // new inode before the change reached the old one.
            let path = self.nodes.path(open.ino).unwrap_or_default();
            return Err(self.refuse(who, &path, Errno::ESTALE, Closed::Deadline));
        }
        Ok(changed)
    }

    /// Takes the space for the content of a file that is not published yet.
    fn reserve(&self, who: Requester, saving: &Saving, of: ContentChange) -> Done<()> {
        // The kernel names no user of a mapping.
        let uid = if of.is_writeback { saving.staged.uid } else { who.uid };
        saving
            .staged
            .reserve(uid, of.part)
            .map_err(|full| self.say(who, Path::new(&saving.staged.path()), Errno::ENOSPC, &full))
    }

    /// Fails if there is no space for new content of a user. A person may have removed lost files
    /// past the guard, and so may a guard of another machine on the same storage: their names are
    /// read again, on another thread, if their directory has changed since.
    pub(in crate::guard::view) async fn check_space(
        &self,
        who: Requester,
        path: &Path,
    ) -> Done<()> {
        let mut checked = self.guard.check_space(who.uid);
        if checked.is_err() && self.lost_listing.has_changed(self.guard.lost()) {
            let refresh = |view: &Self| {
                view.refresh_lost();
                Ok(())
            };
            self.slowly(who, refresh).await?;
            checked = self.guard.check_space(who.uid);
        }
        checked.map_err(|full| self.say(who, path, Errno::ENOSPC, &full))
    }

    /// Prepares a change in place: refuses it if the file was put aside, and names the file on
    /// shared storage.
    fn check_in_place(&self, pass: &Pass<'_>, who: Requester, open: &OpenFile) -> Done<()> {
        let path = self.nodes.path(open.ino).unwrap_or_default();
        if let Some(saving) = open.saving() {
            match saving.staged.save_state() {
                SaveState::Spoiled(errno) => return Err(Errno::from_i32(errno)),
                SaveState::PutAside(_) => {
                    let why = "it could not be saved; open it again";
                    return Err(self.say_kept(who, &path, Errno::ESTALE, why));
                }
                SaveState::Unpublished | SaveState::Published => {}
            }
        }
        let Some(file) = open.file() else { return Err(Errno::EBADF) };
        self.name_in_place(pass, who, open.ino, &path, file.as_fd())?;
        self.log_in_place(who, open, &path)
    }

    /// Records that this tenure changes a file in place, so that the next one knows it.
    pub(in crate::guard::view) fn name_in_place(
        &self,
        pass: &Pass<'_>,
        who: Requester,
        ino: u64,
        path: &Path,
        file: BorrowedFd<'_>,
    ) -> Done<()> {
        if self.nodes.is_changed(ino, pass.tenure()) {
            return Ok(());
        }
        if self.guard.is_shared_storage() && path.as_os_str().is_empty() {
            let found = stat(file).map_err(|error| errno(&error))?;
            return match found.stx_nlink {
                // The file is not in the folder any more: nobody reads a late write to it.
                0 => Ok(()),
                _ => Err(self.unsaved(who, path, &SaveError::Linked)),
            };
        }
        match self.guard.name_in_place(pass, path.as_os_str()) {
            Ok(()) => {
                self.nodes.set_changed(ino, pass.tenure());
                Ok(())
            }
            Err(error @ SaveError::Linked) => Err(self.unsaved(who, path, &error)),
            Err(SaveError::Disk(error)) => Err(errno(&error)),
            Err(
                SaveError::Closed(_)
                | SaveError::Unannounced
                | SaveError::Exists
                | SaveError::Unread(_),
            ) => {
                self.tenures.recheck();
                Err(Errno::ESTALE)
            }
        }
    }

    pub(in crate::guard::view) fn allocate(
        &self,
        who: Requester,
        fh: u64,
        offset: u64,
        length: u64,
        mode: i32,
    ) -> Done<()> {
        let open = self.open_of(fh)?;
        let mode = FallocateFlags::from_bits_retain(mode as u32);
        let frees = FallocateFlags::PUNCH_HOLE | FallocateFlags::COLLAPSE_RANGE;
        let of = if mode.intersects(frees) {
            ContentChange::NOTHING
        } else {
            ContentChange::anywhere(offset, length)
        };
        self.change(who, &open, of, |file| Ok(rustix::fs::fallocate(file, mode, offset, length)?))
    }

    pub(in crate::guard::view) fn seek(&self, fh: u64, offset: i64, whence: i32) -> Done<i64> {
        let open = self.open_of(fh)?;
        let Some(file) = open.file() else { return Err(Errno::EINVAL) };
        let at = u64::try_from(offset).map_err(|_| Errno::ENXIO)?;
        let to = match whence {
            libc::SEEK_DATA => SeekFrom::Data(at),
            libc::SEEK_HOLE => SeekFrom::Hole(at),
            _ => return Err(Errno::EINVAL),
        };
        let found = rustix::fs::seek(file, to);
        found.map(|at| at as i64).map_err(|error| Errno::from_i32(error.raw_os_error()))
    }

    pub(in crate::guard::view) fn copy_range(
        &self,
        who: Requester,
        from: FileOffset,
        to: FileOffset,
        length: u64,
    ) -> Done<u32> {
        let (source, target) = (self.open_of(from.fh)?, self.open_of(to.fh)?);
        let Some(source) = source.file() else { return Err(Errno::EXDEV) };
        if matches!(target.content, Content::Control(_) | Content::Record(_)) {
            return Err(Errno::EXDEV);
        }
        let (mut read, mut written) = (from.offset, to.offset);
        // A reply counts in 32 bits.
        let length = length.min(1 << 30) as usize;
        let there = source.metadata().map_err(|error| errno(&error))?.len();
        let bytes = there.saturating_sub(from.offset).min(length as u64);
        let copied = self.change(who, &target, ContentChange::anywhere(to.offset, bytes), |file| {
            let (read, written) = (Some(&mut read), Some(&mut written));
            Ok(rustix::fs::copy_file_range(source, read, file, written, length)?)
        });
        Ok(Self::spoil_if_full(&target, copied)? as u32)
    }

    /// Counts the bytes of a file that is not published yet by what it has on the disk.
    pub(super) fn settle_saving(who: Requester, saving: &Saving) {
        if let Ok(found) = stat(saving.staged.file.as_fd()) {
            saving.staged.settle(who.uid, allocated_in(&found));
        }
    }
}
