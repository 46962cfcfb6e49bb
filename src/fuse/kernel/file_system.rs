//! The interface of a file system: operations on plain values. A result that comes later is a
//! future; the dispatcher replies when it is ready.

use crate::fuse::kernel::invalidation::Invalidator;
use crate::fuse::kernel::poll_waker::PollWaker;
use crate::fuse::kernel::values::{
    DirPage, Errno, FileSystemStats, LockFound, LockRequest, NodeAttr, NodeEntry, Opened,
    PollEvents, ReadBytes, ReadRequest, RenameFlags, Requester, SetAttrs,
};
use std::ffi::OsStr;

/// The end of an operation: its result, or why not.
pub(crate) type Done<T> = Result<T, Errno>;

/// A name in a directory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NameIn<'a> {
    /// The inode of the directory.
    pub(crate) parent: u64,
    /// The name.
    pub(crate) name: &'a OsStr,
}

/// Operations that a file system may have no use for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unsupported {
    /// mknod, mkfifo.
    Mknod,
    /// fallocate.
    Fallocate,
    /// The search for holes by lseek.
    Lseek,
    /// `copy_file_range`.
    CopyFileRange,
}

/// The requests of the dispatcher to a file system. Every future begins when the request is read,
/// in the order of the requests.
pub(crate) trait FileSystem: Send + Sync + 'static {
    /// The session with the kernel begins: it will send requests.
    fn started(&self);

    /// From now on the kernel can be told to forget what it keeps.
    fn attached(&self, invalidator: Invalidator);

    /// lookup.
    fn lookup(
        &self,
        who: Requester,
        at: NameIn<'_>,
    ) -> impl Future<Output = Done<NodeEntry>> + Send;

    /// The kernel gives `count` lookups of an inode back.
    fn forget(&self, ino: u64, count: u64);

    /// stat.
    fn getattr(&self, who: Requester, ino: u64) -> impl Future<Output = Done<NodeAttr>> + Send;

    /// chmod, chown, truncate, utimensat.
    fn setattr(
        &self,
        who: Requester,
        ino: u64,
        wanted: &SetAttrs,
    ) -> impl Future<Output = Done<NodeAttr>> + Send;

    /// readlink.
    fn readlink(&self, who: Requester, ino: u64) -> impl Future<Output = Done<ReadBytes>> + Send;

    /// mkdir, with the umask applied to `mode`.
    fn mkdir(
        &self,
        who: Requester,
        at: NameIn<'_>,
        mode: u32,
    ) -> impl Future<Output = Done<NodeEntry>> + Send;

    /// unlink.
    fn unlink(&self, who: Requester, at: NameIn<'_>) -> impl Future<Output = Done<()>> + Send;

    /// rmdir.
    fn rmdir(&self, who: Requester, at: NameIn<'_>) -> impl Future<Output = Done<()>> + Send;

    /// symlink.
    fn symlink(
        &self,
        who: Requester,
        at: NameIn<'_>,
        target: &OsStr,
    ) -> impl Future<Output = Done<NodeEntry>> + Send;

    /// rename.
    fn rename(
        &self,
        who: Requester,
        from: NameIn<'_>,
        to: NameIn<'_>,
        flags: RenameFlags,
    ) -> impl Future<Output = Done<()>> + Send;

    /// link.
    fn link(
        &self,
        who: Requester,
        ino: u64,
        to: NameIn<'_>,
    ) -> impl Future<Output = Done<NodeEntry>> + Send;

    /// open with `O_CREAT` of a name that the kernel does not know, with the umask applied to
    /// `mode`.
    fn create(
        &self,
        who: Requester,
        at: NameIn<'_>,
        mode: u32,
        flags: i32,
    ) -> impl Future<Output = Done<(NodeEntry, Opened)>> + Send;

    /// open of an inode.
    fn open(
        &self,
        who: Requester,
        ino: u64,
        flags: i32,
    ) -> impl Future<Output = Done<Opened>> + Send;

    /// read.
    fn read(
        &self,
        who: Requester,
        asked: ReadRequest,
    ) -> impl Future<Output = Done<ReadBytes>> + Send;

    /// write. Returns how many bytes were taken.
    fn write(
        &self,
        who: Requester,
        fh: u64,
        offset: u64,
        data: &[u8],
    ) -> impl Future<Output = Done<u32>> + Send;

    /// close of one descriptor. `owner` is the process as the kernel numbers it for its locks.
    fn flush(
        &self,
        who: Requester,
        ino: u64,
        fh: u64,
        owner: u64,
    ) -> impl Future<Output = Done<()>> + Send;

    /// close of the last descriptor.
    fn release(&self, ino: u64, fh: u64);

    /// opendir.
    fn opendir(&self, who: Requester, ino: u64) -> Done<Opened>;

    /// readdir, from the entry of this number on, counted from 0 without `.` and `..`. `anew`: it
    /// is read from the beginning.
    fn readdir(
        &self,
        who: Requester,
        ino: u64,
        fh: u64,
        index: u64,
        anew: bool,
    ) -> impl Future<Output = Done<DirPage>> + Send;

    /// close of an open directory.
    fn releasedir(&self, fh: u64);

    /// statfs.
    fn statfs(&self) -> FileSystemStats;

    /// setxattr.
    fn setxattr(
        &self,
        who: Requester,
        ino: u64,
        name: &OsStr,
        value: &[u8],
    ) -> impl Future<Output = Done<()>> + Send;

    /// getxattr.
    fn getxattr(
        &self,
        who: Requester,
        ino: u64,
        name: &OsStr,
    ) -> impl Future<Output = Done<Vec<u8>>> + Send;

    /// listxattr: the names, each with a NUL behind it.
    fn listxattr(&self, who: Requester, ino: u64) -> impl Future<Output = Done<Vec<u8>>> + Send;

    /// removexattr.
    fn removexattr(&self, name: &OsStr) -> Done<()>;

    /// ioctl. Returns the bytes for the program.
    fn ioctl(
        &self,
        who: Requester,
        ino: u64,
        fh: u64,
        command: u32,
    ) -> impl Future<Output = Done<Vec<u8>>> + Send;

    /// `F_GETLK`, `F_OFD_GETLK`.
    fn getlk(
        &self,
        who: Requester,
        asked: LockRequest,
    ) -> impl Future<Output = Done<LockFound>> + Send;

    /// flock, `F_SETLK`, `F_OFD_SETLK`; with `sleep` the forms that wait.
    fn setlk(
        &self,
        who: Requester,
        asked: LockRequest,
        sleep: bool,
    ) -> impl Future<Output = Done<()>> + Send;

    /// poll. With a `waker`, the program waits to be woken.
    fn poll(
        &self,
        fh: u64,
        events: PollEvents,
        waker: Option<PollWaker>,
    ) -> impl Future<Output = PollEvents> + Send;

    /// The errno of an operation that has no meaning here, as its manual page names it.
    fn unsupported(&self, operation: Unsupported) -> Errno;

    /// The session with the kernel is over.
    fn ended(&self);
}
