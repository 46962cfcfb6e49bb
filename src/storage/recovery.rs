//! Recovers the state from the files of a directory: determines which files are valid, and where
//! the last complete record ends.
//!
//! A journal may end in three ways that are not damage. The process died in the middle of a write,
//! or had taken a record back: the bytes after the last complete record are not a record. Or the
//! machine lost power, and pages of the file never reached the disk: they read as zeros, and later
//! pages may have been written. In all three cases the journal is truncated. In any other case, an
//! unreadable record that is followed by later ones is damage.
//!
//! A check of a state directory that no daemon uses, for `latchfs doctor`. It changes nothing.

use super::dir::{Dir, StateFiles};
use super::header::{BootId, HEADER_BYTES, Header, Type};
use super::journal::{JournalReader, LastJournal, PREFIX_BYTES, Prefix, sum};
use super::manifest::{Base, SealedJournal};
use crate::storage::dir::StateError;
use crate::storage::manifest::NumberFile;
use log::{debug, info, warn};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::{fs, io};

/// The verified files of a state directory.
#[derive(Debug)]
pub(super) struct RecoveredFiles {
    /// Whether the directory is new and has no state yet.
    pub(super) fresh: bool,
    pub(super) tokens: u64,
    pub(super) base: Option<Base>,
    pub(super) snapshot: Option<Vec<u8>>,
    /// The journals after the snapshot, including the last one.
    pub(super) parts: Vec<SealedJournal>,
    pub(super) last: Option<LastJournal>,
    pub(super) next_seq: u64,
    pub(super) same_boot: bool,
    pub(super) clean: bool,
}

/// The sequence number of the first record of a new directory.
const FIRST_SEQ: u64 = 1;

/// Reads all files, and truncates the last journal to its last complete record after a crash.
pub(super) fn recover(dir: &Dir, boot: BootId) -> Result<RecoveredFiles, StateError> {
    let listing = dir.list()?;
    let tokens = match dir.read_sheet(NumberFile::TOKENS)? {
        Some(NumberFile::Tokens(ceiling)) => Some(ceiling),
        _ if listing.journals.is_empty() && listing.snapshots.is_empty() => None,
        _ => return Err(StateError::TokensMissing(dir.path().join(NumberFile::TOKENS))),
    };
    let (mut base, mut snapshot, mut next_seq) = (None, None, FIRST_SEQ);
    if let Some(generation) = listing.snapshots.last().copied() {
        let (header, body) = read_snapshot(dir, generation)?;
        base = Some(Base { generation, bytes: HEADER_BYTES as u64 + header.body_bytes });
        next_seq = header.next_seq;
        snapshot = Some(body);
    }
    let first = base.map_or(1, |base| base.generation);
    let generations = in_a_row(dir, first, &listing)?;
    let journals = read_journals(dir, boot, &generations, next_seq)?;
    dir.remove_durably(&listing.older_than(first))?;

    let mark = dir.read_sheet(NumberFile::CLEAN)?;
    let last = journals.last();
    let same_boot = last.is_none_or(|last| last.boot.is(boot));
    let clean = match (last, mark) {
        (Some(last), Some(NumberFile::Clean(generation))) => {
            generation == last.generation && last.next_seq == next_seq
        }
        (Some(_), _) => false,
        (None, _) => tokens.is_none(),
    };
    let part = |journal: &Verified| SealedJournal {
        generation: journal.generation,
        limit_seq: journal.next_seq,
    };
    Ok(RecoveredFiles {
        fresh: tokens.is_none(),
        tokens: tokens.unwrap_or_default(),
        base,
        snapshot,
        parts: journals.iter().map(part).collect(),
        next_seq: last.map_or(next_seq, |last| last.next_seq),
        last: journals.into_iter().next_back().map(Verified::into_last),
        same_boot,
        clean,
    })
}

/// Reads a snapshot. A snapshot gets its name only when it is complete, so any inconsistency is
/// damage.
pub(super) fn read_snapshot(dir: &Dir, generation: u64) -> Result<(Header, Vec<u8>), StateError> {
    let path = dir.snapshot(generation);
    let bytes = fs::read(&path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => StateError::Missing(path.clone()),
        _ => StateError::io(&path, error),
    })?;
    let Some((front, body)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
        return Err(StateError::damaged(&path, 0, "its header is cut off"));
    };
    let header = Header::parse(&path, Type::Snapshot, generation, front)?;
    if header.body_bytes != body.len() as u64 {
        let why = format!("it should hold {} bytes, and holds {}", header.body_bytes, body.len());
        return Err(StateError::damaged(&path, bytes.len() as u64, why));
    }
    if header.sum != crc32fast::hash(body) {
        return Err(StateError::damaged(&path, HEADER_BYTES as u64, "it has the wrong sum"));
    }
    let body = body.to_vec();
    Ok((header, body))
}

