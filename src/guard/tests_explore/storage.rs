//! The storage of the model: a folder, a directory of stages and a directory of lost files, as one
//! value that can be copied. Each operation is one step, as a system call is.

use crate::guard::tests_explore::guard_program::{Answer, At, Step};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The number of a file or directory.
pub(super) type Inode = u32;

/// The folder.
pub(super) const FOLDER: Inode = 1;
/// The directory of all stages.
pub(super) const STAGES: Inode = 2;
/// The directory of the lost files.
pub(super) const LOST: Inode = 3;
/// The first inodes that the guards make: each guard numbers its own, so that the number does not
/// depend on the order of the guards' steps.
const MADE_BY_GUARD: Inode = 1_000;

/// A file or directory.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum StorageNode {
    Dir(BTreeMap<String, Inode>),
    File(Vec<u8>),
    Symlink(String),
}

impl StorageNode {
    fn emptied(&self) -> Self {
        match self {
            Self::Dir(_) => Self::Dir(BTreeMap::new()),
            Self::File(_) => Self::File(Vec::new()),
            Self::Symlink(target) => Self::Symlink(target.clone()),
        }
    }
}

/// Returns the names in a directory, and none in anything else.
fn names_of(node: Option<&StorageNode>) -> BTreeMap<String, Inode> {
    match node {
        Some(StorageNode::Dir(names)) => names.clone(),
        _ => BTreeMap::new(),
    }
}

/// The files and directories of the model.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Storage {
    /// Shared with the states that have the same: a state is cloned at each move.
    nodes: BTreeMap<Inode, Arc<StorageNode>>,
    /// How many inodes each guard has made.
    made: [Inode; 2],
    /// The files that each guard has open.
    open: BTreeSet<(usize, Inode)>,
    /// The number of tenures granted when each file or directory was last changed.
    changed: BTreeMap<Inode, u8>,
    /// The number of tenures granted.
    pub(super) granted: u8,
}

/// A change of a file or of a name, as a storage that loses its power may keep it or not.
#[derive(Debug, Clone)]
pub(super) enum StorageChange {
    /// The content of a file.
    Content(Inode, Vec<u8>),
    /// All names that one system call changes: for each its directory, and the inode with an empty
    /// node of its kind, or none if the name was removed.
    Names(Vec<(At, Option<(Inode, StorageNode)>)>),
}

type Effect = Result<Answer, i32>;

impl Storage {
    /// Returns a storage whose folder holds files with these names and contents.
    pub(super) fn new(files: &[(&str, &[u8])]) -> Self {
        let mut nodes = BTreeMap::new();
        let mut names = BTreeMap::new();
        for ((name, content), inode) in files.iter().zip(10..) {
            names.insert((*name).to_owned(), inode);
            nodes.insert(inode, Arc::new(StorageNode::File(content.to_vec())));
        }
        nodes.insert(FOLDER, Arc::new(StorageNode::Dir(names)));
        nodes.insert(STAGES, Arc::new(StorageNode::Dir(BTreeMap::new())));
        nodes.insert(LOST, Arc::new(StorageNode::Dir(BTreeMap::new())));
        let (changed, granted) = (BTreeMap::new(), 0);
        Self { nodes, made: [0; 2], open: BTreeSet::new(), changed, granted }
    }

    /// Does a file operation of a guard.
    pub(super) fn apply(&mut self, guard: usize, step: &Step) -> Answer {
        self.try_apply(guard, step).unwrap_or_else(Answer::Errno)
    }

