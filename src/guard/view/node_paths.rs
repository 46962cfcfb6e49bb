//! The paths of nodes: in the view, and on the disk.

use super::super::folder_snapshot::snapshot_store::TREE;
use super::attributes::{ROOT, SNAPSHOTS};
use super::node_files::{NodeBase, name_of};
use super::nodes::NodeTable;
use std::ffi::OsStr;
use std::path::PathBuf;

/// How deep directories may be nested: the kernel's limit of a path is 4,096 bytes.
const DEPTH_MAX: usize = 2_048;

impl NodeTable {
    /// Returns the path of a node in the view.
    pub(super) fn path(&self, mut ino: u64) -> Option<PathBuf> {
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
    pub(super) fn below(&self, mut ino: u64) -> Option<PathBuf> {
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
