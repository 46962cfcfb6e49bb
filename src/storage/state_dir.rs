//! The open state directory: appends records, rotates journals, reserves tokens.

use super::compaction::{self, Sealed};
use super::dir::{Dir, Durable};
use super::header::BootId;
use super::journal::{Journal, Records, Space};
use super::manifest::{Manifest, SealedJournal};
use super::number_file::NumberFile;
use super::preallocation::RESERVE_BYTES;
use super::recovery;
use super::storage_error::StateError;
use log::warn;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// A journal shorter than this is not worth a snapshot: it is replayed in a few milliseconds.
pub const JOURNAL_BYTES_MIN: u64 = 8 << 20;

/// A journal may grow to this many times the size of the snapshot it belongs to: then each byte
/// of the journal costs at most half a byte of snapshot written later.
const JOURNAL_PER_SNAPSHOT: u64 = 2;

/// An open state directory. Only one process has it; it is free again when this is dropped, and
/// every [`Sealed`] and [`Records`] that came from it.
#[derive(Debug)]
pub struct StateDir {
    dir: Arc<Dir>,
    boot: BootId,
    tokens: u64,
    journal: Journal,
    chain: Arc<Manifest>,
    /// No rotation below this length of the journal: the last one has failed.
    rotation_from: u64,
}

/// The state that was recovered from the directory.
#[derive(Debug)]
pub struct Recovered {
    /// Tokens below this may have been handed out. 0 in a new directory.
    pub tokens_reserved: u64,
    /// The last snapshot; `None`: start from an empty state.
    pub snapshot: Option<Vec<u8>>,
    /// The records after the snapshot, in order. They must be read before the first call of
    /// [`StateDir::rotate`].
    pub records: Records,
    /// Whether the machine has not been restarted since the last record was written. True for a
    /// new directory.
    pub same_boot: bool,
    /// Whether the last user called [`StateDir::close`], so that nothing can be missing. True
    /// for a new directory.
    pub clean: bool,
}

impl StateDir {
    /// Opens the directory, makes it if need be, and reads what is in it.
    pub fn open(path: &Path) -> Result<(Self, Recovered), StateError> {
        let dir = Arc::new(Dir::open(path)?);
        let boot = BootId::current();
        let found = recovery::recover(&dir, boot)?;
        if found.fresh {
            // The tokens come first: a journal without them would be an error.
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
        // From here on records come: the mark must be gone before the first of them.
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

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Writes a record behind the others. On an error nothing of it remains, and the next
    /// record may be written as if there had been no error.
    pub fn append(&mut self, record: &[u8]) -> io::Result<()> {
        self.journal.append(record, Space::Ordinary)
    }

    /// [`Self::append`] for a record that only ends something: on a full disk it goes into the
    /// space that other records leave free.
    pub fn append_reserved(&mut self, record: &[u8]) -> io::Result<()> {
        self.journal.append(record, Space::Reserve)
    }

    /// Forgets the last record appended: the next one takes its place. Until then it may still
    /// be read by a recovery, which must come to the same end that was the reason for this.
    pub fn take_back(&mut self) {
        self.journal.take_back();
    }

    /// Raises the ceiling of the tokens. It is on the disk when this returns.
    pub fn reserve_tokens(&mut self, ceiling: u64) -> io::Result<()> {
        if ceiling > self.tokens {
            self.dir.replace_sheet(&NumberFile::Tokens(ceiling))?;
            self.tokens = ceiling;
        }
        Ok(())
    }

    /// Whether the journal has grown so long that a snapshot would be shorter.
    pub fn wants_rotation(&self) -> bool {
        // Asked after every command, so the cheap question comes first.
        if self.journal.bytes() <= JOURNAL_BYTES_MIN.max(self.rotation_from) {
            return false;
        }
        let enough = JOURNAL_PER_SNAPSHOT.saturating_mul(self.chain.base_bytes());
        self.journal.bytes() > enough && !self.chain.is_busy()
    }

    /// Begins a new journal. Another thread then turns the older files into a snapshot, with the
    /// returned value; until that is done, or if it fails, the old files stay valid.
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

    /// Ends the use of the directory: `snapshot` is the state as it is now.
    pub fn close(mut self, snapshot: &[u8]) -> Result<(), StateError> {
        let path = self.dir.path().to_path_buf();
        self.next_generation(Durable::Yes, false).map_err(|error| StateError::io(&path, error))?;
        let generation = self.journal.generation();
        compaction::write_snapshot(&self.dir, self.boot, &self.journal, snapshot)?;
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