    fn try_apply(&mut self, guard: usize, step: &Step) -> Effect {
        match step {
            Step::MakeDir(at) => self.make(guard, at, StorageNode::Dir(BTreeMap::new())),
            Step::Symlink(at, target) => self.make(guard, at, StorageNode::Symlink(target.clone())),
            Step::OpenDir(at) => self.find(at).and_then(|inode| match *self.nodes[&inode] {
                StorageNode::Dir(_) => Ok(Answer::Inode(inode)),
                _ => Err(libc::ENOTDIR),
            }),
            Step::IdOf(at) => self.find(at).map(Answer::Inode),
            Step::Stat(at) => self.find(at).map(|inode| self.inspect(inode)),
            Step::StatFile(file) => Ok(self.inspect(*file)),
            Step::Exchange(one, other) => self.exchange(one, other),
            Step::OpenFile(at) => self.find(at).and_then(|inode| match *self.nodes[&inode] {
                StorageNode::File(_) => {
                    self.open.insert((guard, inode));
                    Ok(Answer::Inode(inode))
                }
                StorageNode::Dir(_) => Err(libc::EISDIR),
                StorageNode::Symlink(_) => Err(libc::ELOOP),
            }),
            Step::ReadSymlink(at) => self.find(at).and_then(|inode| match &*self.nodes[&inode] {
                StorageNode::Symlink(target) => Ok(Answer::Text(target.clone())),
                _ => Err(libc::EINVAL),
            }),
            Step::UnnamedFile => {
                let inode = self.add(guard, StorageNode::File(Vec::new()));
                self.open.insert((guard, inode));
                Ok(Answer::Inode(inode))
            }
            Step::Entries(dir) => Ok(Answer::Entries(self.entries(*dir))),
            Step::Write(file, offset, bytes) => {
                let content = self.content_mut(*file);
                let start = usize::try_from(*offset).expect("a small file");
                content.resize(content.len().max(start + bytes.len()), 0);
                content[start..start + bytes.len()].copy_from_slice(bytes);
                self.change(*file);
                Ok(Answer::Done)
            }
            Step::Copy(from, to) => {
                let content = self.content_mut(*from).clone();
                *self.content_mut(*to) = content;
                self.change(*to);
                Ok(Answer::Done)
            }
            Step::Link(_, to) if self.find(to).is_ok() => Err(libc::EEXIST),
            Step::Link(file, to) => {
                self.names_mut(to.dir)?.insert(to.name.clone(), *file);
                self.change(*file);
                Ok(Answer::Done)
            }
            Step::Rename { from, to, must_be_new } => self.rename(from, to, *must_be_new),
            Step::RemoveFile(at) => match *self.nodes[&self.find(at)?] {
                StorageNode::Dir(_) => Err(libc::EISDIR),
                _ => self.unlink(at),
            },
            Step::RemoveDir(at) => match &*self.nodes[&self.find(at)?] {
                StorageNode::Dir(names) if names.is_empty() => self.unlink(at),
                StorageNode::Dir(_) => Err(libc::ENOTEMPTY),
                _ => Err(libc::ENOTDIR),
            },
            Step::SyncFile(_) | Step::SyncDir(_) => Ok(Answer::Done),
            other => panic!("{other:?} is no file operation"),
        }
    }

    /// Records when a file in the folder, or about to be there, was changed. The guards look at no
    /// other files.
    fn change(&mut self, inode: Inode) {
        self.changed.insert(inode, self.granted);
    }

    fn inspect(&self, inode: Inode) -> Answer {
        let (is_dir, content) = match &*self.nodes[&inode] {
            StorageNode::Dir(_) => (true, Vec::new()),
            StorageNode::File(content) => (false, content.clone()),
            StorageNode::Symlink(_) => (false, Vec::new()),
        };
        let changed = self.changed.get(&inode).copied().unwrap_or_default();
        Answer::Stat(inode, is_dir, content, changed)
    }

    fn exchange(&mut self, one: &At, other: &At) -> Effect {
        let (first, second) = (self.find(one)?, self.find(other)?);
        self.names_mut(one.dir)?.insert(one.name.clone(), second);
        self.names_mut(other.dir)?.insert(other.name.clone(), first);
        self.change(first);
        self.change(second);
        Ok(Answer::Done)
    }

    /// Replaces a file of the folder by one that came past the guards.
    pub(super) fn plant(&mut self, name: &str, inode: Inode, content: &[u8]) {
        self.nodes.insert(inode, Arc::new(StorageNode::File(content.to_vec())));
        self.change(inode);
        let names = self.names_mut(FOLDER).expect("the folder is there");
        if let Some(replaced) = names.insert(name.to_owned(), inode) {
            self.drop_unused(replaced);
        }
    }

    /// Whether a file with this content has a name.
    pub(super) fn has_content(&self, wanted: &[u8]) -> bool {
        let is_it =
            |inode: &Inode| matches!(&*self.nodes[inode], StorageNode::File(it) if it == wanted);
        self.nodes.values().any(|node| match &**node {
            StorageNode::Dir(names) => names.values().any(is_it),
            _ => false,
        })
    }

