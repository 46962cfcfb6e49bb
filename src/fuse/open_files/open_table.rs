//! The open files and directories of one mount, by file handle.

use crate::fuse::kernel::handles::{HandleNumbers, Handles};
use crate::fuse::kernel::user_shares::{Full, Pool, Shares};
use crate::fuse::open_files::dir_reading::OpenDir;
use crate::fuse::open_files::open_file::OpenFile;
use crate::fuse::open_files::repeated_opens::RepeatedOpens;
use std::sync::Arc;

/// The open files and directories of one mount.
#[derive(Debug, Default)]
pub(crate) struct OpenFiles {
    numbers: HandleNumbers,
    shares: Shares,
    files: Handles<OpenFile>,
    dirs: Handles<OpenDir>,
    /// The opens that the kernel repeats.
    pub(crate) repeated: RepeatedOpens,
}

impl OpenFiles {
    /// Returns an empty table. Each open file that is added to it counts against the per-user
    /// limits `shares`.
    pub(crate) fn new(shares: Shares) -> Self {
        Self { shares, ..Self::default() }
    }

    /// Returns the per-user limits against which open files count.
    pub(crate) const fn shares(&self) -> &Shares {
        &self.shares
    }

    /// Returns a number that was never returned before, as a file handle or for a waiting read.
    pub(crate) fn number(&self) -> u64 {
        self.numbers.next()
    }

    /// Adds an open file to the table under a new file handle, and returns the handle.
    pub(crate) fn insert(&self, open: OpenFile) -> u64 {
        let fh = self.number();
        self.insert_as(fh, open);
        fh
    }

    /// Adds an open file to the table under a file handle that was reserved for it.
    pub(crate) fn insert_as(&self, fh: u64, mut open: OpenFile) {
        open.share = Some(self.shares.take_always(Pool::Files, open.uid, 1));
        self.files.insert(fh, open);
    }

    /// Returns the open file with this file handle.
    pub(crate) fn get(&self, fh: u64) -> Option<Arc<OpenFile>> {
        self.files.get(fh)
    }

    /// Removes and returns an open file after its last descriptor was closed.
    pub(crate) fn remove(&self, fh: u64) -> Option<Arc<OpenFile>> {
        self.files.remove(fh)
    }

    /// Adds an open directory of a user to the table, and returns its new file handle.
    pub(crate) fn insert_dir(&self, uid: u32) -> Result<u64, Full> {
        let dir = OpenDir::new(self.shares.take(Pool::Directories, uid, 1)?);
        let fh = self.number();
        self.dirs.insert(fh, dir);
        Ok(fh)
    }

    /// Returns the open directory with this file handle.
    pub(crate) fn dir(&self, fh: u64) -> Option<Arc<OpenDir>> {
        self.dirs.get(fh)
    }

    /// Removes an open directory that was closed.
    pub(crate) fn remove_dir(&self, fh: u64) {
        drop(self.dirs.remove(fh));
    }

    /// Returns the number of open files.
    pub(crate) fn count(&self) -> usize {
        self.files.count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_handles_are_never_reused() {
        let opens = OpenFiles::default();
        let first = opens.insert_dir(0).expect("room");
        opens.remove_dir(first);
        assert_ne!(opens.insert_dir(0).expect("room"), first);
    }
}
