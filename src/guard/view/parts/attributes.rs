//! Converts the attributes of a file in the folder to those that the kernel caches for the view.
//!
//! Makes the files of programs as the folder's own file system would: with their owners, modes and
//! ACLs.

use crate::guard::disk::acting_as;
use crate::guard::disk::linux_disk::{copy_permissions, path_of, stat};
use crate::guard::disk::operations::Place;
use kernel::file_system::{Done, Errno, FileAttr, INodeNo, NewMode, NodeType, Requester};
use kernel::machine_facts::is_root;
use rustix::fs::{FileType, Gid, Mode, OFlags, Statx, StatxTimestamp, Uid};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, SystemTime};

/// The inode number of the view's root.
pub(in crate::guard::view) const ROOT: u64 = 1;
/// The inode number of `.latchfs/snapshots`, between those of the files in `.latchfs` and those of
/// the nodes.
pub(in crate::guard::view) const SNAPSHOTS: u64 = 1 << 10;

/// Returns the type of a file as FUSE names it.
pub(in crate::guard::view) fn node_type(kind: FileType) -> NodeType {
    match kind {
        FileType::Directory => NodeType::Directory,
        FileType::Symlink => NodeType::Symlink,
        FileType::Fifo => NodeType::NamedPipe,
        FileType::Socket => NodeType::Socket,
        FileType::CharacterDevice => NodeType::CharDevice,
        FileType::BlockDevice => NodeType::BlockDevice,
        FileType::RegularFile | FileType::Unknown => NodeType::RegularFile,
    }
}

/// Returns the type of a file in its attributes.
pub(in crate::guard::view) fn type_in(found: &Statx) -> NodeType {
    node_type(FileType::from_raw_mode(u32::from(found.stx_mode)))
}

fn time_of(at: StatxTimestamp) -> SystemTime {
    let nanos = Duration::from_nanos(u64::from(at.tv_nsec));
    let whole = Duration::from_secs(at.tv_sec.unsigned_abs());
    let secs = if at.tv_sec < 0 {
        SystemTime::UNIX_EPOCH.checked_sub(whole)
    } else {
        SystemTime::UNIX_EPOCH.checked_add(whole)
    };
    secs.and_then(|secs| secs.checked_add(nanos)).unwrap_or(SystemTime::UNIX_EPOCH)
}

/// The time of the last change (ctime) of a file that was published. A publish changes it, after
/// the program that saved the file may have read it: git keeps it in its index, and takes a file
/// with a later one for a changed file.
#[derive(Debug, Clone, Copy)]
pub(in crate::guard::view) struct ChangeTime {
    /// The time before the publish, which the view shows.
    shown: StatxTimestamp,
    /// The time that the publish has left. With another one the file was changed again.
    left: StatxTimestamp,
}

impl ChangeTime {
    /// Returns the change time of a file with these attributes before and after its publish.
    pub(in crate::guard::view) const fn of_publish(before: &Statx, after: &Statx) -> Self {
        Self { shown: before.stx_ctime, left: after.stx_ctime }
    }

    /// Returns the attributes with the change time that the view shows.
    pub(in crate::guard::view) fn apply_to(self, found: &Statx) -> Statx {
        let mut found = *found;
        let is_left = |at: StatxTimestamp| (at.tv_sec, at.tv_nsec);
        if is_left(found.stx_ctime) == is_left(self.left) {
            found.stx_ctime = self.shown;
        }
        found
    }
}

/// Returns the attributes of the node `ino`, which is the file with the attributes `found`.
pub(in crate::guard::view) fn attributes(ino: u64, found: &Statx) -> FileAttr {
    let device = rustix::fs::makedev(found.stx_rdev_major, found.stx_rdev_minor);
    FileAttr {
        ino: INodeNo(ino),
        size: found.stx_size,
        blocks: found.stx_blocks,
        atime: time_of(found.stx_atime),
        mtime: time_of(found.stx_mtime),
        ctime: time_of(found.stx_ctime),
        crtime: time_of(found.stx_btime),
        kind: type_in(found),
        perm: found.stx_mode & 0o7777,
        nlink: found.stx_nlink,
        uid: found.stx_uid,
        gid: found.stx_gid,
        rdev: device as u32,
        blksize: found.stx_blksize,
        flags: 0,
    }
}

/// Returns the flags with which a file of the folder is opened for a program: never `O_TRUNC`,
/// since the file is checked first, and never an open that blocks.
pub(in crate::guard::view) fn access_of(flags: i32) -> OFlags {
    let access = match flags & libc::O_ACCMODE {
        libc::O_WRONLY => OFlags::WRONLY,
        libc::O_RDWR => OFlags::RDWR,
        // The guard truncates it.
        _ if flags & libc::O_TRUNC != 0 => OFlags::RDWR,
        _ => OFlags::RDONLY,
    };
    access | OFlags::NONBLOCK | OFlags::NOCTTY
}

/// Returns the mode of a new file in a directory. A default ACL of the directory takes the place of
/// the program's umask.
pub(in crate::guard::view) fn mode_in(dir: &OwnedFd, mode: NewMode) -> u32 {
    let path = path_of(dir.as_fd());
    let acl = rustix::fs::getxattr(path, "system.posix_acl_default", &mut [0_u8; 0]);
    if acl.is_ok() { mode.mode } else { mode.masked() }
}

/// Gives the owner, the mode and the extended attributes of one file to another.
pub(in crate::guard::view) fn copy_attributes(
    from: BorrowedFd<'_>,
    found: &Statx,
    new: BorrowedFd<'_>,
) -> io::Result<()> {
    if is_root() {
        let made = stat(new)?;
        // A set-gid directory has decided about the group of a new file.
        if (made.stx_uid, made.stx_gid) != (found.stx_uid, found.stx_gid) {
            let (user, group) = (Uid::from_raw(found.stx_uid), Gid::from_raw(found.stx_gid));
            rustix::fs::fchown(new, Some(user), Some(group))?;
        }
    }
    copy_permissions(from, found, new)
}

/// Truncates a new version of a file that is empty already, as the user who rewrites the file. The
/// kernel then removes what a truncation removes: capabilities, and, unless the user is root, the
/// set-user-ID bit.
pub(in crate::guard::view) fn truncate_special(
    who: Requester,
    new: &File,
    mode: u32,
) -> io::Result<()> {
    let has_capability = || {
        let found = rustix::fs::fgetxattr(new, "security.capability", &mut [0_u8; 0]);
        found.is_ok_and(|size| size > 0)
    };
    if mode & (libc::S_ISUID | libc::S_ISGID) == 0 && !has_capability() {
        return Ok(());
    }
    acting_as::content(who.into(), || new.set_len(0))
}

/// Makes a file that a program writes in place from the start.
pub(in crate::guard::view) fn create_in(
    who: Requester,
    at: Place<'_, OwnedFd>,
    mode: u32,
    flags: i32,
) -> Done<File> {
    let access = access_of(flags) | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
    let mode = Mode::from_raw_mode(mode & 0o7777);
    let open = || Ok(rustix::fs::openat(at.dir, at.name, access | OFlags::CLOEXEC, mode)?);
    let file = acting_as::making(who.into(), open);
    file.map(File::from).map_err(|error| match error.raw_os_error() {
        // It was made past the view meanwhile: the kernel looks once more.
        Some(libc::EEXIST) if flags & libc::O_EXCL == 0 => Errno::ESTALE,
        code => Errno::from_i32(code.unwrap_or(libc::EIO)),
    })
}
