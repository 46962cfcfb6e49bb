//! Opens and reads directories, page by page: the mount point, and directories that are locks.

use crate::engine::Child;
use crate::engine::LockName;
use crate::fuse::credentials::Caller;
use crate::fuse::errno::Act;
use crate::fuse::file_attrs;
use crate::fuse::kernel::values::{DirEntry, DirPage, Errno, NodeType, Opened, OpenedFlags};
use crate::fuse::lock_nodes::LockNodes;
use crate::fuse::open_files::OpenFiles;
use crate::fuse::open_files::dir_reading::{DirMark, DirReading, OpenDir, PAGE, PageFound};
use crate::service::{Children, ListPage, RequestError};
use std::ffi::OsStr;
use std::sync::Arc;

pub(crate) struct Directories {
    nodes: Arc<LockNodes>,
    opens: Arc<OpenFiles>,
}

impl Directories {
    /// Returns the directory operations of one mount.
    pub(crate) const fn new(nodes: Arc<LockNodes>, opens: Arc<OpenFiles>) -> Self {
        Self { nodes, opens }
    }

    /// Opens a directory (opendir).
    pub(crate) fn open(&self, caller: &Caller) -> Result<Opened, Errno> {
        match self.opens.insert_dir(caller.uid) {
            Ok(fh) => Ok(Opened::by_requests(fh, OpenedFlags::empty())),
            Err(full) => Err(self.nodes.locks.refusals().full(caller, Act::List, None, &full)),
        }
    }

    /// Closes an open directory (closedir).
    pub(crate) fn close(&self, fh: u64) {
        self.opens.remove_dir(fh);
    }

    /// Returns the open directory with the handle `fh`. With `anew` its reading starts over, so
    /// that the pages read from now on are current. `fixed` holds all entries if it is a directory
    /// of control files.
    pub(crate) fn reading(
        &self,
        fh: u64,
        anew: bool,
        fixed: Option<Vec<DirEntry>>,
    ) -> Result<Arc<OpenDir>, Errno> {
        let Some(dir) = self.opens.dir(fh) else { return Err(Errno::EBADF) };
        if anew {
            let mut reading = dir.reading.lock();
            *reading = DirReading::new();
            if let Some(entries) = fixed {
                reading.turn_to(&DirMark::default(), entries, None);
            }
        }
        Ok(dir)
    }

    /// Returns the page of the directory that contains the entry number `index`. The lock service
    /// lists names in order only, so this function reads on, page by page, from the nearest
    /// remembered position before the entry.
    pub(crate) async fn page(
        &self,
        caller: &Caller,
        parent: Option<&LockName>,
        dir: &OpenDir,
        index: u64,
    ) -> Result<DirPage, Errno> {
        loop {
            let found = dir.reading.lock().find(index);
            let mark = match found {
                PageFound::Here(entries, first) => return Ok(DirPage { entries, first }),
                PageFound::End => return Ok(DirPage { entries: Arc::default(), first: index }),
                PageFound::From(mark) => mark,
            };
            let (cursor, limit) = (mark.cursor.clone(), PAGE);
            let query = Children { parent: parent.cloned(), cursor, limit };
            let page = self.nodes.locks.children(query).await.map_err(|why| {
                let failure = RequestError::Unavailable(why);
                self.nodes.locks.refusals().failed(caller, Act::List, parent, failure)
            });
            let ListPage { items, next } = page?;
            let entries = self.entries_of(&items);
            dir.reading.lock().turn_to(&mark, entries, next);
        }
    }

    fn entries_of(&self, children: &[Child]) -> Vec<DirEntry> {
        let inodes = self.nodes.inodes();
        let entry = |child: &Child| DirEntry {
            ino: inodes.number_seen(&child.name, child.lock.as_ref().map(|lease| lease.token)),
            kind: kind_of(child),
            name: OsStr::new(child.name.last_part()).into(),
        };
        children.iter().map(entry).collect()
    }
}

fn kind_of(child: &Child) -> NodeType {
    match &child.lock {
        Some(lease) => file_attrs::kind_of(lease.details.looks().face),
        None => NodeType::Directory,
    }
}
