//! The interface between the FUSE dispatcher and a file system: operations on plain values.
//! Operations that may take long return futures, and the dispatcher replies when they are ready.
//!
//! The plain values that file operations take and return. Only the dispatcher converts kernel
//! requests to them, and results to replies.

use crate::notifications::{Invalidator, PollWaker};
pub use fuser::{
    Errno, FileAttr, FileType as NodeType, FopenFlags as OpenedFlags, INodeNo, PollEvents,
    RenameFlags, TimeOrNow,
};
use std::any::Any;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::future::{Ready, ready};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// The result of an operation, or the errno of its failure.
pub type Done<T> = Result<T, Errno>;

/// A place in an open file.
#[derive(Debug, Clone, Copy)]
pub struct FileOffset {
    /// The handle of the open file.
    pub fh: u64,
    /// The offset in bytes.
    pub offset: u64,
}

/// A name within a directory, to which an operation applies.
#[derive(Debug, Clone, Copy)]
pub struct NameIn<'a> {
    /// The inode number of the directory.
    pub parent: u64,
    /// The name.
    pub name: &'a OsStr,
}

/// A name within a directory, for an operation that outlives the request.
#[derive(Debug)]
pub(super) struct OwnedName {
    parent: u64,
    name: OsString,
}

impl OwnedName {
    /// Returns the name `name` in the directory with the inode number `parent`.
    pub(super) fn new(parent: u64, name: &OsStr) -> Self {
        Self { parent, name: name.to_owned() }
    }

    /// Returns this name as operations take it.
    pub(super) fn name_in(&self) -> NameIn<'_> {
        NameIn { parent: self.parent, name: &self.name }
    }
}

/// Operations that a file system may leave unimplemented, each with an errno of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unsupported {
    /// The creation of a device file or FIFO: mknod, mkfifo.
    Mknod,
    /// The allocation of disk space: fallocate.
    Fallocate,
    /// A search for data or holes: `SEEK_DATA` and `SEEK_HOLE` of lseek.
    Lseek,
    /// A copy between files in the kernel: `copy_file_range`.
    CopyFileRange,
}

