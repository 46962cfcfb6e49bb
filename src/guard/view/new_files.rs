//! Makes the files of programs as the folder's own file system would: with their owners, modes and
//! ACLs.

use super::super::acting_as;
use super::super::linux_disk::{copy_permissions, path_of, stat};
use crate::fuse::kernel::file_system::Done;
use crate::fuse::kernel::file_system::{Errno, NewMode, Requester};
use crate::fuse::kernel::own_user::is_root;
use rustix::fs::{Gid, Mode, OFlags, Statx, Uid};
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

/// Returns the mode of a new file in a directory. A default ACL of the directory takes the place of
/// the program's umask.
pub(super) fn mode_in(dir: &OwnedFd, mode: NewMode) -> u32 {
    let path = path_of(dir.as_fd());
    let acl = rustix::fs::getxattr(path, "system.posix_acl_default", &mut [0_u8; 0]);
    if acl.is_ok() { mode.mode } else { mode.masked() }
}

/// Gives the owner, the mode and the extended attributes of one file to another.
pub(super) fn copy_attributes(
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
pub(super) fn truncate_special(who: Requester, new: &File, mode: u32) -> io::Result<()> {
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
pub(super) fn create_in(
    who: Requester,
    (dir, name): (&OwnedFd, &OsStr),
    mode: u32,
    flags: i32,
) -> Done<File> {
    let access = access_of(flags) | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
    let mode = Mode::from_raw_mode(mode & 0o7777);
    let open = || Ok(rustix::fs::openat(dir, name, access | OFlags::CLOEXEC, mode)?);
    let file = acting_as::making(who.into(), open);
    file.map(File::from).map_err(|error| match error.raw_os_error() {
        // It was made past the view meanwhile: the kernel looks once more.
        Some(libc::EEXIST) if flags & libc::O_EXCL == 0 => Errno::ESTALE,
        code => Errno::from_i32(code.unwrap_or(libc::EIO)),
    })
}
