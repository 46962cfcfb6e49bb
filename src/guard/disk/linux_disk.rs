//! The real disk: the file operations of a guard as Linux system calls.

use super::acting_as::{self, User};
use super::operations::{ACCESS_ACL, DEFAULT_ACL, attribute, attribute_names};
use crate::guard::disk::operations::{
    Attributes, Disk, DiskEntry, FileId, FileStat, IfThere, Place,
};
use rustix::fs::{
    AtFlags, CWD, Dir as DirStream, FallocateFlags, FileType, Gid, Mode, OFlags, RenameFlags,
    ResolveFlags, Statx, StatxAttributes, StatxFlags, Timespec, Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The attempts to open a path that another process renames at the same time, for which openat2
/// answers EAGAIN.
const OPEN_TRIES: u32 = 16;

/// The disk of this machine.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LinuxDisk;

/// Returns the path by which the kernel opens a descriptor of this process again.
pub(crate) fn path_of(fd: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// Opens a path below a directory. No symlink is followed, no mount point is crossed, and the path
/// never leaves the directory, whatever is renamed meanwhile.
pub(crate) fn open_below(root: BorrowedFd<'_>, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH
        | ResolveFlags::NO_SYMLINKS
        | ResolveFlags::NO_MAGICLINKS
        | ResolveFlags::NO_XDEV;
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let open = || rustix::fs::openat2(root, path, flags, Mode::empty(), resolve);
    let mut opened = open();
    for _ in 1..OPEN_TRIES {
        match opened {
            Err(Errno::AGAIN | Errno::INTR) => opened = open(),
            _ => break,
        }
    }
    Ok(opened?)
}

/// Opens the file behind an `O_PATH` descriptor again, for reading or writing.
pub(crate) fn reopen(fd: BorrowedFd<'_>, flags: OFlags) -> io::Result<File> {
    let opened = rustix::fs::open(path_of(fd), flags | OFlags::CLOEXEC, Mode::empty())?;
    Ok(File::from(opened))
}

/// The attributes of a file, of which every caller wants the identity.
pub(crate) fn stat(fd: BorrowedFd<'_>) -> io::Result<Statx> {
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    Ok(rustix::fs::statx(fd, "", AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW, wanted)?)
}

/// Returns the attributes of the file that has a name now.
pub(crate) fn stat_at(dir: BorrowedFd<'_>, name: &OsStr) -> io::Result<Statx> {
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    Ok(rustix::fs::statx(dir, name, AtFlags::SYMLINK_NOFOLLOW, wanted)?)
}

/// Returns the identity in the attributes of a file.
pub(crate) fn id_in(found: &Statx) -> FileId {
    let born =
        i128::from(found.stx_btime.tv_sec) * 1_000_000_000 + i128::from(found.stx_btime.tv_nsec);
    let has_birth = found.stx_mask & StatxFlags::BTIME.bits() != 0;
    FileId {
        device: rustix::fs::makedev(found.stx_dev_major, found.stx_dev_minor),
        inode: found.stx_ino,
        born: if has_birth { born } else { 0 },
    }
}

/// Returns the bytes on the disk in the attributes of a file.
pub(crate) const fn allocated_in(found: &Statx) -> u64 {
    found.stx_blocks.saturating_mul(512)
}

/// Returns the part of the attributes of a file that a [`FileStat`] holds.
pub(crate) fn stat_in(found: &Statx) -> FileStat {
    let time = |at: rustix::fs::StatxTimestamp| {
        i128::from(at.tv_sec) * 1_000_000_000 + i128::from(at.tv_nsec)
    };
    let kind = FileType::from_raw_mode(u32::from(found.stx_mode));
    FileStat {
        id: id_in(found),
        is_file: kind == FileType::RegularFile,
        is_dir: kind == FileType::Directory,
        links: found.stx_nlink,
        uid: found.stx_uid,
        size: found.stx_size,
        modified: time(found.stx_mtime),
        changed: time(found.stx_ctime),
    }
}

/// Returns the entries of a directory with their types, without `.` and `..`.
pub(crate) fn list(dir: BorrowedFd<'_>) -> io::Result<Vec<(OsString, u64, FileType)>> {
    let mut found = Vec::new();
    each_entry(dir, |name, inode, kind| {
        found.push((name.to_owned(), inode, kind));
        ControlFlow::Continue(())
    })?;
    Ok(found)
}

/// Calls `visit` for each entry of a directory, without `.` and `..`, until it breaks.
pub(crate) fn each_entry(
    dir: BorrowedFd<'_>,
    mut visit: impl FnMut(&OsStr, u64, FileType) -> ControlFlow<()>,
) -> io::Result<()> {
    let opened = reopen(dir, OFlags::RDONLY | OFlags::DIRECTORY)?;
    for entry in DirStream::new(opened)? {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name != "." && name != ".." && visit(name, entry.ino(), entry.file_type()).is_break() {
            break;
        }
    }
    Ok(())
}

/// Opens an existing regular file. Fails with ENXIO if another kind of file has the name.
fn open_regular(at: Place<'_, OwnedFd>, flags: OFlags) -> io::Result<File> {
    let found = open_below(at.dir.as_fd(), Path::new(at.name), OFlags::PATH)?;
    let mode = u32::from(stat(found.as_fd())?.stx_mode);
    match FileType::from_raw_mode(mode) {
        FileType::RegularFile => reopen(found.as_fd(), flags | OFlags::NONBLOCK),
        _ => Err(Errno::NXIO.into()),
    }
}

/// Copies the content of a file to one that is empty.
pub(crate) fn copy_content(from: &File, to: &File) -> io::Result<()> {
    if rustix::fs::ioctl_ficlone(to, from).is_ok() {
        return Ok(());
    }
    let (mut read, mut written, mut left) = (0, 0, stat(from.as_fd())?.stx_size);
    while left > 0 {
        let length = usize::try_from(left).unwrap_or(usize::MAX);
        let (from, to) = ((from, Some(&mut read)), (to, Some(&mut written)));
        match rustix::fs::copy_file_range(from.0, from.1, to.0, to.1, length)? {
            0 => break,
            count => left -= count as u64,
        }
    }
    Ok(())
}

/// Gives the times of one file to another.
pub(crate) fn copy_times(from: BorrowedFd<'_>, to: &File) -> io::Result<()> {
    let found = stat(from)?;
    let time = |at: rustix::fs::StatxTimestamp| Timespec {
        tv_sec: at.tv_sec,
        tv_nsec: i64::from(at.tv_nsec),
    };
    let times =
        Timestamps { last_access: time(found.stx_atime), last_modification: time(found.stx_mtime) };
    Ok(rustix::fs::futimens(to, &times)?)
}

/// Gives the mode, the ACL and the other extended attributes of one file to another, which was made
/// in a directory whose default ACL it has.
pub(crate) fn copy_permissions(
    from: BorrowedFd<'_>,
    found: &Statx,
    to: BorrowedFd<'_>,
) -> io::Result<()> {
    copy_modes(from, u32::from(found.stx_mode) & 0o7777, to, |_| true)
}

/// Gives the permissions and attributes of one file to another that the owner of any file may set:
/// no set-user-ID or set-group-ID bit, no capability, no label.
pub(crate) fn copy_of_owner(from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> io::Result<()> {
    let mode = u32::from(stat(from)?.stx_mode) & 0o777;
    let is_owners = |name: &[u8]| name == ACCESS_ACL.as_bytes() || name.starts_with(b"user.");
    copy_modes(from, mode, to, is_owners)
}

/// Gives a file a mode, no ACL of its directory, and the extended attributes of another file that
/// `is_copied` names.
fn copy_modes(
    from: BorrowedFd<'_>,
    mode: u32,
    to: BorrowedFd<'_>,
    is_copied: impl Fn(&[u8]) -> bool,
) -> io::Result<()> {
    let (path, copy) = (path_of(from), path_of(to));
    match rustix::fs::removexattr(&copy, ACCESS_ACL) {
        Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP) => {}
        Err(error) => return Err(error.into()),
    }
    rustix::fs::chmod(&copy, Mode::from_raw_mode(mode))?;
    let names = match attribute_names(&path) {
        Err(Errno::OPNOTSUPP) => return Ok(()),
        names => names?,
    };
    let names = names.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    for name in names.filter(|name| is_copied(name)) {
        let value = attribute(&path, OsStr::from_bytes(name))?;
        match rustix::fs::setxattr(&copy, name, &value, XattrFlags::empty()) {
            // Only root sets some labels. Without a capability the file can do less than before.
            Err(Errno::PERM | Errno::NOTSUP) if name.starts_with(b"security.") => {}
            set => set?,
        }
    }
    Ok(())
}

/// Makes a directory that other users may read, as the owner of the directory in which it is made.
/// It is not given away after it was made: a user who exchanges names meanwhile could get a
/// directory of root.
pub(crate) fn make_dir_as_owner(parent: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
    let owner = stat(parent)?;
    let mkdir = || Ok(rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(0o755))?);
    match acting_as::checked(User::owning(&owner), mkdir) {
        // The owner of the directory may have no permission to write to it. Root makes the
        // directory as its own then.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => mkdir(),
        made => made,
    }
}

/// Gives a file that this process has just made, and has open since, to the owner of the directory
/// `of`, if it may do that: only root may.
pub(crate) fn give_to_owner(file: BorrowedFd<'_>, of: BorrowedFd<'_>) -> io::Result<()> {
    let (found, owner) = (stat(file)?, stat(of)?);
    let is_own = found.stx_uid == rustix::process::geteuid().as_raw();
    if !is_own || (found.stx_uid, found.stx_gid) == (owner.stx_uid, owner.stx_gid) {
        return Ok(());
    }
    let ids = (Uid::from_raw(owner.stx_uid), Gid::from_raw(owner.stx_gid));
    match rustix::fs::chownat(file, "", Some(ids.0), Some(ids.1), AtFlags::EMPTY_PATH) {
        Ok(()) | Err(Errno::PERM) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

const fn rename_flags(if_there: IfThere) -> RenameFlags {
    match if_there {
        IfThere::Replace => RenameFlags::empty(),
        IfThere::Fail => RenameFlags::NOREPLACE,
    }
}

impl Disk for LinuxDisk {
    type Dir = OwnedFd;
    type File = File;

    fn make_dir(&self, at: Place<'_, OwnedFd>) -> io::Result<OwnedFd> {
        rustix::fs::mkdirat(at.dir, at.name, Mode::RWXU)?;
        self.open_dir(at)
    }

    fn make_readable_dir(&self, at: Place<'_, OwnedFd>) -> io::Result<()> {
        match make_dir_as_owner(at.dir.as_fd(), at.name) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            made => made,
        }
    }

    fn open_dir(&self, at: Place<'_, OwnedFd>) -> io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        open_below(at.dir.as_fd(), Path::new(at.name), flags)
    }

    fn reopen_dir(&self, dir: &OwnedFd) -> io::Result<OwnedFd> {
        dir.try_clone()
    }

    fn make_heir_dir(&self, at: Place<'_, OwnedFd>, of: &OwnedFd) -> io::Result<Option<OwnedFd>> {
        let found = stat(of.as_fd())?;
        let has_group = u32::from(found.stx_mode) & libc::S_ISGID != 0;
        let acl = match attribute(&path_of(of.as_fd()), OsStr::new(DEFAULT_ACL)) {
            Err(Errno::NODATA | Errno::OPNOTSUPP) => None,
            acl => Some(acl?),
        };
        if !has_group && acl.is_none() {
            return Ok(None);
        }
        let heir = self.make_dir(at)?;
        let path = path_of(heir.as_fd());
        if has_group {
            let group = Some(Gid::from_raw(found.stx_gid));
            rustix::fs::chownat(&heir, "", None, group, AtFlags::EMPTY_PATH)?;
            rustix::fs::chmod(&path, Mode::RWXU | Mode::SGID)?;
        }
        if let Some(acl) = acl {
            rustix::fs::setxattr(&path, DEFAULT_ACL, &acl, XattrFlags::empty())?;
        }
        Ok(Some(heir))
    }

    fn open_path(&self, dir: &OwnedFd) -> Option<String> {
        Some(path_of(dir.as_fd()))
    }

    fn let_owner_write(&self, at: Place<'_, OwnedFd>) -> io::Result<()> {
        let dir = self.open_dir(at)?;
        let mode = u32::from(stat(dir.as_fd())?.stx_mode) & 0o7777;
        if mode & 0o700 != 0o700 {
            rustix::fs::chmod(path_of(dir.as_fd()), Mode::from_raw_mode(mode | 0o700))?;
        }
        Ok(())
    }

    fn remove_dir(&self, at: Place<'_, OwnedFd>) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(at.dir, at.name, AtFlags::REMOVEDIR)?)
    }

    fn entries(&self, dir: &OwnedFd) -> io::Result<Vec<DiskEntry>> {
        let entry = |(name, _, kind)| DiskEntry { name, is_dir: kind == FileType::Directory };
        Ok(list(dir.as_fd())?.into_iter().map(entry).collect())
    }

    fn visit_entries(
        &self,
        dir: &OwnedFd,
        visit: &mut dyn FnMut(DiskEntry) -> ControlFlow<()>,
    ) -> io::Result<()> {
        each_entry(dir.as_fd(), |name, _, kind| {
            visit(DiskEntry { name: name.to_owned(), is_dir: kind == FileType::Directory })
        })
    }

    fn id_of(&self, at: Place<'_, OwnedFd>) -> io::Result<FileId> {
        Ok(id_in(&stat_at(at.dir.as_fd(), at.name)?))
    }

    fn stat(&self, at: Place<'_, OwnedFd>) -> io::Result<FileStat> {
        Ok(stat_in(&stat_at(at.dir.as_fd(), at.name)?))
    }

    fn allocated(&self, at: Place<'_, OwnedFd>) -> io::Result<u64> {
        Ok(allocated_in(&stat_at(at.dir.as_fd(), at.name)?))
    }

    fn stat_file(&self, file: &File) -> io::Result<FileStat> {
        Ok(stat_in(&stat(file.as_fd())?))
    }

    fn attributes(&self, at: Place<'_, OwnedFd>) -> io::Result<Attributes> {
        let found = stat_at(at.dir.as_fd(), at.name)?;
        Ok(Attributes {
            stat: stat_in(&found),
            mode: u32::from(found.stx_mode) & 0o7777,
            is_mount_point: found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT),
            // No file system of Linux says that a content is elsewhere.
            is_downloaded: true,
        })
    }

    fn open_to_read(&self, at: Place<'_, OwnedFd>) -> io::Result<File> {
        open_regular(at, OFlags::RDONLY)
    }

    fn read(&self, file: &File, offset: u64, bytes: &mut [u8]) -> io::Result<usize> {
        let mut length = 0;
        while length < bytes.len() {
            match file.read_at(&mut bytes[length..], offset + length as u64) {
                Ok(0) => break,
                Ok(count) => length += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(length)
    }

    fn open_file(&self, at: Place<'_, OwnedFd>) -> io::Result<File> {
        open_regular(at, OFlags::RDWR)
    }

    fn unnamed_file(&self, near: &OwnedFd, mode: u32) -> io::Result<File> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(mode & 0o7777);
        Ok(File::from(rustix::fs::openat(near, ".", flags, mode)?))
    }

    fn give_to_owner(&self, file: &File, of: &OwnedFd) -> io::Result<()> {
        give_to_owner(file.as_fd(), of.as_fd())
    }

    fn make_symlink(&self, at: Place<'_, OwnedFd>, target: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::symlinkat(target, at.dir, at.name)?)
    }

    fn read_symlink(&self, at: Place<'_, OwnedFd>) -> io::Result<OsString> {
        let target = rustix::fs::readlinkat(at.dir, at.name, Vec::new())?;
        Ok(OsStr::from_bytes(target.as_bytes()).to_owned())
    }

    fn open_parent(&self, root: &OwnedFd, path: &OsStr) -> io::Result<(OwnedFd, OsString)> {
        let path = Path::new(path);
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let parent = path.parent().unwrap_or(Path::new(""));
        let dir = open_below(root.as_fd(), parent, OFlags::PATH | OFlags::DIRECTORY)?;
        Ok((dir, name.to_owned()))
    }

    fn set_modified(&self, file: &File, time: i128) -> io::Result<()> {
        let second = 1_000_000_000;
        let out_of_range = |_| io::Error::from_raw_os_error(libc::EINVAL);
        let times = Timestamps {
            last_access: Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
            last_modification: Timespec {
                tv_sec: i64::try_from(time.div_euclid(second)).map_err(out_of_range)?,
                tv_nsec: i64::try_from(time.rem_euclid(second)).map_err(out_of_range)?,
            },
        };
        Ok(rustix::fs::futimens(file, &times)?)
    }

    fn write(&self, file: &File, offset: u64, bytes: &[u8]) -> io::Result<()> {
        file.write_all_at(bytes, offset)
    }

    fn reserve(&self, file: &File, offset: u64, bytes: u64) -> io::Result<()> {
        Ok(rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, offset, bytes)?)
    }

    fn shorten(&self, file: &File, bytes: u64) -> io::Result<()> {
        file.set_len(stat(file.as_fd())?.stx_size.saturating_sub(bytes))
    }

    fn copy(&self, from: &File, to: &File) -> io::Result<()> {
        let whole = stat(from.as_fd())?;
        copy_content(from, to)?;
        let owner = |id| Some(id).filter(|id| *id != u32::MAX);
        let (user, group) = (owner(whole.stx_uid), owner(whole.stx_gid));
        rustix::fs::fchown(to, user.map(Uid::from_raw), group.map(Gid::from_raw))?;
        copy_permissions(from.as_fd(), &whole, to.as_fd())?;
        copy_times(from.as_fd(), to)
    }

    fn link(&self, file: &File, to: Place<'_, OwnedFd>) -> io::Result<()> {
        match rustix::fs::linkat(file, "", to.dir, to.name, AtFlags::EMPTY_PATH) {
            // The directory was removed, or this process lacks CAP_DAC_READ_SEARCH, without which
            // the kernel takes the longer way only.
            Err(Errno::NOENT) => {
                let path = path_of(file.as_fd());
                Ok(rustix::fs::linkat(CWD, path, to.dir, to.name, AtFlags::SYMLINK_FOLLOW)?)
            }
            linked => Ok(linked?),
        }
    }

    fn rename(
        &self,
        from: Place<'_, OwnedFd>,
        to: Place<'_, OwnedFd>,
        if_there: IfThere,
    ) -> io::Result<()> {
        let flags = rename_flags(if_there);
        Ok(rustix::fs::renameat_with(from.dir, from.name, to.dir, to.name, flags)?)
    }

    fn exchange(&self, one: Place<'_, OwnedFd>, other: Place<'_, OwnedFd>) -> io::Result<()> {
        let flags = RenameFlags::EXCHANGE;
        Ok(rustix::fs::renameat_with(one.dir, one.name, other.dir, other.name, flags)?)
    }

    fn remove_file(&self, at: Place<'_, OwnedFd>) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(at.dir, at.name, AtFlags::empty())?)
    }

    fn sync_file(&self, file: &File) -> io::Result<()> {
        file.sync_all()
    }

    fn sync_dir(&self, dir: &OwnedFd) -> io::Result<()> {
        reopen(dir.as_fd(), OFlags::RDONLY | OFlags::DIRECTORY)?.sync_all()
    }
    fn sync_file_system(&self, dir: &OwnedFd) -> io::Result<()> {
        let opened = reopen(dir.as_fd(), OFlags::RDONLY | OFlags::DIRECTORY)?;
        Ok(rustix::fs::syncfs(opened)?)
    }
}
