//! The leases that `ln` of a locked file has made: they end with the lock of the open file.

use crate::engine::{LeaseKey, LockName, Op, Release, Token};
use crate::fuse::posix_locks::byte_ranges::Owner;
use crate::fuse::posix_locks::table::locked_file::Held;
use crate::fuse::posix_locks::table::messages::Effect;
use crate::fuse::posix_locks::table::table_state::Table;
use std::collections::{BTreeMap, BTreeSet};

/// A lease under another name of a file that was locked when `ln` made that name.
#[derive(Debug)]
struct LinkedLease {
    /// The file that is locked.
    ino: u64,
    /// The number of the lease of the lock from which the link was made.
    of: u64,
    /// The owner of that lock.
    owner: Owner,
    /// The lease that `ln` made, under its present name and token.
    key: LeaseKey,
}

/// The linked leases, by their tokens, and by the files and the lease numbers of their locks: a
/// file that is unlocked or closed looks only at its own.
#[derive(Debug, Default)]
pub(crate) struct LinkedLeases {
    leases: BTreeMap<Token, LinkedLease>,
    by_lock: BTreeSet<(u64, u64, Token)>,
}

impl LinkedLeases {
    fn insert(&mut self, token: Token, link: LinkedLease) {
        self.by_lock.insert((link.ino, link.of, token));
        self.leases.insert(token, link);
    }

    /// Removes and returns the linked lease with this token.
    fn remove(&mut self, token: Token) -> Option<LinkedLease> {
        let link = self.leases.remove(&token)?;
        self.by_lock.remove(&(link.ino, link.of, token));
        Some(link)
    }

    /// Returns the linked leases of the locks of a file, oldest first for each lock.
    fn of_file(&self, ino: u64) -> impl Iterator<Item = (Token, &LinkedLease)> {
        let of_file = self.by_lock.range((ino, 0, Token::named(0))..);
        let of_file = of_file.take_while(move |(other, ..)| *other == ino);
        of_file.filter_map(|(.., token)| Some((*token, self.leases.get(token)?)))
    }

    /// Removes a linked lease that has ended.
    pub(super) fn ended(&mut self, token: Token) {
        self.remove(token);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.leases.is_empty()
    }

    /// Makes the leases that were linked from the lease `before` of a file last as long as another
    /// lease of that file.
    pub(super) fn change_lock(&mut self, ino: u64, before: u64, of: u64) {
        let moved: Vec<Token> = self.of_lock(ino, before);
        for token in moved {
            if let Some(link) = self.remove(token) {
                self.insert(token, LinkedLease { of, ..link });
            }
        }
    }

    fn of_lock(&self, ino: u64, of: u64) -> Vec<Token> {
        let links = self.of_file(ino).filter(|(_, link)| link.of == of);
        links.map(|(token, _)| token).collect()
    }
}

impl<R> Table<R> {
    /// Records that `ln` of the file that is locked under `token` has made the lease `key`, which
    /// is then released with that lock. Returns false if the file is no longer locked.
    pub(crate) fn linked(&mut self, token: Token, key: LeaseKey) -> bool {
        let (Some(ino), Some(new)) = (self.tenures.get(&token).copied(), key.token) else {
            return false;
        };
        let held = self.files.get(&ino).and_then(|file| file.held_under(token));
        let Some(held) = held else { return false };
        self.links.insert(new, LinkedLease { ino, of: held.number, owner: held.owner, key });
        true
    }

    /// Handles the event that a lease of no open file was granted without a wait: if `mv` has just
    /// moved a linked lease, it is that lease under its new name and token.
    pub(crate) fn link_moved(&mut self, name: &LockName, token: Token) {
        let Some(moved) = self.moved.take() else { return };
        if let Some(mut link) = self.links.remove(moved) {
            (link.key.name, link.key.token) = (name.clone(), Some(token));
            self.links.insert(token, link);
        }
    }

    /// Releases the leases that were linked from the lease `held` of a file.
    pub(super) fn release_links(&mut self, ino: u64, held: &Held, todo: &mut Vec<Effect<R>>) {
        let gone = self.links.of_lock(ino, held.number);
        self.release_linked(&gone, todo);
    }

    /// Releases the linked leases of a file whose lock was removed by name before, if `gone`
    /// selects the owner of that lock: an open file that locks a file, links it and removes its
    /// first name holds the second name until it is unlocked or closed.
    pub(super) fn release_orphaned_links(
        &mut self,
        ino: u64,
        gone: impl Fn(&Owner) -> bool,
        todo: &mut Vec<Effect<R>>,
    ) {
        let of_file = self.links.of_file(ino);
        let orphaned = of_file.filter(|(_, link)| gone(&link.owner) && self.is_unknown(link.of));
        let orphaned: Vec<Token> = orphaned.map(|(token, _)| token).collect();
        self.release_linked(&orphaned, todo);
    }

    fn release_linked(&mut self, tokens: &[Token], todo: &mut Vec<Effect<R>>) {
        let gone = tokens.iter().filter_map(|token| self.links.remove(*token));
        let releases = gone.map(|link| Op::Release(Release::of(link.key)));
        todo.extend(releases.map(|release| Effect::Tell(Box::new(release), None)));
    }
}