/// The operations of a file system. The dispatcher polls each future for the first time as soon as
/// it has read the request, so operations start in the order of the requests.
pub trait FileSystem: Send + Sync + 'static {
    /// Called when the session with the kernel begins, before the first request.
    fn started(&self);

    /// Passes the invalidator of the kernel's caches to the file system; called once.
    fn attached(&self, invalidator: Invalidator);

    /// Looks up a name in a directory.
    fn lookup(
        &self,
        who: Requester,
        at: NameIn<'_>,
    ) -> impl Future<Output = Done<NodeEntry>> + Send;

    /// Subtracts `count` from the kernel's lookups of an inode (FORGET).
    fn forget(&self, ino: u64, count: u64);

    /// Returns the attributes of an inode (stat). `fh` is the file handle, if the program named the
    /// file by a descriptor.
    fn getattr(
        &self,
        who: Requester,
        ino: u64,
        fh: Option<u64>,
    ) -> impl Future<Output = Done<NodeAttr>> + Send;

    /// Changes attributes of an inode (chmod, chown, truncate, utimensat).
    fn setattr(
        &self,
        who: Requester,
        ino: u64,
        wanted: &SetAttrs,
    ) -> impl Future<Output = Done<NodeAttr>> + Send;

    /// Returns the target of a symlink.
    fn readlink(&self, who: Requester, ino: u64) -> impl Future<Output = Done<ReadBytes>> + Send;

    /// Creates a directory.
    fn mkdir(
        &self,
        who: Requester,
        at: NameIn<'_>,
        mode: NewMode,
    ) -> impl Future<Output = Done<NodeEntry>> + Send;

    /// Removes a file.
    fn unlink(&self, who: Requester, at: NameIn<'_>) -> impl Future<Output = Done<()>> + Send;

    /// Removes a directory.
    fn rmdir(&self, who: Requester, at: NameIn<'_>) -> impl Future<Output = Done<()>> + Send;

    /// Creates a symlink to `target`.
    fn symlink(
        &self,
        who: Requester,
        at: NameIn<'_>,
        target: &OsStr,
    ) -> impl Future<Output = Done<NodeEntry>> + Send;

    /// Creates a regular file, a device file, a FIFO or a socket without opening it. `mode`
    /// contains the file type.
    fn mknod(
        &self,
        _who: Requester,
        _at: NameIn<'_>,
        _mode: NewMode,
        _device: u32,
    ) -> impl Future<Output = Done<NodeEntry>> + Send {
        self.fails(Unsupported::Mknod)
    }

    /// Renames an entry.
    fn rename(
        &self,
        who: Requester,
        from: NameIn<'_>,
        to: NameIn<'_>,
        flags: RenameFlags,
    ) -> impl Future<Output = Done<()>> + Send;

    /// Creates a hard link to an inode.
    fn link(
        &self,
        who: Requester,
        ino: u64,
        to: NameIn<'_>,
    ) -> impl Future<Output = Done<NodeEntry>> + Send;

    /// Opens with `O_CREAT` a name that the kernel has not cached.
    fn create(
        &self,
        who: Requester,
        at: NameIn<'_>,
        mode: NewMode,
        flags: i32,
    ) -> impl Future<Output = Done<(NodeEntry, Opened)>> + Send;

    /// Opens an inode.
    fn open(
        &self,
        who: Requester,
        ino: u64,
        flags: i32,
    ) -> impl Future<Output = Done<Opened>> + Send;

    /// Reads from an open file.
    fn read(
        &self,
        who: Requester,
        asked: ReadRequest,
    ) -> impl Future<Output = Done<ReadBytes>> + Send;

    /// Writes to an open file. Returns the number of bytes written.
    fn write(
        &self,
        who: Requester,
        asked: WriteRequest,
        data: &[u8],
    ) -> impl Future<Output = Done<u32>> + Send;

    /// Allocates or frees disk space of an open file; `mode` as in fallocate(2).
    fn fallocate(
        &self,
        _who: Requester,
        _fh: u64,
        _offset: u64,
        _length: u64,
        _mode: i32,
    ) -> impl Future<Output = Done<()>> + Send {
        self.fails(Unsupported::Fallocate)
    }

    /// Returns the offset of the next data or hole of an open file: `whence` is `SEEK_DATA` or
    /// `SEEK_HOLE`.
    fn lseek(
        &self,
        _who: Requester,
        _fh: u64,
        _offset: i64,
        _whence: i32,
    ) -> impl Future<Output = Done<i64>> + Send {
        self.fails(Unsupported::Lseek)
    }

    /// Copies bytes between two open files, and returns the number of bytes copied.
    fn copy_file_range(
        &self,
        _who: Requester,
        _from: FileOffset,
        _to: FileOffset,
        _length: u64,
    ) -> impl Future<Output = Done<u32>> + Send {
        self.fails(Unsupported::CopyFileRange)
    }

    /// Writes an open file through to the disk: its data, and unless `data_only` is set, its
    /// attributes. The default suits a file system whose writes are answered when they are done.
    fn fsync(
        &self,
        _who: Requester,
        _ino: u64,
        _fh: u64,
        _data_only: bool,
    ) -> impl Future<Output = Done<()>> + Send {
        ready(Ok(()))
    }

    /// Called when a program closes one descriptor of an open file. `owner` is the number by which
    /// the kernel identifies the process as a lock owner.
    fn flush(
        &self,
        who: Requester,
        ino: u64,
        fh: u64,
        owner: u64,
    ) -> impl Future<Output = Done<()>> + Send;

    /// Called after the last descriptor of an open file was closed.
    fn release(&self, ino: u64, fh: u64);

    /// Opens a directory.
    fn opendir(&self, who: Requester, ino: u64) -> Done<Opened>;

    /// Returns entries of a directory, from the entry number `index` on; numbers start at 0 and do
    /// not count `.` and `..`. `anew` says that the program reads the directory from its beginning.
    fn readdir(
        &self,
        who: Requester,
        ino: u64,
        fh: u64,
        index: u64,
        anew: bool,
    ) -> impl Future<Output = Done<DirPage>> + Send;

    /// Writes the entries of an open directory through to the disk. The default suits a file system
    /// whose changes are answered when they are done.
    fn fsyncdir(
        &self,
        _who: Requester,
        _ino: u64,
        _fh: u64,
    ) -> impl Future<Output = Done<()>> + Send {
        ready(Ok(()))
    }

    /// Called after an open directory was closed.
    fn releasedir(&self, fh: u64);

    /// Returns the numbers of blocks and of names of the file system (statfs).
    fn statfs(&self) -> FileSystemStats;

    /// Sets an extended attribute; `flags` are `XATTR_CREATE`, `XATTR_REPLACE` or 0.
    fn setxattr(
        &self,
        who: Requester,
        ino: u64,
        name: &OsStr,
        value: &[u8],
        flags: i32,
    ) -> impl Future<Output = Done<()>> + Send;

    /// Returns an extended attribute.
    fn getxattr(
        &self,
        who: Requester,
        ino: u64,
        name: &OsStr,
    ) -> impl Future<Output = Done<Vec<u8>>> + Send;

    /// Returns the names of an inode's extended attributes, each followed by a NUL byte.
    fn listxattr(&self, who: Requester, ino: u64) -> impl Future<Output = Done<Vec<u8>>> + Send;

    /// Removes an extended attribute.
    fn removexattr(
        &self,
        who: Requester,
        ino: u64,
        name: &OsStr,
    ) -> impl Future<Output = Done<()>> + Send;

    /// Executes an ioctl. Returns the bytes for the program's buffer.
    fn ioctl(
        &self,
        who: Requester,
        ino: u64,
        fh: u64,
        command: u32,
    ) -> impl Future<Output = Done<Vec<u8>>> + Send;

    /// Returns the lock that conflicts with the requested one (`F_GETLK`, `F_OFD_GETLK`).
    fn getlk(
        &self,
        who: Requester,
        asked: LockRequest,
    ) -> impl Future<Output = Done<LockFound>> + Send;

    /// Takes or releases a lock on a file (flock, `F_SETLK`, `F_OFD_SETLK`). With `sleep`, waits
    /// until the lock is granted (`F_SETLKW`, `F_OFD_SETLKW`, flock without `LOCK_NB`).
    fn setlk(
        &self,
        who: Requester,
        asked: LockRequest,
        sleep: bool,
    ) -> impl Future<Output = Done<()>> + Send;

    /// Returns which of the requested poll events are ready. With a `waker`, the program may sleep
    /// in poll(2) until the waker is called.
    /// With `None` the kernel takes each file for ready, and does not ask again.
    fn poll(
        &self,
        fh: u64,
        events: PollEvents,
        waker: Option<PollWaker>,
    ) -> impl Future<Output = Option<PollEvents>> + Send;

    /// Returns the errno of an operation that is not implemented, as its manual page documents it.
    fn unsupported(&self, operation: Unsupported) -> Errno;

    /// Returns the future of an operation that is not implemented.
    fn fails<T: Send>(&self, operation: Unsupported) -> Ready<Done<T>> {
        ready(Err(self.unsupported(operation)))
    }

    /// Called after the session with the kernel has ended.
    fn ended(&self);
}

/// The user, group and thread that made a file system request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Requester {
    /// The effective user.
    pub uid: u32,
    /// The effective group.
    pub gid: u32,
    /// The id of the thread, or 0 if the thread lives in a foreign pid namespace.
    pub pid: u32,
}

