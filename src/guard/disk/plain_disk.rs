//! The real disk of a guard without a view: the file operations as system calls that Linux and
//! macOS both have. Nothing is fenced there, so that a file which has no name yet may have a
//! temporary one.

use crate::base::random;
use crate::guard::disk::operations::{
    Attributes, Disk, DiskEntry, FileId, FileStat, IfThere, Place,
};
use parking_lot::Mutex;
use rustix::fs::{
    AtFlags, Dir as DirStream, FileType, Gid, Mode, OFlags, RenameFlags, Stat, Timespec,
    Timestamps, Uid,
};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Component, Path};

/// The size of the pieces in which a file is copied.
const COPY_BYTES: usize = 1 << 18;

/// The flag of a file whose content is not on this disk (macOS: `SF_DATALESS`), as iCloud leaves
/// it when space is needed.
#[cfg(target_os = "macos")]
const NOT_DOWNLOADED: u32 = 0x4000_0000;

/// The disk of this machine, for a guard without a view.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PlainDisk;

/// An open file, and its temporary name as long as it has no other.
#[derive(Debug)]
pub(crate) struct PlainFile {
    file: File,
    temporary: Mutex<Option<(OwnedFd, OsString)>>,
}

impl PlainFile {
    const fn named(file: File) -> Self {
        Self { file, temporary: Mutex::new(None) }
    }
}

impl Drop for PlainFile {
    fn drop(&mut self) {
        if let Some((dir, name)) = self.temporary.get_mut().take() {
            // If the removal fails, the file stays under a name that no marker carries.
            let _ = rustix::fs::unlinkat(&dir, &name, AtFlags::empty());
        }
    }
}

/// Opens a path below a directory. No symlink is followed, no mount point is crossed, and the path
/// never leaves the directory, whatever is renamed meanwhile: each part of it is opened by itself.
pub(crate) fn open_below(root: BorrowedFd<'_>, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    let device = rustix::fs::fstat(root)?.st_dev;
    let mut dir = None;
    let mut parts = path.components().peekable();
    while let Some(part) = parts.next() {
        let Component::Normal(name) = part else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let is_last = parts.peek().is_none();
        let flags = if is_last { flags } else { OFlags::RDONLY | OFlags::DIRECTORY };
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let at = dir.as_ref().map_or(root, OwnedFd::as_fd);
        let opened = rustix::fs::openat(at, name, flags, Mode::empty())?;
        if rustix::fs::fstat(&opened)?.st_dev != device {
            return Err(Errno::XDEV.into());
        }
        dir = Some(opened);
    }
    match dir {
        Some(opened) => Ok(opened),
        None => Ok(rustix::fs::openat(root, ".", flags | OFlags::CLOEXEC, Mode::empty())?),
    }
}

/// Makes a directory that other users may read. It belongs to this process's user: giving it away
/// afterwards could give away another directory that has got its name.
#[cfg(not(target_os = "linux"))]
pub(crate) fn make_dir_as_owner(parent: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
    Ok(rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(0o755))?)
}

#[cfg(target_os = "linux")]
use super::linux_disk::make_dir_as_owner;

