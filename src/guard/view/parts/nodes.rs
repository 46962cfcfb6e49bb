//! The nodes of a view: which file of the folder each inode number of the view stands for, where
//! that file lies and was last seen, and which open files it has.

use super::attributes::{ChangeTime, ROOT, SNAPSHOTS};
use super::close_rule::Saving;
use super::open_file::OpenFile;
use crate::guard::disk::operations::FileId;
use crate::guard::folder_snapshot::snapshot_store::TREE;
use crate::guard::stage::staged_file::SaveState;
use barrier::tenure_id::TenureId;
use kernel::file_system::{Errno, NameIn};
use parking_lot::Mutex;
use rustix::fs::Statx;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

/// The inode number of the first node besides the root. The rule for a close looks for descriptors
/// by their inode numbers, so these differ from those of other file systems.
const FIRST: u64 = 1 << 40;
/// A name in a directory of the view.
pub(in crate::guard::view) type NodeName = (u64, OsString);

pub(in crate::guard::view) struct Node {
    pub(in crate::guard::view) file: FileId,
    /// The directory and the name under which the file was last seen; `None` after the file was
    /// removed.
    pub(in crate::guard::view) place: Option<NodeName>,
    /// The name that the file had before it was removed.
    pub(in crate::guard::view) last_place: Option<NodeName>,
    /// The number of lookups that the kernel has not taken back.
    pub(in crate::guard::view) lookups: u64,
    /// The save of a file that is not published yet.
    pub(in crate::guard::view) saving: Option<Arc<Saving>>,
    /// The open files of the node.
    pub(in crate::guard::view) open: NodeFiles,
    /// The last tenure in which the file was changed in place.
    pub(super) changed_in: Option<TenureId>,
    /// Where the file lies.
    pub(in crate::guard::view) base: NodeBase,
    /// The last attributes of a directory that was removed: programs may still have it open, or
    /// work in it.
    pub(in crate::guard::view) removed_dir: Option<Box<Statx>>,
    /// The change time of the file if the view has published it.
    pub(in crate::guard::view) published: Option<ChangeTime>,
}

#[derive(Default)]
pub(in crate::guard::view) struct NodeTable {
    /// Boxed, since a table has room for nearly twice as many entries as it holds.
    pub(in crate::guard::view) nodes: HashMap<u64, Box<Node>>,
    pub(in crate::guard::view) by_file: HashMap<FileId, u64>,
    /// The nodes of files in snapshots, by the root of the snapshot.
    pub(in crate::guard::view) by_snapshot: HashMap<(u64, FileId), u64>,
    /// The names of files that are not published yet.
    pub(in crate::guard::view) staged: HashMap<NodeName, u64>,
    pub(in crate::guard::view) next: u64,
}

/// The nodes of a view.
pub(in crate::guard::view) struct Nodes(pub(in crate::guard::view) Mutex<NodeTable>);

/// The known facts about a node.
pub(in crate::guard::view) struct KnownNode {
    /// The file of the folder.
    pub(in crate::guard::view) file: FileId,
    /// Where the file lies.
    pub(in crate::guard::view) base: NodeBase,
    /// The path in the folder; `None` if the file was removed.
    pub(in crate::guard::view) path: Option<PathBuf>,
    /// The path below its base.
    pub(in crate::guard::view) below: Option<PathBuf>,
    /// The save of a file that is not published yet.
    pub(in crate::guard::view) saving: Option<Arc<Saving>>,
    /// An open file of the node, if there is one.
    pub(in crate::guard::view) open: Option<Arc<OpenFile>>,
}

impl Node {
    /// Returns the node of a file that was looked up once.
    pub(in crate::guard::view) fn of(
        file: FileId,
        place: Option<NodeName>,
        base: NodeBase,
    ) -> Self {
        Self {
            file,
            place,
            lookups: 1,
            saving: None,
            open: NodeFiles::default(),
            changed_in: None,
            base,
            removed_dir: None,
            last_place: None,
            published: None,
        }
    }
}

impl NodeTable {
    pub(in crate::guard::view) fn add(&mut self, node: Node) -> u64 {
        let file = node.file;
        let ino = self.add_unseen(node);
        self.by_file.insert(file, ino);
        ino
    }

    /// Adds a node that no lookup of its file finds.
    fn add_unseen(&mut self, node: Node) -> u64 {
        let ino = self.next;
        self.next += 1;
        self.nodes.insert(ino, Box::new(node));
        ino
    }

