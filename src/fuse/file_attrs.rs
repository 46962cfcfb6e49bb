//! The file attributes of locks. All of them are derived from the lease, so that a lock looks the
//! same after a restart and on every mount.

use crate::engine::{FileAttrs, FileType, Holder, Lease, LockView, ReadMode, Tenure, Token};
use crate::fuse::credentials::{Caller, Callers};
use crate::fuse::inodes::{LockNode, TOP};
use crate::fuse::mount_config::ReadContent;
use crate::service::LockService;
use crate::time::{Time, Wall};
use kernel::file_system::{FileAttr, INodeNo, NodeType};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The owner shown for the file of a lock that no user of this machine holds: uid 65534, `nobody`.
pub(crate) const UID_FOREIGN: u32 = 65_534;
/// The size in bytes of the blocks in which stat's `st_blocks` counts.
const BLOCK_BYTES: u64 = 512;

/// The flag in [`FileAttrs::mode`] that says that a program chose the permissions. It distinguishes
/// a file after `chmod 0` from a lock that was not taken through a mount.
const MODE_CHOSEN: u16 = FileAttrs::MODE_CHOSEN;

/// Returns the value of [`FileAttrs::mode`] for permissions that a program chose.
pub(crate) const fn chosen_mode(mode: u32) -> u16 {
    MODE_CHOSEN | (mode & 0o7777) as u16
}

/// Returns the attributes of a lock's file that the caller creates.
pub(crate) fn attrs_of_new(caller: &Caller, file_type: FileType, mode: u32) -> FileAttrs {
    FileAttrs {
        file_type,
        reads: ReadMode::Status,
        mode: chosen_mode(mode),
        uid: caller.uid,
        gid: caller.gid,
        times: None,
    }
}

/// The state of a lock, as far as its file shows it.
#[derive(Debug, Clone, Copy)]
pub(crate) enum NodeState {
    /// No file exists: the lock is free, has no waiters, and no locks are below it.
    Nothing,
    /// A directory that exists only because of locks below it.
    Way,
    /// A file for a lock that is free but has waiters.
    Awaited,
    /// A lock that is held.
    Held(HeldNode),
}

/// The state of a lock that is held.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeldNode {
    /// The fencing token of the lease.
    pub(crate) token: Token,
    /// The attributes of the lock's file that the lease stores.
    pub(crate) attrs: FileAttrs,
    /// Whether the holder is a client of this mount's host.
    pub(crate) local: bool,
    /// The length of the lock's content in bytes.
    pub(crate) text_bytes: usize,
    /// The time at which the lock was acquired.
    pub(crate) acquired_at: Time,
    /// The time of the last renewal of the lease.
    pub(crate) renewed_at: Time,
}

impl NodeState {
    /// Returns the file type, and the token if the lock is held; `None` if no file exists.
    pub(crate) const fn shown(&self) -> Option<(FileType, Option<Token>)> {
        match self {
            Self::Held(held) => Some((held.attrs.file_type, Some(held.token))),
            Self::Awaited => Some((FileType::File, None)),
            Self::Way => Some((FileType::Directory, None)),
            Self::Nothing => None,
        }
    }

    /// Whether the lock is held.
    pub(crate) const fn is_held(&self) -> bool {
        matches!(self, Self::Held(_))
    }
}

/// Derives the file attributes of locks from their state in the lock service.
pub(crate) struct LockAttributes {
    service: Arc<dyn LockService>,
    callers: Arc<Callers>,
    content: ReadContent,
    /// The time of the mount, shown for files that have no other time.
    since: Wall,
    /// The uid of the user who mounted the file system.
    mounter: u32,
}

impl LockAttributes {
    /// Returns the source of attributes for a mount that the user `mounter` makes now.
    pub(crate) fn new(
        service: Arc<dyn LockService>,
        callers: Arc<Callers>,
        content: ReadContent,
        mounter: u32,
    ) -> Self {
        Self { service, callers, content, since: Wall::now(), mounter }
    }

    /// Returns the time at which the file system was mounted.
    pub(crate) const fn since(&self) -> Wall {
        self.since
    }

    /// Returns the uid of the user who mounted the file system.
    pub(crate) const fn mounter(&self) -> u32 {
        self.mounter
    }

    /// Returns the state of a lock's file, derived from the lock's state `view`.
    pub(crate) fn state_of(&self, view: &LockView) -> NodeState {
        match view.holder() {
            Some(Holder { lease, .. }) => NodeState::Held(self.held(lease, lease.renewed_at)),
            None if !view.waiters.is_empty() => NodeState::Awaited,
            None if view.has_below => NodeState::Way,
            None => NodeState::Nothing,
        }
    }

