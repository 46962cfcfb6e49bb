//! Per-user limits on resources that all users of a mount share, so that no user can exhaust them
//! for the others.
//!
//! Root and the user who mounted are exempt from per-user limits, since they could stop the daemon
//! anyway.

use crate::fuse::kernel::descriptor_limit;
use crate::shares::{Identity, SharedTable, TableFull, TableShare};
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
/// The part of a resource that one user may take, if all users together have a limit too: one
/// quarter of that limit.
const PARTS: usize = 4;
/// The maximum number of open directories per user. A walk through a tree has one directory open
/// per level; a page of long names takes 80 KiB.
const DIRECTORIES_MAX: usize = 512;
/// The maximum number of buffered bytes per user: several times the size of the longest list of
/// locks that one request returns.
const BYTES_MAX: usize = 16 << 20;

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
            Self::FolderFiles => FILES_MAX.min(self.of_all() / 2),
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
pub(crate) struct Shares {
    mounter: u32,
    pools: Arc<[SharedTable]>,
}

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
        let table = |pool: &Pool| SharedTable::new(pool.as_str(), pool.of_all(), pool.of_user());
        Self { mounter, pools: Pool::ALL.iter().map(table).collect() }
    }

    /// Takes `amount` of the resource `pool` for a user, or fails if that exceeds a limit.
    pub(crate) fn take(&self, pool: Pool, uid: u32, amount: usize) -> Result<Share, Full> {
        self.pools[pool as usize].take_within(&Identity::User(uid), amount, self.limit(pool, uid))
    }

    /// Takes `amount` of the resource `pool` for a user even beyond the limits, for a request that
    /// can't be refused any more.
    pub(crate) fn take_always(&self, pool: Pool, uid: u32, amount: usize) -> Share {
        self.pools[pool as usize].take_always(&Identity::User(uid), amount)
    }

    /// Checks that a user may take one more unit of the resource `pool`.
    pub(crate) fn room(&self, pool: Pool, uid: u32) -> Result<(), Full> {
        self.pools[pool as usize].room(&Identity::User(uid), 1, self.limit(pool, uid))
    }

    fn limit(&self, pool: Pool, uid: u32) -> usize {
        if uid == 0 || uid == self.mounter { usize::MAX } else { pool.of_user() }
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
        assert_eq!(shares.pools[Pool::Waits as usize].taken(), 0);
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
}