    pub(super) fn drop_if_unused(&mut self, ino: u64) {
        let Some(node) = self.nodes.get(&ino) else { return };
        if ino == ROOT || node.lookups > 0 || node.saving.is_some() || !node.open.is_empty() {
            return;
        }
        let (file, base) = (node.file, node.base);
        self.nodes.remove(&ino);
        if self.by_file.get(&file) == Some(&ino) {
            self.by_file.remove(&file);
        }
        if let NodeBase::Snapshot(root) = base {
            let key = (if root == ino { SNAPSHOTS } else { root }, file);
            self.by_snapshot.remove(&key);
        }
    }
}

impl Nodes {
    /// Returns the nodes of a view of the folder `root`.
    pub(in crate::guard::view) fn new(root: FileId) -> Self {
        let mut table = NodeTable { next: FIRST, ..NodeTable::default() };
        table.nodes.insert(ROOT, Box::new(Node::of(root, None, NodeBase::Folder)));
        table.by_file.insert(root, ROOT);
        Self(Mutex::new(table))
    }

    /// Returns the path of a directory or file in the folder.
    pub(in crate::guard::view) fn path(&self, ino: u64) -> Result<PathBuf, Errno> {
        self.0.lock().path(ino).ok_or(Errno::ESTALE)
    }

    /// Whether the file of a node is local.
    pub(in crate::guard::view) fn is_local(&self, ino: u64) -> bool {
        self.0.lock().nodes.get(&ino).is_some_and(|node| node.base == NodeBase::Local)
    }

    /// Returns the directory of a node, and its name there.
    pub(in crate::guard::view) fn place(&self, ino: u64) -> Option<NodeName> {
        self.0.lock().nodes.get(&ino)?.place.clone()
    }

    /// Returns what is known of a node.
    pub(in crate::guard::view) fn known(&self, ino: u64) -> Result<KnownNode, Errno> {
        let table = self.0.lock();
        let node = table.nodes.get(&ino).ok_or(Errno::ESTALE)?;
        Ok(KnownNode {
            file: node.file,
            base: node.base,
            path: table.path(ino),
            below: table.below(ino),
            saving: node.saving.clone(),
            open: node.open.iter().next(),
        })
    }

    /// Returns the node of a file that was found under a name, and counts one lookup of it.
    pub(in crate::guard::view) fn found(
        &self,
        parent: u64,
        name: &OsStr,
        file: FileId,
        is_local: bool,
    ) -> u64 {
        let mut table = self.0.lock();
        let place = Some((parent, name.to_owned()));
        if let Some(ino) = table.by_file.get(&file).copied()
            && let Some(node) = table.nodes.get_mut(&ino)
        {
            node.lookups += 1;
            if ino != ROOT && node.saving.is_none() {
                node.place = place;
            }
            return ino;
        }
        let base = if is_local { NodeBase::Local } else { NodeBase::Folder };
        table.add(Node::of(file, place, base))
    }

    /// Records that the file of a node has a new inode with the same content.
    pub(in crate::guard::view) fn renewed(&self, ino: u64, file: FileId) {
        let mut table = self.0.lock();
        let Some(node) = table.nodes.get_mut(&ino) else { return };
        let before = std::mem::replace(&mut node.file, file);
        if table.by_file.get(&before) == Some(&ino) {
            table.by_file.remove(&before);
        }
        table.by_file.insert(file, ino);
    }

    /// Whether a node lies in a snapshot.
    pub(in crate::guard::view) fn is_snapshot(&self, ino: u64) -> bool {
        let table = self.0.lock();
        table.nodes.get(&ino).is_some_and(|node| matches!(node.base, NodeBase::Snapshot(_)))
    }

    /// Adds the node of a file that is not published yet, and counts one lookup of it.
    pub(in crate::guard::view) fn add_saving(
        &self,
        parent: u64,
        name: &OsStr,
        file: FileId,
        saving: Arc<Saving>,
    ) -> u64 {
        let mut table = self.0.lock();
        let place = (parent, name.to_owned());
        let node = Node::of(file, Some(place.clone()), NodeBase::Folder);
        let node = Node { saving: Some(saving), ..node };
        let ino = table.add(node);
        table.staged.insert(place, ino);
        ino
    }

    /// Counts one more lookup of a node.
    pub(in crate::guard::view) fn count_lookup(&self, ino: u64) {
        if let Some(node) = self.0.lock().nodes.get_mut(&ino) {
            node.lookups += 1;
        }
    }

