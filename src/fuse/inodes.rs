//! The inode table: maps inode numbers to names. Pure state: it makes no requests and applies no
//! lock rules.
//!
//! The kernel counts its lookups of an inode and returns them by FORGET; the table keeps an inode
//! for as long as the kernel knows it. A file keeps its number when its lock is released and taken
//! again, because a program that waits for flock keeps the file open meanwhile. Directories and
//! symlinks get a new number with each tenure, that is each time the lock is taken. All names of
//! one group of hard links share a number.
//!
//! While a lock is held, its inode number stays the same, even if the kernel forgets the inode
//! meanwhile: the number of a new inode is computed from the token, and the table keeps a forgotten
//! inode that has another number, or several names.

use crate::engine::{FileType, LockName, NameError, Token};
use crate::fuse::control_names::ControlFile;
use kernel::handles::{Named, Numbered};
use std::collections::VecDeque;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

/// The inode number of the mount point.
pub(crate) const TOP: u64 = 1;
/// The first inode number that is not computed from a token. Such numbers are even; numbers
/// computed from a token are odd.
const FIRST: u64 = 2;
/// The maximum number of inodes that the table keeps after the kernel has forgotten them, so that
/// held locks keep their numbers; some 300 bytes each. Beyond it, the oldest are dropped, and a
/// later lookup gives the lock a new number.
const DORMANT_MAX: usize = 1 << 14;

/// The object that an inode stands for.
#[derive(Debug, Clone)]
pub(crate) enum NodePlace {
    /// The mount point.
    Top,
    /// A lock, or a directory that exists only because of locks below it.
    Lock(Arc<LockNode>),
    /// A file in `.latchfs`, or a file that shows one fact about a lock in the lock's directory.
    Control(ControlFile),
}

/// An inode that stands for a lock, under one or several names.
#[derive(Debug, Clone)]
pub(crate) struct LockNode {
    /// The file type, which never changes: the kernel does not support an inode that changes its
    /// type.
    pub(crate) file_type: FileType,
    /// The current name of the inode, or its last name after all were removed.
    pub(crate) name: LockName,
    /// The current names of the inode: none after all were removed, several after `ln`.
    pub(crate) links: Vec<NodeLink>,
}

/// One name of an inode; an inode has several names after `ln`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NodeLink {
    pub(crate) name: LockName,
    /// The token of the lease last seen under this name; `None` for a directory that exists only
    /// because of locks below it.
    pub(crate) token: Option<Token>,
    /// The token of the first lease in an unbroken series of leases: `ln`, `mv` and an upgrade to
    /// exclusive give the lease a new token, and this one stays. An open file remembers it, to
    /// recognize that its lease continues.
    pub(crate) origin: Option<Token>,
}

#[derive(Debug)]
struct InodeSlot {
    place: NodePlace,
    lookups: u64,
}

/// The inode table of one mount.
#[derive(Debug)]
pub(crate) struct InodeTable {
    nodes: Numbered<InodeSlot>,
    locks: Named<LockName, u64>,
    controls: Named<ControlFile, u64>,
    next: u64,
    /// The numbers of inodes that the kernel has forgotten, oldest first. A number in this queue is
    /// ignored if its inode has been looked up again or removed since.
    dormant: VecDeque<u64>,
}

/// Returns the inode number for a lock that is held under this token.
const fn number_of(token: Token) -> u64 {
    token.as_u64() << 1 | 1
}

impl Default for InodeTable {
    fn default() -> Self {
        let (locks, controls) = (Named::default(), Named::default());
        let dormant = VecDeque::new();
        Self { nodes: Numbered::default(), locks, controls, next: FIRST, dormant }
    }
}

impl InodeTable {
    /// Returns the object that an inode stands for.
    pub(crate) fn place(&self, ino: u64) -> Option<NodePlace> {
        match ino {
            TOP => Some(NodePlace::Top),
            _ => self.nodes.get(&ino).map(|node| node.place.clone()),
        }
    }