    fn rename(&mut self, from: &At, to: &At, must_be_new: bool) -> Effect {
        let inode = self.find(from)?;
        let is_dir = matches!(*self.nodes[&inode], StorageNode::Dir(_));
        self.names_mut(to.dir)?;
        if let Ok(there) = self.find(to) {
            match &*self.nodes[&there] {
                _ if must_be_new => return Err(libc::EEXIST),
                _ if there == inode => return Ok(Answer::Done),
                StorageNode::Dir(_) if !is_dir => return Err(libc::EISDIR),
                StorageNode::Dir(names) if !names.is_empty() => return Err(libc::ENOTEMPTY),
                StorageNode::Dir(_) => {}
                _ if is_dir => return Err(libc::ENOTDIR),
                _ => {}
            }
        }
        let replaced = self.names_mut(to.dir)?.insert(to.name.clone(), inode);
        self.names_mut(from.dir)?.remove(&from.name);
        self.change(inode);
        if let Some(replaced) = replaced {
            self.drop_unused(replaced);
        }
        Ok(Answer::Done)
    }

    /// Removes the name of a directory that stays usable for a guard that has it open: the effect
    /// of a fence that does not remove it.
    pub(super) fn hide(&mut self, at: &At) -> Answer {
        match &self.find(at).map(|inode| &*self.nodes[&inode]) {
            Ok(StorageNode::Dir(names)) if names.is_empty() => {
                let names = self.names_mut(at.dir).expect("found");
                names.remove(&at.name);
                Answer::Done
            }
            Ok(_) => Answer::Errno(libc::ENOTEMPTY),
            Err(errno) => Answer::Errno(*errno),
        }
    }

    /// Returns the changes since an earlier state of the storage.
    pub(super) fn changes_since(&self, before: &Self) -> Vec<StorageChange> {
        let mut changes = Vec::new();
        let mut renamed = Vec::new();
        let all: BTreeSet<_> = self.nodes.keys().chain(before.nodes.keys()).copied().collect();
        for inode in all {
            let (old, new) = (before.node(inode), self.node(inode));
            if let Some(StorageNode::File(content)) = new
                && old != new
            {
                changes.push(StorageChange::Content(inode, content.clone()));
            }
            let (old, new) = (names_of(old), names_of(new));
            let all: BTreeSet<_> = old.keys().chain(new.keys()).collect();
            for name in all.into_iter().filter(|name| old.get(*name) != new.get(*name)) {
                let named = new.get(name).map(|inode| (*inode, self.nodes[inode].emptied()));
                renamed.push((At { dir: inode, name: name.clone() }, named));
            }
        }
        if !renamed.is_empty() {
            changes.push(StorageChange::Names(renamed));
        }
        changes
    }

    /// Makes a change that was recorded, unless the directory of a new name is not there.
    pub(super) fn redo(&mut self, change: &StorageChange) {
        match change {
            StorageChange::Content(file, content) => {
                self.nodes.insert(*file, Arc::new(StorageNode::File(content.clone())));
                self.change(*file);
            }
            StorageChange::Names(names) => {
                let mut added = names.iter().filter(|(_, named)| named.is_some());
                if added.any(|(at, _)| self.names_mut(at.dir).is_err()) {
                    return;
                }
                for (at, named) in names {
                    if let Some((inode, empty)) = named {
                        self.nodes.entry(*inode).or_insert_with(|| Arc::new(empty.clone()));
                    }
                    match (self.names_mut(at.dir), named) {
                        (Ok(dir), Some((inode, _))) => dir.insert(at.name.clone(), *inode),
                        (Ok(dir), None) => dir.remove(&at.name),
                        // A removed name is in no directory if the directory is gone as well.
                        (Err(_), _) => None,
                    };
                }
            }
        }
    }

    /// Returns this storage after a power failure, in which all processes end. Inodes that another
    /// state has made are not made again.
    pub(super) fn after_power_failure(mut self, made_by: &Self) -> Self {
        self.made = made_by.made;
        self.open.clear();
        let is_orphan = |inode: &&Inode| **inode > LOST && !self.is_named(**inode);
        let orphans: Vec<_> = self.nodes.keys().filter(is_orphan).copied().collect();
        for inode in orphans {
            self.drop_unused(inode);
        }
        self
    }

    /// Closes all files of a guard.
    pub(super) fn close_all(&mut self, guard: usize) {
        let closed: Vec<_> = self.open.iter().filter(|(by, _)| *by == guard).copied().collect();
        for open in closed {
            self.open.remove(&open);
            self.drop_unused(open.1);
        }
    }

