//! Converts the attributes of a file in the folder to those that the kernel caches for the view.

use crate::fuse::kernel::file_system::{FileAttr, INodeNo, NodeType};
use rustix::fs::{FileType, Statx, StatxTimestamp};
use std::time::{Duration, SystemTime};

/// The inode number of the view's root.
pub(super) const ROOT: u64 = 1;
/// The inode number of `.latchfs/snapshots`, between those of the files in `.latchfs` and those of
/// the nodes.
pub(super) const SNAPSHOTS: u64 = 1 << 10;

/// Returns the type of a file as FUSE names it.
pub(super) fn node_type(kind: FileType) -> NodeType {
    match kind {
        FileType::Directory => NodeType::Directory,
        FileType::Symlink => NodeType::Symlink,
        FileType::Fifo => NodeType::NamedPipe,
        FileType::Socket => NodeType::Socket,
        FileType::CharacterDevice => NodeType::CharDevice,
        FileType::BlockDevice => NodeType::BlockDevice,
        FileType::RegularFile | FileType::Unknown => NodeType::RegularFile,
    }
}

/// Returns the type of a file in its attributes.
pub(super) fn type_in(found: &Statx) -> NodeType {
    node_type(FileType::from_raw_mode(u32::from(found.stx_mode)))
}

fn time_of(at: StatxTimestamp) -> SystemTime {
    let nanos = Duration::from_nanos(u64::from(at.tv_nsec));
    let whole = Duration::from_secs(at.tv_sec.unsigned_abs());
    let secs = if at.tv_sec < 0 {
        SystemTime::UNIX_EPOCH.checked_sub(whole)
    } else {
        SystemTime::UNIX_EPOCH.checked_add(whole)
    };
    secs.and_then(|secs| secs.checked_add(nanos)).unwrap_or(SystemTime::UNIX_EPOCH)
}

/// The time of the last change (ctime) of a file that was published. A publish changes it, after
/// the program that saved the file may have read it: git keeps it in its index, and takes a file
/// with a later one for a changed file.
#[derive(Debug, Clone, Copy)]
pub(super) struct ChangeTime {
    /// The time before the publish, which the view shows.
    shown: StatxTimestamp,
    /// The time that the publish has left. With another one the file was changed again.
    left: StatxTimestamp,
}

impl ChangeTime {
    /// Returns the change time of a file with these attributes before and after its publish.
    pub(super) const fn of_publish(before: &Statx, after: &Statx) -> Self {
        Self { shown: before.stx_ctime, left: after.stx_ctime }
    }

    /// Returns the attributes with the change time that the view shows.
    pub(super) fn show(self, found: &Statx) -> Statx {
        let mut found = *found;
        let is_left = |at: StatxTimestamp| (at.tv_sec, at.tv_nsec);
        if is_left(found.stx_ctime) == is_left(self.left) {
            found.stx_ctime = self.shown;
        }
        found
    }
}

/// Returns the attributes of the node `ino`, which is the file with the attributes `found`.
pub(super) fn attributes(ino: u64, found: &Statx) -> FileAttr {
    let device = rustix::fs::makedev(found.stx_rdev_major, found.stx_rdev_minor);
    FileAttr {
        ino: INodeNo(ino),
        size: found.stx_size,
        blocks: found.stx_blocks,
        atime: time_of(found.stx_atime),
        mtime: time_of(found.stx_mtime),
        ctime: time_of(found.stx_ctime),
        crtime: time_of(found.stx_btime),
        kind: type_in(found),
        perm: found.stx_mode & 0o7777,
        nlink: found.stx_nlink,
        uid: found.stx_uid,
        gid: found.stx_gid,
        rdev: device as u32,
        blksize: found.stx_blksize,
        flags: 0,
    }
}