    /// Returns the node of a file with this name that is not published yet.
    pub(in crate::guard::view) fn saving_at(
        &self,
        parent: u64,
        name: &OsStr,
    ) -> Option<(u64, Arc<Saving>)> {
        let table = self.0.lock();
        if table.staged.is_empty() {
            return None;
        }
        let ino = *table.staged.get(&(parent, name.to_owned()))?;
        Some((ino, table.nodes.get(&ino)?.saving.clone()?))
    }

    /// Returns the names in a directory of files that are not published yet.
    pub(in crate::guard::view) fn savings_in(&self, parent: u64) -> Vec<(OsString, u64)> {
        let table = self.0.lock();
        let names = table.staged.iter().filter(|((dir, _), _)| *dir == parent);
        names.map(|((_, name), ino)| (name.clone(), *ino)).collect()
    }

    /// Returns the node of a file of the folder.
    pub(in crate::guard::view) fn of_file(&self, file: FileId) -> Option<u64> {
        self.0.lock().by_file.get(&file).copied()
    }

    /// Replaces the file of a node by one that is not published yet, when a program rewrites the
    /// file as a whole. Fails if another open file than `own` has the old version: its reads must
    /// not mix the two, so the new version needs a node of its own.
    pub(in crate::guard::view) fn replace_by_saving(
        &self,
        ino: u64,
        file: FileId,
        saving: &Arc<Saving>,
        own: Option<&Arc<OpenFile>>,
    ) -> bool {
        let mut table = self.0.lock();
        let Some(node) = table.nodes.get_mut(&ino) else { return false };
        let is_own = |open| own.is_some_and(|own| Arc::ptr_eq(&open, own));
        if !node.open.iter().all(is_own) || node.saving.is_some() {
            return false;
        }
        let Some(place) = node.place.clone() else { return false };
        let before = std::mem::replace(&mut node.file, file);
        node.saving = Some(Arc::clone(saving));
        if table.by_file.get(&before) == Some(&ino) {
            table.by_file.remove(&before);
        }
        table.by_file.insert(file, ino);
        table.staged.insert(place, ino);
        true
    }

    /// Adds an open file to its node.
    pub(in crate::guard::view) fn opened(&self, ino: u64, open: &Arc<OpenFile>) {
        if let Some(node) = self.0.lock().nodes.get_mut(&ino) {
            node.open.add(open);
        }
    }

    /// Returns a node of its own for the new version of a file that a program has looked up as
    /// `ino`, for its second open. No lookup finds the node before the program has opened it, so
    /// that no other program opens it first.
    pub(in crate::guard::view) fn for_new_version(&self, ino: u64) -> u64 {
        let mut table = self.0.lock();
        let Some(node) = table.nodes.get_mut(&ino) else { return ino };
        // The lookup is one of the new node.
        node.lookups = node.lookups.saturating_sub(1);
        let (changed_in, published) = (node.changed_in, node.published);
        let beside = Node::of(node.file, node.place.clone(), node.base);
        table.add_unseen(Node { changed_in, published, ..beside })
    }

    /// Records the change time of a node's file that was published.
    pub(in crate::guard::view) fn published(&self, ino: u64, change: ChangeTime) {
        if let Some(node) = self.0.lock().nodes.get_mut(&ino) {
            node.published = Some(change);
        }
    }

    /// Returns the attributes of a node's file as the view shows them.
    pub(in crate::guard::view) fn shown(&self, ino: u64, found: &Statx) -> Statx {
        let published = self.0.lock().nodes.get(&ino).and_then(|node| node.published);
        published.map_or(*found, |change| change.apply_to(found))
    }

    /// Records that the file of a node is in the folder now, under its name, or was put aside.
    pub(in crate::guard::view) fn saved(&self, ino: u64) {
        let mut table = self.0.lock();
        if let Some(node) = table.nodes.get_mut(&ino) {
            node.saving = None;
            if let Some(place) = node.place.clone()
                && table.staged.get(&place) == Some(&ino)
            {
                table.staged.remove(&place);
            }
        }
        table.drop_if_unused(ino);
    }