/// The mode of a new file as its program asks for it, and the umask of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewMode {
    /// The permissions, and for a special file its type.
    pub mode: u32,
    /// The permissions that new files of the program do not get, unless a default ACL decides.
    pub umask: u32,
}

impl NewMode {
    /// Returns the mode without the permissions of the umask.
    pub const fn masked(self) -> u32 {
        self.mode & !self.umask
    }
}

/// A value that the dispatcher drops once the reply has been sent to the kernel.
pub struct UntilReplied(#[allow(dead_code)] Box<dyn Any + Send>);

impl UntilReplied {
    /// Wraps a value that the dispatcher drops once the reply has been sent.
    pub fn new(what: impl Any + Send) -> Self {
        Self(Box::new(what))
    }
}

impl fmt::Debug for UntilReplied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UntilReplied")
    }
}

/// The reply to a lookup or to the creation of a name. Inode number 0 makes it a negative entry:
/// the name does not exist, and the kernel may cache that for as long as the entry.
#[derive(Debug)]
pub struct NodeEntry {
    /// The attributes of the entry's inode, including the inode number.
    pub attr: FileAttr,
    /// How long the kernel may cache the attributes.
    pub attr_ttl: Duration,
    /// How long the kernel may cache the name.
    pub entry_ttl: Duration,
    /// A value that the dispatcher drops once the reply has been sent to the kernel.
    pub until_replied: Option<UntilReplied>,
}

