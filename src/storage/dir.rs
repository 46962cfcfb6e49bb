//! The state directory: its lock and the list of its files.
//!
//! The errors of the state directory, and their messages.

use super::atomic_file::{self, Durable, TEMPORARY, crash, write_new, write_parts};
use super::locked_dir::{DirLock, LockedDirError, Role};
use crate::storage::manifest::{NumberFile, NumberFileError, VERSION};
use log::warn;
use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::{error, fmt, fs, io};

/// The content of the `README` file in the state directory.
const README: &str = "\
This is the state of a latchfs daemon: what it must still know after a restart.

  tokens      fencing tokens below this number may have been handed out
  snapshot.N  all locks at one moment
  journal.N   what happened to them since
  clean       there while the daemon is stopped, if it stopped in an orderly way
  audit.log   who took a live lock away from whom, and why
  audit.head  the last line of audit.log, so that a cut end is found
  expired.log which leases expired, and who took their locks over
  refused.log whose requests were refused, and how many
  lock        locked (flock) by the daemon that uses this directory; holds its process id

Don't edit or copy these files while a daemon runs. To forget all locks, stop the daemon and
move journal.* and snapshot.* away. Keep `tokens`: without it fencing tokens would begin at 1
again, and a resource that checks them would accept a stale holder.
";

/// An open directory, locked against other processes.
#[derive(Debug)]
pub(super) struct Dir {
    path: PathBuf,
    _lock: DirLock,
}

/// The journals and snapshots in a state directory, by their generations (the N in `journal.N` and
/// `snapshot.N`), in rising order.
#[derive(Debug, Default)]
pub(super) struct StateFiles {
    path: PathBuf,
    pub(super) journals: Vec<u64>,
    pub(super) snapshots: Vec<u64>,
    temporary: Vec<PathBuf>,
}

impl Dir {
    /// Opens and locks the directory, and creates it if it does not exist.
    pub(super) fn open(path: &Path) -> Result<Self, StateError> {
        let at = |error| StateError::io(path, error);
        match fs::metadata(path) {
            Ok(found) if !found.is_dir() => return Err(Role::State.not_a_directory(path).into()),
            Ok(found) if found.permissions().mode() & 0o022 != 0 => {
                warn!("the state directory is writable by other users {}", path.display());
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                atomic_file::make_dir(path).map_err(at)?;
            }
            Err(error) => return Err(at(error)),
        }
        let (path, lock) = Role::State.take(path)?;
        let dir = Self { path, _lock: lock };
        for left_over in dir.list()?.temporary {
            fs::remove_file(&left_over).map_err(|error| StateError::io(&left_over, error))?;
        }
        dir.explain();
        Ok(dir)
    }

    /// Returns a directory that the caller has locked, as it is.
    pub(super) fn locked(path: &Path, lock: File) -> Self {
        Self { path: path.to_owned(), _lock: DirLock(lock) }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn journal(&self, generation: u64) -> PathBuf {
        self.path.join(format!("journal.{generation}"))
    }

    pub(super) fn snapshot(&self, generation: u64) -> PathBuf {
        self.path.join(format!("snapshot.{generation}"))
    }

    pub(super) fn clean(&self) -> PathBuf {
        self.path.join(NumberFile::CLEAN)
    }

    pub(super) fn list(&self) -> Result<StateFiles, StateError> {
        let at = |error| StateError::io(&self.path, error);
        let mut listing = StateFiles { path: self.path.clone(), ..StateFiles::default() };
        for entry in fs::read_dir(&self.path).map_err(at)? {
            let name = entry.map_err(at)?.file_name();
            // The names of state files are ASCII, so a name that is not UTF-8 belongs to another
            // program.
            listing.add(name.to_str().unwrap_or_default());
        }
        listing.journals.sort_unstable();
        listing.snapshots.sort_unstable();
        Ok(listing)
    }

    pub(super) fn replace_sheet(&self, sheet: &NumberFile) -> io::Result<()> {
        let path = self.path.join(sheet.name());
        atomic_file::replace(&path, &[sheet.to_text().as_bytes()], Durable::Yes).map(drop)
    }

    pub(super) fn write_sheet(&self, sheet: &NumberFile) -> Result<(), StateError> {
        let path = self.path.join(sheet.name());
        self.replace_sheet(sheet).map_err(|error| StateError::io(&path, error))
    }

    /// Reads a number file; `None` if it does not exist.
    pub(super) fn read_sheet(&self, name: &str) -> Result<Option<NumberFile>, StateError> {
        let file = self.path.join(name);
        let text = match fs::read(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(StateError::io(&file, error)),
        };
        match NumberFile::parse(name, &text) {
            Ok(sheet) => Ok(Some(sheet)),
            Err(NumberFileError::Version(found)) => {
                Err(StateError::UnknownVersion { file, found, known: VERSION })
            }
            Err(NumberFileError::Damaged) if name == NumberFile::TOKENS => {
                Err(StateError::TokensDamaged(file))
            }
            Err(NumberFileError::Damaged) => {
                Err(StateError::damaged(&file, 0, "it has the wrong sum"))
            }
        }
    }

    /// Syncs a file and its directory entry to disk.
    pub(super) fn sync(&self, path: &Path) -> io::Result<()> {
        crash::point()?;
        File::open(path)?.sync_all()?;
        self.sync_names()
    }

    /// Removes the files that exist, and syncs the directory.
    pub(super) fn remove_durably(&self, paths: &[PathBuf]) -> Result<(), StateError> {
        let mut removed = false;
        for path in paths {
            match crash::point().and_then(|()| fs::remove_file(path)) {
                Ok(()) => removed = true,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(StateError::io(path, error)),
            }
        }
        let synced = if removed { self.sync_names() } else { Ok(()) };
        synced.map_err(|error| StateError::io(&self.path, error))
    }

    fn sync_names(&self) -> io::Result<()> {
        atomic_file::sync_names(&self.path)
    }

    /// Writes a README for users. Errors are ignored, so that a state on a full disk can still be
    /// opened.
    fn explain(&self) {
        let path = self.path.join("README");
        if !path.exists() {
            let _ = write_new(&path, Durable::No, |file| write_parts(file, &[README.as_bytes()]));
        }
    }
}

impl StateFiles {
    fn add(&mut self, name: &str) {
        let whole = name.strip_suffix(TEMPORARY);
        let ours = |name: &str| matches!(name, NumberFile::TOKENS | NumberFile::CLEAN);
        match (generation_in(whole.unwrap_or(name)), whole) {
            (Some(_), Some(_)) => self.temporary.push(self.path.join(name)),
            (None, Some(whole)) if ours(whole) => self.temporary.push(self.path.join(name)),
            (Some(("journal", generation)), None) => self.journals.push(generation),
            (Some((_, generation)), None) => self.snapshots.push(generation),
            (None, _) => {}
        }
    }