    /// Records that the files of an ended tenure that were put aside are not in the view any more.
    /// Returns the names that they had.
    pub(in crate::guard::view) fn drop_put_aside(&self) -> Vec<NodeName> {
        let mut table = self.0.lock();
        let NodeTable { nodes, staged, .. } = &mut *table;
        let is_aside = |ino: &u64| {
            let saving = nodes.get(ino).and_then(|node| node.saving.as_ref());
            saving
                .is_some_and(|saving| matches!(saving.staged.save_state(), SaveState::PutAside(_)))
        };
        let aside: Vec<_> = staged.extract_if(|_, ino| is_aside(ino)).collect();
        for (_, ino) in &aside {
            if let Some(node) = table.nodes.get_mut(ino) {
                node.saving = None;
            }
            table.drop_if_unused(*ino);
        }
        aside.into_iter().map(|(name, _)| name).collect()
    }

    /// Records that a node has the name `to` instead of `from`. A node that had the name `to` has
    /// none any more.
    pub(in crate::guard::view) fn renamed(&self, ino: u64, from: NameIn<'_>, to: NameIn<'_>) {
        let mut table = self.0.lock();
        let [from, to] = [from, to].map(|at| (at.parent, at.name.to_owned()));
        if let Some(other) = table.staged.remove(&to).filter(|other| *other != ino)
            && let Some(node) = table.nodes.get_mut(&other)
        {
            node.last_place = node.place.take();
        }
        if table.staged.get(&from) == Some(&ino) {
            table.staged.remove(&from);
            table.staged.insert(to.clone(), ino);
        }
        if let Some(node) = table.nodes.get_mut(&ino) {
            node.place = Some(to);
        }
    }

    /// Records that the name of a node was removed.
    pub(in crate::guard::view) fn removed(&self, ino: u64, from: NameIn<'_>) {
        let mut table = self.0.lock();
        let from = (from.parent, from.name.to_owned());
        if table.staged.get(&from) == Some(&ino) {
            table.staged.remove(&from);
        }
        if let Some(node) = table.nodes.get_mut(&ino)
            && node.place.as_ref() == Some(&from)
        {
            node.last_place = node.place.take();
        }
    }

    /// Records that the name of a node leads to another file, which was put there past the view.
    /// Returns whether the node had a name.
    pub(in crate::guard::view) fn leave_place(&self, ino: u64) -> bool {
        let mut table = self.0.lock();
        let Some(node) = table.nodes.get_mut(&ino).filter(|node| node.place.is_some()) else {
            return false;
        };
        node.last_place = node.place.take();
        true
    }

    /// Returns the directory and the name under which a node was last seen.
    pub(in crate::guard::view) fn last_place(&self, ino: u64) -> Option<NodeName> {
        let table = self.0.lock();
        let node = table.nodes.get(&ino)?;
        node.place.clone().or_else(|| node.last_place.clone())
    }

    /// Records that a directory with the attributes `found` was removed. A new directory may get
    /// its inode number within the same tick of the clock, so the next lookup makes a new node.
    pub(in crate::guard::view) fn removed_dir(&self, ino: u64, from: NameIn<'_>, found: &Statx) {
        self.removed(ino, from);
        let mut table = self.0.lock();
        let NodeTable { nodes, by_file, .. } = &mut *table;
        let Some(node) = nodes.get_mut(&ino) else { return };
        let mut last = *found;
        last.stx_nlink = 0;
        node.removed_dir = Some(Box::new(last));
        if by_file.get(&node.file) == Some(&ino) {
            by_file.remove(&node.file);
        }
    }

    /// Returns the last attributes of a directory that was removed.
    pub(in crate::guard::view) fn last_of_removed_dir(&self, ino: u64) -> Option<Statx> {
        self.0.lock().nodes.get(&ino)?.removed_dir.as_deref().copied()
    }

    /// Whether the file of a node was changed in place in this tenure.
    pub(in crate::guard::view) fn is_changed(&self, ino: u64, tenure: TenureId) -> bool {
        self.0.lock().nodes.get(&ino).is_some_and(|node| node.changed_in == Some(tenure))
    }

    /// Records that the file of a node is changed in place in this tenure.
    pub(in crate::guard::view) fn set_changed(&self, ino: u64, tenure: TenureId) {
        if let Some(node) = self.0.lock().nodes.get_mut(&ino) {
            node.changed_in = Some(tenure);
        }
    }

    /// Returns the open files of a node.
    pub(in crate::guard::view) fn open_files(&self, ino: u64) -> Vec<Arc<OpenFile>> {
        let table = self.0.lock();
        let node = table.nodes.get(&ino);
        node.map(|node| node.open.iter().collect()).unwrap_or_default()
    }