/// Returns the generations (the numbers in the file names) of the journals from `first` on. Fails
/// if one is missing.
fn in_a_row(dir: &Dir, first: u64, listing: &StateFiles) -> Result<Vec<u64>, StateError> {
    let found = listing.journals.iter().copied().filter(|found| *found >= first);
    let found: Vec<u64> = found.collect();
    if listing.snapshots.is_empty()
        && let Some(other) = found.first().filter(|other| **other != first)
    {
        // Every journal but the first one of a directory is preceded by a snapshot, so the snapshot
        // of this journal is missing.
        return Err(StateError::Missing(dir.snapshot(*other)));
    }
    // A snapshot is written only after the journal with the same number in its name. If that
    // journal does not exist, it was removed afterwards.
    let alone = u64::from(!listing.snapshots.is_empty());
    let count = alone.max(found.last().map_or(0, |last| last - first + 1));
    if let Some(missing) = (first..first + count).find(|wanted| !found.contains(wanted)) {
        return Err(StateError::Missing(dir.journal(missing)));
    }
    Ok(found)
}

/// A journal whose records were all checked.
#[derive(Debug)]
struct Verified {
    generation: u64,
    boot: BootId,
    salt: u32,
    end: u64,
    allocated: u64,
    next_seq: u64,
}

impl Verified {
    fn into_last(self) -> LastJournal {
        let Self { generation, salt, end, allocated, next_seq, .. } = self;
        LastJournal { generation, salt, end, allocated, next_seq }
    }
}

/// Reads and checks the journals, up to and including the one that contains the last record.
fn read_journals(
    dir: &Dir,
    boot: BootId,
    generations: &[u64],
    mut next_seq: u64,
) -> Result<Vec<Verified>, StateError> {
    let mut readers = Vec::new();
    for generation in generations {
        match JournalReader::open(dir, *generation) {
            Ok(reader) => readers.push(reader),
            Err(error) => {
                let before = readers.last().map(|before: &JournalReader| before.header.boot);
                let newest = Some(generation) == generations.last();
                if !newest || !never_written(dir, before, boot, *generation) {
                    return Err(error);
                }
            }
        }
    }
    let mut journals = Vec::new();
    let mut readers = readers.into_iter().peekable();
    while let Some(mut reader) = readers.next() {
        if reader.header.next_seq != next_seq {
            let why = format!("it begins with record {}, not {next_seq}", reader.header.next_seq);
            return Err(StateError::damaged(&reader.path, 40, why));
        }
        // The header of the next journal says with which record number it begins. Records in this
        // journal with that number or a higher one were removed by `take_back`, and are ignored.
        let limit = readers.peek().map(|next| next.header.next_seq);
        while limit != Some(reader.next_seq) && reader.next()?.is_some() {}
        let complete = limit == Some(reader.next_seq);
        let end = reader.offset;
        let allocated = if complete { end } else { cut_off(&reader, boot, limit)? };
        next_seq = reader.next_seq;
        let Header { generation, boot, sum: salt, .. } = reader.header;
        journals.push(Verified { generation, boot, salt, end, allocated, next_seq });
        if !complete {
            break;
        }
    }
    let kept = journals.last().map_or(0, |last| last.generation);
    let lost: Vec<_> = generations.iter().filter(|found| **found > kept).collect();
    for generation in &lost {
        warn!("{} goes, since the records before it are lost", dir.journal(**generation).display());
    }
    let lost: Vec<_> = lost.into_iter().map(|found| dir.journal(*found)).collect();
    dir.remove_durably(&lost)?;
    Ok(journals)
}

/// Whether the newest journal was created but its header did not reach the disk before a power
/// failure. Without a power failure, a journal gets its name only when its header is complete.
fn never_written(dir: &Dir, before: Option<BootId>, boot: BootId, generation: u64) -> bool {
    let other_boot = before.is_some_and(|before| !before.is(boot));
    let bytes = fs::read(dir.journal(generation)).unwrap_or_default();
    other_boot && bytes.iter().all(|byte| *byte == 0)
}

