//! The open state directory: appends records, begins new journals, and reserves fencing tokens.
//!
//! Compacts the last snapshot and the journals after it into a new snapshot, while records are
//! appended to the current journal.
//!
//! The steps are ordered so that a crash between any two leaves a valid set of files: the next
//! journal is created, the new snapshot is written to a temporary file, that is renamed, and the
//! old files are removed.

use super::atomic_file::Durable;
use super::dir::Dir;
use super::header::{BootId, HEADER_BYTES, Header, Type};
use super::journal::{Journal, JournalSpace, Records};
use super::manifest::{Base, Manifest, SealedJournal, SnapshotClaim};
use super::{atomic_file, recovery};
use crate::storage::dir::StateError;
use crate::storage::journal::RESERVE_BYTES;
use crate::storage::manifest::NumberFile;
use log::warn;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// The length up to which a journal is not worth a snapshot: it is replayed in a few milliseconds.
pub const JOURNAL_BYTES_MIN: u64 = 8 << 20;

/// A journal may grow to this many times the size of the snapshot it belongs to: then each byte
/// of the journal costs at most half a byte of snapshot written later.
const JOURNAL_PER_SNAPSHOT: u64 = 2;

/// An open state directory, locked against other processes until this value is dropped, and every
/// [`Sealed`] and [`Records`] that came from it.
#[derive(Debug)]
pub struct StateDir {
    dir: Arc<Dir>,
    boot: BootId,
    tokens: u64,
    journal: Journal,
    chain: Arc<Manifest>,
    /// The length of the journal below which no new journal is begun. It is raised when an attempt
    /// to begin one has failed.
    rotation_from: u64,
}

/// The state that was recovered from the directory.
#[derive(Debug)]
pub struct Recovered {
    /// The upper limit of fencing tokens: tokens below this number may have been issued. 0 in a new
    /// directory.
    pub tokens_reserved: u64,
    /// The last snapshot, or `None` if there is none and the state before the records is empty.
    pub snapshot: Option<Vec<u8>>,
    /// The records after the snapshot, in order. They must be read before the first call of
    /// [`StateDir::rotate`].
    pub records: Records,
    /// Whether the machine has not been restarted since the last record was written. True for a new
    /// directory.
    pub same_boot: bool,
    /// Whether [`StateDir::close`] was called at the last shutdown, so that no record is missing.
    /// True for a new directory.
    pub clean: bool,
}

impl StateDir {
    /// Opens the directory, creates it if it does not exist, and recovers its state.
    pub fn open(path: &Path) -> Result<(Self, Recovered), StateError> {
        let dir = Arc::new(Dir::open(path)?);
        let boot = BootId::current();
        let found = recovery::recover(&dir, boot)?;
        if found.fresh {
            // The file `tokens` is written before the first journal, because a journal without that
            // file is an error.
            dir.write_sheet(&NumberFile::Tokens(found.tokens))?;
        }
        let mut journal = match found.last {
            Some(ref last) if found.same_boot => Journal::resume(&dir, last)?,
            ref last => {
                let generation = last.as_ref().map_or(1, |last| last.generation + 1);
                Journal::create(&dir, generation, boot, found.next_seq, Durable::Yes, false)
                    .map_err(|error| StateError::io(&dir.journal(generation), error))?
            }
        };
        if let Err(error) = journal.reserve() {
            warn!("{} has no room, so nothing can be granted: {error}", dir.path().display());
        }
        // The mark of a clean shutdown is removed before the first record is appended. Otherwise a
        // later start would take the directory for one that was shut down cleanly.
        dir.remove_durably(&[dir.clean()])?;
        let mut sealed = found.parts.clone();
        sealed.retain(|part| part.generation != journal.generation());
        let recovered = Recovered {
            tokens_reserved: found.tokens,
            snapshot: found.snapshot,
            records: Records::new(&dir, found.parts),
            same_boot: found.same_boot,
            clean: found.clean,
        };
        let chain = Arc::new(Manifest::new(found.base, sealed));
        let state = Self { dir, boot, tokens: found.tokens, journal, chain, rotation_from: 0 };
        Ok((state, recovered))
    }

    /// Returns the path of the directory.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Appends a record. After an error no part of the record remains, and the next one can be
    /// appended; only if the remains cannot be removed are all further records refused.
    pub fn append(&mut self, record: &[u8]) -> io::Result<()> {
        self.journal.append(record, JournalSpace::Ordinary)
    }

    /// Appends a record that only ends leases or waits: on a full disk it uses the space that other
    /// records leave free.
    pub fn append_reserved(&mut self, record: &[u8]) -> io::Result<()> {
        self.journal.append(record, JournalSpace::Reserve)
    }

    /// Removes the last record, so that the next one replaces it. Until then recovery may still
    /// read the removed record, so it must be one whose replay does not change the state.
    pub fn take_back(&mut self) {
        self.journal.take_back();
    }

    /// Raises the number below which fencing tokens may be issued to `ceiling`. The number is on
    /// disk when the call returns.
    pub fn reserve_tokens(&mut self, ceiling: u64) -> io::Result<()> {
        if ceiling > self.tokens {
            self.dir.replace_sheet(&NumberFile::Tokens(ceiling))?;
            self.tokens = ceiling;
        }
        Ok(())
    }

    /// Whether the journal is so long that it is worth making a snapshot.
    pub fn wants_rotation(&self) -> bool {
        // The method is called after every command, so the cheapest check comes first.
        if self.journal.bytes() <= JOURNAL_BYTES_MIN.max(self.rotation_from) {
            return false;
        }
        let enough = JOURNAL_PER_SNAPSHOT.saturating_mul(self.chain.base_bytes());
        self.journal.bytes() > enough && !self.chain.is_busy()
    }

    /// Begins a new journal. With the returned value another thread can compact the older files
    /// into a snapshot; until that is done, or if it fails, the old files stay valid.
    pub fn rotate(&mut self) -> io::Result<Sealed> {
        let Some(claim) = Manifest::claim(&self.chain) else {
            return Err(io::Error::other("the last rotation's snapshot is still being made"));
        };
        if let Err(error) = self.next_generation(Durable::No, true) {
            self.rotation_from = self.journal.bytes() + RESERVE_BYTES;
            return Err(error);
        }
        self.rotation_from = 0;
        Ok(Sealed::new(Arc::clone(&self.dir), claim, self.boot, &self.journal))
    }

    /// Writes `snapshot`, the current state, and the mark of a clean shutdown.
    pub fn close(mut self, snapshot: &[u8]) -> Result<(), StateError> {
        let path = self.dir.path().to_path_buf();
        self.next_generation(Durable::Yes, false).map_err(|error| StateError::io(&path, error))?;
        let generation = self.journal.generation();
        write_snapshot(&self.dir, self.boot, &self.journal, snapshot)?;
        self.dir.write_sheet(&NumberFile::Clean(generation))?;
        let old = self.dir.list()?.older_than(generation);
        self.dir.remove_durably(&old)
    }

    fn next_generation(&mut self, durable: Durable, reserve: bool) -> io::Result<()> {
        let (generation, next_seq) = (self.journal.generation() + 1, self.journal.next_seq());
        let next = Journal::create(&self.dir, generation, self.boot, next_seq, durable, reserve)?;
        let mut before = std::mem::replace(&mut self.journal, next);
        self.chain.seal(SealedJournal { generation: before.generation(), limit_seq: next_seq });
        before.trim();
        Ok(())
    }
}

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