    /// Returns the journals and snapshots that a snapshot makes obsolete: those with a lower number
    /// in their name than its `generation`.
    pub(super) fn older_than(&self, generation: u64) -> Vec<PathBuf> {
        let old = |kind: &str, all: &[u64]| -> Vec<PathBuf> {
            let old = all.iter().filter(|found| **found < generation);
            old.map(|found| self.path.join(format!("{kind}.{found}"))).collect()
        };
        [old("snapshot", &self.snapshots), old("journal", &self.journals)].concat()
    }
}

/// Splits `journal.12` into `("journal", 12)`. Returns `None` for a number in any other notation:
/// another program made the file.
fn generation_in(name: &str) -> Option<(&str, u64)> {
    let (kind, number) = name.split_once('.')?;
    let generation = number.parse::<u64>().ok()?;
    let ours = matches!(kind, "journal" | "snapshot") && generation.to_string() == number;
    (ours && generation > 0).then_some((kind, generation))
}

/// Why the state directory cannot be used.
#[derive(Debug)]
pub enum StateError {
    /// The directory cannot be locked, read or written.
    Place(LockedDirError),
    /// The content of a file is inconsistent.
    Damaged {
        /// The damaged file.
        file: PathBuf,
        /// The offset of the first damaged byte.
        offset: u64,
        /// A description of the damage.
        why: String,
    },
    /// A required file is missing.
    Missing(PathBuf),
    /// The file `tokens` is missing although there are journals or snapshots.
    TokensMissing(PathBuf),
    /// The file `tokens` is damaged.
    TokensDamaged(PathBuf),
    /// A file was written by another version of latchfs.
    UnknownVersion {
        /// The path of the file that was written by another version.
        file: PathBuf,
        /// The version of the file.
        found: u32,
        /// The version that this latchfs knows.
        known: u32,
    },
    /// The files are intact, but the records or the snapshot in them cannot be decoded.
    Unreadable(String),
}

impl StateError {
    /// Converts an I/O error on `path`.
    pub(crate) fn io(path: &Path, error: io::Error) -> Self {
        Role::State.io(path, error).into()
    }

    pub(super) fn damaged(file: &Path, offset: u64, why: impl Into<String>) -> Self {
        Self::Damaged { file: file.to_path_buf(), offset, why: why.into() }
    }
}

/// The advice in the error message if journals or snapshots are lost: if the user keeps the file
/// `tokens`, new fencing tokens are above all earlier ones.
const BEGIN_WITHOUT_LOCKS: &str = "put back a backup of the whole directory; or, to begin with no \
    locks held, move its files journal.* and snapshot.* away and leave the file tokens, so that \
    fencing tokens go on rising";

/// The advice in the error message if it is unknown which fencing tokens were issued.
const TOKENS_UNKNOWN: &str = "so the next fencing token is not known; put it back from a \
    backup, or move the whole directory away, and know that tokens then begin at 1 again";

impl fmt::Display for StateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Place(error) => error.fmt(f),
            Self::Damaged { file, offset, why } => write!(
                f,
                "{} is damaged at byte {offset}: {why}; {BEGIN_WITHOUT_LOCKS}",
                file.display()
            ),
            Self::Missing(file) => {
                write!(f, "{} is missing; {BEGIN_WITHOUT_LOCKS}", file.display())
            }
            Self::TokensMissing(path) => {
                write!(f, "{} is missing, {TOKENS_UNKNOWN}", path.display())
            }
            Self::TokensDamaged(path) => {
                write!(f, "{} is damaged, {TOKENS_UNKNOWN}", path.display())
            }
            Self::UnknownVersion { file, found, known } => write!(
                f,
                "{} has version {found}, and this latchfs knows version {known}; start the latchfs \
                 that wrote it, or name another state directory with --state DIR",
                file.display()
            ),
            Self::Unreadable(why) => {
                write!(f, "the state can't be understood: {why}; {BEGIN_WITHOUT_LOCKS}")
            }
        }
    }
}

impl From<LockedDirError> for StateError {
    fn from(error: LockedDirError) -> Self {
        Self::Place(error)
    }
}

impl error::Error for StateError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Self::Place(error) => error.source(),
            _ => None,
        }
    }
}
