//! The leases that `ln` of a locked file has made: they end with the lock of the open file.

use crate::engine::{LeaseKey, LockName, Op, Release, Token};
use crate::fuse::posix_locks::byte_ranges::Owner;
use crate::fuse::posix_locks::table::messages::Effect;
use crate::fuse::posix_locks::table::table_state::Table;

/// A lease under another name of a file that was locked when `ln` made that name.
#[derive(Debug)]
pub(crate) struct LinkedLease {
    /// The number of the lease of the lock from which the link was made.
    pub(super) of: u64,
    /// The owner of that lock.
    owner: Owner,
    /// The lease that `ln` made, under its present name and token.
    pub(super) key: LeaseKey,
}

impl<R> Table<R> {
    /// Records that `ln` of the file that is locked under `token` has made the lease `key`, which
    /// is then released with that lock. Returns false if the file is no longer locked.
    pub(crate) fn linked(&mut self, token: Token, key: LeaseKey) -> bool {
        let file = self.tenures.get(&token).and_then(|ino| self.files.get(ino));
        let Some(held) = file.and_then(|file| file.held_under(token)) else { return false };
        self.links.push(LinkedLease { of: held.number, owner: held.owner, key });
        true
    }

    /// Handles the event that a lease of no open file was granted without a wait: if `mv` has just
    /// moved a linked lease, it is that lease under its new name and token.
    pub(crate) fn link_moved(&mut self, name: &LockName, token: Token) {
        let Some(moved) = self.moved.take() else { return };
        if let Some(link) = self.links.iter_mut().find(|link| link.key.token == Some(moved)) {
            (link.key.name, link.key.token) = (name.clone(), Some(token));
        }
    }

    /// Releases the linked leases that `gone` selects.
    pub(super) fn release_links(
        &mut self,
        gone: impl Fn(&LinkedLease) -> bool,
        todo: &mut Vec<Effect<R>>,
    ) {
        let gone = self.links.extract_if(.., |link| gone(link));
        let releases = gone.map(|link| Op::Release(Release::of(link.key)));
        todo.extend(releases.map(|release| Effect::Tell(Box::new(release), None)));
    }

    /// Releases the linked leases whose lock was removed by name before, if `gone` selects the
    /// owner of that lock: an open file that locks a file, links it and removes its first name
    /// holds the second name until it is unlocked or closed.
    pub(super) fn release_orphaned_links(
        &mut self,
        gone: impl Fn(&Owner) -> bool,
        todo: &mut Vec<Effect<R>>,
    ) {
        let orphaned = |link: &LinkedLease| gone(&link.owner) && self.is_unknown(link.of);
        let numbers: Vec<u64> = self.links.iter().filter(|l| orphaned(l)).map(|l| l.of).collect();
        self.release_links(|link| numbers.contains(&link.of), todo);
    }
}
