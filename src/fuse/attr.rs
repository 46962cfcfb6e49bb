//! How a lock looks to stat. Everything comes from the lease, so that it looks the same after a
//! restart and on every mount.

use super::mount::Content;
use super::shared::Shared;
use crate::engine::{FileAttrs, FileType, Glance, Holder, Lease, LockView, ReadMode, Token};
use crate::time::{Time, Wall};
use fuser::{FileAttr, FileType as InodeType, INodeNo};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Whoever is not a user of this machine: the kernel's `nobody`.
pub(super) const UID_FOREIGN: u32 = 65_534;
/// The size of a block as stat counts them.
const BLOCK_BYTES: u64 = 512;

/// The bits of [`FileAttrs::mode`] above the permissions: set where a program chose them, so that
/// `chmod 0` can be told from a lock that never was a file.
const MODE_CHOSEN: u16 = FileAttrs::MODE_CHOSEN;

/// The permission bits for [`FileAttrs::mode`].
pub(super) const fn chosen_mode(mode: u32) -> u16 {
    MODE_CHOSEN | (mode & 0o7777) as u16
}

/// What is to be seen of a lock as a file, copied from where it is.
#[derive(Debug, Clone, Copy)]
pub(super) enum Sight {
    /// Nothing.
    Nothing,
    /// A directory on the way to locks below.
    Way,
    /// A file that nobody holds, for which somebody waits.
    Awaited,
    /// A lock that is held.
    Held(Held),
}

/// What is to be seen of a lock that is held.
#[derive(Debug, Clone, Copy)]
pub(super) struct Held {
    pub(super) token: Token,
    pub(super) looks: FileAttrs,
    /// Whether the holder is of this mount's host.
    pub(super) local: bool,
    pub(super) text_bytes: usize,
    pub(super) acquired_at: Time,
    pub(super) renewed_at: Time,
}

impl Sight {
    /// Of a lock in place.
    pub(super) fn of_glance(shared: &Shared, lock: Glance<'_>) -> Self {
        match lock.leases().first() {
            Some(lease) => Self::Held(Held::of(shared, lease, lock.renewed_at(lease))),
            None if lock.is_waited_for() => Self::Awaited,
            None if lock.has_below() => Self::Way,
            None => Self::Nothing,
        }
    }

    /// Of a lock that was shown.
    pub(super) fn of_view(shared: &Shared, view: &LockView) -> Self {
        match view.holder() {
            Some(Holder { lease, .. }) => Self::Held(Held::of(shared, lease, lease.renewed_at)),
            None if !view.waiters.is_empty() => Self::Awaited,
            None if view.has_below => Self::Way,
            None => Self::Nothing,
        }
    }

    /// The kind of file, and the tenure if it is held; `None`: there is nothing.
    pub(super) const fn shown(&self) -> Option<(FileType, Option<Token>)> {
        match self {
            Self::Held(held) => Some((held.looks.face, Some(held.token))),
            Self::Awaited => Some((FileType::File, None)),
            Self::Way => Some((FileType::Directory, None)),
            Self::Nothing => None,
        }
    }

    /// Whether somebody holds it.
    pub(super) const fn is_held(&self) -> bool {
        matches!(self, Self::Held(_))
    }
}

impl Held {
    fn of(shared: &Shared, lease: &Lease, renewed_at: Time) -> Self {
        Self {
            token: lease.token,
            looks: lease.details.looks(),
            local: shared.owners.is_local(&lease.holder),
            text_bytes: lease.details.text().len(),
            acquired_at: lease.acquired_at,
            renewed_at,
        }
    }
}