/// The attributes of an inode.
#[derive(Debug)]
pub struct NodeAttr {
    /// The attributes of the inode, including the inode number.
    pub attr: FileAttr,
    /// How long the kernel may cache the attributes.
    pub ttl: Duration,
    /// A value that the dispatcher drops once the reply has been sent to the kernel.
    pub until_replied: Option<UntilReplied>,
}

impl NodeEntry {
    /// Returns a directory entry that the kernel does not cache.
    pub fn uncached(attr: FileAttr) -> Self {
        let (attr_ttl, entry_ttl) = (Duration::ZERO, Duration::ZERO);
        Self { attr, attr_ttl, entry_ttl, until_replied: None }
    }
}

impl NodeAttr {
    /// Returns attributes that the kernel does not cache.
    pub fn uncached(attr: FileAttr) -> Self {
        Self { attr, ttl: Duration::ZERO, until_replied: None }
    }
}

/// The reply to an open of a file or directory.
#[derive(Debug)]
pub struct Opened {
    /// The file handle by which the kernel names the open file in later requests.
    pub fh: u64,
    /// How the kernel makes requests for it.
    pub flags: OpenedFlags,
}

/// The attributes that a setattr request changes; `None` leaves an attribute as it is.
#[derive(Debug, Clone, Default)]
pub struct SetAttrs {
    /// The new permissions (chmod).
    pub mode: Option<u32>,
    /// The new user and group (chown).
    pub owner: (Option<u32>, Option<u32>),
    /// The new size (truncate).
    pub size: Option<u64>,
    /// The new access and modification times (utimensat).
    pub times: (Option<TimeOrNow>, Option<TimeOrNow>),
    /// The file handle, if the program named the file by a descriptor.
    pub fh: Option<u64>,
}

/// The bytes that a read returns: a range of a shared buffer. Later reads may return other ranges
/// of the same buffer.
#[derive(Debug, Clone, Default)]
pub struct ReadBytes {
    bytes: Arc<[u8]>,
    range: Range<usize>,
}

impl ReadBytes {
    /// Returns the part of `bytes` that a read of `size` bytes at `offset` covers.
    pub fn window(bytes: Arc<[u8]>, offset: u64, size: u32) -> Self {
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
        let end = start.saturating_add(size as usize).min(bytes.len());
        Self { bytes, range: start..end }
    }

    /// Returns the bytes of this range of the buffer.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[self.range.clone()]
    }
}

impl From<Vec<u8>> for ReadBytes {
    fn from(bytes: Vec<u8>) -> Self {
        let range = 0..bytes.len();
        Self { bytes: bytes.into(), range }
    }
}

