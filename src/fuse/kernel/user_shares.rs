//! Per-user limits on resources that all users of a mount share, so that no user can exhaust them
//! for the others.
//!
//! Root and the user who mounted are exempt from per-user limits, since they could stop the daemon
//! anyway. Of each resource that all users together can use up, a part is kept for these two.

use crate::fuse::kernel::descriptor_limit;
use crate::shares::{TableFull, TableShare, UserLimits, UserTable};
use std::sync::Arc;

/// A resource whose use is limited per user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Pool {
    /// Leases bound to processes; each takes a descriptor of the daemon.
    Bindings,
    /// Threads that wait in a system call; each takes a descriptor of the daemon, and is polled for
    /// signals.
    Threads,
    /// Queue places taken through files of `.latchfs`.
    Waits,
    /// Open files of the mount.
    Files,
    /// Open directories; each keeps a page of its names in memory.
    Directories,
    /// Bytes buffered for reads through open files.
    Bytes,
    /// Open files of a guarded folder; each takes a descriptor of the daemon.
    FolderFiles,
}

/// The maximum number of leases bound to processes per user: more than the services that a user
/// runs on one machine; some 500 bytes each.
const BINDINGS_MAX: usize = 4_096;
/// The maximum number of waiting threads per user. The sum of this and [`WAITS_MAX`] is less than
/// half of the 10,000 waiters that one queue takes.
const THREADS_MAX: usize = 2_048;
/// The maximum number of queue places per user that were taken through files of `.latchfs`; some 2
/// KiB each. See [`THREADS_MAX`].
const WAITS_MAX: usize = 2_048;
/// The maximum number of open files per user: 16 times the usual soft limit of descriptors per
/// process; some 400 bytes each.
const FILES_MAX: usize = 16_384;
/// The part of the descriptors that one user may take for a purpose: one quarter.
const PARTS: usize = 4;
/// The part of a limited resource that is kept for root and the user who mounted: one eighth.
const KEPT_PART: usize = 8;
/// The maximum number of open directories per user. A walk through a tree has one directory open
/// per level; a page of long names takes 80 KiB.
const DIRECTORIES_MAX: usize = 512;
/// The maximum number of open directories of all users but root and the user who mounted.
const DIRECTORIES_OF_ALL_MAX: usize = 2_048;
/// The maximum number of buffered bytes per user: several times the size of the longest list of
/// locks that one request returns.
const BYTES_MAX: usize = 16 << 20;
/// The maximum number of buffered bytes of all users but root and the user who mounted.
const BYTES_OF_ALL_MAX: usize = 256 << 20;

impl Pool {
    /// All resources, in the order of their declaration.
    const ALL: [Self; 7] = [
        Self::Bindings,
        Self::Threads,
        Self::Waits,
        Self::Files,
        Self::Directories,
        Self::Bytes,
        Self::FolderFiles,
    ];

    /// Returns how much of the resource one user may take.
    pub(crate) fn of_user(self) -> usize {
        match self {
            Self::Bindings => BINDINGS_MAX.min(self.of_all() / PARTS),
            Self::Threads => THREADS_MAX.min(self.of_all() / PARTS),
            Self::Waits => WAITS_MAX,
            Self::Files => FILES_MAX,
            Self::Directories => DIRECTORIES_MAX,
            Self::Bytes => BYTES_MAX,
            Self::FolderFiles => FILES_MAX.min(self.of_users() / 2),
        }
    }

    /// Returns how much of the resource may be taken before users other than root and the one who
    /// mounted get no more.
    fn of_users(self) -> usize {
        match self {
            Self::Bytes => BYTES_OF_ALL_MAX,
            Self::Directories => DIRECTORIES_OF_ALL_MAX,
            _ => self.of_all() - self.of_all() / KEPT_PART,
        }
    }

    /// Returns how much of the resource all users together, including root, may take.
    fn of_all(self) -> usize {
        match self {
            Self::Bindings | Self::Threads => descriptor_limit::to_watch() / 2,
            Self::FolderFiles => descriptor_limit::to_watch(),
            Self::Waits | Self::Files | Self::Directories | Self::Bytes => usize::MAX,
        }
    }

    fn limits(self) -> UserLimits {
        UserLimits { one: self.of_user(), users: self.of_users(), all: self.of_all() }
    }

