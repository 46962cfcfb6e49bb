//! The files of what this machine knows of its folder: `ledger`, which is replaced as a whole, and
//! `changes`, to which one line is appended for each change.
//!
//! The first line of `changes` names the boot in which the file was begun, and the ledger that its
//! lines go on from. A line that is written survives the end of the process without an fsync. After
//! a power failure the last lines may be missing: the boot is another one then, and the folder is
//! compared with the ledger before anything is said about it.

use super::super::barrier::content_digest::ContentDigest;
use super::super::barrier::ledger::Ledger;
use super::super::barrier::ledger_file::{LEDGER_BYTES_MAX, LedgerError};
use super::super::disk::{Disk, IfThere, Place};
use super::bounded_read::{if_there, read_at_most};
use super::change_record::{ChangeRecord, LogLine};
use super::whole_write::{give_name, write_temporary};
use std::fmt;
use std::io;
use std::sync::Arc;

/// The maximum size of the change log in bytes. It is folded into the ledger long before.
pub(crate) const CHANGES_BYTES_MAX: u64 = 256 * 1_024 * 1_024;
/// The change log is folded into the ledger when it has grown by so many bytes.
const FOLD_BYTES: u64 = 32 * 1_024 * 1_024;
/// The beginning of the change log, with its version.
const MAGIC: &str = "latchfs changes 1";
/// The mode of both files: the state directory is private.
const MODE: u32 = 0o600;
/// The names of the files in the directory of this machine.
const LEDGER: &str = "ledger";
const CHANGES: &str = "changes";
/// The names under which they are written.
const LEDGER_TEMPORARY: &str = "ledger.tmp";
const CHANGES_TEMPORARY: &str = "changes.tmp";
/// The name of a ledger that was damaged, for a person who wants to look at it.
const DAMAGED: &str = "ledger.damaged";

/// What was wrong with the files. The ledger is empty then, so that the folder is compared with its
/// markers as on a new machine; the paths of the change log are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StoreProblem {
    /// The ledger is missing.
    Missing,
    /// The ledger can't be used.
    Ledger(LedgerError),
    /// The change log is missing, damaged at its beginning, or goes on from another ledger.
    Changes,
}

impl fmt::Display for StoreProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("the ledger is missing")?,
            Self::Ledger(error) => error.fmt(f)?,
            Self::Changes => f.write_str("the change log is missing or not that of the ledger")?,
        }
        f.write_str("; the folder is compared with its markers as on a new machine")
    }
}

/// What was read.
#[derive(Debug)]
pub(crate) struct LoadedLedger {
    /// The ledger, with the changes of the log.
    pub(crate) ledger: Ledger,
    /// What was wrong.
    pub(crate) problem: Option<StoreProblem>,
    /// Whether the machine was started since: changes of the log may be missing.
    pub(crate) is_other_boot: bool,
    /// The bytes at the end of the change log that were no whole lines.
    pub(crate) dropped_bytes: u64,
}

/// The files of the ledger and of the change log.
pub(crate) struct LedgerStore<D: Disk> {
    disk: Arc<D>,
    dir: D::Dir,
    changes: D::File,
    /// The size of the change log without an unfinished line.
    length: u64,
    /// The size at which it is folded into the ledger.
    fold_at: u64,
    /// The boot that the change log names.
    boot: u128,
    this_boot: u128,
}

/// The digest that stands for no ledger.
const NO_LEDGER: ContentDigest = ContentDigest([0; 32]);

/// A change log as it was read.
struct LoadedChanges {
    boot: u128,
    /// The ledger that the lines go on from.
    ledger: ContentDigest,
    lines: Vec<LogLine>,
    /// The size of the lines that are whole.
    length: u64,
}

fn header(boot: u128, ledger: ContentDigest) -> Vec<u8> {
    format!("{MAGIC} {boot:032x} {ledger}\n").into_bytes()
}

fn read_header(line: &[u8]) -> Option<(u128, ContentDigest)> {
    let text = std::str::from_utf8(line).ok()?.strip_prefix(MAGIC)?.strip_prefix(' ')?;
    let (boot, ledger) = text.split_once(' ')?;
    let number = u128::from_str_radix(boot, 16).ok()?;
    (format!("{number:032x}") == boot).then_some((number, ContentDigest::parse(ledger)?))
}

/// Reads the lines of a change log up to the first one that is damaged.
fn read_changes(bytes: &[u8]) -> Option<LoadedChanges> {
    let mut lines = bytes.split_inclusive(|byte| *byte == b'\n');
    let first = lines.next()?;
    let (boot, ledger) = read_header(first.strip_suffix(b"\n")?)?;
    let mut read = LoadedChanges { boot, ledger, lines: Vec::new(), length: first.len() as u64 };
    for line in lines {
        let Some(found) = line.strip_suffix(b"\n").and_then(LogLine::read) else { break };
        read.lines.push(found);
        read.length += line.len() as u64;
    }
    Some(read)
}

