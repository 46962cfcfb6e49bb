//! The open files of one node, and where its file lies.

use super::super::disk::FileId;
use super::open_file::OpenFile;
use crate::fuse::kernel::handles::BackingFile;
use std::sync::{Arc, Weak};

/// The directory below which the path of a node leads to its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NodeBase {
    /// The folder.
    Folder,
    /// The directory of the files that belong to this machine.
    Local,
    /// The directory of the folder snapshots. The number is that of the snapshot's root: files of
    /// several snapshots, and the folder's own, may be one file of the disk.
    Snapshot(u64),
}

/// Returns the name of the directory with the local files of a directory of the folder.
pub(super) fn name_of(dir: FileId) -> String {
    format!("{:x}-{:x}", dir.inode, dir.born)
}

/// The open files of a node. The kernel gets the content of all of them from one source, and fails
/// an open with EIO whose source differs.
pub(super) enum NodeFiles {
    /// Read requests, through the kernel's page cache. Also the state of a node that is not open.
    Cached(Vec<Weak<OpenFile>>),
    /// A file of the folder. Each open file keeps it.
    Backed(Weak<BackingFile>, Vec<Weak<OpenFile>>),
}

/// Where the content of the next open file of a node may come from.
pub(super) enum NextSource {
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
    pub(super) fn iter(&self) -> impl Iterator<Item = Arc<OpenFile>> {
        let (Self::Cached(files) | Self::Backed(_, files)) = self;
        files.iter().filter_map(Weak::upgrade)
    }

    /// Whether no file is open.
    pub(super) fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    /// Returns the file of the folder from which the kernel reads.
    pub(super) fn backing(&self) -> Option<Arc<BackingFile>> {
        match self {
            Self::Cached(_) => None,
            Self::Backed(backing, _) => backing.upgrade(),
        }
    }

    /// Adds an open file. Returns false if its content has another source than that of the others.
    pub(super) fn add(&mut self, open: &Arc<OpenFile>) -> bool {
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
