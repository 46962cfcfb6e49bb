//! Whether the kernel reads files of the folder by itself.

use super::open_file::Content;
use crate::base::said;
use crate::fuse::kernel::handles::BackingOpener;
use crate::fuse::kernel::own_user::is_root;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

/// The smallest file that the kernel reads by itself. Measured as CPU time of program and guard, in
/// microseconds: the first read of 64 KiB takes 60 in place of 105, and of 1 MiB 143 in place of
/// 740. Each open takes 28 in place of 22, so that small files, which are read once, gain little.
const BYTES_MIN: u64 = 64 * 1024;
/// The first bytes of an `SQLite` database. A program that only reads one takes fcntl locks, which
/// must exclude those of programs that change it.
const SQLITE_HEADER: [u8; 16] = *b"SQLite format 3\0";

/// Whether the kernel accepts backing files.
#[derive(Debug, Default)]
pub(super) struct Passthrough {
    /// The errno with which the kernel has refused one; 0 if it has not.
    refused: AtomicI32,
}

impl Passthrough {
    /// Whether the kernel may read a file of this size: a large one that is no database.
    pub(super) fn suits(&self, file: &File, size: u64) -> bool {
        let mut start = [0; SQLITE_HEADER.len()];
        self.refused.load(Ordering::Relaxed) == 0
            && size >= BYTES_MIN
            && file.read_exact_at(&mut start, 0).is_ok()
            && start != SQLITE_HEADER
    }

    /// Returns why the kernel reads no file by itself. That it never does so for a user other than
    /// root is no fault.
    pub(super) fn refusal(&self) -> Option<String> {
        let errno = self.refused.load(Ordering::Relaxed);
        let is_fault = errno != 0 && (is_root() || errno != libc::EPERM);
        is_fault.then(|| said(&io::Error::from_raw_os_error(errno)))
    }

    /// Makes a file a backing file. The kernel refuses all of them if it refuses one: those of a
    /// mount that a user other than root has made, or those of a stacked file system.
    pub(super) fn back(&self, file: File, opener: BackingOpener<'_>) -> Content {
        match opener.open(file) {
            Ok(backing) => Content::Backed(Arc::new(backing)),
            Err((file, error)) => {
                log::debug!("the kernel does not read files of the folder by itself: {error}");
                let errno = error.raw_os_error().unwrap_or(libc::EIO);
                self.refused.store(errno, Ordering::Relaxed);
                Content::InPlace(file)
            }
        }
    }
}
