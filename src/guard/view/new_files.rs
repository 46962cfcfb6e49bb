//! Makes the files of programs as the folder's own file system would: with their owners, modes and
//! ACLs.

use super::super::linux_disk::{copy_permissions, path_of, stat};
use crate::fuse::kernel::file_system::Done;
use crate::fuse::kernel::own_user::is_root;
use crate::fuse::kernel::values::{Errno, NewMode, Requester};
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Statx, Uid};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Returns the flags with which a file of the folder is opened for a program: never `O_TRUNC`,
/// since the file is checked first, and never an open that blocks.
pub(super) fn access_of(flags: i32) -> OFlags {
    let access = match flags & libc::O_ACCMODE {
        libc::O_WRONLY => OFlags::WRONLY,
        libc::O_RDWR => OFlags::RDWR,
        // The guard truncates it.
        _ if flags & libc::O_TRUNC != 0 => OFlags::RDWR,
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
    if !is_root() {
        return Ok(());
    }
    let inherits = u32::from(stat(dir.as_fd())?.stx_mode) & libc::S_ISGID != 0;
    let group = (!inherits).then(|| Gid::from_raw(who.gid));
    let flags = AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW;
    let found = stat(file.as_fd())?;
    if found.stx_uid == who.uid && (inherits || found.stx_gid == who.gid) {
        return Ok(());
    }
    let mode = u32::from(found.stx_mode);
    rustix::fs::chownat(file, name, Some(Uid::from_raw(who.uid)), group, flags)?;
    // A change of the owner removes these two from files that can be executed.
    let special = libc::S_ISUID | libc::S_ISGID;
    if mode & libc::S_IFMT == libc::S_IFREG && mode & special != 0 {
        let path = path_of(file.as_fd());
        rustix::fs::chmod(path, Mode::from_raw_mode(mode & 0o7777))?;
    }
    Ok(())
}

/// Returns the mode of a new file in a directory. A default ACL of the directory takes the place of
/// the program's umask.
pub(super) fn mode_in(dir: &OwnedFd, mode: NewMode) -> u32 {
    let path = path_of(dir.as_fd());
    let acl = rustix::fs::getxattr(path, "system.posix_acl_default", &mut [0_u8; 0]);
    if acl.is_ok() { mode.mode } else { mode.masked() }
}

/// Gives the owner, the mode and the extended attributes of one file to another, as `O_TRUNC` keeps
/// them.
pub(super) fn copy_attributes(
    from: BorrowedFd<'_>,
    found: &Statx,
    new: BorrowedFd<'_>,
) -> io::Result<()> {
    if is_root() {
        let (user, group) = (Uid::from_raw(found.stx_uid), Gid::from_raw(found.stx_gid));
        rustix::fs::fchown(new, Some(user), Some(group))?;
    }
    copy_permissions(from, found, new)
}

/// Makes a file that a program writes in place from the start.
pub(super) fn create_in(dir: &OwnedFd, name: &OsStr, mode: u32, flags: i32) -> Done<File> {
    let access = access_of(flags) | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
    let mode = Mode::from_raw_mode(mode & 0o7777);
    let file = rustix::fs::openat(dir, name, access | OFlags::CLOEXEC, mode);
    file.map(File::from).map_err(|error| match error {
        // It was made past the view meanwhile: the kernel looks once more.
        rustix::io::Errno::EXIST if flags & libc::O_EXCL == 0 => Errno::ESTALE,
        error => Errno::from_i32(error.raw_os_error()),
    })
}
