//! The files that count: one snapshot at most, and the journals that came after it.
//!
//! Shared between the one who appends and the one who makes the next snapshot.

use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A snapshot that counts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Base {
    pub(super) generation: u64,
    pub(super) bytes: u64,
}

/// A journal that gets no more records.
#[derive(Debug, Clone, Copy)]
pub(super) struct SealedJournal {
    pub(super) generation: u64,
    /// The first sequence number that is no longer in it.
    pub(super) limit_seq: u64,
}

/// The files that precede the current journal: the last snapshot and the sealed journals after it.
#[derive(Debug)]
pub(super) struct Manifest {
    files: Mutex<(Option<Base>, Vec<SealedJournal>)>,
    /// Beside the mutex, because it is asked for after every record.
    base_bytes: AtomicU64,
    busy: AtomicBool,
}

/// The right to make the next snapshot: nobody else has it until this is dropped.
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
    /// Returns the files to build the snapshot from: the last snapshot and the sealed journals.
    pub(super) fn files(&self) -> (Option<Base>, Vec<SealedJournal>) {
        self.0.files.lock().clone()
    }

    /// Makes the finished snapshot the new base; the files that it replaces no longer count.
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
