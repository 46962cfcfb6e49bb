//! The file operations of folder snapshots besides those of every guard.

use crate::guard::disk::linux_disk::{LinuxDisk, copy_permissions, open_below, path_of, stat};
use crate::guard::disk::operations::attribute_names;
use crate::guard::disk::operations::{Disk, Place};
use rustix::fs::{AtFlags, Gid, OFlags, SeekFrom, Statx, Timespec, Timestamps, Uid};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// How the content of a file came into a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CopyMethod {
    /// The two files share the content until one of them is changed (FICLONE).
    Cloned,
    /// The snapshot has a further name of the file itself.
    Linked,
    /// The content was copied.
    Copied,
}

/// The file operations of folder snapshots.
pub(crate) trait SnapshotDisk: Disk {
    /// Gives an empty file the content of another, with its holes.
    fn copy_content(&self, from: &Self::File, to: &Self::File) -> io::Result<CopyMethod>;
    /// Gives an open file the owner, the mode, the ACL, the other extended attributes and the times
    /// of another. Returns the attributes that this process may not give. Both are open, so that
    /// nobody can put another file in their place.
    fn copy_file_attributes(
        &self,
        from: &Self::File,
        to: &Self::File,
    ) -> io::Result<Vec<&'static str>>;
    /// Gives an open directory the attributes of another, as [`Self::copy_file_attributes`] does.
    fn copy_dir_attributes(
        &self,
        from: &Self::Dir,
        to: &Self::Dir,
    ) -> io::Result<Vec<&'static str>>;
    /// Gives a symlink the attributes of another. Fails with ESTALE if one of them is no symlink.
    fn copy_symlink_attributes(
        &self,
        from: Place<'_, Self::Dir>,
        to: Place<'_, Self::Dir>,
    ) -> io::Result<Vec<&'static str>>;
    /// Gives a file a further name. A symlink is not followed.
    fn link_name(&self, from: Place<'_, Self::Dir>, to: Place<'_, Self::Dir>) -> io::Result<()>;
}

/// The size of the blocks in which content is compared and copied where the kernel can't copy.
const BLOCK_BYTES: usize = 1 << 18;

/// Copies the bytes of a file from `offset` to `end`.
fn copy_range(from: &File, to: &File, mut offset: u64, end: u64) -> io::Result<()> {
    let mut written = offset;
    while offset < end {
        let length = usize::try_from(end - offset).unwrap_or(usize::MAX);
        let (from_at, to_at) = (Some(&mut offset), Some(&mut written));
        match rustix::fs::copy_file_range(from, from_at, to, to_at, length) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            // The files are on two file systems, or the kernel can't copy on theirs.
            Err(Errno::XDEV | Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS | Errno::BADF) => {
                return copy_blocks(from, to, offset, end);
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn copy_blocks(from: &File, to: &File, mut offset: u64, end: u64) -> io::Result<()> {
    let mut block = vec![0; BLOCK_BYTES];
    while offset < end {
        let wanted = usize::try_from(end - offset).unwrap_or(usize::MAX).min(BLOCK_BYTES);
        let length = LinuxDisk.read(from, offset, &mut block[..wanted])?;
        if length == 0 {
            return Ok(());
        }
        LinuxDisk.write(to, offset, &block[..length])?;
        offset += length as u64;
    }
    Ok(())
}

fn is_symlink(found: &Statx) -> bool {
    u32::from(found.stx_mode) & libc::S_IFMT == libc::S_IFLNK
}

/// Gives a file the attributes of another. Returns those that this process may not give.
fn give_attributes(from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> io::Result<Vec<&'static str>> {
    let found = stat(from)?;
    let mut missed = Vec::new();
    let owner = (Uid::from_raw(found.stx_uid), Gid::from_raw(found.stx_gid));
    match rustix::fs::chownat(to, "", Some(owner.0), Some(owner.1), AtFlags::EMPTY_PATH) {
        Err(Errno::PERM) => {
            let made = stat(to)?;
            if (made.stx_uid, made.stx_gid) != (found.stx_uid, found.stx_gid) {
                missed.push("owner");
            }
        }
        changed => changed?,
    }
    if !is_symlink(&found) {
        match copy_permissions(from, &found, to) {
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
                missed.push("extended attributes");
            }
            copied => copied?,
        }
    } else if attribute_names(&path_of(from)).is_ok_and(|names| !names.is_empty()) {
        missed.push("extended attributes");
    }
    let time = |at: rustix::fs::StatxTimestamp| Timespec {
        tv_sec: at.tv_sec,
        tv_nsec: i64::from(at.tv_nsec),
    };
    let times =
        Timestamps { last_access: time(found.stx_atime), last_modification: time(found.stx_mtime) };
    rustix::fs::utimensat(to, "", &times, AtFlags::EMPTY_PATH)?;
    Ok(missed)
}

impl SnapshotDisk for LinuxDisk {
    fn copy_content(&self, from: &File, to: &File) -> io::Result<CopyMethod> {
        if rustix::fs::ioctl_ficlone(to, from).is_ok() {
            return Ok(CopyMethod::Cloned);
        }
        let size = from.metadata()?.size();
        to.set_len(size)?;
        let mut at = 0;
        while at < size {
            let begin = match rustix::fs::seek(from, SeekFrom::Data(at)) {
                Ok(begin) => begin,
                // The rest of the file is a hole.
                Err(Errno::NXIO) => break,
                Err(error) => return Err(error.into()),
            };
            let end = rustix::fs::seek(from, SeekFrom::Hole(begin))?;
            copy_range(from, to, begin, end.min(size))?;
            at = end;
        }
        Ok(CopyMethod::Copied)
    }

    fn copy_file_attributes(&self, from: &File, to: &File) -> io::Result<Vec<&'static str>> {
        give_attributes(from.as_fd(), to.as_fd())
    }

    fn copy_dir_attributes(&self, from: &OwnedFd, to: &OwnedFd) -> io::Result<Vec<&'static str>> {
        give_attributes(from.as_fd(), to.as_fd())
    }

    fn copy_symlink_attributes(
        &self,
        from: Place<'_, OwnedFd>,
        to: Place<'_, OwnedFd>,
    ) -> io::Result<Vec<&'static str>> {
        let open = |at: Place<'_, OwnedFd>| -> io::Result<OwnedFd> {
            let file = open_below(at.dir.as_fd(), Path::new(at.name), OFlags::PATH)?;
            if is_symlink(&stat(file.as_fd())?) { Ok(file) } else { Err(Errno::STALE.into()) }
        };
        give_attributes(open(from)?.as_fd(), open(to)?.as_fd())
    }

    fn link_name(&self, from: Place<'_, OwnedFd>, to: Place<'_, OwnedFd>) -> io::Result<()> {
        Ok(rustix::fs::linkat(from.dir, from.name, to.dir, to.name, AtFlags::empty())?)
    }
}

/// Returns the name of a program, and its process id.
pub(crate) fn program_name(pid: u32) -> String {
    let name = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    let name = String::from_utf8_lossy(name.trim_ascii()).into_owned();
    if name.is_empty() {
        format!("a program that has ended ({pid})")
    } else {
        format!("{name} ({pid})")
    }
}

/// Whether a name is that of the guard's own directory in a folder.
pub(crate) fn is_own_dir(path: &OsStr) -> bool {
    path == ".latchfs"
}
