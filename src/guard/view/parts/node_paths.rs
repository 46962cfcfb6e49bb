//! The paths of nodes: in the view, and on the disk.
//!
//! The open files of one node, and where its file lies.

use super::attributes::{ROOT, SNAPSHOTS};
use super::nodes::NodeTable;
use super::open_file::OpenFile;
use crate::guard::disk::operations::FileId;
use crate::guard::folder_snapshot::snapshot_store::TREE;
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