    /// Returns the inode number of an existing name that has this file type and token, and counts
    /// one lookup by the kernel.
    pub(crate) fn seen(
        &mut self,
        name: &LockName,
        file_type: FileType,
        token: Option<Token>,
    ) -> u64 {
        if let Some(ino) = self.locks.get(name).copied() {
            if self.still(ino, name, file_type, token) {
                self.count(ino);
                return ino;
            }
            self.detach(name);
        }
        self.insert_lock(name, file_type, token)
    }

    /// Returns the inode number of a name that was just created, and counts one lookup by the
    /// kernel. A directory or symlink gets a new number; a file may reuse the number that it had
    /// before the lock was released and taken again.
    pub(crate) fn made(&mut self, name: &LockName, file_type: FileType, token: Token) -> u64 {
        if file_type != FileType::File {
            self.detach(name);
        }
        self.seen(name, file_type, Some(token))
    }

    /// Returns the inode number of a control file, and counts one lookup by the kernel.
    pub(crate) fn control(&mut self, control: &ControlFile) -> u64 {
        if let Some(ino) = self.controls.get(control).copied() {
            self.count(ino);
            return ino;
        }
        let ino = self.insert(NodePlace::Control(control.clone()));
        self.controls.insert(control.clone(), ino);
        ino
    }

    /// Returns the inode number of a name, without counting a lookup.
    pub(crate) fn number(&self, name: &LockName) -> Option<u64> {
        self.locks.get(name).copied()
    }

    /// Returns the inode number that a directory listing shows for a name: that of the table, or,
    /// for a lock without an inode, the one computed from the lock's token.
    pub(crate) fn number_seen(&self, name: &LockName, token: Option<Token>) -> Option<u64> {
        self.number(name).or(token.map(number_of))
    }

    /// Drops the inode of a name that does not exist any more, if the kernel has forgotten it.
    pub(crate) fn gone(&mut self, name: &LockName) {
        if !self.dormant.is_empty() && self.locks.get(name).is_some_and(|ino| !self.is_known(*ino))
        {
            self.detach(name);
        }
    }

    /// Subtracts `count` from the kernel's lookups of an inode. At 0 the inode is dropped, unless
    /// its lock is held under a number that can't be computed again.
    pub(crate) fn forget(&mut self, ino: u64, count: u64) {
        let Some(node) = self.nodes.get_mut(&ino) else { return };
        node.lookups = node.lookups.saturating_sub(count);
        if node.lookups > 0 {
            return;
        }
        if matches!(&node.place, NodePlace::Lock(lock) if lock.is_kept_as(ino)) {
            self.dormant.push_back(ino);
            if self.dormant.len() <= DORMANT_MAX {
                return;
            }
            let Some(oldest) = self.dormant.pop_front() else { return };
            if !self.is_known(oldest) {
                self.remove(oldest);
            }
            return;
        }
        self.remove(ino);
    }

    fn remove(&mut self, ino: u64) {
        match self.nodes.remove(&ino).map(|node| node.place) {
            Some(NodePlace::Lock(lock)) => {
                for link in &lock.links {
                    self.locks.remove(&link.name);
                }
            }
            Some(NodePlace::Control(control)) => {
                self.controls.remove(&control);
            }
            Some(NodePlace::Top) | None => {}
        }
    }

    /// Handles `ln`: adds `name` to the inode, and counts one lookup. Open files that are bound to
    /// the lease of the name `of` are bound to the lease of `name` as well.
    pub(crate) fn linked(&mut self, ino: u64, name: &LockName, token: Token, of: &LockName) {
        self.detach(name);
        let Some(lock) = self.lock_mut(ino) else { return };
        let of = lock.links.iter().find(|link| link.name == *of);
        let origin = of.and_then(|link| link.origin).or(Some(token));
        lock.links.push(NodeLink { name: name.clone(), token: Some(token), origin });
        self.locks.insert(name.clone(), ino);
        self.count(ino);
    }