    const fn as_str(self) -> &'static str {
        match self {
            Self::Bindings => "locks bound to processes",
            Self::Threads => "waiting programs",
            Self::Waits => "requests that wait in .latchfs",
            Self::Files | Self::FolderFiles => "open files",
            Self::Directories => "open directories",
            Self::Bytes => "unread bytes",
        }
    }
}

/// The limited resources of one mount. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Shares(Arc<[UserTable]>);

/// An amount of a resource that counts against a user's limit until it is dropped.
pub(crate) type Share = TableShare;

/// The error of a request that would exceed a limit on a resource.
pub(crate) type Full = TableFull;

impl Default for Shares {
    fn default() -> Self {
        Self::new(0)
    }
}

impl Shares {
    /// Returns the limits of a mount made by the user `mounter`, with nothing in use.
    pub(crate) fn new(mounter: u32) -> Self {
        let table = |pool: &Pool| UserTable::new(pool.as_str(), pool.limits(), mounter);
        Self(Pool::ALL.iter().map(table).collect())
    }

    /// Takes `amount` of the resource `pool` for a user, or fails if that exceeds a limit.
    pub(crate) fn take(&self, pool: Pool, uid: u32, amount: usize) -> Result<Share, Full> {
        self.0[pool as usize].take(uid, amount)
    }

    /// Takes `amount` of the resource `pool` for a user even beyond the limits, for a request that
    /// can't be refused any more.
    pub(crate) fn take_always(&self, pool: Pool, uid: u32, amount: usize) -> Share {
        self.0[pool as usize].take_always(uid, amount)
    }

    /// Checks that a user may take one more unit of the resource `pool`.
    pub(crate) fn room(&self, pool: Pool, uid: u32) -> Result<(), Full> {
        self.0[pool as usize].room(uid, 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALICE: u32 = 1_000;
    const BOB: u32 = 1_001;

    #[test]
    fn limit_of_one_user_leaves_other_users_unaffected() {
        let shares = Shares::new(0);
        let all = shares.take(Pool::Waits, ALICE, WAITS_MAX).expect("its share");
        let full = shares.take(Pool::Waits, ALICE, 1).expect_err("no more");
        assert!(full.to_string().contains("user 1000 has 2048 requests that wait"), "{full}");
        assert_eq!(shares.room(Pool::Waits, ALICE), Err(full));
        assert_eq!(shares.room(Pool::Waits, BOB), Ok(()));
        assert_eq!(shares.room(Pool::Files, ALICE), Ok(()));
        drop(all);
        assert_eq!(shares.room(Pool::Waits, ALICE), Ok(()));
        assert_eq!(shares.0[Pool::Waits as usize].taken(), 0);
    }

    #[test]
    fn one_user_leaves_half_of_the_descriptors_to_others() {
        let shares = Shares::new(BOB);
        for pool in [Pool::Bindings, Pool::Threads, Pool::FolderFiles] {
            let alices = shares.take(pool, ALICE, pool.of_user()).expect("its share");
            assert!(pool.of_user() * 2 <= pool.of_all());
            let rest = pool.of_all() - pool.of_user();
            let bobs = shares.take(pool, BOB, rest).expect("the mounter may have the rest");
            let full = shares.take(pool, 0, 1).expect_err("what storage needs is kept");
            assert!(full.to_string().contains("are in use, which is the limit"), "{full}");
            drop((alices, bobs));
        }
    }

    #[test]
    fn all_users_together_leave_a_part_to_root_and_the_mounter() {
        let shares = Shares::new(BOB);
        for pool in [Pool::FolderFiles, Pool::Bytes, Pool::Directories] {
            let mut taken = Vec::new();
            let full = loop {
                let uid = 2_000 + taken.len() as u32;
                match shares.take(pool, uid, pool.of_user()) {
                    Ok(share) => taken.push(share),
                    Err(full) => break full,
                }
            };
            assert!(taken.len() >= 2 && full.to_string().contains("in use"), "{full}");
            for exempt in [0, BOB] {
                assert!(shares.take(pool, exempt, pool.of_user() / 8).is_ok(), "{pool:?}");
            }
        }
    }

    #[test]
    fn a_share_beyond_the_limit_of_its_user_grows_no_more() {
        let shares = Shares::new(0);
        let mut share = shares.take_always(Pool::Bytes, ALICE, BYTES_MAX + 1);
        assert!(share.grow(1).is_err());
        let mut roots = shares.take_always(Pool::Bytes, 0, BYTES_MAX + 1);
        assert!(roots.grow(1).is_ok());
    }
}
