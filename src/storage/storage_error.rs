//! Why the state directory can't be used, in sentences.

use super::locked_dir::{PlaceError, Role};
use std::io;
use std::path::{Path, PathBuf};
use std::{error, fmt};

/// Why the state directory can't be used.
#[derive(Debug)]
pub enum StateError {
    /// It can't be had, or not be read or written.
    Place(PlaceError),
    /// A file is not what was written.
    Damaged {
        /// The damaged file.
        file: PathBuf,
        /// The offset of the first damaged byte.
        offset: u64,
        /// A description of the damage.
        why: String,
    },
    /// A file that must be there is not.
    Missing(PathBuf),
    /// The ceiling of the tokens is not there, but locks are.
    TokensMissing(PathBuf),
    /// The ceiling of the tokens can't be read.
    TokensDamaged(PathBuf),
    /// A file was written by another version of latchfs.
    UnknownVersion {
        /// Which.
        file: PathBuf,
        /// Its format.
        found: u32,
        /// The only format known here.
        known: u32,
    },
    /// The bytes are whole, but whoever wrote them can't make sense of them.
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

/// The way on when files of locks are lost: it keeps the tokens rising.
const BEGIN_WITHOUT_LOCKS: &str = "put back a backup of the whole directory; or, to begin with no \
    locks held, move its files journal.* and snapshot.* away and leave the file tokens, so that \
    fencing tokens go on rising";

/// The way on when it is not known which tokens were handed out.
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
                "{} has format {found}, and this latchfs knows format {known} only; start the \
                 latchfs that wrote it, or name another state directory with --state DIR",
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
