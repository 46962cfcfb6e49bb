//! Per-user limits on resources that all users of a mount share, so that no user can exhaust them
//! for the others.
//!
//! Root and the user who mounted are exempt from per-user limits, since they could stop the daemon
//! anyway.

use crate::fuse::kernel::descriptor_limit;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fmt;
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
    /// Returns how much of the resource one user may take.
    pub(crate) fn of_user(self) -> usize {
        match self {
            Self::Bindings => BINDINGS_MAX.min(self.of_all() / PARTS),
            Self::Threads => THREADS_MAX.min(self.of_all() / PARTS),
            Self::Waits => WAITS_MAX,
            Self::Files => FILES_MAX,
            Self::Directories => DIRECTORIES_MAX,
            Self::Bytes => BYTES_MAX,
        }
    }

    /// Returns how much of the resource all users together, including root, may take.
    fn of_all(self) -> usize {
        match self {
            Self::Bindings | Self::Threads => descriptor_limit::to_watch() / 2,
            Self::Waits | Self::Files | Self::Directories | Self::Bytes => usize::MAX,
        }
    }

    const fn as_str(self) -> &'static str {
        match self {
            Self::Bindings => "locks bound to processes",
            Self::Threads => "waiting programs",
            Self::Waits => "requests that wait in .latchfs",
            Self::Files => "open files",
            Self::Directories => "open directories",
            Self::Bytes => "unread bytes",
        }
    }
}

/// The use of each limited resource, per user and in total.
#[derive(Debug, Clone, Default)]
pub(crate) struct Shares(Arc<SharesInner>);

#[derive(Debug, Default)]
struct SharesInner {
    mounter: u32,
    taken: Mutex<TakenShares>,
}

#[derive(Debug, Default)]
struct TakenShares {
    by_user: HashMap<(Pool, u32), usize>,
    by_all: HashMap<Pool, usize>,
}

/// The error of a request that would exceed a limit on a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Full {
    pool: Pool,
    /// The user whose limit is reached, or `None` if the limit of all users together is reached.
    uid: Option<u32>,
    max: usize,
}

/// The amount of a resource that one user has taken. The amount counts against the user's limit
/// until this value is dropped.
#[derive(Debug)]
pub(crate) struct Share {
    of: Arc<SharesInner>,
    pool: Pool,
    uid: u32,
    amount: usize,
}

impl Shares {
    /// Returns the limits of a mount made by the user `mounter`, with nothing in use.
    pub(crate) fn new(mounter: u32) -> Self {
        Self(Arc::new(SharesInner { mounter, taken: Mutex::default() }))
    }

    /// Takes `amount` of the resource `pool` for a user, or fails if that exceeds a limit.
    pub(crate) fn take(&self, pool: Pool, uid: u32, amount: usize) -> Result<Share, Full> {
        let mut share = Share { of: Arc::clone(&self.0), pool, uid, amount: 0 };
        share.grow(amount)?;
        Ok(share)
    }

    /// Takes `amount` of the resource `pool` for a user even beyond the limits, for a request that
    /// can't be refused any more.
    pub(crate) fn take_always(&self, pool: Pool, uid: u32, amount: usize) -> Share {
        let mut share = Share { of: Arc::clone(&self.0), pool, uid, amount: 0 };
        share.grow_always(amount);
        share
    }

    /// Checks that a user may take one more unit of the resource `pool`.
    pub(crate) fn room(&self, pool: Pool, uid: u32) -> Result<(), Full> {
        self.0.room(&self.0.taken.lock(), pool, uid, 1)
    }
}

impl SharesInner {
    fn room(&self, taken: &TakenShares, pool: Pool, uid: u32, more: usize) -> Result<(), Full> {
        let fits = |has: Option<&usize>, max: usize| more <= max - max.min(*has.unwrap_or(&0));
        if !fits(taken.by_all.get(&pool), pool.of_all()) {
            return Err(Full { pool, uid: None, max: pool.of_all() });
        }
        let is_free = uid == 0 || uid == self.mounter;
        if is_free || fits(taken.by_user.get(&(pool, uid)), pool.of_user()) {
            return Ok(());
        }
        Err(Full { pool, uid: Some(uid), max: pool.of_user() })
    }
}

impl Share {
    /// Adds `more` to the amount taken, or fails if that exceeds a limit.
    pub(crate) fn grow(&mut self, more: usize) -> Result<(), Full> {
        let mut taken = self.of.taken.lock();
        self.of.room(&taken, self.pool, self.uid, more)?;
        taken.add(self.pool, self.uid, more);
        self.amount += more;
        Ok(())
    }

    /// Adds `more` to the amount taken even beyond the limits, for a request that can't be refused
    /// any more.
    pub(crate) fn grow_always(&mut self, more: usize) {
        self.of.taken.lock().add(self.pool, self.uid, more);
        self.amount += more;
    }

    /// Gives the part `less` of the amount back.
    pub(crate) fn shrink(&mut self, less: usize) {
        let less = less.min(self.amount);
        self.of.taken.lock().sub(self.pool, self.uid, less);
        self.amount -= less;
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.shrink(self.amount);
    }
}

impl TakenShares {
    fn add(&mut self, pool: Pool, uid: u32, more: usize) {
        *self.by_user.entry((pool, uid)).or_default() += more;
        *self.by_all.entry(pool).or_default() += more;
    }

    fn sub(&mut self, pool: Pool, uid: u32, less: usize) {
        if let Some(has) = self.by_user.get_mut(&(pool, uid)) {
            *has -= less;
            if *has == 0 {
                self.by_user.remove(&(pool, uid));
            }
        }
        if let Some(has) = self.by_all.get_mut(&pool) {
            *has -= less;
        }
    }
}

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, max) = (self.pool.as_str(), self.max);
        match self.uid {
            Some(uid) => write!(f, "user {uid} has {max} {what}, which is one user's share")?,
            None => write!(f, "all users have {max} {what}, which is all that this daemon takes")?,
        }
        write!(f, "; end some of them, then try again")
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
        assert!(shares.0.taken.lock().by_user.is_empty());
    }

    #[test]
    fn a_share_grows_and_shrinks() {
        let shares = Shares::new(0);
        let mut bytes = shares.take(Pool::Bytes, ALICE, BYTES_MAX - 10).expect("its share");
        assert!(bytes.grow(11).is_err());
        assert!(bytes.grow(10).is_ok());
        bytes.grow_always(5);
        assert!(bytes.grow(1).is_err());
        bytes.shrink(6);
        assert!(bytes.grow(1).is_ok());
    }

    #[test]
    fn one_user_leaves_half_of_the_descriptors_to_others() {
        let shares = Shares::new(BOB);
        for pool in [Pool::Bindings, Pool::Threads] {
            let alices = shares.take(pool, ALICE, pool.of_user()).expect("its share");
            assert!(pool.of_user() * 2 <= pool.of_all());
            let rest = pool.of_all() - pool.of_user();
            let bobs = shares.take(pool, BOB, rest).expect("the mounter may have the rest");
            let full = shares.take(pool, 0, 1).expect_err("what storage needs is kept");
            assert!(full.to_string().starts_with("all users have"), "{full}");
            drop((alices, bobs));
        }
    }
}
