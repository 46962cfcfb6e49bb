//! The plain values that operations take and return. The dispatcher alone turns the kernel's
//! requests into them and makes replies of them.

pub(crate) use fuser::{
    Errno, FileAttr, FileType as NodeType, FopenFlags as OpenedFlags, INodeNo, PollEvents,
    RenameFlags, TimeOrNow,
};
use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// The user and the thread that made a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Requester {
    /// The user.
    pub(crate) uid: u32,
    /// The group.
    pub(crate) gid: u32,
    /// The thread, or 0 if it lives in a foreign pid namespace.
    pub(crate) pid: u32,
}

/// Something that is kept until the kernel has its answer, and then dropped.
pub(crate) struct UntilReplied(#[allow(dead_code)] Box<dyn Any + Send>);

impl UntilReplied {
    /// Keeps `what` until then.
    pub(crate) fn new(what: impl Any + Send) -> Self {
        Self(Box::new(what))
    }
}

impl fmt::Debug for UntilReplied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UntilReplied")
    }
}

/// A name that was looked up or made. An inode number of 0 says that there is nothing, and that
/// the kernel may keep that as long as the entry.
#[derive(Debug)]
pub(crate) struct NodeEntry {
    /// The attributes, the inode number among them.
    pub(crate) attr: FileAttr,
    /// How long the kernel may keep the attributes.
    pub(crate) attr_ttl: Duration,
    /// How long the kernel may keep the name.
    pub(crate) entry_ttl: Duration,
    /// Dropped after the reply.
    pub(crate) until_replied: Option<UntilReplied>,
}

/// The attributes of an inode.
#[derive(Debug)]
pub(crate) struct NodeAttr {
    /// The attributes.
    pub(crate) attr: FileAttr,
    /// How long the kernel may keep them.
    pub(crate) ttl: Duration,
    /// Dropped after the reply.
    pub(crate) until_replied: Option<UntilReplied>,
}

impl NodeEntry {
    /// An entry of which the kernel keeps nothing.
    pub(crate) fn uncached(attr: FileAttr) -> Self {
        let (attr_ttl, entry_ttl) = (Duration::ZERO, Duration::ZERO);
        Self { attr, attr_ttl, entry_ttl, until_replied: None }
    }
}

impl NodeAttr {
    /// Attributes that the kernel does not keep.
    pub(crate) fn uncached(attr: FileAttr) -> Self {
        Self { attr, ttl: Duration::ZERO, until_replied: None }
    }
}

/// A file or directory that was opened.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Opened {
    /// The number of the open file.
    pub(crate) fh: u64,
    /// How the kernel is to use it.
    pub(crate) flags: OpenedFlags,
}

/// The attributes that setattr is to change.
#[derive(Debug, Clone, Default)]
pub(crate) struct SetAttrs {
    /// chmod.
    pub(crate) mode: Option<u32>,
    /// chown: user and group.
    pub(crate) owner: (Option<u32>, Option<u32>),
    /// truncate.
    pub(crate) size: Option<u64>,
    /// utimensat: access and modification.
    pub(crate) times: (Option<TimeOrNow>, Option<TimeOrNow>),
    /// The open file by which it is done.
    pub(crate) fh: Option<u64>,
}

/// Bytes that were read: a part of what may be kept for later reads.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReadBytes {
    bytes: Arc<[u8]>,
    range: Range<usize>,
}

impl ReadBytes {
    /// The part of `bytes` that a read of `size` at `offset` gets.
    pub(crate) fn window(bytes: Arc<[u8]>, offset: u64, size: u32) -> Self {
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
        let end = start.saturating_add(size as usize).min(bytes.len());
        Self { bytes, range: start..end }
    }

    /// The bytes.
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

/// One read of a file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReadRequest {
    /// The number of the open file.
    pub(crate) fh: u64,
    /// Where it begins.
    pub(crate) offset: u64,
    /// How many bytes it takes at most.
    pub(crate) size: u32,
    /// The flags of the open file.
    pub(crate) flags: i32,
}

impl ReadRequest {
    /// Whether the program does not want to wait.
    pub(crate) const fn is_nonblocking(&self) -> bool {
        self.flags & libc::O_NONBLOCK != 0
    }
}

/// One entry of a directory.
#[derive(Debug)]
pub(crate) struct DirEntry {
    /// Its number, if the kernel knows it.
    pub(crate) ino: Option<u64>,
    /// Its kind.
    pub(crate) kind: NodeType,
    /// Its name within the directory.
    pub(crate) name: Box<str>,
}

/// A part of a directory.
#[derive(Debug, Clone)]
pub(crate) struct DirPage {
    /// Entries in order, of which a reply takes those that fit.
    pub(crate) entries: Arc<Vec<DirEntry>>,
    /// The number of the first of them, counted from 0 without `.` and `..`.
    pub(crate) first: u64,
}

/// A request to lock a range of a file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LockRequest {
    /// The inode.
    pub(crate) ino: u64,
    /// The open file.
    pub(crate) fh: u64,
    /// The kernel's number for the process or the open file.
    pub(crate) owner: u64,
    /// The first byte.
    pub(crate) start: u64,
    /// The last byte.
    pub(crate) end: u64,
    /// `F_RDLCK`, `F_WRLCK` or `F_UNLCK`.
    pub(crate) kind: i32,
    /// The process.
    pub(crate) pid: u32,
}

/// The answer of `F_GETLK`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LockFound {
    /// The first byte.
    pub(crate) start: u64,
    /// The last byte.
    pub(crate) end: u64,
    /// `F_UNLCK`: nothing is in the way.
    pub(crate) kind: i32,
    /// The process that has it, or 0.
    pub(crate) pid: u32,
}

/// The answer of statfs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileSystemStats {
    /// Blocks, all of them free.
    pub(crate) blocks: u64,
    /// Names that there can be.
    pub(crate) files: u64,
    /// Names that are free.
    pub(crate) files_free: u64,
    /// The size of a block.
    pub(crate) block_bytes: u32,
    /// The longest name.
    pub(crate) name_bytes: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_gets_what_is_there() {
        let window = |offset, size| ReadBytes::window(Arc::from(*b"hello"), offset, size);
        assert_eq!(window(0, 3).as_slice(), b"hel");
        assert_eq!(window(3, 100).as_slice(), b"lo");
        assert_eq!(window(5, 1).as_slice(), b"");
        assert_eq!(window(u64::MAX, u32::MAX).as_slice(), b"");
        assert_eq!(ReadBytes::from(b"ab".to_vec()).as_slice(), b"ab");
    }
}
