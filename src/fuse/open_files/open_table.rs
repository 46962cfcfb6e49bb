//! The open files and directories of one mount, by number.

use crate::fuse::kernel::handles::{HandleNumbers, Handles};
use crate::fuse::kernel::user_shares::{Full, Pool, Shares};
use crate::fuse::open_files::dir_reading::OpenDir;
use crate::fuse::open_files::open_file::OpenFile;
use std::sync::Arc;

/// The open files and directories of one mount.
#[derive(Debug, Default)]
pub(crate) struct OpenFiles {
    numbers: HandleNumbers,
    shares: Shares,
    files: Handles<OpenFile>,
    dirs: Handles<OpenDir>,
}

impl OpenFiles {
    /// None yet; they will take of `shares`.
    pub(crate) fn new(shares: Shares) -> Self {
        Self { shares, ..Self::default() }
    }

    /// Returns the shares of users.
    pub(crate) const fn shares(&self) -> &Shares {
        &self.shares
    }

    /// Returns a number that was never given out before.
    pub(crate) fn number(&self) -> u64 {
        self.numbers.next()
    }

    /// Keeps an open file under a new number.
    pub(crate) fn insert(&self, open: OpenFile) -> u64 {
        let fh = self.number();
        self.insert_as(fh, open);
        fh
    }

    /// Keeps an open file under a number that was taken for it.
    pub(crate) fn insert_as(&self, fh: u64, mut open: OpenFile) {
        open.share = Some(self.shares.take_always(Pool::Files, open.uid, 1));
        self.files.insert(fh, open);
    }

    /// Returns the open file of this number.
    pub(crate) fn get(&self, fh: u64) -> Option<Arc<OpenFile>> {
        self.files.get(fh)
    }

    /// The last descriptor of the file is closed.
    pub(crate) fn remove(&self, fh: u64) -> Option<Arc<OpenFile>> {
        self.files.remove(fh)
    }

    /// Keeps a directory that a user opens under a new number.
    pub(crate) fn insert_dir(&self, uid: u32) -> Result<u64, Full> {
        let dir = OpenDir::new(self.shares.take(Pool::Directories, uid, 1)?);
        let fh = self.number();
        self.dirs.insert(fh, dir);
        Ok(fh)
    }

    /// Returns the open directory of this number.
    pub(crate) fn dir(&self, fh: u64) -> Option<Arc<OpenDir>> {
        self.dirs.get(fh)
    }

    /// The directory is closed.
    pub(crate) fn remove_dir(&self, fh: u64) {
        drop(self.dirs.remove(fh));
    }

    /// Returns how many files are open.
    pub(crate) fn count(&self) -> usize {
        self.files.count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_never_used_twice() {
        let opens = OpenFiles::default();
        let first = opens.insert_dir(0).expect("room");
        opens.remove_dir(first);
        assert_ne!(opens.insert_dir(0).expect("room"), first);
    }
}
