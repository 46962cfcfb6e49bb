//! The interface between the FUSE dispatcher and a file system: operations on plain values.
//! Operations that may take long return futures, and the dispatcher replies when they are ready.

use crate::fuse::kernel::backing::BackingOpener;
use crate::fuse::kernel::invalidation::Invalidator;
use crate::fuse::kernel::poll_waker::PollWaker;
use crate::fuse::kernel::values::{
    DirPage, Errno, FileSystemStats, LockFound, LockRequest, NewMode, NodeAttr, NodeEntry, Opened,
    PollEvents, ReadBytes, ReadRequest, RenameFlags, Requester, SetAttrs, WriteRequest,
};
use std::ffi::{OsStr, OsString};
use std::future::{Ready, ready};

/// The result of an operation, or the errno of its failure.
pub(crate) type Done<T> = Result<T, Errno>;

/// A name within a directory, to which an operation applies.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NameIn<'a> {
    /// The inode number of the directory.
    pub(crate) parent: u64,
    pub(crate) name: &'a OsStr,
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
pub(crate) enum Unsupported {
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
pub(crate) trait FileSystem: Send + Sync + 'static {
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

    /// Opens an inode. With `backing` the file system can name a backing file in the reply.
    fn open(
        &self,
        who: Requester,
        ino: u64,
        flags: i32,
        backing: BackingOpener<'_>,
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

    /// Copies bytes between two open files, each given by its handle and an offset. Returns the
    /// number of bytes copied.
    fn copy_file_range(
        &self,
        _who: Requester,
        _from: (u64, u64),
        _to: (u64, u64),
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
