//! Whether another guard or a person may have changed the lost files.

use super::super::linux_disk::{LinuxDisk, stat};
use super::super::lost_files::LostFiles;
use parking_lot::Mutex;
use rustix::fs::StatxTimestamp;
use std::os::fd::AsFd;

/// Whether the names of the lost files must be read again.
#[derive(Default)]
pub(super) struct LostListing(Mutex<Option<StatxTimestamp>>);

impl LostListing {
    /// Whether the directory of the lost files has changed since the last call.
    pub(super) fn has_changed(&self, files: &LostFiles<LinuxDisk>) -> bool {
        let changed = stat(files.dir().as_fd()).ok().map(|found| found.stx_ctime);
        let mut last = self.0.lock();
        let is_same =
            |a: &StatxTimestamp, b: &StatxTimestamp| (a.tv_sec, a.tv_nsec) == (b.tv_sec, b.tv_nsec);
        let has_changed = match (&*last, &changed) {
            (Some(last), Some(changed)) => !is_same(last, changed),
            _ => true,
        };
        *last = changed;
        has_changed
    }
}
