//! Second nodes of files. A program whose open does not fit to the other open files of a node gets
//! ESTALE for an answer. The kernel then looks the name up once more, and must find a node that the
//! program can open: the kernel does not try a third time.

use super::super::disk::FileId;
use super::close_rule::Saving;
use super::node_files::{NextSource, NodeFiles};
use super::nodes::{Node, NodeReads, NodeTable, Nodes};
use super::open_file::OpenFile;
use crate::time::{Span, Time, boot_now};
use std::sync::Arc;

/// How long a save waits for the second open of the program that has begun it. The open follows
/// at once, unless the program is killed in between.
const AWAITED_FOR: Span = Span::from_secs(10);

impl NodeTable {
    /// Gives the file of a node that programs read by a backing file a second node, which is read
    /// by requests.
    fn add_newer(&mut self, ino: u64) {
        let Some(node) = self.nodes.get(&ino) else { return };
        if node.open.backing().is_none() || self.by_file.get(&node.file) != Some(&ino) {
            return;
        }
        let newer = self.add(Node {
            file: node.file,
            place: node.place.clone(),
            lookups: 0,
            saving: None,
            open: NodeFiles::default(),
            changed_in: node.changed_in,
            is_local: node.is_local,
            removed_dir: None,
            reads: NodeReads::RequestsOnly,
            published: node.published,
        });
        if let Some(node) = self.nodes.get_mut(&ino) {
            node.reads = NodeReads::BackingOnly(newer);
        }
    }

    /// Drops the saves that their programs have not opened: the names stand for the old versions
    /// again.
    pub(super) fn drop_unopened(&mut self) {
        if self.awaited.is_empty() {
            return;
        }
        let now = boot_now();
        let is_over = |(_, since): &mut (u64, Time)| now.since(*since) > AWAITED_FOR;
        let over: Vec<_> = self.awaited.extract_if(.., is_over).collect();
        for (ino, _) in over {
            if let Some(node) = self.nodes.get_mut(&ino) {
                node.saving = None;
            }
            self.staged.retain(|_, staged| *staged != ino);
            self.drop_if_unused(ino);
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
            is_local: false,
            removed_dir: None,
            reads: NodeReads::Any,
            published: None,
        });
        table.staged.insert(place, beside);
        table.awaited.push((beside, boot_now()));
    }

    /// Adds an open file to its node. Returns false if the content of the node's other open files
    /// has another source: then the next lookup finds a newer node of the file.
    pub(super) fn opened(&self, ino: u64, open: &Arc<OpenFile>) -> bool {
        let mut table = self.0.lock();
        if open.tenure.is_some() {
            table.awaited.retain(|(awaited, _)| *awaited != ino);
        }
        let Some(node) = table.nodes.get_mut(&ino) else { return true };
        let is_left = node.open.is_empty() && matches!(node.reads, NodeReads::BackingOnly(_));
        let is_saved = open.backing().is_some() && node.saving.is_some();
        if !is_left && !is_saved && node.open.add(open) {
            return true;
        }
        if open.backing().is_none() {
            table.add_newer(ino);
        }
        false
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
            && node.reads == NodeReads::Any;
        if is_free { NextSource::Any } else { NextSource::Requests }
    }
}
