//! The files of what this machine knows of its folder: `ledger`, which is replaced as a whole, and
//! `changes`, to which one line is appended for each change.
//!
//! The first line of `changes` names the boot in which the file was begun, and the ledger that its
//! lines go on from. A line that is written survives the end of the process without an fsync. After
//! a power failure the last lines may be missing: the boot is another one then, and the folder is
//! compared with the ledger before anything is said about it.

use super::change_record::{ChangeRecord, LogLine};
use crate::guard::barrier_store::small_files::{give_name, write_temporary};
use crate::guard::barrier_store::small_files::{if_there, read_at_most};
use crate::guard::disk::operations::{Disk, IfThere, Place};
use barrier::folder_path::ContentDigest;
use barrier::ledger::Ledger;
use barrier::ledger::{LEDGER_BYTES_MAX, LedgerError};
use std::fmt;
use std::io;
use std::sync::Arc;

/// The maximum size of the change log in bytes. It is folded into the ledger long before.
pub(crate) const CHANGES_BYTES_MAX: u64 = 256 * 1_024 * 1_024;
/// The change log is folded into the ledger when it has grown by so many bytes.
const FOLD_BYTES: u64 = 32 * 1_024 * 1_024;
/// The change log takes so much space ahead: lines of some thousand removals and the announcement
/// before them find space on a full disk.
const RESERVE_BYTES: u64 = 1_024 * 1_024;
/// The beginning of the change log, which its version follows.
const MAGIC: &str = "latchfs changes ";
/// The version of the change log.
const CHANGES_VERSION: u32 = 1;
/// The mode of the ledger and of the change log: the state directory is private.
const MODE: u32 = 0o600;
/// The names of the ledger and of the change log in the directory of this machine.
const LEDGER: &str = "ledger";
const CHANGES: &str = "changes";
/// The names under which the ledger and the change log are written before they replace the old
/// ones.
const LEDGER_TEMPORARY: &str = "ledger.tmp";
const CHANGES_TEMPORARY: &str = "changes.tmp";
/// The name of a ledger that was damaged, for a person who wants to look at it.
const DAMAGED: &str = "ledger.damaged";

/// A fault of the files. The ledger is empty then, so that the folder is compared with its
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

/// The ledger as it was read.
#[derive(Debug)]
pub(crate) struct LoadedLedger {
    /// The ledger, with the changes of the log.
    pub(crate) ledger: Ledger,
    /// Why the ledger or the change log can't be used; `None` if both can.
    pub(crate) problem: Option<StoreProblem>,
    /// Whether the machine was started since the log was written: its last changes may be missing.
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
    /// The size at which the change log takes more space ahead.
    reserve_at: u64,
    /// The size of the part of the change log that is on the storage.
    synced: u64,
    /// The size at which the change log is folded into the ledger.
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
    format!("{MAGIC}{CHANGES_VERSION} {boot:032x} {ledger}\n").into_bytes()
}

fn read_header(line: &[u8]) -> Option<(u128, ContentDigest)> {
    let text = std::str::from_utf8(line).ok()?.strip_prefix(MAGIC)?;
    let (_, text) = text.split_once(' ').filter(|(it, _)| *it == CHANGES_VERSION.to_string())?;
    let (boot, ledger) = text.split_once(' ')?;
    let number = u128::from_str_radix(boot, 16).ok()?;
    (format!("{number:032x}") == boot).then_some((number, ContentDigest::parse(ledger)?))
}

/// Fails if the change log has another version: it belongs to another latchfs, and stays as it is.
fn check_version(changes: Option<&OwnFile>) -> io::Result<()> {
    let Some(OwnFile::Read(bytes)) = changes else { return Ok(()) };
    let line =
        bytes.strip_prefix(MAGIC.as_bytes()).and_then(|rest| rest.split(|it| *it == b' ').next());
    let version = line.and_then(|it| std::str::from_utf8(it).ok()?.parse::<u32>().ok());
    match version.filter(|it| *it != CHANGES_VERSION) {
        Some(found) => Err(io::Error::other(format!(
            "the change log '{CHANGES}' has version {found}, and this latchfs knows version \
             {CHANGES_VERSION}; run the latchfs that wrote it"
        ))),
        None => Ok(()),
    }
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
    /// The content of the file.
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
    let Some(stat) = if_there(disk.stat(at))? else { return Ok(None) };
    if stat.size > bytes_max {
        return Ok(Some(OwnFile::TooLarge(stat.size)));
    }
    Ok(read_at_most(disk, at, bytes_max)?.map(|(bytes, _)| OwnFile::Read(bytes)))
}

