//! The plain values that file operations take and return. Only the dispatcher converts kernel
//! requests to them, and results to replies.

use crate::fuse::kernel::backing::BackingFile;
pub(crate) use fuser::{
    Errno, FileAttr, FileType as NodeType, FopenFlags as OpenedFlags, INodeNo, PollEvents,
    RenameFlags, TimeOrNow,
};
use std::any::Any;
use std::ffi::OsStr;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// The user, group and thread that made a file system request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Requester {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// The id of the thread, or 0 if the thread lives in a foreign pid namespace.
    pub(crate) pid: u32,
}

/// The mode of a new file as its program asks for it, and the umask of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NewMode {
    /// The permissions, and for a special file its type.
    pub(crate) mode: u32,
    /// The permissions that new files of the program do not get, unless a default ACL decides.
    pub(crate) umask: u32,
}

impl NewMode {
    /// Returns the mode without the permissions of the umask.
    pub(crate) const fn masked(self) -> u32 {
        self.mode & !self.umask
    }
}

/// A value that the dispatcher drops once the reply has been sent to the kernel.
pub(crate) struct UntilReplied(#[allow(dead_code)] Box<dyn Any + Send>);

impl UntilReplied {
    /// Wraps a value that the dispatcher drops once the reply has been sent.
    pub(crate) fn new(what: impl Any + Send) -> Self {
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
pub(crate) struct NodeEntry {
    /// The attributes of the entry's inode, including the inode number.
    pub(crate) attr: FileAttr,
    /// How long the kernel may cache the attributes.
    pub(crate) attr_ttl: Duration,
    /// How long the kernel may cache the name.
    pub(crate) entry_ttl: Duration,
    /// A value that the dispatcher drops once the reply has been sent to the kernel.
    pub(crate) until_replied: Option<UntilReplied>,
}

/// The attributes of an inode.
#[derive(Debug)]
pub(crate) struct NodeAttr {
    /// The attributes of the inode, including the inode number.
    pub(crate) attr: FileAttr,
    /// How long the kernel may cache the attributes.
    pub(crate) ttl: Duration,
    /// A value that the dispatcher drops once the reply has been sent to the kernel.
    pub(crate) until_replied: Option<UntilReplied>,
}

impl NodeEntry {
    /// Returns a directory entry that the kernel does not cache.
    pub(crate) fn uncached(attr: FileAttr) -> Self {
        let (attr_ttl, entry_ttl) = (Duration::ZERO, Duration::ZERO);
        Self { attr, attr_ttl, entry_ttl, until_replied: None }
    }
}

impl NodeAttr {
    /// Returns attributes that the kernel does not cache.
    pub(crate) fn uncached(attr: FileAttr) -> Self {
        Self { attr, ttl: Duration::ZERO, until_replied: None }
    }
}

/// The reply to an open of a file or directory.
#[derive(Debug)]
pub(crate) struct Opened {
    /// The file handle by which the kernel names the open file in later requests.
    pub(crate) fh: u64,
    /// The source of the content that programs read.
    pub(super) source: ContentSource,
}

/// Where the kernel gets the content of an open file from. An inode with several open files must
/// have the same source for all of them, or the kernel fails the open with EIO.
#[derive(Debug)]
pub(super) enum ContentSource {
    /// Read requests, which the flags rule: the kernel may cache their answers.
    Requests(OpenedFlags),
    /// A backing file, without requests.
    Backing(Arc<BackingFile>),
}

impl Opened {
    /// An open file that is read by requests. `flags` say how the kernel makes them.
    pub(crate) const fn by_requests(fh: u64, flags: OpenedFlags) -> Self {
        Self { fh, source: ContentSource::Requests(flags) }
    }

    /// Returns the flags of an open file that is read by requests.
    #[cfg(test)]
    pub(crate) fn flags(&self) -> OpenedFlags {
        match self.source {
            ContentSource::Requests(flags) => flags,
            ContentSource::Backing(_) => panic!("it is read from a backing file"),
        }
    }

    /// An open file that the kernel reads from a backing file, and of whose closes it sends only
    /// the last one.
    pub(crate) const fn by_backing(fh: u64, backing: Arc<BackingFile>) -> Self {
        Self { fh, source: ContentSource::Backing(backing) }
    }
}

/// The attributes that a setattr request changes; `None` leaves an attribute as it is.
#[derive(Debug, Clone, Default)]
pub(crate) struct SetAttrs {
    /// The new permissions (chmod).
    pub(crate) mode: Option<u32>,
    /// The new user and group (chown).
    pub(crate) owner: (Option<u32>, Option<u32>),
    /// The new size (truncate).
    pub(crate) size: Option<u64>,
    /// The new access and modification times (utimensat).
    pub(crate) times: (Option<TimeOrNow>, Option<TimeOrNow>),
    /// The file handle, if the program named the file by a descriptor.
    pub(crate) fh: Option<u64>,
}

/// The bytes that a read returns: a range of a shared buffer. Later reads may return other ranges
/// of the same buffer.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReadBytes {
    bytes: Arc<[u8]>,
    range: Range<usize>,
}

impl ReadBytes {
    /// Returns the part of `bytes` that a read of `size` bytes at `offset` covers.
    pub(crate) fn window(bytes: Arc<[u8]>, offset: u64, size: u32) -> Self {
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
        let end = start.saturating_add(size as usize).min(bytes.len());
        Self { bytes, range: start..end }
    }

    /// Returns the bytes of this range of the buffer.
    pub(crate) fn as_slice(&self) -> &[u8] {
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
pub(crate) struct ReadRequest {
    /// The handle of the open file from which the program reads.
    pub(crate) fh: u64,
    /// The offset in the file of the first byte to return.
    pub(crate) offset: u64,
    /// The maximum number of bytes to return.
    pub(crate) size: u32,
    /// The flags of the open file, as in open(2).
    pub(crate) flags: i32,
}

impl ReadRequest {
    /// Whether the program opened the file with `O_NONBLOCK`.
    pub(crate) const fn is_nonblocking(&self) -> bool {
        self.flags & libc::O_NONBLOCK != 0
    }
}

/// The parameters of one write to a file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WriteRequest {
    /// The handle of the open file to which the program writes.
    pub(crate) fh: u64,
    /// The offset in the file of the first byte to write.
    pub(crate) offset: u64,
    /// Whether the kernel writes back pages of a shared mapping (`FUSE_WRITE_CACHE`). Then the
    /// requester is not the program that changed the pages, and the handle is any open one of the
    /// file.
    pub(crate) from_cache: bool,
}

/// One entry of a directory.
#[derive(Debug)]
pub(crate) struct DirEntry {
    /// The inode number of the entry, if the kernel knows it.
    pub(crate) ino: Option<u64>,
    /// The file type of the entry.
    pub(crate) kind: NodeType,
    /// The name of the entry within its directory.
    pub(crate) name: Box<OsStr>,
}

/// Consecutive entries of a directory, the result of a readdir.
#[derive(Debug, Clone)]
pub(crate) struct DirPage {
    /// The entries in order; the reply to the kernel contains as many as fit.
    pub(crate) entries: Arc<Vec<DirEntry>>,
    /// The index of the first of `entries` within the directory, counted from 0 without `.` and
    /// `..`.
    pub(crate) first: u64,
}

/// A POSIX or flock request to lock or unlock a range of a file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LockRequest {
    /// The inode number of the file to lock.
    pub(crate) ino: u64,
    /// The handle of the open file through which the program locks.
    pub(crate) fh: u64,
    /// The lock owner as the kernel numbers it: a process, or an open file description.
    pub(crate) owner: u64,
    /// The offset of the first byte of the range to lock.
    pub(crate) start: u64,
    /// The offset of the last byte of the range to lock.
    pub(crate) end: u64,
    /// The kind of request: `F_RDLCK`, `F_WRLCK` or `F_UNLCK`.
    pub(crate) kind: i32,
    /// The process that made the lock request.
    pub(crate) pid: u32,
}

/// The answer to `F_GETLK`: the lock that conflicts with the requested one, if there is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LockFound {
    /// The first byte of the conflicting lock.
    pub(crate) start: u64,
    /// The last byte of the conflicting lock.
    pub(crate) end: u64,
    /// The type of the conflicting lock; `F_UNLCK` if nothing conflicts.
    pub(crate) kind: i32,
    /// The process that holds the conflicting lock, or 0 if there is none or its pid is not known.
    pub(crate) pid: u32,
}

/// The answer to statfs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileSystemStats {
    /// The number of blocks of the file system.
    pub(crate) blocks: u64,
    /// The number of blocks that are free.
    pub(crate) blocks_free: u64,
    /// The number of free blocks that users other than root may use.
    pub(crate) blocks_available: u64,
    /// The maximum number of names in the file system, reported as its number of inodes.
    pub(crate) files: u64,
    /// The number of names that are still free, reported as the number of free inodes.
    pub(crate) files_free: u64,
    /// The preferred size of a read or write in bytes.
    pub(crate) block_bytes: u32,
    /// The size in bytes of the blocks that the numbers of blocks count.
    pub(crate) fragment_bytes: u32,
    /// The maximum length of a name in bytes.
    pub(crate) name_bytes: u32,
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