    /// Handles `rm`: an inode loses the name, except for a file with a single name that the kernel
    /// knows, since its lock may be taken again while the file is open.
    pub(crate) fn removed(&mut self, name: &LockName) {
        let Some(ino) = self.locks.get(name).copied() else { return };
        let known = self.is_known(ino);
        match self.lock_mut(ino) {
            Some(lock) if known && lock.file_type == FileType::File && lock.links.len() == 1 => {}
            _ => self.detach(name),
        }
    }

    /// Handles `mv`: the inode of `from` gets the name `to` and the new token `token`. Open files
    /// that are bound to the lease stay bound to it.
    pub(crate) fn moved(&mut self, from: &LockName, to: &LockName, token: Token) {
        if from == to {
            return;
        }
        self.detach(to);
        let Some(ino) = self.locks.remove(from) else { return };
        let Some(lock) = self.lock_mut(ino) else { return };
        if lock.name == *from {
            lock.name = to.clone();
        }
        if let Some(link) = lock.links.iter_mut().find(|link| link.name == *from) {
            link.name = to.clone();
            link.token = Some(token);
        }
        self.locks.insert(to.clone(), ino);
    }

    /// Handles an upgrade from shared to exclusive: records the new token of the lock `name`. Open
    /// files that are bound to the lease stay bound to it.
    pub(crate) fn continued(&mut self, name: &LockName, token: Token) {
        let Some(ino) = self.locks.get(name).copied() else { return };
        let Some(lock) = self.lock_mut(ino) else { return };
        if let Some(link) = lock.links.iter_mut().find(|link| link.name == *name)
            && link.token < Some(token)
        {
            link.origin = link.origin.or(Some(token));
            link.token = Some(token);
        }
    }

    /// Whether the inode `ino` can still stand for the lock `name`, which now has this file type
    /// and token. If so, records the token.
    fn still(
        &mut self,
        ino: u64,
        name: &LockName,
        file_type: FileType,
        token: Option<Token>,
    ) -> bool {
        let Some(NodePlace::Lock(lock)) = self.nodes.get_mut(&ino).map(|node| &mut node.place)
        else {
            return false;
        };
        if lock.file_type != file_type {
            return false;
        }
        let alone = lock.links.len() == 1;
        let Some(place) = lock.links.iter().position(|link| link.name == *name) else {
            return false;
        };
        let before = lock.links[place].token;
        if before == token {
            return true;
        }
        let goes_on = match file_type {
            FileType::File => alone,
            // The inode of a directory stays the same when the directory becomes a lock, or stops
            // being one, while there are locks below it.
            FileType::Directory => before.is_none() || token.is_none(),
            FileType::Symlink => false,
        };
        if goes_on {
            let link = &mut Arc::make_mut(lock).links[place];
            link.token = token;
            link.origin = token;
        }
        goes_on
    }

    fn lock_mut(&mut self, ino: u64) -> Option<&mut LockNode> {
        match self.nodes.get_mut(&ino).map(|node| &mut node.place) {
            // `Arc::make_mut` copies the inode's data if a request in progress still uses it; that
            // request continues with the unchanged original.
            Some(NodePlace::Lock(lock)) => Some(Arc::make_mut(lock)),
            _ => None,
        }
    }

    /// Whether the kernel has looked up the inode `ino` and not forgotten it.
    fn is_known(&self, ino: u64) -> bool {
        self.nodes.get(&ino).is_some_and(|node| node.lookups > 0)
    }

    fn count(&mut self, ino: u64) {
        if let Some(node) = self.nodes.get_mut(&ino) {
            node.lookups += 1;
        }
    }