/// The attributes of a held lock.
pub(super) fn of_held(
    shared: &Shared,
    ino: u64,
    face: FileType,
    nlink: u32,
    held: &Held,
) -> FileAttr {
    let looks = &held.looks;
    let changed = system_time(shared.locks.wall(held.acquired_at));
    let (accessed, modified) = if let Some((accessed, modified)) = looks.times {
        (system_time(accessed), system_time(modified))
    } else {
        let renewed = if held.renewed_at == held.acquired_at {
            changed
        } else {
            system_time(shared.locks.wall(held.renewed_at))
        };
        (renewed, renewed)
    };
    let size = match face {
        FileType::Symlink => held.text_bytes as u64,
        FileType::File if reads(shared, looks) == ReadMode::Text => held.text_bytes as u64,
        // As in /proc: reads are direct, and the length changes by the millisecond.
        FileType::File | FileType::Directory => 0,
    };
    let local = held.local && looks.mode & MODE_CHOSEN != 0;
    FileAttr {
        atime: accessed,
        mtime: modified,
        ctime: changed,
        crtime: changed,
        perm: permissions(face, looks.mode),
        nlink,
        uid: if local { looks.uid } else { UID_FOREIGN },
        gid: if local { looks.gid } else { UID_FOREIGN },
        ..blank(ino, face, size)
    }
}

/// What reading such a lock gives on this mount.
pub(super) fn reads(shared: &Shared, looks: &FileAttrs) -> ReadMode {
    match shared.config.content {
        Content::Note => ReadMode::Text,
        Content::Status => looks.reads,
    }
}

/// The attributes of a lock that is not held, or of a directory on the way to locks.
pub(super) fn of_nobody(shared: &Shared, ino: u64, face: FileType, nlink: u32) -> FileAttr {
    let since = system_time(shared.since);
    FileAttr {
        atime: since,
        mtime: since,
        ctime: since,
        crtime: since,
        nlink,
        ..blank(ino, face, 0)
    }
}

fn blank(ino: u64, face: FileType, size: u64) -> FileAttr {
    FileAttr {
        ino: INodeNo(ino),
        size,
        blocks: size.div_ceil(BLOCK_BYTES),
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: kind_of(face),
        perm: permissions(face, 0),
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4_096,
        flags: 0,
    }
}

/// The kind of file.
pub(super) const fn kind_of(face: FileType) -> InodeType {
    match face {
        FileType::File => InodeType::RegularFile,
        FileType::Directory => InodeType::Directory,
        FileType::Symlink => InodeType::Symlink,
    }
}

/// How many links a held lock has, standing alone. For a directory this says that the number of
/// directories in it is not told: `find` would trust any other number.
pub(super) const LINKS: u32 = 1;

/// The permission bits that are shown.
pub(super) const fn permissions(face: FileType, mode: u16) -> u16 {
    FileAttrs::permissions(face, mode)
}

/// A wall time as fuser takes it. Saturates where std can't count so far.
pub(super) fn system_time(wall: Wall) -> SystemTime {
    let time = if let Ok(secs) = u64::try_from(wall.secs) {
        UNIX_EPOCH.checked_add(Duration::new(secs, wall.nanos))
    } else {
        let whole = UNIX_EPOCH.checked_sub(Duration::from_secs(wall.secs.unsigned_abs()));
        whole.and_then(|whole| whole.checked_add(Duration::from_nanos(wall.nanos.into())))
    };
    time.unwrap_or(UNIX_EPOCH)
}

/// A time that fuser has read from the kernel.
///
/// fuser 0.18 takes the nanoseconds of a time before 1970 for a part of the distance: what the
/// kernel calls (-2 s, +0.8 s) arrives as 2.8 s before 1970. This takes it apart the same way.
pub(super) fn wall_of(time: SystemTime) -> Wall {
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
    fn times_before_1970_are_taken_as_fuser_brings_them() {
        // What fuser makes of (-2, 800_000_000).
        let brought = UNIX_EPOCH - Duration::new(2, 800_000_000);
        let wall = wall_of(brought);
        assert_eq!(wall, Wall { secs: -2, nanos: 800_000_000 });
        assert_eq!(system_time(wall), UNIX_EPOCH - Duration::new(1, 200_000_000));
        let least = Wall { secs: i64::MIN, nanos: 0 };
        assert_eq!(wall_of(system_time(least)), least);
    }

    #[test]
    fn a_mode_of_nothing_is_not_no_mode() {
        assert_eq!(permissions(FileType::File, chosen_mode(0)), 0);
        assert_eq!(permissions(FileType::File, 0), 0o644);
        assert_eq!(permissions(FileType::Directory, chosen_mode(0o40_700)), 0o700);
    }
}