/// Truncates a journal after its last complete record, if the bytes after that record can be the
/// result of a crash, and otherwise reports damage. `limit` is the number of the first record of
/// the next journal, if there is one. Returns the length of the file. Without a power failure,
/// allocated space that was never written is not truncated, because a full disk might not provide
/// it again.
fn cut_off(reader: &JournalReader, boot: BootId, limit: Option<u64>) -> Result<u64, StateError> {
    let (path, end) = (&reader.path, reader.offset);
    let at = |error| StateError::io(path, error);
    let rest = read_from(path, end).map_err(at)?;
    let lost_power = !reader.header.boot.is(boot);
    let later_here = has_later_record(reader, &rest);
    let later = later_here || limit.is_some();
    // After a power failure, some pages of the file may be missing, or the end of the file.
    let end_is_gone = !later_here && runs_past_the_end(&rest);
    let unwritten = lost_power && (end_is_gone || has_unwritten_page(end, &rest));
    if later && !unwritten {
        let why = format!("record {} can't be read, but later ones can", reader.next_seq);
        return Err(StateError::damaged(path, end, why));
    }
    let bytes = rest.len();
    let unused = rest.iter().all(|byte| *byte == 0);
    if unused && (!lost_power || bytes == 0) {
        return Ok(end + bytes as u64);
    }
    if unused {
        debug!("{}: {bytes} bytes were allocated and not used", path.display());
    } else if later {
        warn!("{}: {bytes} bytes are cut off, lost in a power failure", path.display());
    } else {
        let why = "the rest of a write that was broken off or taken back";
        warn!("{}: {bytes} bytes are cut off, {why}", path.display());
    }
    let file = OpenOptions::new().write(true).open(path).map_err(at)?;
    file.set_len(end).map_err(at)?;
    if lost_power {
        // The truncated file is synced, because the next journal continues after the last record of
        // this one.
        file.sync_all().map_err(at)?;
    }
    info!("{} ends at byte {end}, after record {}", path.display(), reader.next_seq - 1);
    Ok(end)
}

fn read_from(path: &Path, offset: u64) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    let bytes = file.metadata()?.len().saturating_sub(offset);
    let mut rest = vec![0; bytes as usize];
    file.read_exact_at(&mut rest, offset)?;
    Ok(rest)
}

/// The unit in which the kernel writes files to disk.
const PAGE_BYTES: usize = 4_096;

/// The minimum number of zeros at the end of a page that count as not written to disk. Fewer zeros
/// may be part of a record.
const ZEROS_MIN: usize = 16;

/// Whether the record that should be at the start of `rest` is longer than `rest`.
fn runs_past_the_end(rest: &[u8]) -> bool {
    let prefix = rest.first_chunk::<PREFIX_BYTES>().map(|bytes| Prefix::parse(*bytes));
    prefix.is_none_or(|prefix| prefix.is_possible() && PREFIX_BYTES + prefix.bytes > rest.len())
}

/// Whether the record that should be at the start of `rest`, which is at `offset` of the file,
/// extends into a part of a page that was not written to disk. Such a part is a run of zeros up to
/// the end of the page.
fn has_unwritten_page(offset: u64, rest: &[u8]) -> bool {
    let bytes = match rest.first_chunk::<PREFIX_BYTES>().map(|bytes| Prefix::parse(*bytes)) {
        Some(prefix) if prefix.is_possible() => PREFIX_BYTES + prefix.bytes,
        _ => PREFIX_BYTES,
    };
    let record_end = bytes.min(rest.len());
    let mut page = 0;
    while page < record_end {
        let in_page = (offset as usize + page) % PAGE_BYTES;
        let page_end = (page + PAGE_BYTES - in_page).min(rest.len());
        let zeros = rest[page..page_end].iter().rev().take_while(|byte| **byte == 0).count();
        let begin = page_end - zeros;
        if begin < record_end && zeros >= ZEROS_MIN.min(page_end - page) {
            return true;
        }
        page = page_end;
    }
    false
}

/// Whether `rest` contains a complete record whose number is higher than that of the record that
/// could not be read.
fn has_later_record(reader: &JournalReader, rest: &[u8]) -> bool {
    let begins_here = |at: usize| {
        let prefix = rest[at..].first_chunk::<PREFIX_BYTES>().map(|bytes| Prefix::parse(*bytes))?;
        // The difference of the record numbers can't exceed the number of bytes in `rest`, since
        // each record takes more than a byte.
        let later = prefix.seq.checked_sub(reader.next_seq)?;
        if later == 0 || later > rest.len() as u64 || !prefix.is_possible() {
            return None;
        }
        let record = rest.get(at + PREFIX_BYTES..at + PREFIX_BYTES + prefix.bytes)?;
        (prefix.sum == sum(reader.header.sum, prefix.seq, record)).then_some(())
    };
    (1..rest.len()).any(|at| begins_here(at).is_some())
}

/// Reads the last snapshot and the ceiling of the tokens in a directory, as its next daemon will.
/// `lock` is the lock file of the directory, locked by the caller.
pub fn check(path: &Path, lock: File) -> Result<(), StateError> {
    let dir = Dir::locked(path, lock);
    dir.read_sheet(NumberFile::TOKENS)?;
    match dir.list()?.snapshots.last() {
        Some(last) => read_snapshot(&dir, *last).map(drop),
        None => Ok(()),
    }
}
