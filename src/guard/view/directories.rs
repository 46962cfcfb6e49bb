//! Reads of directories.

use super::super::linux_disk::list;
use super::attributes::{ROOT, node_type};
use super::control_files::{CONTROL_DIR, ControlFiles, is_control};
use super::folder_view::{FolderView, OpenDir, errno};
use crate::fuse::kernel::file_system::Done;
use crate::fuse::kernel::user_shares::Pool;
use crate::fuse::kernel::values::{
    DirEntry, DirPage, Errno, NodeType, Opened, OpenedFlags, Requester,
};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::os::fd::AsFd;
use std::sync::Arc;

/// The number of entries in one page of an open directory: more than a reply to the kernel holds.
const PAGE_ENTRIES: usize = 1_024;

impl FolderView {
    pub(super) fn open_dir(&self, who: Requester, ino: u64) -> Done<Opened> {
        if !is_control(ino) {
            self.directory(ino)?;
        }
        let path = self.nodes.path(ino).unwrap_or_default();
        let share = self.share(Pool::Directories, who, &path)?;
        let fh = self.numbers.next();
        self.dirs.insert(fh, OpenDir { pages: Mutex::default(), _share: share });
        Ok(Opened { fh, flags: OpenedFlags::empty() })
    }

    /// Returns the entries of a directory from the entry `first` on. They are read again when the
    /// program begins at the start, since it may have made or removed files since it opened the
    /// directory.
    pub(super) fn read_dir(&self, ino: u64, fh: u64, first: u64, anew: bool) -> Done<DirPage> {
        let open = self.dirs.get(fh).ok_or(Errno::EBADF)?;
        let mut pages = open.pages.lock();
        if anew {
            let mut entries = self.entries(ino)?.into_iter();
            pages.clear();
            loop {
                let page: Vec<_> = entries.by_ref().take(PAGE_ENTRIES).collect();
                if page.is_empty() {
                    break;
                }
                pages.push(Arc::new(page));
            }
        }
        let number = usize::try_from(first).unwrap_or(usize::MAX) / PAGE_ENTRIES;
        let entries = pages.get(number).cloned().unwrap_or_default();
        let first = if entries.is_empty() { first } else { (number * PAGE_ENTRIES) as u64 };
        Ok(DirPage { entries, first })
    }

    fn entries(&self, ino: u64) -> Done<Vec<DirEntry>> {
        if let Some(entries) = ControlFiles::entries(ino) {
            return Ok(entries);
        }
        let (dir, path) = self.directory(ino)?;
        let staged = self.nodes.savings_in(ino);
        let local = self.local_entries((ino, &dir), &path)?;
        let mut is_hidden: HashSet<_> = staged.iter().map(|(name, _)| name.clone()).collect();
        is_hidden.extend(local.iter().map(|(name, _)| name.clone()));
        let listed = list(dir.as_fd()).map_err(|error| errno(&error))?;
        let mut entries = Vec::with_capacity(listed.len() + staged.len() + local.len());
        for (name, _, kind) in listed {
            let is_own = ino == ROOT && name == CONTROL_DIR;
            if !is_own && !is_hidden.contains(&name) {
                entries.push(DirEntry { ino: None, kind: node_type(kind), name: name.into() });
            }
        }
        for (name, kind) in local {
            entries.push(DirEntry { ino: None, kind: node_type(kind), name: name.into() });
        }
        for (name, ino) in staged {
            let kind = NodeType::RegularFile;
            entries.push(DirEntry { ino: Some(ino), kind, name: name.into() });
        }
        Ok(entries)
    }
}
