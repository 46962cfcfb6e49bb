//! The tables of open files and directories by file handle. Handles are never reused, so a late
//! request can't reach another program's file.
//!
//! Hash maps for numbers that this process generates. Callers can't choose such keys, so the maps
//! need no protection against hash flooding; in std's maps that protection costs more than the rest
//! of a look-up.
//!
//! Per-user limits on resources that all users of a mount share, so that no user can exhaust them
//! for the others.
//!
//! Root and the user who mounted are exempt from per-user limits, since they could stop the daemon
//! anyway. Of each resource that all users together can use up, a part is kept for these two.
//!
//! The limit of open file descriptors of this process, and how many descriptors may be pidfds and
//! status files that watch other processes.

use common::shares::{TableFull, TableShare, UserLimits, UserTable};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// A source of unique file handles.
#[derive(Debug, Default)]
pub struct HandleNumbers(AtomicU64);

impl HandleNumbers {
    /// Returns a file handle that was never returned before.
    pub fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed) + 1
    }
}

/// A table of open files or directories by file handle.
#[derive(Debug)]
pub struct Handles<T>(Mutex<Numbered<Arc<T>>>);

impl<T> Default for Handles<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Handles<T> {
    /// Records an open file or directory under the handle `number`.
    pub fn insert(&self, number: u64, opened: T) {
        self.insert_shared(number, Arc::new(opened));
    }

    /// Records an open file or directory to which the caller has another reference.
    pub fn insert_shared(&self, number: u64, opened: Arc<T>) {
        self.0.lock().insert(number, opened);
    }

    /// Returns the open file or directory with the handle `number`.
    pub fn get(&self, number: u64) -> Option<Arc<T>> {
        self.0.lock().get(&number).cloned()
    }

    /// Removes an open file or directory and returns it, so that the caller drops it after the
    /// mutex is released.
    pub fn remove(&self, number: u64) -> Option<Arc<T>> {
        self.0.lock().remove(&number)
    }

    /// Returns the number of open files or directories in the table.
    pub fn count(&self) -> usize {
        self.0.lock().len()
    }
}

/// A map keyed by a number that this process generates, or by a newtype of one.
pub type Numbered<T, K = u64> = HashMap<K, T, BuildHasherDefault<Spread>>;

/// A set of numbers that this process generates.
pub type Numbers = HashSet<u64, BuildHasherDefault<Spread>>;

/// A map keyed by names, which callers choose: its hasher is seeded against hash flooding, and
/// still takes a fraction of the time of std's default hasher.
pub type Named<K, T> = HashMap<K, T, foldhash::fast::RandomState>;

/// A hasher for one integer that spreads consecutive numbers over all bits.
#[derive(Debug, Default)]
pub struct Spread(u64);

/// 2^64 divided by the golden ratio, made odd: multiplication by it maps neighbouring numbers far
/// apart.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

impl Hasher for Spread {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        // Multiplication carries only upwards, so the high half of the product depends on all bits,
        // the low half on the low bits alone; the shift and XOR mix the halves.
        let spread = (self.0 ^ number).wrapping_mul(GOLDEN);
        self.0 = spread ^ (spread >> 32);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// A resource whose use is limited per user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Pool {
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
    pub fn of_user(self) -> usize {
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
            Self::Bindings | Self::Threads => to_watch() / 2,
            Self::FolderFiles => to_watch(),
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
pub struct Shares(Arc<[UserTable]>);

/// An amount of a resource that counts against a user's limit until it is dropped.
pub type Share = TableShare;

/// The error of a request that would exceed a limit on a resource.
pub type Full = TableFull;

impl Default for Shares {
    fn default() -> Self {
        Self::new(0)
    }
}

impl Shares {
    /// Returns the limits of a mount made by the user `mounter`, with nothing in use.
    pub fn new(mounter: u32) -> Self {
        let table = |pool: &Pool| UserTable::new(pool.as_str(), pool.limits(), mounter);
        Self(Pool::ALL.iter().map(table).collect())
    }

    /// Takes `amount` of the resource `pool` for a user, or fails if that exceeds a limit.
    pub fn take(&self, pool: Pool, uid: u32, amount: usize) -> Result<Share, Full> {
        self.0[pool as usize].take(uid, amount)
    }

    /// Takes `amount` of the resource `pool` for a user even beyond the limits, for a request that
    /// can't be refused any more.
    pub fn take_always(&self, pool: Pool, uid: u32, amount: usize) -> Share {
        self.0[pool as usize].take_always(uid, amount)
    }

    /// Checks that a user may take one more unit of the resource `pool`.
    pub fn room(&self, pool: Pool, uid: u32) -> Result<(), Full> {
        self.0[pool as usize].room(uid, 1)
    }
}

/// Descriptors reserved for storage, sockets, devices and logs, however many processes are watched.
const RESERVE: u64 = 256;
/// The maximum number of descriptors that watch processes: more than the processes of one machine,
/// and some 100 MB of kernel memory.
const TO_WATCH_MAX: u64 = 65_536;

/// Raises the soft limit of open files (`RLIMIT_NOFILE`) to the hard limit, and returns the soft
/// limit that is then in force.
#[allow(unsafe_code)]
fn raise() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` outlives the call, which fills it.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 {
        return RESERVE;
    }
    let raised = libc::rlimit { rlim_cur: limit.rlim_max, ..limit };
    // SAFETY: `raised` outlives the call, which only reads it.
    if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const raised) } == 0 {
        return raised.rlim_cur;
    }
    limit.rlim_cur
}

/// Returns how many file descriptors may watch processes and threads: half of those that are left
/// below the soft limit after [`RESERVE`]. The other half is for the connections of a daemon that
/// also serves network clients. The first call raises the soft limit.
pub(crate) fn to_watch() -> usize {
    static TO_WATCH: OnceLock<usize> = OnceLock::new();
    *TO_WATCH.get_or_init(|| {
        let watching = raise().saturating_sub(RESERVE) / 2;
        usize::try_from(watching.min(TO_WATCH_MAX)).unwrap_or(usize::MAX)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_are_never_reused() {
        let (numbers, handles) = (HandleNumbers::default(), Handles::default());
        let first = numbers.next();
        handles.insert(first, "a");
        assert_eq!(handles.remove(first).as_deref(), Some(&"a"));
        assert!(handles.get(first).is_none());
        assert_ne!(numbers.next(), first);
        assert_eq!(handles.count(), 0);
    }
}

#[cfg(test)]
mod hash_maps_tests {
    use super::*;

    #[test]
    fn consecutive_numbers_hash_far_apart() {
        let hash = |number: u64| {
            let mut spread = Spread::default();
            spread.write_u64(number);
            spread.finish()
        };
        let low: HashSet<u64> = (0..1_024).map(|number| hash(number) % 1_024).collect();
        let high: HashSet<u64> = (0..128).map(|number| hash(number) >> 57).collect();
        assert!(low.len() > 512 && high.len() > 64, "{} {}", low.len(), high.len());
    }
}

#[cfg(test)]
mod user_shares_tests {
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

#[cfg(test)]
mod descriptor_limit_tests {
    use super::*;

    #[test]
    fn the_limit_is_raised_and_a_reserve_is_left() {
        let watching = to_watch() as u64;
        let limit = raise();
        assert!(watching * 2 + RESERVE <= limit, "{watching} of {limit}");
        assert!(watching > 0);
    }
}
