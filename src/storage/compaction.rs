//! Compacts the last snapshot and the journals after it into a new snapshot, while records are
//! appended to the current journal.
//!
//! The steps are ordered so that a crash between any two leaves a valid set of files: the next
//! journal is created, the new snapshot is written to a temporary file, that is renamed, and the
//! old files are removed.

use super::atomic_file::{self, Durable};
use super::dir::Dir;
use super::header::{BootId, HEADER_BYTES, Header, Type};
use super::journal::{Journal, Records};
use super::manifest::{Base, SnapshotClaim};
use super::recovery;
use super::storage_error::StateError;
use std::sync::Arc;

/// The inputs of a snapshot that is made after a new journal was begun: the last snapshot, and the
/// journals that receive no more records.
#[derive(Debug)]
#[must_use = "the journal is cut back by `compact`"]
pub struct Sealed {
    dir: Arc<Dir>,
    claim: SnapshotClaim,
    boot: BootId,
    generation: u64,
    next_seq: u64,
}

impl Sealed {
    pub(super) fn new(dir: Arc<Dir>, claim: SnapshotClaim, boot: BootId, next: &Journal) -> Self {
        Self { dir, claim, boot, generation: next.generation(), next_seq: next.next_seq() }
    }

    /// Makes a new snapshot: `rebuild` computes it from the old snapshot and the records of the
    /// sealed journals, which receive no more records. If this fails, the old files stay, and a
    /// later compaction includes them.
    pub fn compact(
        self,
        rebuild: impl FnOnce(Option<Vec<u8>>, &mut Records) -> Result<Vec<u8>, StateError>,
    ) -> Result<(), StateError> {
        let (base, mut parts) = self.claim.files();
        parts.retain(|part| part.generation < self.generation);
        let before = match base {
            Some(base) => Some(recovery::read_snapshot(&self.dir, base.generation)?.1),
            None => None,
        };
        let mut records = Records::new(&self.dir, parts);
        let body = rebuild(before, &mut records)?;
        self.replace_by(&body)
    }

    /// Replaces the snapshot and the journals from before the rotation (the start of the current
    /// journal) by a snapshot. `body` must be the state at the moment of the rotation.
    pub fn replace_by(self, body: &[u8]) -> Result<(), StateError> {
        // A snapshot is valid only if the journal with the same number N in its name exists. So the
        // header of that journal is synced to disk before the snapshot is written.
        let journal = self.dir.journal(self.generation);
        self.dir.sync(&journal).map_err(|error| StateError::io(&journal, error))?;
        let base = write(&self.dir, self.boot, self.generation, self.next_seq, body)?;
        self.claim.replace(base);
        let old = self.dir.list()?.older_than(self.generation);
        self.dir.remove_durably(&old)
    }
}

/// Writes a snapshot of the state before the first record of `journal`, which has no records yet.
pub(super) fn write_snapshot(
    dir: &Dir,
    boot: BootId,
    journal: &Journal,
    body: &[u8],
) -> Result<(), StateError> {
    write(dir, boot, journal.generation(), journal.next_seq(), body).map(drop)
}

fn write(
    dir: &Dir,
    boot: BootId,
    generation: u64,
    next_seq: u64,
    body: &[u8],
) -> Result<Base, StateError> {
    let (kind, sum, body_bytes) = (Type::Snapshot, crc32fast::hash(body), body.len() as u64);
    let header = Header { kind, boot, generation, next_seq, body_bytes, sum };
    let path = dir.snapshot(generation);
    atomic_file::replace(&path, &[&header.to_bytes(), body], Durable::Yes)
        .map_err(|error| StateError::io(&path, error))?;
    Ok(Base { generation, bytes: HEADER_BYTES as u64 + body_bytes })
}
