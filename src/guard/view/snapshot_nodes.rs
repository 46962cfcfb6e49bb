//! Folder snapshots in the view: the complete ones are shown in `.latchfs/snapshots`, and nobody
//! changes them. A file that the folder shares with one gets a new inode before it is changed.

use super::super::acting_as::{self, User};
use super::super::disk::{Disk as _, FileId, Place};
use super::super::folder_snapshot::snapshot_store::TREE;
use super::super::linux_disk::{LinuxDisk, id_in, look_in, stat_at};
use super::attributes::SNAPSHOTS;
use super::folder_view::{FolderView, Located, LocatedFile, errno};
use super::node_files::NodeBase;
use super::nodes::{Node, Nodes};
use crate::fuse::kernel::file_system::{DirEntry, Errno, NodeEntry, NodeType};
use crate::fuse::kernel::file_system::{Done, NameIn};
use rustix::fs::Statx;
use std::ffi::OsStr;
use std::os::fd::AsFd;

impl Nodes {
    /// Returns the node of a file that was found in a snapshot, or of the root of one, and counts
    /// one lookup of it.
    pub(super) fn found_in_snapshot(&self, parent: u64, name: &OsStr, file: FileId) -> u64 {
        let mut table = self.0.lock();
        let root = match table.nodes.get(&parent).map(|node| node.base) {
            Some(NodeBase::Snapshot(root)) => Some(root),
            _ => None,
        };
        let key = (root.unwrap_or(SNAPSHOTS), file);
        if let Some(ino) = table.by_snapshot.get(&key).copied()
            && let Some(node) = table.nodes.get_mut(&ino)
        {
            node.lookups += 1;
            return ino;
        }
        let ino = table.next;
        table.next += 1;
        table.by_snapshot.insert(key, ino);
        let place = Some((parent, name.to_owned()));
        let base = NodeBase::Snapshot(root.unwrap_or(ino));
        table.nodes.insert(ino, Node::of(file, place, base));
        ino
    }
}

impl FolderView {
    /// Returns the entry of a snapshot: the directory with the files of the folder.
    pub(super) fn look_up_snapshot(&self, at: NameIn<'_>) -> Done<NodeEntry> {
        let name = at.name.to_str().ok_or(Errno::ENOENT)?;
        let (_, dir, _) = self.snapshots.store().open(name).map_err(|_| Errno::ENOENT)?;
        let found = stat_at(dir.as_fd(), OsStr::new(TREE)).map_err(|error| errno(&error))?;
        let ino = self.nodes.found_in_snapshot(SNAPSHOTS, at.name, id_in(&found));
        Ok(self.entry(ino, &found, self.cached_for()))
    }

    /// Returns the entry of a file in a snapshot.
    pub(super) fn look_up_in_snapshot(&self, at: NameIn<'_>) -> Done<NodeEntry> {
        let (dir, _) = self.directory(at.parent)?;
        let found = stat_at(dir.as_fd(), at.name).map_err(|error| errno(&error))?;
        let ino = self.nodes.found_in_snapshot(at.parent, at.name, id_in(&found));
        Ok(self.entry(ino, &found, self.cached_for()))
    }

    /// Returns the names of the complete snapshots.
    pub(super) fn snapshot_entries(&self) -> Done<Vec<DirEntry>> {
        let listed = self.snapshots.store().list().map_err(|error| errno(&error))?;
        let entry = |name: &str| DirEntry {
            ino: None,
            kind: NodeType::Directory,
            name: OsStr::new(name).into(),
        };
        Ok(listed.iter().map(|(id, _)| entry(id.as_str())).collect())
    }

    /// Fails if a node lies in a snapshot.
    pub(super) fn check_no_snapshot(&self, ino: u64) -> Done<()> {
        if ino == SNAPSHOTS || self.nodes.is_snapshot(ino) { Err(Errno::EROFS) } else { Ok(()) }
    }

    /// Returns the number of names that a file has besides those in snapshots.
    pub(super) fn own_links(&self, found: &Statx) -> u32 {
        if found.stx_nlink < 2 {
            return found.stx_nlink;
        }
        found.stx_nlink.saturating_sub(self.snapshots.links_of(id_in(found))).max(1)
    }

    /// Returns the attributes of a node's file as the view shows them.
    pub(super) fn shown(&self, ino: u64, found: &Statx) -> Statx {
        let mut shown = self.nodes.shown(ino, found);
        if look_in(found).is_file {
            shown.stx_nlink = self.own_links(found);
        }
        shown
    }

    /// Gives a file that snapshots share a new inode in the folder, before it is changed. With
    /// `goes_on` the node becomes that of the new file; otherwise, if there was such a file, the
    /// kernel has to look the name up again.
    pub(super) fn leave_snapshots(
        &self,
        ino: u64,
        located: &LocatedFile,
        goes_on: bool,
    ) -> Done<()> {
        let file = id_in(&located.found);
        if located.base != NodeBase::Folder || self.snapshots.links_of(file) == 0 {
            return Ok(());
        }
        match located.located {
            Located::Path(_) => {}
            Located::Saving(_) => return Ok(()),
            // The snapshot may have the only name of the file.
            Located::Open(_) | Located::Kept(_) => return Err(Errno::ESTALE),
        }
        let path = located.path.as_os_str();
        let renew = || self.guard.give_new_inode(path);
        let renewed = acting_as::making(User::owning(&located.found), renew);
        renewed.map_err(|error| errno(&error))?;
        if !goes_on {
            return Err(Errno::ESTALE);
        }
        let (dir, name) =
            LinuxDisk.open_parent(self.guard.folder(), path).map_err(|error| errno(&error))?;
        let renewed = LinuxDisk.look(Place::new(&dir, &name)).map_err(|error| errno(&error))?;
        self.nodes.renewed(ino, renewed.id);
        Ok(())
    }

    /// Locates a file whose attributes are about to be changed.
    pub(super) fn locate_unshared(&self, ino: u64) -> Done<LocatedFile> {
        let located = self.locate(ino)?;
        self.leave_snapshots(ino, &located, true)?;
        if self.snapshots.links_of(id_in(&located.found)) == 0 {
            return Ok(located);
        }
        self.locate(ino)
    }
}
