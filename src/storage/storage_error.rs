//! The errors of the state directory, and their messages.

use super::locked_dir::{PlaceError, Role};
use std::io;
use std::path::{Path, PathBuf};
use std::{error, fmt};

/// Why the state directory cannot be used.
#[derive(Debug)]
pub enum StateError {
    /// The directory cannot be locked, read or written.
    Place(PlaceError),
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

impl From<PlaceError> for StateError {
    fn from(error: PlaceError) -> Self {
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
