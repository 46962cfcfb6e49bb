//! The file operations by which a guard stages, publishes and fences, as a trait: the tests replace
//! the real disk by one that stops or fails at each operation.
//!
//! Removes a directory with everything in it, however deep it is.
//!
//! Reads the extended attributes of files.

use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::io;
use std::ops::ControlFlow;
use std::path::Path;

/// The identity of a file on its file system. An inode number is used again after its file is gone;
/// the time of the file's birth tells the two apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct FileId {
    /// The device number of the file system.
    pub(crate) device: u64,
    /// The inode number.
    pub(crate) inode: u64,
    /// When the inode was made, in nanoseconds since 1970; 0 if the file system does not record it.
    pub(crate) born: i128,
}

/// The attributes of a file at one moment, by which a guard notices changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileStat {
    /// The identity of the file.
    pub(crate) id: FileId,
    /// Whether the file is a regular one.
    pub(crate) is_file: bool,
    /// Whether the file is a directory.
    pub(crate) is_dir: bool,
    /// The number of names of the file.
    pub(crate) links: u32,
    /// The user to whom the file belongs.
    pub(crate) uid: u32,
    /// The size in bytes.
    pub(crate) size: u64,
    /// When the content was last changed, in nanoseconds since 1970; programs can set this.
    pub(crate) modified: i128,
    /// When the file was last changed in any way, in nanoseconds since 1970.
    pub(crate) changed: i128,
}

/// The attributes of a file of the folder, for the comparison with the versions that should be
/// there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Attributes {
    /// The identity, the type, the size and the times.
    pub(crate) stat: FileStat,
    /// The mode bits.
    pub(crate) mode: u32,
    /// Whether another file system, or another part of this one, is mounted on the name.
    pub(crate) is_mount_point: bool,
    /// Whether the content is on this disk, and not a placeholder of the sync tool.
    pub(crate) is_downloaded: bool,
}

/// An entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DiskEntry {
    /// The name of the entry.
    pub(crate) name: OsString,
    /// Whether the entry is a directory.
    pub(crate) is_dir: bool,
}

/// The effect of a rename on an existing file at the new name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IfThere {
    /// The rename replaces the file.
    Replace,
    /// The rename fails with EEXIST (`RENAME_NOREPLACE`).
    Fail,
}

/// A name within a directory.
#[derive(Debug)]
pub(crate) struct Place<'a, Dir> {
    /// The directory.
    pub(crate) dir: &'a Dir,
    /// The name of the file in the directory.
    pub(crate) name: &'a OsStr,
}

impl<Dir> Clone for Place<'_, Dir> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<Dir> Copy for Place<'_, Dir> {}

impl<'a, Dir> Place<'a, Dir> {
    /// Returns the place of `name` in the directory `dir`.
    pub(crate) fn new(dir: &'a Dir, name: &'a (impl AsRef<OsStr> + ?Sized)) -> Self {
        Self { dir, name: name.as_ref() }
    }
}

/// A name of the folder: the open directory in which it stands, and its path in the folder.
#[derive(Debug)]
pub(crate) struct FolderName<'a, Dir> {
    /// The name within its directory.
    pub(crate) at: Place<'a, Dir>,
    /// The path of the name in the folder.
    pub(crate) path: &'a OsStr,
}

impl<Dir> Clone for FolderName<'_, Dir> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<Dir> Copy for FolderName<'_, Dir> {}

