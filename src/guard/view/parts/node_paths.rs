//! The paths of nodes: in the view, and on the disk.
//!
//! The open files of one node, and where its file lies.
//!
//! Second nodes of files. A program whose open does not fit to the other open files of a node gets
//! ESTALE for an answer. The kernel then looks the name up once more, and must find a node that the
//! program can open: the kernel does not try a third time.

use super::attributes::{ROOT, SNAPSHOTS};
use super::close_rule::Saving;
use super::nodes::{AwaitedSave, Node, NodeName, NodeReads, NodeTable, Nodes};
use super::open_file::OpenFile;
use super::second_opens::Needs;
use crate::fuse::kernel::handles::BackingFile;
use crate::guard::disk::operations::FileId;
use crate::guard::folder_snapshot::snapshot_store::TREE;
use crate::time::{Span, boot_now};
use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

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

/// The open files of a node. The kernel gets the content of all of them from one source, and fails
/// an open with EIO whose source differs.
pub(in crate::guard::view) enum NodeFiles {
    /// Read requests, through the kernel's page cache. Also the state of a node that is not open.
    Cached(Vec<Weak<OpenFile>>),
    /// A file of the folder. Each open file keeps it.
    Backed(Weak<BackingFile>, Vec<Weak<OpenFile>>),
}

/// Where the content of the next open file of a node may come from.
pub(in crate::guard::view) enum NextSource {
    /// Read requests only.
    Requests,
    /// This file of the folder only: other programs read it.
    Backing(Arc<BackingFile>),
    /// Either: the node is not open.
    Any,
}

impl Default for NodeFiles {
    fn default() -> Self {
        Self::Cached(Vec::new())
    }
}

impl NodeFiles {
    /// Returns the files that are still open.
    pub(in crate::guard::view) fn iter(&self) -> impl Iterator<Item = Arc<OpenFile>> {
        let (Self::Cached(files) | Self::Backed(_, files)) = self;
        files.iter().filter_map(Weak::upgrade)
    }

    /// Whether no file is open.
    pub(in crate::guard::view) fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    /// Returns the file of the folder from which the kernel reads.
    pub(in crate::guard::view) fn backing(&self) -> Option<Arc<BackingFile>> {
        match self {
            Self::Cached(_) => None,
            Self::Backed(backing, _) => backing.upgrade(),
        }
    }

    /// Adds an open file. Returns false if its content has another source than that of the others.
    pub(in crate::guard::view) fn add(&mut self, open: &Arc<OpenFile>) -> bool {
        if self.is_empty() {
            *self = match open.backing() {
                None => Self::Cached(Vec::new()),
                Some(backing) => Self::Backed(Arc::downgrade(backing), Vec::new()),
            };
        }
        let files = match (self, open.backing()) {
            (Self::Cached(files), None) => files,
            (Self::Backed(own, files), Some(new)) if own.as_ptr() == Arc::as_ptr(new) => files,
            (Self::Cached(_) | Self::Backed(..), _) => return false,
        };
        files.retain(|open| open.strong_count() > 0);
        files.push(Arc::downgrade(open));
        true
    }
}

/// How long a save waits for the second open of the program that has begun it. The open follows
/// at once, unless the program is killed in between.
const AWAITED_FOR: Span = Span::from_secs(10);

impl NodeTable {
    /// Gives the file of a node a newer node, which is read by requests. Programs keep the older
    /// one that have it open.
    fn add_beside(&mut self, ino: u64) -> Option<u64> {
        let node = self.nodes.get(&ino)?;
        let is_backed = node.open.backing().is_some();
        let newer = self.add(Node {
            file: node.file,
            place: node.place.clone(),
            lookups: 0,
            saving: None,
            open: NodeFiles::default(),
            changed_in: node.changed_in,
            base: node.base,
            removed_dir: None,
            last_place: None,
            reads: NodeReads::RequestsOnly,
            published: node.published,
        });
        if let Some(node) = self.nodes.get_mut(&ino).filter(|_| is_backed) {
            node.reads = NodeReads::BackingOnly(newer);
        }
        Some(newer)
    }

    /// Whether a staged file is not shown, because its program does not have it open yet.
    pub(in crate::guard::view) fn is_hidden(&self, ino: u64) -> bool {
        self.awaited.iter().any(|one| one.ino == ino && one.is_hidden)
    }

    fn drop_awaited(&mut self, is_over: impl Fn(&AwaitedSave) -> bool) {
        let over: Vec<_> = self.awaited.extract_if(.., |one| is_over(one)).collect();
        for AwaitedSave { ino, .. } in over {
            if let Some(node) = self.nodes.get_mut(&ino) {
                node.saving = None;
            }
            self.staged.retain(|_, staged| *staged != ino);
            self.drop_if_unused(ino);
        }
    }

    /// Drops the saves that their programs have not opened: the names stand for the old versions
    /// again.
    pub(super) fn drop_unopened(&mut self) {
        if !self.awaited.is_empty() {
            let now = boot_now();
            self.drop_awaited(|one| now.since(one.since) > AWAITED_FOR);
        }
    }

