//! Second nodes of files. A program whose open does not fit to the other open files of a node gets
//! ESTALE for an answer. The kernel then looks the name up once more, and must find a node that the
//! program can open: the kernel does not try a third time.

use super::super::disk::FileId;
use super::close_rule::Saving;
use super::node_files::{NextSource, NodeBase, NodeFiles};
use super::nodes::{AwaitedSave, Node, NodeName, NodeReads, NodeTable, Nodes};
use super::open_file::OpenFile;
use super::second_opens::Needs;
use crate::time::{Span, boot_now};
use std::ffi::OsStr;
use std::sync::Arc;

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
    pub(super) fn is_hidden(&self, ino: u64) -> bool {
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
    pub(super) fn add_saving_beside(&self, ino: u64, file: FileId, saving: Arc<Saving>) {
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
    pub(super) fn show_saving(&self, parent: u64, name: &OsStr) {
        let mut table = self.0.lock();
        let Some(ino) = table.staged.get(&(parent, name.to_owned())).copied() else { return };
        if let Some(awaited) = table.awaited.iter_mut().find(|one| one.ino == ino) {
            awaited.is_hidden = false;
        }
    }

    /// Returns the node that a second open of the node `ino` needs, which was just looked up. No
    /// reader makes it unfit meanwhile: other programs read it by requests.
    pub(super) fn for_second_open(&self, ino: u64, needs: Needs) -> u64 {
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
    pub(super) fn opened(&self, ino: u64, open: &Arc<OpenFile>) -> bool {
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
    pub(super) fn has_newer(&self, ino: u64) -> bool {
        let table = self.0.lock();
        table.nodes.get(&ino).is_some_and(|n| matches!(n.reads, NodeReads::BackingOnly(_)))
    }

    /// Returns where the content of the next open file of a node may come from.
    pub(super) fn next_source(&self, ino: u64) -> NextSource {
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