/// The parameters of one read of a file.
#[derive(Debug, Clone, Copy)]
pub struct ReadRequest {
    /// The handle of the open file from which the program reads.
    pub fh: u64,
    /// The offset in the file of the first byte to return.
    pub offset: u64,
    /// The maximum number of bytes to return.
    pub size: u32,
    /// The flags of the open file, as in open(2).
    pub flags: i32,
}

impl ReadRequest {
    /// Whether the program opened the file with `O_NONBLOCK`.
    pub const fn is_nonblocking(&self) -> bool {
        self.flags & libc::O_NONBLOCK != 0
    }
}

/// The parameters of one write to a file.
#[derive(Debug, Clone, Copy)]
pub struct WriteRequest {
    /// The handle of the open file to which the program writes.
    pub fh: u64,
    /// The offset in the file of the first byte to write.
    pub offset: u64,
    /// Whether the kernel writes back pages of a shared mapping (`FUSE_WRITE_CACHE`). Then the
    /// requester is not the program that changed the pages, and the handle is any open one of the
    /// file.
    pub from_cache: bool,
}

/// One entry of a directory.
#[derive(Debug)]
pub struct DirEntry {
    /// The inode number of the entry, if the kernel knows it.
    pub ino: Option<u64>,
    /// The file type of the entry.
    pub kind: NodeType,
    /// The name of the entry within its directory.
    pub name: Box<OsStr>,
}

/// Consecutive entries of a directory, the result of a readdir.
#[derive(Debug, Clone)]
pub struct DirPage {
    /// The entries in order; the reply to the kernel contains as many as fit.
    pub entries: Arc<Vec<DirEntry>>,
    /// The index of the first of `entries` within the directory, counted from 0 without `.` and
    /// `..`.
    pub first: u64,
}

/// A POSIX or flock request to lock or unlock a range of a file.
#[derive(Debug, Clone, Copy)]
pub struct LockRequest {
    /// The inode number of the file to lock.
    pub ino: u64,
    /// The handle of the open file through which the program locks.
    pub fh: u64,
    /// The lock owner as the kernel numbers it: a process, or an open file description.
    pub owner: u64,
    /// The offset of the first byte of the range to lock.
    pub start: u64,
    /// The offset of the last byte of the range to lock.
    pub end: u64,
    /// The kind of request: `F_RDLCK`, `F_WRLCK` or `F_UNLCK`.
    pub kind: i32,
    /// The process that made the lock request.
    pub pid: u32,
}

/// The answer to `F_GETLK`: the lock that conflicts with the requested one, if there is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockFound {
    /// The first byte of the conflicting lock.
    pub start: u64,
    /// The last byte of the conflicting lock.
    pub end: u64,
    /// The type of the conflicting lock; `F_UNLCK` if nothing conflicts.
    pub kind: i32,
    /// The process that holds the conflicting lock, or 0 if there is none or its pid is not known.
    pub pid: u32,
}

/// The answer to statfs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileSystemStats {
    /// The number of blocks of the file system.
    pub blocks: u64,
    /// The number of blocks that are free.
    pub blocks_free: u64,
    /// The number of free blocks that users other than root may use.
    pub blocks_available: u64,
    /// The maximum number of names in the file system, reported as its number of inodes.
    pub files: u64,
    /// The number of names that are still free, reported as the number of free inodes.
    pub files_free: u64,
    /// The preferred size of a read or write in bytes.
    pub block_bytes: u32,
    /// The size in bytes of the blocks that the numbers of blocks count.
    pub fragment_bytes: u32,
    /// The maximum length of a name in bytes.
    pub name_bytes: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_is_clipped_to_the_content() {
        let window = |offset, size| ReadBytes::window(Arc::from(*b"hello"), offset, size);
        assert_eq!(window(0, 3).as_slice(), b"hel");
        assert_eq!(window(3, 100).as_slice(), b"lo");
        assert_eq!(window(5, 1).as_slice(), b"");
        assert_eq!(window(u64::MAX, u32::MAX).as_slice(), b"");
        assert_eq!(ReadBytes::from(b"ab".to_vec()).as_slice(), b"ab");
    }
}