    fn detach(&mut self, name: &LockName) {
        let Some(ino) = self.locks.remove(name) else { return };
        let Some(lock) = self.lock_mut(ino) else { return };
        lock.links.retain(|link| link.name != *name);
        // If the inode has other names (hard links), the first of them becomes its current name.
        if let Some(link) = lock.links.first() {
            lock.name = link.name.clone();
        } else if !self.is_known(ino) {
            self.nodes.remove(&ino);
        }
    }

    fn insert_lock(&mut self, name: &LockName, file_type: FileType, token: Option<Token>) -> u64 {
        let link = NodeLink { name: name.clone(), token, origin: token };
        let lock = LockNode { file_type, name: name.clone(), links: vec![link] };
        let ino = match token.map(number_of) {
            Some(ino) if !self.nodes.contains_key(&ino) => self.insert_as(ino, lock),
            _ => self.insert(NodePlace::Lock(Arc::new(lock))),
        };
        self.locks.insert(name.clone(), ino);
        ino
    }

    fn insert_as(&mut self, ino: u64, lock: LockNode) -> u64 {
        self.nodes.insert(ino, InodeSlot { place: NodePlace::Lock(Arc::new(lock)), lookups: 1 });
        ino
    }

    fn insert(&mut self, place: NodePlace) -> u64 {
        let ino = self.next;
        self.next += 2;
        self.nodes.insert(ino, InodeSlot { place, lookups: 1 });
        ino
    }
}

impl NodePlace {
    /// Returns the full name of the lock that an entry of this directory stands for.
    pub(crate) fn child(&self, name: &OsStr) -> Result<LockName, NameError> {
        let name = name.as_bytes();
        match self {
            Self::Lock(lock) => {
                let parent = lock.name.as_str().as_bytes();
                let mut whole = Vec::with_capacity(parent.len() + 1 + name.len());
                whole.extend_from_slice(parent);
                whole.push(b'/');
                whole.extend_from_slice(name);
                LockName::parse_bytes(&whole)
            }
            Self::Top | Self::Control(_) => LockName::parse_bytes(name),
        }
    }

    /// Whether the inode is a directory that is itself held as a lock.
    pub(crate) fn is_held_directory(&self) -> bool {
        matches!(self, Self::Lock(lock) if lock.file_type == FileType::Directory
            && lock.links.first().is_some_and(|link| link.token.is_some()))
    }
}

impl LockNode {
    /// Whether the table must keep the inode after the kernel has forgotten it. An inode with one
    /// name need not be kept if its number is the one computed from the token of its lock.
    fn is_kept_as(&self, ino: u64) -> bool {
        match &*self.links {
            [link] => link.token.is_some_and(|token| number_of(token) != ino),
            links => !links.is_empty(),
        }
    }

    /// Returns the token by which open files are bound to the lease with the token `token`: that of
    /// the first lease in its series, before `ln`, `mv` or an upgrade.
    pub(crate) fn origin_of(&self, token: Token) -> Token {
        let link = self.links.iter().find(|link| link.token == Some(token));
        link.and_then(|link| link.origin).unwrap_or(token)
    }

    /// Whether the inode is a directory that is no lock itself, and exists only because of locks
    /// below it.
    pub(crate) fn is_only_a_way(&self) -> bool {
        let held = self.links.first().is_some_and(|link| link.token.is_some());
        self.file_type == FileType::Directory && !self.links.is_empty() && !held
    }

