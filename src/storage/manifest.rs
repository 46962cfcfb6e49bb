//! The files that make up the state: at most one snapshot, and the journals after it.
//!
//! The thread that appends records shares the manifest with the thread that makes the next
//! snapshot.

use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The last snapshot of the state directory, to which the records of later journals are added.
#[derive(Debug, Clone, Copy)]
pub(super) struct Base {
    pub(super) generation: u64,
    pub(super) bytes: u64,
}

/// A journal that receives no more records.
#[derive(Debug, Clone, Copy)]
pub(super) struct SealedJournal {
    pub(super) generation: u64,
    /// The sequence number of the first record after this journal.
    pub(super) limit_seq: u64,
}

/// The files that precede the current journal: the last snapshot, and the journals after it that
/// receive no more records.
#[derive(Debug)]
pub(super) struct Manifest {
    files: Mutex<(Option<Base>, Vec<SealedJournal>)>,
    /// The length in bytes of the last snapshot. An atomic outside of the mutex, because it may be
    /// read after every record.
    base_bytes: AtomicU64,
    busy: AtomicBool,
}

/// The exclusive right to make the next snapshot, until it is dropped.
#[derive(Debug)]
pub(super) struct SnapshotClaim(Arc<Manifest>);

impl Manifest {
    pub(super) fn new(base: Option<Base>, parts: Vec<SealedJournal>) -> Self {
        let base_bytes = AtomicU64::new(base.map_or(0, |base| base.bytes));
        Self { files: Mutex::new((base, parts)), base_bytes, busy: AtomicBool::new(false) }
    }

    pub(super) fn base_bytes(&self) -> u64 {
        self.base_bytes.load(Ordering::Relaxed)
    }

    pub(super) fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Relaxed)
    }

    pub(super) fn seal(&self, part: SealedJournal) {
        self.files.lock().1.push(part);
    }

    pub(super) fn claim(chain: &Arc<Self>) -> Option<SnapshotClaim> {
        let taken = chain.busy.swap(true, Ordering::Acquire);
        (!taken).then(|| SnapshotClaim(Arc::clone(chain)))
    }
}

impl SnapshotClaim {
    /// Returns the files to build the snapshot from: the last snapshot, and the journals after it
    /// that receive no more records.
    pub(super) fn files(&self) -> (Option<Base>, Vec<SealedJournal>) {
        self.0.files.lock().clone()
    }

    /// Makes `base` the last snapshot, and drops the journals that it makes obsolete from the
    /// manifest.
    pub(super) fn replace(&self, base: Base) {
        let mut files = self.0.files.lock();
        files.0 = Some(base);
        files.1.retain(|part| part.generation >= base.generation);
        self.0.base_bytes.store(base.bytes, Ordering::Relaxed);
    }
}

impl Drop for SnapshotClaim {
    fn drop(&mut self) {
        self.0.busy.store(false, Ordering::Release);
    }
}
