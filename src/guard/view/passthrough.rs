//! Whether the kernel reads files of the folder by itself.

use super::open_file::Content;
use crate::fuse::kernel::backing::BackingOpener;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

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
    is_refused: AtomicBool,
}

impl Passthrough {
    /// Whether the kernel may read a file of this size: a large one that is no database.
    pub(super) fn suits(&self, file: &File, size: u64) -> bool {
        let mut start = [0; SQLITE_HEADER.len()];
        !self.is_refused.load(Ordering::Relaxed)
            && size >= BYTES_MIN
            && file.read_exact_at(&mut start, 0).is_ok()
            && start != SQLITE_HEADER
    }

    /// Makes a file a backing file. The kernel refuses all of them if it refuses one: those of a
    /// mount that a user other than root has made, or those of a stacked file system.
    pub(super) fn back(&self, file: File, opener: BackingOpener<'_>) -> Content {
        match opener.open(file) {
            Ok(backing) => Content::Backed(Arc::new(backing)),
            Err((file, error)) => {
                log::debug!("the kernel does not read files of the folder by itself: {error}");
                self.is_refused.store(true, Ordering::Relaxed);
                Content::InPlace(file)
            }
        }
    }
}