/// The file operations of a guard. Each is one system call, or a few that no crash can separate
/// with an effect.
pub(crate) trait Disk: Send + Sync + 'static {
    /// A directory that stays the same directory whatever its name becomes.
    type Dir: Send + Sync + 'static;
    /// An open file.
    type File: Send + Sync + 'static;

    /// Makes a directory, and opens it.
    fn make_dir(&self, at: Place<'_, Self::Dir>) -> io::Result<Self::Dir>;
    /// Makes a directory that other users may read, unless there is one. It belongs to the owner of
    /// the directory in which it is made.
    fn make_readable_dir(&self, at: Place<'_, Self::Dir>) -> io::Result<()>;
    /// Opens a directory.
    fn open_dir(&self, at: Place<'_, Self::Dir>) -> io::Result<Self::Dir>;
    /// Returns another handle of a directory.
    fn reopen_dir(&self, dir: &Self::Dir) -> io::Result<Self::Dir>;
    /// Returns a path by which this process opens the same directory again, where there is one.
    fn open_path(&self, _dir: &Self::Dir) -> Option<String> {
        None
    }
    /// Lets the owner of a directory change it, so that its entries can be removed.
    fn let_owner_write(&self, _at: Place<'_, Self::Dir>) -> io::Result<()> {
        Ok(())
    }
    /// Makes a directory whose new entries inherit what those of the directory `of` do: the group
    /// of a set-gid directory, and the default ACL. Returns `None`, and makes nothing, if `of`
    /// passes nothing on.
    fn make_heir_dir(
        &self,
        _at: Place<'_, Self::Dir>,
        _of: &Self::Dir,
    ) -> io::Result<Option<Self::Dir>> {
        Ok(None)
    }
    /// Removes an empty directory.
    fn remove_dir(&self, at: Place<'_, Self::Dir>) -> io::Result<()>;
    /// Returns the entries of a directory.
    fn entries(&self, dir: &Self::Dir) -> io::Result<Vec<DiskEntry>>;
    /// Calls `visit` for each entry of a directory until it breaks. No more memory is taken for a
    /// directory with many entries.
    fn visit_entries(
        &self,
        dir: &Self::Dir,
        visit: &mut dyn FnMut(DiskEntry) -> ControlFlow<()>,
    ) -> io::Result<()>;
    /// Returns the identity of the file that has a name now.
    fn id_of(&self, at: Place<'_, Self::Dir>) -> io::Result<FileId>;
    /// Looks at the file that has a name now.
    fn stat(&self, at: Place<'_, Self::Dir>) -> io::Result<FileStat>;
    /// Returns how many bytes the file that has a name now takes on the disk.
    fn allocated(&self, at: Place<'_, Self::Dir>) -> io::Result<u64> {
        self.stat(at).map(|found| found.size)
    }
    /// Looks at an open file.
    fn stat_file(&self, file: &Self::File) -> io::Result<FileStat>;
    /// Returns the attributes of the file that has a name now.
    fn attributes(&self, at: Place<'_, Self::Dir>) -> io::Result<Attributes>;
    /// Opens an existing regular file for reading, without a wait and without a symlink or mount
    /// point on the way. Fails with ENXIO if another kind of file has the name.
    fn open_to_read(&self, at: Place<'_, Self::Dir>) -> io::Result<Self::File>;
    /// Reads bytes of an open file. Returns fewer than were asked for at the end of the file only.
    fn read(&self, file: &Self::File, offset: u64, bytes: &mut [u8]) -> io::Result<usize>;
    /// Opens an existing regular file for reading and writing. Fails with ENXIO if another kind of
    /// file has the name.
    fn open_file(&self, at: Place<'_, Self::Dir>) -> io::Result<Self::File>;
    /// Makes an empty file without a name. It inherits from the directory `near` as a file does
    /// that is made in it: the default ACL, the group of a set-gid directory, security labels.
    fn unnamed_file(&self, near: &Self::Dir, mode: u32) -> io::Result<Self::File>;
    /// Gives an open file to the owner of a directory, if this process may do that.
    fn give_to_owner(&self, file: &Self::File, of: &Self::Dir) -> io::Result<()>;
    /// Makes a symlink.
    fn make_symlink(&self, at: Place<'_, Self::Dir>, target: &OsStr) -> io::Result<()>;
    /// Returns the target of a symlink.
    fn read_symlink(&self, at: Place<'_, Self::Dir>) -> io::Result<OsString>;
    /// Returns the directory and the last name of a path below `root`. No symlink is followed.
    fn open_parent(&self, root: &Self::Dir, path: &OsStr) -> io::Result<(Self::Dir, OsString)>;
    /// Sets when the content of an open file was last changed, in nanoseconds since 1970.
    fn set_modified(&self, file: &Self::File, time: i128) -> io::Result<()>;
    /// Writes bytes to an open file.
    fn write(&self, file: &Self::File, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Takes space on the disk for so many bytes of an open file from `offset` on, which does not
    /// become larger by that.
    fn reserve(&self, file: &Self::File, offset: u64, bytes: u64) -> io::Result<()>;
    /// Removes up to `bytes` bytes from the end of an open file.
    fn shorten(&self, file: &Self::File, bytes: u64) -> io::Result<()>;
    /// Copies the content, the permissions, the owner and the times of `from` to `to`, which is
    /// empty.
    fn copy(&self, from: &Self::File, to: &Self::File) -> io::Result<()>;
    /// Gives a name to an open file. Fails with ENOENT if the directory was removed.
    fn link(&self, file: &Self::File, to: Place<'_, Self::Dir>) -> io::Result<()>;
    /// Moves a file to another name. Fails with ENOENT if either directory was removed.
    fn rename(
        &self,
        from: Place<'_, Self::Dir>,
        to: Place<'_, Self::Dir>,
        if_there: IfThere,
    ) -> io::Result<()>;
    /// Exchanges two files, which stay whole under each other's name.
    fn exchange(&self, one: Place<'_, Self::Dir>, other: Place<'_, Self::Dir>) -> io::Result<()>;
    /// Removes the name of a file.
    fn remove_file(&self, at: Place<'_, Self::Dir>) -> io::Result<()>;
    /// Writes the content of a file to the storage (fsync).
    fn sync_file(&self, file: &Self::File) -> io::Result<()>;
    /// Writes the names in a directory to the storage (fsync of the directory).
    fn sync_dir(&self, dir: &Self::Dir) -> io::Result<()>;
    /// Writes all files and names of the file system of a directory to the storage (syncfs).
    fn sync_file_system(&self, dir: &Self::Dir) -> io::Result<()>;
}

/// Returns success if the name is gone: another process may have removed it.
fn unless_gone(done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

/// Removes a directory of the state directory with everything in it. The file `first` in it is
/// removed before all others. No symlink is followed.
pub(crate) fn remove_tree<D: Disk>(
    disk: &D,
    at: Place<'_, D::Dir>,
    first: &OsStr,
) -> io::Result<()> {
    let dir = match disk.open_dir(at) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        dir => dir?,
    };
    unless_gone(disk.remove_file(Place::new(&dir, first)))?;
    let mut left = vec![OsString::new()];
    while let Some(path) = left.last().cloned() {
        let inside = Place::new(&dir, &path);
        disk.let_owner_write(inside)?;
        let opened = match disk.open_dir(inside) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                left.pop();
                continue;
            }
            opened => opened?,
        };
        let before = left.len();
        for entry in disk.entries(&opened)? {
            if entry.is_dir {
                left.push(Path::new(&path).join(&entry.name).into_os_string());
            } else {
                unless_gone(disk.remove_file(Place::new(&opened, &entry.name)))?;
            }
        }
        if left.len() == before {
            left.pop();
            if !path.is_empty() {
                let (parent, name) = disk.open_parent(&dir, &path)?;
                unless_gone(disk.remove_dir(Place::new(&parent, &name)))?;
            }
        }
    }
    unless_gone(disk.remove_dir(at))
}

/// The extended attribute with the ACL of a file.
pub(in crate::guard) const ACCESS_ACL: &str = "system.posix_acl_access";
/// The extended attribute with the ACL that new entries of a directory get.
pub(super) const DEFAULT_ACL: &str = "system.posix_acl_default";

/// Whether an extended attribute is an ACL, which some file systems lack.
pub(in crate::guard) fn is_acl(name: &OsStr) -> bool {
    name == ACCESS_ACL || name == DEFAULT_ACL
}

/// The sizes of the buffers for extended attributes; the second is the kernel's maximum.
const ATTRIBUTE_SIZES: [usize; 2] = [1 << 10, 1 << 16];

fn filled(read: impl Fn(&mut [u8]) -> rustix::io::Result<usize>) -> rustix::io::Result<Vec<u8>> {
    for size in ATTRIBUTE_SIZES {
        let mut bytes = vec![0; size];
        match read(&mut bytes) {
            Err(Errno::RANGE) => {}
            length => {
                bytes.truncate(length?);
                return Ok(bytes);
            }
        }
    }
    Err(Errno::RANGE)
}

/// Returns the value of an extended attribute.
pub(crate) fn attribute(path: &str, name: &OsStr) -> rustix::io::Result<Vec<u8>> {
    filled(|bytes| rustix::fs::getxattr(path, name, bytes))
}

/// Returns the names of all extended attributes, each with a zero byte at its end.
pub(crate) fn attribute_names(path: &str) -> rustix::io::Result<Vec<u8>> {
    filled(|bytes| rustix::fs::listxattr(path, bytes))
}