    /// Returns the open nodes that were last seen at a path.
    pub(in crate::guard::view) fn open_at(&self, path: &Path) -> Vec<u64> {
        let table = self.0.lock();
        let name = path.file_name();
        let is_at = |node: &Node| {
            let place = node.place.as_ref().or(node.last_place.as_ref());
            !node.open.is_empty()
                && place.is_some_and(|(_, last)| Some(last.as_os_str()) == name)
                && place.and_then(|(parent, last)| Some(table.path(*parent)?.join(last))).as_deref()
                    == Some(path)
        };
        let found = table.nodes.iter().filter(|(ino, node)| **ino != ROOT && is_at(node));
        found.map(|(ino, _)| *ino).collect()
    }

    /// Returns the nodes that are open.
    pub(in crate::guard::view) fn open_nodes(&self) -> Vec<u64> {
        let table = self.0.lock();
        table.nodes.iter().filter(|(_, node)| !node.open.is_empty()).map(|(ino, _)| *ino).collect()
    }

    /// Drops a node that nothing uses any more.
    pub(in crate::guard::view) fn closed(&self, ino: u64) {
        self.0.lock().drop_if_unused(ino);
    }

    /// Takes back `count` lookups of a node.
    pub(in crate::guard::view) fn forget(&self, ino: u64, count: u64) {
        let mut table = self.0.lock();
        if let Some(node) = table.nodes.get_mut(&ino) {
            node.lookups = node.lookups.saturating_sub(count);
        }
        table.drop_if_unused(ino);
    }

    /// Returns the number of nodes.
    pub(in crate::guard::view) fn count(&self) -> usize {
        self.0.lock().nodes.len()
    }
}

/// How deep directories may be nested: the kernel's limit of a path is 4,096 bytes.
const DEPTH_MAX: usize = 2_048;

impl NodeTable {
    /// Returns the path of a node in the view.
    pub(in crate::guard::view) fn path(&self, mut ino: u64) -> Option<PathBuf> {
        let mut names: Vec<&OsStr> = Vec::new();
        while ino != ROOT && ino != SNAPSHOTS {
            let (parent, name) = self.nodes.get(&ino)?.place.as_ref()?;
            if *parent == SNAPSHOTS {
                names.push(OsStr::new(TREE));
            }
            names.push(name);
            if names.len() > DEPTH_MAX {
                return None;
            }
            ino = *parent;
        }
        Some(names.into_iter().rev().collect())
    }

    /// Returns the path of a node below its base. The local files of a directory of the folder lie
    /// in a directory that is named after its identity.
    pub(in crate::guard::view) fn below(&self, mut ino: u64) -> Option<PathBuf> {
        if self.nodes.get(&ino)?.base != NodeBase::Local {
            return self.path(ino);
        }
        let mut names: Vec<&OsStr> = Vec::new();
        let dir = loop {
            let node = self.nodes.get(&ino)?;
            if node.base != NodeBase::Local || names.len() > DEPTH_MAX {
                break name_of(node.file);
            }
            let (parent, name) = node.place.as_ref()?;
            names.push(name);
            ino = *parent;
        };
        Some([OsStr::new(&dir)].into_iter().chain(names.into_iter().rev()).collect())
    }
}

/// The directory below which the path of a node leads to its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::guard::view) enum NodeBase {
    /// The folder.
    Folder,
    /// The directory of the files that belong to this machine.
    Local,
    /// The directory of the folder snapshots. The number is that of the snapshot's root: files of
    /// several snapshots, and the folder's own, may be one file of the disk.
    Snapshot(u64),
}

/// Returns the name of the directory with the local files of a directory of the folder.
pub(in crate::guard::view) fn name_of(dir: FileId) -> String {
    format!("{:x}-{:x}", dir.inode, dir.born)
}

/// The open files of a node.
#[derive(Default)]
pub(in crate::guard::view) struct NodeFiles(Vec<Weak<OpenFile>>);

impl NodeFiles {
    /// Returns the files that are still open.
    pub(in crate::guard::view) fn iter(&self) -> impl Iterator<Item = Arc<OpenFile>> {
        self.0.iter().filter_map(Weak::upgrade)
    }

    /// Whether no file is open.
    pub(in crate::guard::view) fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    /// Adds an open file.
    pub(in crate::guard::view) fn add(&mut self, open: &Arc<OpenFile>) {
        self.0.retain(|open| open.strong_count() > 0);
        self.0.push(Arc::downgrade(open));
    }
}