/// Gives a file that this process has just made, and has open since, to the owner of the directory
/// `of`, if it may do that: only root may.
pub(crate) fn give_to_owner(file: BorrowedFd<'_>, of: BorrowedFd<'_>) -> io::Result<()> {
    let (found, owner) = (rustix::fs::fstat(file)?, rustix::fs::fstat(of)?);
    let is_own = found.st_uid == rustix::process::geteuid().as_raw();
    if !is_own || (found.st_uid, found.st_gid) == (owner.st_uid, owner.st_gid) {
        return Ok(());
    }
    let (user, group) = (Uid::from_raw(owner.st_uid), Gid::from_raw(owner.st_gid));
    match rustix::fs::fchown(file, Some(user), Some(group)) {
        Ok(()) | Err(Errno::PERM) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Returns a time in nanoseconds since 1970.
#[allow(clippy::useless_conversion)] // the fields have other types on other systems
fn nanos(secs: impl Into<i128>, nanos: impl Into<i128>) -> i128 {
    secs.into() * 1_000_000_000 + nanos.into()
}

/// Returns when an inode was made.
#[cfg(target_os = "macos")]
fn born(found: &Stat) -> i128 {
    nanos(found.st_birthtime, found.st_birthtime_nsec)
}

/// Returns 0: the portable call does not say when an inode was made.
#[cfg(not(target_os = "macos"))]
const fn born(_found: &Stat) -> i128 {
    0
}

/// Whether the content of a file is on this disk.
#[cfg(target_os = "macos")]
const fn is_downloaded(found: &Stat) -> bool {
    found.st_flags & NOT_DOWNLOADED == 0
}

/// Returns true: no file system of Linux says that a content is elsewhere.
#[cfg(not(target_os = "macos"))]
const fn is_downloaded(_found: &Stat) -> bool {
    true
}

/// Returns the type of the file in its mode.
#[allow(clippy::useless_conversion)] // the field has another type on other systems
fn kind_of(found: &Stat) -> FileType {
    FileType::from_raw_mode(found.st_mode.into())
}

#[allow(clippy::useless_conversion, clippy::unnecessary_cast, clippy::cast_lossless)]
fn stat_in(found: &Stat) -> FileStat {
    let kind = kind_of(found);
    FileStat {
        id: FileId { device: found.st_dev as u64, inode: found.st_ino, born: born(found) },
        is_file: kind == FileType::RegularFile,
        is_dir: kind == FileType::Directory,
        links: u32::try_from(found.st_nlink).unwrap_or(u32::MAX),
        uid: found.st_uid,
        size: found.st_size as u64,
        modified: nanos(found.st_mtime as i64, found.st_mtime_nsec as i64),
        changed: nanos(found.st_ctime as i64, found.st_ctime_nsec as i64),
    }
}

fn stat_at(at: Place<'_, OwnedFd>) -> io::Result<Stat> {
    Ok(rustix::fs::statat(at.dir, at.name, AtFlags::SYMLINK_NOFOLLOW)?)
}

/// Opens an existing regular file. Fails with ENXIO if another kind of file has the name: opening a
/// device may do something.
fn open_regular(at: Place<'_, OwnedFd>, flags: OFlags) -> io::Result<PlainFile> {
    let is_regular = |found: &Stat| kind_of(found) == FileType::RegularFile;
    if !is_regular(&stat_at(at)?) {
        return Err(Errno::NXIO.into());
    }
    let opened = open_below(at.dir.as_fd(), Path::new(at.name), flags | OFlags::NONBLOCK)?;
    if !is_regular(&rustix::fs::fstat(&opened)?) {
        return Err(Errno::NXIO.into());
    }
    Ok(PlainFile::named(File::from(opened)))
}

/// Calls `visit` for each entry of a directory, without `.` and `..`, until it breaks.
fn each_entry(
    dir: &OwnedFd,
    visit: &mut dyn FnMut(DiskEntry) -> ControlFlow<()>,
) -> io::Result<()> {
    for entry in DirStream::read_from(dir)? {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes()).to_owned();
        if name == "." || name == ".." {
            continue;
        }
        let is_dir = entry.file_type() == FileType::Directory;
        if visit(DiskEntry { name, is_dir }).is_break() {
            break;
        }
    }
    Ok(())
}

/// Moves a file to another name. `if_there` says whether a file that has the name is replaced.
fn rename(
    from: Place<'_, OwnedFd>,
    to: Place<'_, OwnedFd>,
    if_there: IfThere,
) -> rustix::io::Result<()> {
    match if_there {
        IfThere::Replace => rustix::fs::renameat(from.dir, from.name, to.dir, to.name),
        IfThere::Fail => {
            let flags = RenameFlags::NOREPLACE;
            match rustix::fs::renameat_with(from.dir, from.name, to.dir, to.name, flags) {
                // The file system has no such rename.
                Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {
                    rustix::fs::linkat(from.dir, from.name, to.dir, to.name, AtFlags::empty())?;
                    rustix::fs::unlinkat(from.dir, from.name, AtFlags::empty())
                }
                renamed => renamed,
            }
        }
    }
}

impl Disk for PlainDisk {
    type Dir = OwnedFd;
    type File = PlainFile;

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
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        open_below(at.dir.as_fd(), Path::new(at.name), flags)
    }

    fn reopen_dir(&self, dir: &OwnedFd) -> io::Result<OwnedFd> {
        dir.try_clone()
    }

    #[cfg(target_os = "linux")]
    fn open_path(&self, dir: &OwnedFd) -> Option<String> {
        Some(super::linux_disk::path_of(dir.as_fd()))
    }

    fn remove_dir(&self, at: Place<'_, OwnedFd>) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(at.dir, at.name, AtFlags::REMOVEDIR)?)
    }

    fn entries(&self, dir: &OwnedFd) -> io::Result<Vec<DiskEntry>> {
        let mut found = Vec::new();
        each_entry(dir, &mut |entry| {
            found.push(entry);
            ControlFlow::Continue(())
        })?;
        Ok(found)
    }

    fn visit_entries(
        &self,
        dir: &OwnedFd,
        visit: &mut dyn FnMut(DiskEntry) -> ControlFlow<()>,
    ) -> io::Result<()> {
        each_entry(dir, visit)
    }

    fn id_of(&self, at: Place<'_, OwnedFd>) -> io::Result<FileId> {
        Ok(self.stat(at)?.id)
    }

    fn stat(&self, at: Place<'_, OwnedFd>) -> io::Result<FileStat> {
        Ok(stat_in(&stat_at(at)?))
    }

    fn stat_file(&self, file: &PlainFile) -> io::Result<FileStat> {
        Ok(stat_in(&rustix::fs::fstat(&file.file)?))
    }

    #[allow(clippy::useless_conversion)] // the mode has another type on other systems
    fn attributes(&self, at: Place<'_, OwnedFd>) -> io::Result<Attributes> {
        let found = stat_at(at)?;
        Ok(Attributes {
            stat: stat_in(&found),
            mode: u32::from(found.st_mode) & 0o7777,
            is_mount_point: found.st_dev != rustix::fs::fstat(at.dir)?.st_dev,
            is_downloaded: is_downloaded(&found),
        })
    }

    fn open_to_read(&self, at: Place<'_, OwnedFd>) -> io::Result<PlainFile> {
        open_regular(at, OFlags::RDONLY)
    }

    fn read(&self, file: &PlainFile, offset: u64, bytes: &mut [u8]) -> io::Result<usize> {
        let mut length = 0;
        while length < bytes.len() {
            match file.file.read_at(&mut bytes[length..], offset + length as u64) {
                Ok(0) => break,
                Ok(count) => length += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(length)
    }

    fn open_file(&self, at: Place<'_, OwnedFd>) -> io::Result<PlainFile> {
        open_regular(at, OFlags::RDWR)
    }

    /// Makes a file with a temporary name, which enters no marker and is removed with the file.
    #[allow(clippy::useless_conversion)] // the mode has another type on other systems
    fn unnamed_file(&self, near: &OwnedFd, mode: u32) -> io::Result<PlainFile> {
        let name = OsString::from(format!(".latchfs-{:016x}.partial", random()));
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
        let mode = Mode::from_bits_truncate(mode.try_into().unwrap_or(0o600));
        let file = File::from(rustix::fs::openat(near, &name, flags, mode)?);
        let temporary = Mutex::new(Some((near.try_clone()?, name)));
        Ok(PlainFile { file, temporary })
    }

    fn give_to_owner(&self, file: &PlainFile, of: &OwnedFd) -> io::Result<()> {
        give_to_owner(file.file.as_fd(), of.as_fd())
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
        let dir = open_below(root.as_fd(), parent, OFlags::RDONLY | OFlags::DIRECTORY)?;
        Ok((dir, name.to_owned()))
    }

    fn set_modified(&self, file: &PlainFile, time: i128) -> io::Result<()> {
        let second = 1_000_000_000;
        let out_of_range = |_| io::Error::from_raw_os_error(libc::EINVAL);
        let times = Timestamps {
            last_access: Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
            last_modification: Timespec {
                tv_sec: i64::try_from(time.div_euclid(second)).map_err(out_of_range)?,
                tv_nsec: i64::try_from(time.rem_euclid(second)).map_err(out_of_range)?,
            },
        };
        Ok(rustix::fs::futimens(&file.file, &times)?)
    }

    fn write(&self, file: &PlainFile, offset: u64, bytes: &[u8]) -> io::Result<()> {
        file.file.write_all_at(bytes, offset)
    }

    /// Does nothing where no call takes space without making the file larger.
    fn reserve(&self, file: &PlainFile, offset: u64, bytes: u64) -> io::Result<()> {
        #[cfg(target_os = "linux")]
        rustix::fs::fallocate(&file.file, rustix::fs::FallocateFlags::KEEP_SIZE, offset, bytes)?;
        let _ = (file, offset, bytes);
        Ok(())
    }

    fn shorten(&self, file: &PlainFile, bytes: u64) -> io::Result<()> {
        file.file.set_len(self.stat_file(file)?.size.saturating_sub(bytes))
    }

    /// Extended attributes are not copied: the calls for them differ between the systems.
    fn copy(&self, from: &PlainFile, to: &PlainFile) -> io::Result<()> {
        let found = rustix::fs::fstat(&from.file)?;
        let (mut offset, mut bytes) = (0, vec![0; COPY_BYTES]);
        loop {
            let length = self.read(from, offset, &mut bytes)?;
            if length == 0 {
                break;
            }
            self.write(to, offset, &bytes[..length])?;
            offset += length as u64;
        }
        let (user, group) = (Uid::from_raw(found.st_uid), Gid::from_raw(found.st_gid));
        match rustix::fs::fchown(&to.file, Some(user), Some(group)) {
            // Only root may give files away, so the owner stays as it is.
            Ok(()) | Err(Errno::PERM) => {}
            Err(error) => return Err(error.into()),
        }
        rustix::fs::fchmod(&to.file, Mode::from_raw_mode(found.st_mode))?;
        self.set_modified(to, stat_in(&found).modified)
    }

    fn link(&self, file: &PlainFile, to: Place<'_, OwnedFd>) -> io::Result<()> {
        let mut temporary = file.temporary.lock();
        let Some((dir, name)) = &*temporary else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        rename(Place::new(dir, name), to, IfThere::Fail)?;
        *temporary = None;
        Ok(())
    }

    fn rename(
        &self,
        from: Place<'_, OwnedFd>,
        to: Place<'_, OwnedFd>,
        if_there: IfThere,
    ) -> io::Result<()> {
        Ok(rename(from, to, if_there)?)
    }

    fn exchange(&self, one: Place<'_, OwnedFd>, other: Place<'_, OwnedFd>) -> io::Result<()> {
        let flags = RenameFlags::EXCHANGE;
        Ok(rustix::fs::renameat_with(one.dir, one.name, other.dir, other.name, flags)?)
    }

    fn remove_file(&self, at: Place<'_, OwnedFd>) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(at.dir, at.name, AtFlags::empty())?)
    }

    fn sync_file(&self, file: &PlainFile) -> io::Result<()> {
        file.file.sync_all()
    }

    fn sync_dir(&self, dir: &OwnedFd) -> io::Result<()> {
        Ok(rustix::fs::fsync(dir)?)
    }

    #[cfg(target_os = "linux")]
    fn sync_file_system(&self, dir: &OwnedFd) -> io::Result<()> {
        Ok(rustix::fs::syncfs(dir)?)
    }

    /// Begins to write all file systems to the storage, and then has the disk of this one empty its
    /// cache: macOS has no call that waits for all files of one file system.
    #[cfg(not(target_os = "linux"))]
    fn sync_file_system(&self, dir: &OwnedFd) -> io::Result<()> {
        rustix::fs::sync();
        self.sync_dir(dir)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns an open directory, and its path.
    fn fresh(name: &str) -> (OwnedFd, std::path::PathBuf) {
        let dir = std::env::temp_dir().join(format!("latchfs-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory");
        let opened = rustix::fs::open(&dir, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty());
        (opened.expect("there"), dir)
    }

    #[test]
    fn a_file_without_a_name_replaces_nothing_and_leaves_nothing() {
        let (dir, path) = fresh("plain-disk");
        let file = PlainDisk.unnamed_file(&dir, 0o600).expect("made");
        PlainDisk.write(&file, 0, b"new").expect("written");
        std::fs::write(path.join("taken"), "old").expect("written");
        let taken = PlainDisk.link(&file, Place::new(&dir, "taken")).expect_err("it is there");
        assert_eq!(taken.kind(), io::ErrorKind::AlreadyExists);
        PlainDisk.link(&file, Place::new(&dir, "free")).expect("linked");
        drop(file);
        drop(PlainDisk.unnamed_file(&dir, 0o600).expect("made"));
        let mut names: Vec<_> = PlainDisk.entries(&dir).expect("readable");
        names.sort_by(|a, b| a.name.cmp(&b.name));
        let names: Vec<_> = names.into_iter().map(|entry| entry.name).collect();
        assert_eq!(names, ["free", "taken"]);
        assert_eq!(std::fs::read(path.join("free")).expect("there"), b"new");
        std::fs::remove_dir_all(&path).expect("it is there");
    }

    #[test]
    fn a_path_leads_through_no_symlink_and_not_out_of_the_folder() {
        let (dir, path) = fresh("plain-paths");
        std::fs::create_dir(path.join("sub")).expect("made");
        std::fs::write(path.join("sub/file"), "x").expect("written");
        std::os::unix::fs::symlink("sub", path.join("link")).expect("made");
        let open = |name: &str| open_below(dir.as_fd(), Path::new(name), OFlags::RDONLY);
        open("sub/file").expect("a file");
        for name in ["link/file", "link", "../x", "/etc/passwd"] {
            open(name).expect_err(name);
        }
        let proc = rustix::fs::open("/", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty());
        let proc = proc.expect("there");
        let other = open_below(proc.as_fd(), Path::new("proc/version"), OFlags::RDONLY);
        assert_eq!(other.expect_err("a mount point").raw_os_error(), Some(libc::EXDEV));
        let kind = open_regular(Place::new(&dir, "sub"), OFlags::RDONLY).expect_err("no file");
        assert_eq!(kind.raw_os_error(), Some(libc::ENXIO));
        std::fs::remove_dir_all(&path).expect("it is there");
    }
}
