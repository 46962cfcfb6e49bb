//! Opens and reads directories.

use super::super::linux_disk::reopen;
use super::attributes::{ROOT, SNAPSHOTS, node_type};
use super::control_files::{ControlFiles, is_control};
use super::dir_reading::{Added, DirReading};
use super::folder_view::{FolderView, OpenDir, errno};
use crate::fuse::kernel::file_system::Done;
use crate::fuse::kernel::file_system::{DirPage, Errno, NodeType, Opened, OpenedFlags, Requester};
use crate::fuse::kernel::handles::Pool;
use parking_lot::Mutex;
use rustix::fs::OFlags;
use std::os::fd::AsFd;
use std::sync::Arc;

impl FolderView {
    pub(super) fn open_dir(&self, who: Requester, ino: u64) -> Done<Opened> {
        let path = self.nodes.path(ino).unwrap_or_default();
        let share = self.share(Pool::Directories, who, &path)?;
        let (reading, descriptor) = if is_control(ino) {
            (None, None)
        } else {
            let descriptor = self.share(Pool::FolderFiles, who, &path)?;
            let (dir, _) = self.directory(ino)?;
            let opened = reopen(dir.as_fd(), OFlags::RDONLY | OFlags::DIRECTORY);
            let reading = opened.and_then(|dir| DirReading::new(dir, ino == ROOT));
            (Some(Mutex::new(reading.map_err(|error| errno(&error))?)), Some(descriptor))
        };
        let fh = self.numbers.next();
        self.dirs.insert(fh, OpenDir { reading, _shares: (share, descriptor) });
        Ok(Opened::by_requests(fh, OpenedFlags::empty()))
    }

    fn added_entries(&self, ino: u64) -> Done<Vec<Added>> {
        let (dir, path) = self.directory(ino)?;
        let local = self.local_entries((ino, &dir), &path)?;
        let local = local.into_iter().map(|(name, kind)| (name, node_type(kind), None));
        let staged = self.nodes.savings_in(ino).into_iter();
        let staged = staged.map(|(name, ino)| (name, NodeType::RegularFile, Some(ino)));
        Ok(local.chain(staged).collect())
    }

    /// Returns entries of a directory, among them the entry `first`. The names are read again when
    /// the program begins at the start, since it may have made or removed files since it opened the
    /// directory.
    pub(super) fn read_dir(&self, ino: u64, fh: u64, first: u64, anew: bool) -> Done<DirPage> {
        let open = self.dirs.get(fh).ok_or(Errno::EBADF)?;
        let Some(reading) = &open.reading else {
            let entries = match ino {
                SNAPSHOTS => self.snapshot_entries()?,
                _ => ControlFiles::entries(ino).unwrap_or_default(),
            };
            let entries = Arc::new(entries);
            return Ok(DirPage { entries, first: 0 });
        };
        let mut reading = reading.lock();
        if anew {
            let added = self.added_entries(ino)?;
            reading.begin(added).map_err(|error| errno(&error))?;
        }
        let index = usize::try_from(first).unwrap_or(usize::MAX);
        let (first, entries) = reading.page_of(index).map_err(|error| errno(&error))?;
        Ok(DirPage { entries, first: first as u64 })
    }
}