    /// Whether a file has no name and is open for this guard alone, so that no other can see it.
    pub(super) fn is_private(&self, guard: usize, file: Inode) -> bool {
        !self.is_named(file)
            && self.open.iter().all(|open| *open == (guard, file) || open.1 != file)
    }

    /// Returns the names in a directory, and for each its inode and content.
    pub(super) fn files_in(&self, dir: Inode) -> BTreeMap<&str, (Inode, &[u8])> {
        let Some(StorageNode::Dir(names)) = self.node(dir) else { return BTreeMap::new() };
        let mut files = BTreeMap::new();
        for (name, inode) in names {
            if let StorageNode::File(content) = &*self.nodes[inode] {
                files.insert(name.as_str(), (*inode, &content[..]));
            }
        }
        files
    }

    /// Returns the names in a directory.
    pub(super) fn names_in(&self, dir: Inode) -> Vec<&str> {
        match self.node(dir) {
            Some(StorageNode::Dir(names)) => names.keys().map(String::as_str).collect(),
            _ => Vec::new(),
        }
    }

    fn entries(&self, dir: Inode) -> Vec<(String, bool)> {
        let Some(StorageNode::Dir(names)) = self.node(dir) else { return Vec::new() };
        let is_dir = |inode| matches!(*self.nodes[inode], StorageNode::Dir(_));
        names.iter().map(|(name, inode)| (name.clone(), is_dir(inode))).collect()
    }

    fn node(&self, inode: Inode) -> Option<&StorageNode> {
        self.nodes.get(&inode).map(|node| &**node)
    }

    fn node_mut(&mut self, inode: Inode) -> Option<&mut StorageNode> {
        self.nodes.get_mut(&inode).map(Arc::make_mut)
    }

    /// Whether an earlier state had other files, names or contents.
    pub(super) fn has_other_files(&self, before: &Self) -> bool {
        self.nodes != before.nodes
    }

    fn content_mut(&mut self, file: Inode) -> &mut Vec<u8> {
        match self.node_mut(file) {
            Some(StorageNode::File(content)) => content,
            other => panic!("{file} is an open file, not {other:?}"),
        }
    }

    /// Returns the names in a directory; ENOENT if it was removed.
    fn names_mut(&mut self, dir: Inode) -> Result<&mut BTreeMap<String, Inode>, i32> {
        match self.node_mut(dir) {
            Some(StorageNode::Dir(names)) => Ok(names),
            _ => Err(libc::ENOENT),
        }
    }

    fn find(&self, at: &At) -> Result<Inode, i32> {
        match self.node(at.dir) {
            Some(StorageNode::Dir(names)) => names.get(&at.name).copied().ok_or(libc::ENOENT),
            _ => Err(libc::ENOENT),
        }
    }

    fn add(&mut self, guard: usize, node: StorageNode) -> Inode {
        self.made[guard] += 1;
        let first = MADE_BY_GUARD * (1 + Inode::try_from(guard).expect("two guards"));
        let inode = first + self.made[guard];
        self.nodes.insert(inode, Arc::new(node));
        self.change(inode);
        inode
    }

    fn make(&mut self, guard: usize, at: &At, node: StorageNode) -> Effect {
        self.names_mut(at.dir)?;
        if self.find(at).is_ok() {
            return Err(libc::EEXIST);
        }
        let inode = self.add(guard, node);
        self.names_mut(at.dir)?.insert(at.name.clone(), inode);
        Ok(Answer::Inode(inode))
    }

    fn unlink(&mut self, at: &At) -> Effect {
        let inode = self.find(at)?;
        self.names_mut(at.dir)?.remove(&at.name);
        self.drop_unused(inode);
        Ok(Answer::Done)
    }

    fn is_named(&self, inode: Inode) -> bool {
        let names = |node: &Arc<StorageNode>| match &**node {
            StorageNode::Dir(names) => names.values().any(|named| *named == inode),
            _ => false,
        };
        self.nodes.values().any(names)
    }

    /// Drops a file that has neither a name nor an open descriptor. A directory goes with its
    /// name: a guard that has it open gets ENOENT.
    fn drop_unused(&mut self, inode: Inode) {
        let is_open = self.open.iter().any(|(_, open)| *open == inode);
        if !is_open && !self.is_named(inode) {
            self.changed.remove(&inode);
            self.nodes.remove(&inode);
        }
    }
}