/// Returns the ledger with the changes of the log, for a reader that writes neither file.
pub(crate) fn read_ledger<D: Disk>(disk: &D, dir: &D::Dir) -> io::Result<Ledger> {
    let ledger = read_own(disk, Place::new(dir, LEDGER), LEDGER_BYTES_MAX)?;
    let changes = read_own(disk, Place::new(dir, CHANGES), CHANGES_BYTES_MAX)?;
    check_version(changes.as_ref())?;
    let changes = match changes {
        Some(OwnFile::Read(bytes)) => read_changes(&bytes),
        _ => None,
    };
    Ok(load(ledger.as_ref(), changes.as_ref())?.0)
}

/// Returns the ledger with the changes of the log, and what is wrong with the two files, if
/// anything is. Fails if the ledger has another version: another version of latchfs has written it,
/// and it stays as it is.
fn load(
    ledger: Option<&OwnFile>,
    changes: Option<&LoadedChanges>,
) -> io::Result<(Ledger, Option<StoreProblem>)> {
    let (read, digest) = match ledger {
        None => (Ok(Ledger::default()), NO_LEDGER),
        Some(OwnFile::Read(bytes)) => (Ledger::load(bytes), digest_in(bytes)),
        Some(OwnFile::TooLarge(_)) => (Err(LedgerError::TooLarge), NO_LEDGER),
    };
    let problem = match read {
        Err(error @ LedgerError::Version(_)) => return Err(io::Error::other(error.to_string())),
        Err(error) => StoreProblem::Ledger(error),
        Ok(mut read) => match changes.map(|changes| changes.after(digest)) {
            Some(Some(after)) => {
                after.for_each(|change| change.apply(&mut read));
                return Ok((read, None));
            }
            None if ledger.is_none() => return Ok((read, None)),
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
    Ok((emptied, Some(problem)))
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
        check_version(found.as_ref())?;
        let changes = match &found {
            Some(OwnFile::Read(bytes)) => read_changes(bytes),
            _ => None,
        };
        let (loaded, mut problem) = load(ledger.as_ref(), changes.as_ref())?;
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
        let (reserve_at, synced) = (0, 0);
        let mut store =
            Self { disk, dir, changes, length, reserve_at, synced, fold_at, boot, this_boot };
        store.reserve();
        Ok((store, loaded))
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
        self.reserve();
        Ok(())
    }

    /// Takes space ahead for the change log before it needs that.
    fn reserve(&mut self) {
        if self.length < self.reserve_at {
            return;
        }
        // Without the space a full disk refuses changes sooner. Some file systems have no such
        // call.
        let _ = self.disk.reserve(&self.changes, self.length, RESERVE_BYTES);
        self.reserve_at = self.length + RESERVE_BYTES / 2;
    }

    /// Appends a change to the log, makes it in the ledger, and folds the log into the ledger when
    /// it has become long.
    pub(crate) fn record(&mut self, ledger: &mut Ledger, change: &ChangeRecord) -> io::Result<()> {
        self.append(change)?;
        change.apply(ledger);
        if self.length > self.fold_at {
            self.fold_at = self.length + FOLD_BYTES;
            if let Err(error) = self.save(ledger) {
                // A failed save loses nothing: the change is in the change log.
                log::warn!("the ledger was not saved: {}", crate::base::said(&error));
            }
        }
        Ok(())
    }

    /// Writes the log to the storage. This comes before a handover that it names is sent.
    pub(crate) fn sync(&mut self) -> io::Result<()> {
        self.disk.sync_file(&self.changes)?;
        self.synced = self.length;
        Ok(())
    }

    /// Writes the lines to the storage that are not there yet.
    pub(crate) fn sync_new(&mut self) -> io::Result<()> {
        if self.synced < self.length { self.sync() } else { Ok(()) }
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
        (self.synced, self.reserve_at) = (self.length, 0);
        self.reserve();
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

#[cfg(test)]
mod tests {
    use super::super::change_record::tests::records;
    use super::super::test_disk::{Fault, TestDisk, TestFolder};
    use super::*;
    use crate::base::random;
    use barrier::folder_path::FileStamp;
    use barrier::folder_path::FolderPath;
    use barrier::handover::HandoverId;
    use std::fs;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    const BOOT: u128 = 7;

    type Opened = (LedgerStore<TestDisk>, LoadedLedger);

    fn open_with(test: &TestFolder, disk: TestDisk, boot: u128) -> io::Result<Opened> {
        LedgerStore::open(Arc::new(disk), test.state(), boot)
    }

    fn open(test: &TestFolder) -> Opened {
        open_with(test, TestDisk::default(), BOOT).expect("readable")
    }

    /// Opens files of this boot with which nothing is wrong.
    fn reopen(test: &TestFolder) -> (LedgerStore<TestDisk>, Ledger) {
        let (store, loaded) = open(test);
        let (problem, boot, dropped) = (loaded.problem, loaded.is_other_boot, loaded.dropped_bytes);
        assert_eq!((problem, boot, dropped), (None, false, 0));
        (store, loaded.ledger)
    }

    /// Numbers of which the same seed gives the same (xorshift).
    struct Numbers(u64);

    impl Numbers {
        /// Returns numbers whose seed is printed.
        fn new() -> Self {
            let seed = random() | 1;
            println!("seed {seed}");
            Self(seed)
        }

        fn below(&mut self, end: usize) -> usize {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 >> 11) as usize % end
        }

        fn stamp(&mut self) -> Option<FileStamp> {
            let [size, mtime, inode] = [3, 1_000, 5].map(|end| self.below(end) as u64);
            let stamp = FileStamp { size, mtime: i128::from(mtime) - 500, inode };
            (self.below(4) > 0).then_some(stamp)
        }

        fn path(&mut self) -> FolderPath {
            let names = ["a", "b", "d", "d/a", "d/b", "d/e/a", "\n", "caf\u{e9}"];
            FolderPath::parse(names[self.below(names.len())]).expect("valid")
        }

        fn record(&mut self) -> ChangeRecord {
            let (path, before, after) = (self.path(), self.stamp(), self.stamp());
            match self.below(12) {
                0..3 => ChangeRecord::Begin { path, before, after },
                3..7 => ChangeRecord::End { path, after },
                7 => ChangeRecord::Accept { path, found: after },
                8 => ChangeRecord::RenamedDir { from: path, to: self.path() },
                9 => ChangeRecord::RemovedDir { path },
                10 => ChangeRecord::AcceptWhole,
                _ => ChangeRecord::Own(HandoverId(self.below(1_000) as u128)),
            }
        }
    }

    #[test]
    fn lines_are_synced_once_and_find_reserved_space() {
        let test = TestFolder::new();
        let (mut store, mut ledger) = reopen(&test);
        let own = ChangeRecord::Own(HandoverId(1));
        store.record(&mut ledger, &own).expect("there is space");
        let before = store.disk.count("sync_file");
        for _ in 0..3 {
            store.sync_new().expect("synced");
        }
        assert_eq!(store.disk.count("sync_file"), before + 1);
        store.save(&ledger).expect("there is space");
        let blocks = || {
            std::os::unix::fs::MetadataExt::blocks(
                &fs::metadata(test.state_path(CHANGES)).expect("there"),
            )
        };
        assert!(blocks() * 512 >= RESERVE_BYTES, "{} blocks", blocks());
        assert!(fs::metadata(test.state_path(CHANGES)).expect("there").len() < 1_000);
    }

    #[test]
    fn changes_survive_the_end_of_the_process() {
        let mut numbers = Numbers::new();
        let test = TestFolder::new();
        let (mut store, mut ledger) = reopen(&test);
        for _ in 0..3_000 {
            match numbers.below(40) {
                0 => store.save(&ledger).expect("there is space"),
                1 => {
                    // The store is not dropped: a process that is killed writes nothing at its end.
                    std::mem::forget(store);
                    let loaded;
                    (store, loaded) = reopen(&test);
                    assert_eq!(loaded, ledger);
                }
                2 => {
                    let listed = ledger.log().number();
                    ledger.log_mut().forget_to(listed);
                    store.save(&ledger).expect("there is space");
                }
                _ => {
                    let record = numbers.record();
                    store.record(&mut ledger, &record).expect("there is space");
                }
            }
        }
        assert_eq!(reopen(&test).1, ledger);
        let names = fs::read_dir(test.state_path("")).expect("there");
        let mut names: Vec<_> = names.map(|name| name.expect("readable").file_name()).collect();
        names.sort();
        assert_eq!(names, [CHANGES, LEDGER]);
    }

    #[test]
    fn a_torn_end_is_dropped_and_the_log_goes_on() {
        let test = TestFolder::new();
        let (mut store, mut ledger) = reopen(&test);
        let (mut ends, mut ledgers) = (vec![store.length], vec![ledger.clone()]);
        for record in records() {
            store.record(&mut ledger, &record).expect("there is space");
            ends.push(store.length);
            ledgers.push(ledger.clone());
        }
        let path = test.state_path(CHANGES);
        let whole = fs::read(&path).expect("there");
        assert_eq!(whole.len() as u64, store.length);
        for length in ends[0]..whole.len() as u64 {
            fs::write(&path, &whole[..length as usize]).expect("written");
            let lines = ends.iter().rposition(|end| *end <= length).expect("the first line");
            let (mut store, loaded) = open(&test);
            let mut ledger = loaded.ledger;
            assert_eq!((loaded.problem, loaded.dropped_bytes), (None, length - ends[lines]));
            assert_eq!(ledger, ledgers[lines], "the first {length} bytes");
            store.record(&mut ledger, &records()[0]).expect("there is space");
            assert_eq!(reopen(&test).1, ledger);
        }
    }

    #[test]
    fn random_bytes_in_the_log_are_dropped() {
        let mut numbers = Numbers::new();
        for _ in 0..300 {
            let test = TestFolder::new();
            let (mut store, mut ledger) = reopen(&test);
            let first = store.length as usize;
            let mut ledgers = vec![(store.length, ledger.clone())];
            for _ in 0..numbers.below(20) {
                store.record(&mut ledger, &numbers.record()).expect("there is space");
                ledgers.push((store.length, ledger.clone()));
            }
            let path = test.state_path(CHANGES);
            let mut bytes = fs::read(&path).expect("there");
            let start = first + numbers.below(bytes.len() - first + 1);
            for at in start..bytes.len() + numbers.below(300) {
                let byte = [0, b'\n', b'{', numbers.below(256) as u8][numbers.below(4)];
                if at < bytes.len() { bytes[at] = byte } else { bytes.push(byte) }
            }
            fs::write(&path, &bytes).expect("written");
            let (_, loaded) = open(&test);
            let known = ledgers.iter().rposition(|(_, known)| *known == loaded.ledger);
            let kept = ledgers.iter().filter(|(end, _)| *end <= start as u64).count();
            assert!(known.is_some_and(|at| at + 1 >= kept), "{kept} lines were not damaged");
            assert_eq!(loaded.problem, None);
            assert_eq!(reopen(&test).1, loaded.ledger);
        }
        for _ in 0..2_000 {
            let test: Vec<u8> = (0..numbers.below(200))
                .map(|_| [b' ', b'\n', b'"', numbers.below(256) as u8][numbers.below(4)])
                .collect();
            let bytes = [&header(1, NO_LEDGER)[..numbers.below(117)], &test].concat();
            if let Some(read) = read_changes(&bytes) {
                assert!(read.length <= bytes.len() as u64 && read.lines.is_empty());
            }
        }
    }

    /// Makes changes, and saves the ledger in between.
    fn work(store: &mut LedgerStore<TestDisk>, ledger: &mut Ledger) -> io::Result<()> {
        for record in records() {
            store.record(ledger, &record)?;
        }
        store.sync()?;
        store.save(ledger)?;
        store.record(ledger, &records()[0])
    }

    #[test]
    fn a_kill_at_each_step_loses_no_change() {
        for step in 0.. {
            let test = TestFolder::new();
            let mut ledger = Ledger::default();
            let disk = TestDisk::failing(step, Fault::Kill);
            let worked = catch_unwind(AssertUnwindSafe(|| {
                let (mut store, loaded) = open_with(&test, disk, BOOT).expect("no error");
                ledger = loaded.ledger;
                work(&mut store, &mut ledger).expect("no error");
            }));
            let (mut store, loaded) = open(&test);
            assert_eq!((loaded.problem, loaded.is_other_boot), (None, false), "step {step}");
            assert_eq!(loaded.ledger, ledger, "step {step}");
            work(&mut store, &mut ledger).expect("the next start");
            assert_eq!(reopen(&test).1, ledger, "step {step}");
            if worked.is_ok() {
                assert!(step > 30, "{step} steps");
                break;
            }
        }
    }

    #[test]
    fn an_error_at_each_step_is_returned_and_loses_no_change() {
        for fault in [Fault::Errno, Fault::Lasting] {
            for step in 0.. {
                let test = TestFolder::new();
                let disk = TestDisk::failing(step, fault(libc::ENOSPC));
                let disk = Arc::new(disk);
                let mut ledger = Ledger::default();
                let opened = LedgerStore::open(Arc::clone(&disk), test.state(), BOOT);
                let worked = match opened {
                    Ok((mut store, _)) => {
                        let worked = work(&mut store, &mut ledger);
                        if worked.is_err() && matches!(fault(0), Fault::Errno(_)) {
                            // The disk has space again.
                            work(&mut store, &mut ledger).expect("the fault is over");
                        }
                        worked
                    }
                    Err(error) => Err(error),
                };
                let is_over = disk.steps.lock().len() <= step;
                assert_eq!(worked.is_ok(), is_over, "step {step}: {worked:?}");
                let (_, loaded) = open(&test);
                assert_eq!((loaded.problem, loaded.ledger), (None, ledger), "step {step}");
                if is_over {
                    break;
                }
            }
        }
    }

    /// Both files are refused by a sentence that names the file and both versions, and stay.
    #[test]
    fn files_of_another_version_are_refused_and_stay_as_they_are() {
        for (name, text, file) in [
            (LEDGER, "latchfs ledger 2\nof a later version", "the ledger"),
            (CHANGES, "latchfs changes 2 of a later version\n", "the change log 'changes'"),
        ] {
            let (test, _) = filled();
            fs::write(test.state_path(name), text).expect("written");
            let files =
                || [LEDGER, CHANGES].map(|it| fs::read(test.state_path(it)).expect("there"));
            let before = files();
            let opened = open_with(&test, TestDisk::default(), BOOT).map(drop);
            let read = read_ledger(&TestDisk::default(), &test.state()).map(drop);
            for refused in [opened, read] {
                let said = refused.expect_err("another version").to_string();
                let both = format!("{file} has version 2, and this latchfs knows version 1");
                assert!(said.starts_with(&both), "{said}");
            }
            assert_eq!(files(), before);
            assert!(!test.state_path(DAMAGED).exists());
        }
    }

    /// Returns files with a saved ledger and changes after it.
    fn filled() -> (TestFolder, Ledger) {
        let test = TestFolder::new();
        let (mut store, mut ledger) = reopen(&test);
        store.record(&mut ledger, &ChangeRecord::Own(HandoverId(5))).expect("there is space");
        store.save(&ledger).expect("there is space");
        for record in records() {
            store.record(&mut ledger, &record).expect("there is space");
        }
        (test, ledger)
    }

    #[test]
    fn a_damaged_ledger_is_reported_and_only_the_changed_paths_are_kept() {
        type Damage = fn(&TestFolder);
        let damage: [(Damage, StoreProblem); 5] = [
            (
                |test| fs::remove_file(test.state_path(LEDGER)).expect("there"),
                StoreProblem::Missing,
            ),
            (
                |test| {
                    let path = test.state_path(LEDGER);
                    let mut bytes = fs::read(&path).expect("there");
                    bytes[20] ^= 1;
                    fs::write(path, bytes).expect("written");
                },
                StoreProblem::Ledger(LedgerError::Damaged),
            ),
            (
                |test| TestFolder::make_sparse(&test.state_path(LEDGER), LEDGER_BYTES_MAX + 1),
                StoreProblem::Ledger(LedgerError::TooLarge),
            ),
            (
                |test| {
                    let mut older = Ledger::default();
                    older.record_own(HandoverId(9));
                    fs::write(test.state_path(LEDGER), older.save()).expect("written");
                },
                StoreProblem::Changes,
            ),
            (
                |test| fs::remove_file(test.state_path(CHANGES)).expect("there"),
                StoreProblem::Changes,
            ),
        ];
        for (damage, wanted) in damage {
            let (test, whole) = filled();
            damage(&test);
            let mut kept = Ledger::default();
            if test.state_path(CHANGES).exists() {
                let is_own = |record: &ChangeRecord| matches!(record, ChangeRecord::Own(_));
                records().iter().filter(|it| !is_own(it)).for_each(|it| it.apply(&mut kept));
                assert_eq!(kept.log(), whole.log());
            }
            let (_, loaded) = open(&test);
            assert_eq!(loaded.problem, Some(wanted));
            assert_eq!(loaded.ledger, kept, "{wanted:?}");
            assert!(!loaded.ledger.is_own(HandoverId(5)) && !loaded.ledger.is_own(HandoverId(9)));
            let is_damaged = matches!(wanted, StoreProblem::Ledger(_));
            assert_eq!(test.state_path(DAMAGED).exists(), is_damaged);
            let said = wanted.to_string();
            assert!(said.ends_with("compared with its markers as on a new machine"), "{said}");
            let (mut store, loaded) = open(&test);
            assert_eq!((loaded.problem, &loaded.ledger), (None, &kept), "it is reported once");
            work(&mut store, &mut kept).expect("there is space");
            assert_eq!(open(&test).1.ledger, kept);
        }
    }

    #[test]
    fn a_kill_while_a_damaged_ledger_is_replaced_loses_no_changed_path() {
        for step in 0.. {
            let (test, whole) = filled();
            fs::write(test.state_path(LEDGER), b"damaged").expect("written");
            let disk = TestDisk::failing(step, Fault::Kill);
            let opened = catch_unwind(AssertUnwindSafe(|| open_with(&test, disk, BOOT).map(drop)));
            let (_, loaded) = open(&test);
            assert_eq!(loaded.ledger.log(), whole.log(), "step {step}");
            assert!(!loaded.ledger.is_own(HandoverId(5)));
            if opened.is_ok() {
                break;
            }
        }
    }

    #[test]
    fn a_damaged_beginning_of_the_log_is_reported() {
        let (test, _) = filled();
        let path = test.state_path(CHANGES);
        let mut bytes = fs::read(&path).expect("there");
        bytes[30] ^= 1;
        fs::write(&path, &bytes[..]).expect("written");
        let (_, loaded) = open(&test);
        assert_eq!((loaded.problem, loaded.ledger.log().is_empty()), (None, false), "another boot");
        assert!(loaded.is_other_boot);
        bytes[3] ^= 1;
        fs::write(&path, &bytes[..]).expect("written");
        let (_, loaded) = open(&test);
        assert_eq!(loaded.problem, Some(StoreProblem::Changes));
        assert_eq!((loaded.ledger, loaded.is_other_boot), (Ledger::default(), true));
    }

    #[test]
    fn another_boot_is_reported_until_the_folder_was_compared() {
        let (test, ledger) = filled();
        let other = || open_with(&test, TestDisk::default(), BOOT + 1).expect("readable");
        assert!(!open(&test).1.is_other_boot);
        let (mut store, loaded) = other();
        assert!(loaded.is_other_boot && loaded.problem.is_none());
        assert_eq!(loaded.ledger, ledger);
        store.save(&ledger).expect("there is space");
        let (mut store, loaded) = other();
        assert!(loaded.is_other_boot, "the folder was not compared");
        store.compared();
        store.save(&ledger).expect("there is space");
        assert!(!other().1.is_other_boot);
        assert!(open(&test).1.is_other_boot);
    }

    #[test]
    fn the_change_log_has_a_bound() {
        let test = TestFolder::new();
        let (mut store, mut ledger) = reopen(&test);
        let record = &records()[0];
        let line = LogLine::Change(record.clone()).write().expect("memory suffices");
        store.length = CHANGES_BYTES_MAX - line.len() as u64;
        store.append(record).expect("the last one");
        let error = store.append(record).expect_err("it is full").to_string();
        assert!(error.contains("268435456 bytes"), "{error}");
        TestFolder::make_sparse(&test.state_path(CHANGES), CHANGES_BYTES_MAX + 1);
        let (mut store, loaded) = open(&test);
        assert_eq!(loaded.problem, Some(StoreProblem::Changes));
        assert_eq!(loaded.dropped_bytes, CHANGES_BYTES_MAX + 1);
        // A long log is folded into the ledger.
        store.fold_at = store.length + 2 * line.len() as u64;
        for _ in 0..3 {
            store.record(&mut ledger, record).expect("there is space");
        }
        assert_eq!(fs::read(test.state_path(CHANGES)).expect("there").len() as u64, store.length);
        assert!(store.length < store.fold_at - FOLD_BYTES + line.len() as u64);
        assert_eq!(open(&test).1.ledger, ledger);
    }
}