    /// Returns the names to which an operation on an open file applies, if the file is bound to the
    /// lease `tenure`: those whose lease is `tenure`, or continues it. If the inode has none,
    /// returns its last name with the token `tenure`, so that the engine reports how that lease
    /// ended.
    pub(crate) fn links_of(&self, tenure: Option<Token>) -> Vec<NodeLink> {
        let bound = |link: &&NodeLink| tenure.is_none() || link.origin == tenure;
        let links: Vec<NodeLink> = self.links.iter().filter(bound).cloned().collect();
        if links.is_empty() {
            return vec![NodeLink { name: self.name.clone(), token: tenure, origin: tenure }];
        }
        links
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> LockName {
        LockName::parse(text).expect("valid")
    }

    fn token(number: u64) -> Token {
        Token::named(number)
    }

    fn lock(tree: &InodeTable, ino: u64) -> Arc<LockNode> {
        match tree.place(ino) {
            Some(NodePlace::Lock(lock)) => lock,
            other => panic!("{ino} is {other:?}"),
        }
    }

    #[test]
    fn a_file_keeps_its_number_while_the_kernel_knows_it() {
        let mut tree = InodeTable::default();
        let first = tree.made(&name("a"), FileType::File, token(1));
        tree.removed(&name("a"));
        let second = tree.made(&name("a"), FileType::File, token(2));
        assert_eq!(first, second);
        assert_eq!(lock(&tree, first).links[0].origin, Some(token(2)));
        tree.removed(&name("a"));
        tree.forget(first, 2);
        tree.gone(&name("a"));
        assert!(tree.place(first).is_none());
        assert_ne!(tree.seen(&name("a"), FileType::File, Some(token(3))), first);
    }

    #[test]
    fn number_of_a_held_lock_survives_forget() {
        let mut tree = InodeTable::default();
        let made = tree.made(&name("a"), FileType::File, token(1));
        tree.forget(made, 1);
        assert!(tree.place(made).is_none());
        assert_eq!(tree.seen(&name("a"), FileType::File, Some(token(1))), made);
        // The lock `a` was released and taken again, and its token is 2 now. Its inode keeps the
        // number that was computed from token 1, and can't be computed from token 2.
        assert_eq!(tree.seen(&name("a"), FileType::File, Some(token(2))), made);
        tree.forget(made, 2);
        assert_eq!(tree.seen(&name("a"), FileType::File, Some(token(2))), made);
        tree.forget(made, 1);
        tree.removed(&name("a"));
        assert!(tree.nodes.is_empty() && tree.locks.is_empty());
    }

    #[test]
    fn links_survive_forget() {
        let mut tree = InodeTable::default();
        let ino = tree.made(&name("a"), FileType::File, token(1));
        tree.linked(ino, &name("b"), token(2), &name("a"));
        tree.forget(ino, 2);
        assert_eq!(tree.seen(&name("b"), FileType::File, Some(token(2))), ino);
        assert_eq!(lock(&tree, ino).links.len(), 2);
        tree.forget(ino, 1);
        tree.gone(&name("a"));
        assert_eq!(tree.seen(&name("b"), FileType::File, Some(token(2))), ino);
        assert_eq!(lock(&tree, ino).links.len(), 1);
        tree.forget(ino, 1);
        tree.gone(&name("b"));
        assert!(tree.nodes.is_empty() && tree.locks.is_empty());
    }

    #[test]
    fn dormant_inodes_are_bounded() {
        let mut tree = InodeTable::default();
        for n in 1..=2 * DORMANT_MAX as u64 {
            let file = name(&format!("f{n}"));
            let ino = tree.seen(&file, FileType::File, None);
            tree.seen(&file, FileType::File, Some(token(n)));
            tree.forget(ino, 2);
        }
        assert_eq!((tree.nodes.len(), tree.locks.len()), (DORMANT_MAX, DORMANT_MAX));
    }

    #[test]
    fn directories_and_symlinks_get_a_new_number_each_time() {
        let mut tree = InodeTable::default();
        for file_type in [FileType::Directory, FileType::Symlink] {
            let first = tree.made(&name("a"), file_type, token(1));
            assert_eq!(tree.seen(&name("a"), file_type, Some(token(1))), first);
            tree.removed(&name("a"));
            let second = tree.made(&name("a"), file_type, token(2));
            assert_ne!(first, second);
            assert_ne!(tree.seen(&name("a"), file_type, Some(token(3))), second);
            assert!(lock(&tree, first).links.is_empty());
        }
    }

    #[test]
    fn parent_directory_may_become_a_lock_and_back() {
        let mut tree = InodeTable::default();
        let way = tree.seen(&name("team"), FileType::Directory, None);
        assert!(!tree.place(way).expect("there").is_held_directory());
        assert_eq!(tree.seen(&name("team"), FileType::Directory, Some(token(1))), way);
        assert!(tree.place(way).expect("there").is_held_directory());
        assert_ne!(tree.seen(&name("team"), FileType::Directory, Some(token(2))), way);
    }

    #[test]
    fn change_of_file_type_makes_a_new_inode() {
        let mut tree = InodeTable::default();
        let file = tree.seen(&name("a"), FileType::File, Some(token(1)));
        let directory = tree.seen(&name("a"), FileType::Directory, Some(token(2)));
        assert_ne!(file, directory);
        assert!(lock(&tree, file).links.is_empty());
    }

    #[test]
    fn links_share_a_number_and_part_again() {
        let mut tree = InodeTable::default();
        let ino = tree.made(&name("a"), FileType::File, token(1));
        tree.linked(ino, &name("b"), token(2), &name("a"));
        assert_eq!(tree.seen(&name("b"), FileType::File, Some(token(2))), ino);
        assert_eq!(lock(&tree, ino).links_of(Some(token(1))).len(), 2);
        tree.removed(&name("a"));
        assert_eq!(lock(&tree, ino).name, name("b"));
        // `b` is the only name left of the inode, so the new lock `a` gets another inode.
        assert_ne!(tree.made(&name("a"), FileType::File, token(3)), ino);
        let left = lock(&tree, ino).links_of(Some(token(1)));
        assert_eq!(left.iter().map(|link| link.token).collect::<Vec<_>>(), [Some(token(2))]);
    }

    #[test]
    fn a_linked_name_under_a_new_tenure_leaves_the_group() {
        let mut tree = InodeTable::default();
        let ino = tree.made(&name("a"), FileType::File, token(1));
        tree.linked(ino, &name("b"), token(2), &name("a"));
        let other = tree.seen(&name("a"), FileType::File, Some(token(9)));
        assert_ne!(other, ino);
        assert_eq!(lock(&tree, ino).links.len(), 1);
    }

    #[test]
    fn moved_file_stands_for_its_new_name() {
        let mut tree = InodeTable::default();
        let ino = tree.made(&name("a"), FileType::File, token(1));
        let target = tree.made(&name("b"), FileType::File, token(2));
        tree.moved(&name("a"), &name("b"), token(3));
        assert_eq!(tree.seen(&name("b"), FileType::File, Some(token(3))), ino);
        let links = lock(&tree, ino).links_of(Some(token(1)));
        assert_eq!((links[0].name.as_str(), links[0].token), ("b", Some(token(3))));
        assert!(lock(&tree, target).links.is_empty());
        assert_ne!(tree.seen(&name("a"), FileType::File, Some(token(4))), ino);
    }

    #[test]
    fn open_file_of_a_former_tenure_keeps_its_token() {
        let mut tree = InodeTable::default();
        let ino = tree.made(&name("a"), FileType::File, token(1));
        tree.seen(&name("a"), FileType::File, Some(token(2)));
        let links = lock(&tree, ino).links_of(Some(token(1)));
        assert_eq!((links.len(), links[0].token), (1, Some(token(1))));
    }

    #[test]
    fn children_are_names_with_one_part_more() {
        let mut tree = InodeTable::default();
        let team = tree.seen(&name("team"), FileType::Directory, None);
        let place = tree.place(team).expect("there");
        assert_eq!(place.child(OsStr::new("build")), Ok(name("team/build")));
        assert_eq!(NodePlace::Top.child(OsStr::new("build")), Ok(name("build")));
        assert!(NodePlace::Top.child(OsStr::from_bytes(b"\xff")).is_err());
        tree.forget(team, 1);
        assert!(tree.place(team).is_none() && tree.number(&name("team")).is_none());
    }
}