    /// Drops the save under a name that nobody has seen, when the name is removed or renamed.
    pub(super) fn drop_hidden(&mut self, name: &NodeName) {
        if let Some(ino) = self.staged.get(name).copied().filter(|_| !self.awaited.is_empty()) {
            self.drop_awaited(|one| one.ino == ino && one.is_hidden);
        }
    }
}

impl Nodes {
    /// Adds a second node for the new version of a file, under the name of the file. If another
    /// program has begun a new version meanwhile, programs share that one.
    pub(in crate::guard::view) fn add_saving_beside(
        &self,
        ino: u64,
        file: FileId,
        saving: Arc<Saving>,
    ) {
        let mut table = self.0.lock();
        let Some(place) = table.nodes.get(&ino).and_then(|node| node.place.clone()) else { return };
        if table.staged.contains_key(&place) {
            return;
        }
        let beside = table.add(Node {
            file,
            place: Some(place.clone()),
            lookups: 0,
            saving: Some(saving),
            open: NodeFiles::default(),
            changed_in: None,
            base: NodeBase::Folder,
            removed_dir: None,
            last_place: None,
            reads: NodeReads::Any,
            published: None,
        });
        table.staged.insert(place, beside);
        table.awaited.push(AwaitedSave { ino: beside, since: boot_now(), is_hidden: true });
    }

    /// Shows the save under a name from now on, since its program is about to open it.
    pub(in crate::guard::view) fn show_saving(&self, parent: u64, name: &OsStr) {
        let mut table = self.0.lock();
        let Some(ino) = table.staged.get(&(parent, name.to_owned())).copied() else { return };
        if let Some(awaited) = table.awaited.iter_mut().find(|one| one.ino == ino) {
            awaited.is_hidden = false;
        }
    }

    /// Returns the node that a second open of the node `ino` needs, which was just looked up. No
    /// reader makes it unfit meanwhile: other programs read it by requests.
    pub(in crate::guard::view) fn for_second_open(&self, ino: u64, needs: Needs) -> u64 {
        let mut table = self.0.lock();
        let Some(node) = table.nodes.get_mut(&ino).filter(|_| needs != Needs::Content) else {
            return ino;
        };
        let is_backed = node.open.backing().is_some();
        let is_taken = needs == Needs::NewVersion && !node.open.is_empty();
        if !is_backed && !is_taken {
            if node.reads == NodeReads::Any {
                node.reads = NodeReads::RequestsOnly;
            }
            return ino;
        }
        let Some(newer) = table.add_beside(ino) else { return ino };
        for (ino, lookups) in [(ino, -1), (newer, 1)] {
            if let Some(node) = table.nodes.get_mut(&ino) {
                node.lookups = node.lookups.saturating_add_signed(lookups);
            }
        }
        newer
    }

    /// Adds an open file to its node. Returns false if the content of the node's other open files
    /// has another source: then the next lookup finds a newer node of the file.
    pub(in crate::guard::view) fn opened(&self, ino: u64, open: &Arc<OpenFile>) -> bool {
        let mut table = self.0.lock();
        if open.is_for_writing() {
            table.awaited.retain(|awaited| awaited.ino != ino);
        }
        let Some(node) = table.nodes.get_mut(&ino) else { return true };
        let is_left = open.backing().is_none()
            && node.open.is_empty()
            && matches!(node.reads, NodeReads::BackingOnly(_));
        // A program saves it, or has looked it up for its second open, which is to be answered.
        let needs_requests = node.saving.is_some() || node.reads == NodeReads::RequestsOnly;
        let is_unfit = open.backing().is_some() && needs_requests;
        if !is_left && !is_unfit && node.open.add(open) {
            return true;
        }
        let is_backed = node.open.backing().is_some();
        let (file, is_by_requests) = (node.file, open.backing().is_none());
        if is_backed && is_by_requests && table.by_file.get(&file) == Some(&ino) {
            table.add_beside(ino);
        }
        false
    }

    /// Whether programs may change the file of a node through a newer one, of which the kernel does
    /// not know that both are the same file.
    pub(in crate::guard::view) fn has_newer(&self, ino: u64) -> bool {
        let table = self.0.lock();
        table.nodes.get(&ino).is_some_and(|n| matches!(n.reads, NodeReads::BackingOnly(_)))
    }

    /// Returns where the content of the next open file of a node may come from.
    pub(in crate::guard::view) fn next_source(&self, ino: u64) -> NextSource {
        let table = self.0.lock();
        let Some(node) = table.nodes.get(&ino) else { return NextSource::Requests };
        if let Some(backing) = node.open.backing() {
            return NextSource::Backing(backing);
        }
        let is_free = node.open.is_empty()
            && node.saving.is_none()
            && node.changed_in.is_none()
            && node.reads != NodeReads::RequestsOnly;
        if is_free { NextSource::Any } else { NextSource::Requests }
    }
}