impl LoadedChanges {
    /// Returns the changes that come after the ledger with a digest; `None` if the log does not
    /// know it.
    fn after(&self, ledger: ContentDigest) -> Option<impl Iterator<Item = &ChangeRecord>> {
        let is_it = |line: &LogLine| *line == LogLine::NextLedger(ledger);
        let start = match self.lines.iter().rposition(is_it) {
            Some(at) => at + 1,
            None if self.ledger == ledger => 0,
            None => return None,
        };
        Some(changes_of(&self.lines[start..]))
    }
}

fn changes_of(lines: &[LogLine]) -> impl Iterator<Item = &ChangeRecord> {
    lines.iter().filter_map(|line| match line {
        LogLine::Change(change) => Some(change),
        LogLine::NextLedger(_) => None,
    })
}

/// Returns the digest at the end of the bytes of a ledger.
fn digest_in(bytes: &[u8]) -> ContentDigest {
    bytes.last_chunk().map_or(NO_LEDGER, |digest| ContentDigest(*digest))
}

/// A file of this machine as it was found.
enum OwnFile {
    /// The content.
    Read(Vec<u8>),
    /// The file is too large. The value is its size.
    TooLarge(u64),
}

impl OwnFile {
    fn size(&self) -> u64 {
        match self {
            Self::Read(bytes) => bytes.len() as u64,
            Self::TooLarge(size) => *size,
        }
    }
}

fn read_own<D: Disk>(
    disk: &D,
    at: Place<'_, D::Dir>,
    bytes_max: u64,
) -> io::Result<Option<OwnFile>> {
    let Some(look) = if_there(disk.look(at))? else { return Ok(None) };
    if look.size > bytes_max {
        return Ok(Some(OwnFile::TooLarge(look.size)));
    }
    Ok(read_at_most(disk, at, bytes_max)?.map(|(bytes, _)| OwnFile::Read(bytes)))
}

/// Returns the ledger with the changes of the log, and what was wrong.
fn load(
    ledger: Option<&OwnFile>,
    changes: Option<&LoadedChanges>,
) -> (Ledger, Option<StoreProblem>) {
    let (read, digest) = match ledger {
        None => (Ok(Ledger::default()), NO_LEDGER),
        Some(OwnFile::Read(bytes)) => (Ledger::load(bytes), digest_in(bytes)),
        Some(OwnFile::TooLarge(_)) => (Err(LedgerError::TooLarge), NO_LEDGER),
    };
    let problem = match read {
        Err(error) => StoreProblem::Ledger(error),
        Ok(mut read) => match changes.map(|changes| changes.after(digest)) {
            Some(Some(after)) => {
                after.for_each(|change| change.apply(&mut read));
                return (read, None);
            }
            None if ledger.is_none() => return (read, None),
            Some(None) if ledger.is_none() => StoreProblem::Missing,
            _ => StoreProblem::Changes,
        },
    };
    // Handovers that the log names as own ones stay unknown: without the ledger nothing is known of
    // what they said.
    let mut emptied = Ledger::default();
    changes_of(changes.map_or(&[], |changes| &changes.lines))
        .filter(|change| !matches!(change, ChangeRecord::Own(_)))
        .for_each(|change| change.apply(&mut emptied));
    (emptied, Some(problem))
}

impl<D: Disk> LedgerStore<D> {
    /// Opens the files in the directory of this machine, which are made if there are none.
    pub(crate) fn open(
        disk: Arc<D>,
        dir: D::Dir,
        this_boot: u128,
    ) -> io::Result<(Self, LoadedLedger)> {
        let ledger = read_own(&*disk, Place::new(&dir, LEDGER), LEDGER_BYTES_MAX)?;
        let found = read_own(&*disk, Place::new(&dir, CHANGES), CHANGES_BYTES_MAX)?;
        let changes = match &found {
            Some(OwnFile::Read(bytes)) => read_changes(bytes),
            _ => None,
        };
        let (loaded, mut problem) = load(ledger.as_ref(), changes.as_ref());
        if found.is_some() && changes.is_none() {
            problem = problem.or(Some(StoreProblem::Changes));
        }
        let size = found.as_ref().map_or(0, OwnFile::size);
        let length = changes.as_ref().map_or(0, |changes| changes.length);
        let boot = match (&changes, problem) {
            (Some(changes), _) => changes.boot,
            (None, None) => this_boot,
            (None, Some(_)) => 0,
        };
        let loaded = LoadedLedger {
            ledger: loaded,
            problem,
            is_other_boot: boot != this_boot,
            dropped_bytes: size - length,
        };
        let is_new = changes.is_none();
        drop((ledger, found, changes));
        let (changes, length) = match problem {
            Some(problem) => {
                if matches!(problem, StoreProblem::Ledger(_)) {
                    let (from, to) = (Place::new(&dir, LEDGER), Place::new(&dir, DAMAGED));
                    disk.rename(from, to, IfThere::Replace)?;
                }
                let digest = write_ledger(&*disk, &dir, &loaded.ledger)?;
                name_ledger(&*disk, &dir)?;
                new_changes(&*disk, &dir, boot, digest)?
            }
            None if is_new => new_changes(&*disk, &dir, boot, NO_LEDGER)?,
            None => {
                let file = disk.open_file(Place::new(&dir, CHANGES))?;
                disk.shorten(&file, size - length)?;
                (file, length)
            }
        };
        let fold_at = length + FOLD_BYTES;
        Ok((Self { disk, dir, changes, length, fold_at, boot, this_boot }, loaded))
    }