    fn held(&self, lease: &Lease, renewed_at: Time) -> HeldNode {
        HeldNode {
            token: lease.token,
            attrs: lease.details.attrs(),
            local: self.callers.is_local(&lease.holder),
            text_bytes: lease.details.text().len(),
            acquired_at: lease.acquired_at,
            renewed_at,
        }
    }

    /// Returns the attributes of a held lock.
    pub(crate) fn of_held(
        &self,
        ino: u64,
        file_type: FileType,
        nlink: u32,
        held: &HeldNode,
    ) -> FileAttr {
        let attrs = &held.attrs;
        let changed = system_time(self.service.wall(held.acquired_at));
        let (accessed, modified) = if let Some((accessed, modified)) = attrs.times {
            (system_time(accessed), system_time(modified))
        } else {
            let renewed = if held.renewed_at == held.acquired_at {
                changed
            } else {
                system_time(self.service.wall(held.renewed_at))
            };
            (renewed, renewed)
        };
        let size = match file_type {
            FileType::Symlink => held.text_bytes as u64,
            FileType::File if self.reads(attrs) == ReadMode::Text => held.text_bytes as u64,
            // Reads of the status bypass the page cache, and its length changes by the millisecond.
            // So the size is 0, as for files in /proc.
            FileType::File | FileType::Directory => 0,
        };
        let local = held.local && attrs.mode & MODE_CHOSEN != 0;
        FileAttr {
            atime: accessed,
            mtime: modified,
            ctime: changed,
            crtime: changed,
            perm: permissions(file_type, attrs.mode),
            nlink,
            uid: if local { attrs.uid } else { UID_FOREIGN },
            gid: if local { attrs.gid } else { UID_FOREIGN },
            ..blank(ino, file_type, size)
        }
    }

    /// Returns whether a read of a lock's file returns the lock's content or its status.
    pub(crate) fn reads(&self, attrs: &FileAttrs) -> ReadMode {
        match self.content {
            ReadContent::Note => ReadMode::Text,
            ReadContent::Status => attrs.reads,
        }
    }

    /// Returns the attributes of the file of a lock that is not held, or of a directory that exists
    /// only because of locks below it.
    pub(crate) fn of_nobody(&self, ino: u64, file_type: FileType, nlink: u32) -> FileAttr {
        let since = system_time(self.since);
        FileAttr {
            atime: since,
            mtime: since,
            ctime: since,
            crtime: since,
            nlink,
            ..blank(ino, file_type, 0)
        }
    }

    /// Returns the attributes of the mount point.
    pub(crate) fn of_top(&self) -> FileAttr {
        // As in /tmp, every user of the mount may create entries, and no user may remove those of
        // another.
        let top = self.of_nobody(TOP, FileType::Directory, LINKS);
        FileAttr { perm: 0o1777, uid: self.mounter, ..top }
    }

    /// Returns the attributes of the inode of a lock that has one name, or no name any more.
    pub(crate) fn of_one(&self, ino: u64, node: &LockNode, state: &NodeState) -> FileAttr {
        let file_type = node.file_type;
        let Some(link) = node.links.first() else { return self.of_nobody(ino, file_type, 0) };
        let Some((shown, token)) = state.shown().filter(|(shown, _)| *shown == file_type) else {
            return self.of_nobody(ino, file_type, 0);
        };
        // An inode of a file stays valid under a later tenure of the same name, that is when the
        // lock was released and taken again. A directory or symlink of an ended tenure is gone.
        let same = link.token == token || link.token.is_none() || token.is_none();
        match state {
            NodeState::Held(held) if same || shown == FileType::File => {
                self.of_held(ino, file_type, LINKS, held)
            }
            NodeState::Held(_) => self.of_nobody(ino, file_type, 0),
            _ => self.of_nobody(ino, file_type, LINKS),
        }
    }

    /// Returns the attributes of an inode with several hard links, each of which is a lock of its
    /// own; `views` holds the states of these locks, in the order of the links. The link count is
    /// the number of names whose lock is still held.
    pub(crate) fn of_group(&self, ino: u64, node: &LockNode, views: &[LockView]) -> FileAttr {
        let held = node.links.iter().zip(views).filter_map(|(link, view)| {
            let NodeState::Held(held) = self.state_of(view) else { return None };
            (link.token == Some(held.token)).then_some(held)
        });
        let nlink = held.clone().count() as u32;
        match held.into_iter().next() {
            Some(held) => self.of_held(ino, node.file_type, nlink, &held),
            None => self.of_nobody(ino, node.file_type, 0),
        }
    }