    /// Appends a change to the log. It survives the end of the process.
    pub(crate) fn append(&mut self, change: &ChangeRecord) -> io::Result<()> {
        self.append_line(&LogLine::Change(change.clone()))
    }

    fn append_line(&mut self, line: &LogLine) -> io::Result<()> {
        let bytes = line.write()?;
        let end = self.length + bytes.len() as u64;
        if end > CHANGES_BYTES_MAX {
            let full = format!("the change log has more than {CHANGES_BYTES_MAX} bytes");
            return Err(io::Error::other(full));
        }
        // After an error the next line overwrites the part that was written.
        self.disk.write(&self.changes, self.length, &bytes)?;
        self.length = end;
        Ok(())
    }

    /// Appends a change to the log, makes it in the ledger, and folds the log into the ledger when
    /// it has become long.
    pub(crate) fn record(&mut self, ledger: &mut Ledger, change: &ChangeRecord) -> io::Result<()> {
        self.append(change)?;
        change.apply(ledger);
        if self.length > self.fold_at {
            self.fold_at = self.length + FOLD_BYTES;
            if let Err(error) = self.save(ledger) {
                // The change itself is in the log.
                log::warn!("the ledger was not saved: {}", crate::os_error::said(&error));
            }
        }
        Ok(())
    }

    /// Writes the log to the storage. This comes before a handover that it names is sent.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.disk.sync_file(&self.changes)
    }

    /// Records that the folder was compared with the ledger in this boot. The next save says so.
    pub(crate) fn compared(&mut self) {
        self.boot = self.this_boot;
    }

    /// Saves the ledger, and begins a new log. At each point in between, the files on the disk
    /// are those of one ledger with all its changes.
    pub(crate) fn save(&mut self, ledger: &Ledger) -> io::Result<()> {
        let digest = write_ledger(&*self.disk, &self.dir, ledger)?;
        self.append_line(&LogLine::NextLedger(digest))?;
        self.sync()?;
        name_ledger(&*self.disk, &self.dir)?;
        (self.changes, self.length) = new_changes(&*self.disk, &self.dir, self.boot, digest)?;
        self.fold_at = self.length + FOLD_BYTES;
        Ok(())
    }
}

/// Writes the ledger under its temporary name. Returns the digest in it.
fn write_ledger<D: Disk>(disk: &D, dir: &D::Dir, ledger: &Ledger) -> io::Result<ContentDigest> {
    let bytes = ledger.save();
    if bytes.len() as u64 > LEDGER_BYTES_MAX {
        return Err(io::Error::other(LedgerError::TooLarge.to_string()));
    }
    write_temporary(disk, dir, MODE, &bytes, Place::new(dir, LEDGER_TEMPORARY))?;
    Ok(digest_in(&bytes))
}

/// Gives the new ledger its name.
fn name_ledger<D: Disk>(disk: &D, dir: &D::Dir) -> io::Result<()> {
    let (from, to) = (Place::new(dir, LEDGER_TEMPORARY), Place::new(dir, LEDGER));
    give_name(disk, from, to, IfThere::Replace)
}

/// Begins a new change log. Returns it with its size.
fn new_changes<D: Disk>(
    disk: &D,
    dir: &D::Dir,
    boot: u128,
    ledger: ContentDigest,
) -> io::Result<(D::File, u64)> {
    let first = header(boot, ledger);
    let temporary = Place::new(dir, CHANGES_TEMPORARY);
    let file = write_temporary(disk, dir, MODE, &first, temporary)?;
    give_name(disk, temporary, Place::new(dir, CHANGES), IfThere::Replace)?;
    Ok((file, first.len() as u64))
}