    /// Returns the attributes of a lock's file that the caller has just acquired, without a request
    /// to the lock service.
    pub(crate) fn of_tenure(
        &self,
        ino: u64,
        caller: &Caller,
        attrs: FileAttrs,
        text: Option<&[u8]>,
        tenure: &Tenure,
    ) -> FileAttr {
        let held = HeldNode {
            token: tenure.token,
            attrs,
            local: self.callers.is_local(&caller.client),
            text_bytes: text.map_or(0, <[u8]>::len),
            acquired_at: tenure.acquired_at,
            renewed_at: tenure.acquired_at,
        };
        self.of_held(ino, attrs.file_type, LINKS, &held)
    }
}

fn blank(ino: u64, file_type: FileType, size: u64) -> FileAttr {
    FileAttr {
        ino: INodeNo(ino),
        size,
        blocks: size.div_ceil(BLOCK_BYTES),
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: kind_of(file_type),
        perm: permissions(file_type, 0),
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4_096,
        flags: 0,
    }
}

/// Converts the file type of a lock to the type that fuser uses.
pub(crate) const fn kind_of(file_type: FileType) -> NodeType {
    match file_type {
        FileType::File => NodeType::RegularFile,
        FileType::Directory => NodeType::Directory,
        FileType::Symlink => NodeType::Symlink,
    }
}

/// The link count of a held lock with one name. For a directory, 1 means that the number of
/// subdirectories is not tracked; `find` would rely on any other number.
pub(crate) const LINKS: u32 = 1;

/// Returns the permission bits that stat shows for a lock's file.
pub(crate) const fn permissions(file_type: FileType, mode: u16) -> u16 {
    FileAttrs::permissions(file_type, mode)
}

/// Converts a wall time to std's type, which fuser takes. Times that std can't represent become the
/// epoch.
pub(crate) fn system_time(wall: Wall) -> SystemTime {
    let time = if let Ok(secs) = u64::try_from(wall.secs) {
        UNIX_EPOCH.checked_add(Duration::new(secs, wall.nanos))
    } else {
        let whole = UNIX_EPOCH.checked_sub(Duration::from_secs(wall.secs.unsigned_abs()));
        whole.and_then(|whole| whole.checked_add(Duration::from_nanos(wall.nanos.into())))
    };
    time.unwrap_or(UNIX_EPOCH)
}

/// Converts a time that fuser has read from the kernel.
///
/// fuser 0.18 treats the nanoseconds of a time before 1970 as part of the distance: the kernel's
/// (-2 s, +0.8 s) arrives as 2.8 s before 1970. This function reverses that.
pub(crate) fn wall_of(time: SystemTime) -> Wall {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => Wall {
            secs: i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
            nanos: after.subsec_nanos(),
        },
        Err(before) => {
            let before = before.duration();
            let secs = 0_i64.saturating_sub_unsigned(before.as_secs());
            Wall { secs, nanos: before.subsec_nanos() }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_survive_to_the_nanosecond() {
        for (secs, nanos) in [(0, 0), (1, 5), (4_102_444_800, 999_999_999), (1 << 60, 1)] {
            let wall = Wall { secs, nanos };
            assert_eq!(wall_of(system_time(wall)), wall);
        }
    }

    #[test]
    fn times_before_1970_are_read_as_fuser_converts_them() {
        // fuser passes the kernel's time (-2 s, +0.8 s) on as 2.8 s before 1970, though it means
        // 1.2 s before 1970.
        let brought = UNIX_EPOCH - Duration::new(2, 800_000_000);
        let wall = wall_of(brought);
        assert_eq!(wall, Wall { secs: -2, nanos: 800_000_000 });
        assert_eq!(system_time(wall), UNIX_EPOCH - Duration::new(1, 200_000_000));
        let least = Wall { secs: i64::MIN, nanos: 0 };
        assert_eq!(wall_of(system_time(least)), least);
    }

    #[test]
    fn chosen_mode_zero_differs_from_no_mode() {
        assert_eq!(permissions(FileType::File, chosen_mode(0)), 0);
        assert_eq!(permissions(FileType::File, 0), 0o644);
        assert_eq!(permissions(FileType::Directory, chosen_mode(0o40_700)), 0o700);
    }
}
