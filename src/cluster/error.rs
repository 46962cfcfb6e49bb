//! Why the data directory can't be used, in sentences.

use crate::locks::state::place::{PlaceError, Role};
use std::io;
use std::path::{Path, PathBuf};
use std::{error, fmt};

/// Why the data directory can't be used.
#[derive(Debug)]
pub enum DataError {
    /// It can't be had, or not be read or written.
    Place(PlaceError),
    /// It holds something else than a log.
    Foreign(PathBuf),
    /// A file is not what was written.
    Damaged {
        /// Which.
        file: PathBuf,
        /// What does not fit.
        why: String,
    },
    /// What must be there is not.
    Missing(PathBuf),
    /// A newer latchfs wrote it.
    Newer {
        /// Which file.
        file: PathBuf,
        /// How it differs.
        why: String,
    },
    /// The node stopped before it could begin.
    Stopped(PathBuf, String),
}

impl DataError {
    /// What the system said about `path`.
    pub(super) fn io(path: &Path, error: io::Error) -> Self {
        Role::Data.io(path, error).into()
    }

    /// What the log says about its directory: what is not an error of the system is damage.
    pub(super) fn of_log(dir: &Path, error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::Unsupported => {
                Self::Newer { file: dir.to_path_buf(), why: error.to_string() }
            }
            io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof | io::ErrorKind::Other => {
                Self::damaged(dir, error.to_string())
            }
            _ => Self::io(dir, error),
        }
    }

    pub(super) fn damaged(file: &Path, why: impl Into<String>) -> Self {
        Self::Damaged { file: file.to_path_buf(), why: why.into() }
    }
}

/// The way on when what was promised is lost.
const BEGIN_ANEW: &str = "put back a backup of the whole directory; or move the directory away and \
    begin with an empty one, and know that no lock is held then and tokens begin at 1 again";

impl fmt::Display for DataError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Place(error) => error.fmt(f),
            Self::Foreign(path) => write!(
                f,
                "{} is there, so this is no data directory; if it is a state directory, name it \
                 with --state DIR, else name an empty one with --data DIR",
                path.display()
            ),
            Self::Damaged { file, why } => {
                write!(f, "{} is damaged: {why}; {BEGIN_ANEW}", file.display())
            }
            Self::Missing(file) => write!(f, "{} is missing; {BEGIN_ANEW}", file.display()),
            Self::Newer { file, why } => write!(
                f,
                "{} was written by a newer latchfs: {why}; start that one, or name another data \
                 directory with --data DIR",
                file.display()
            ),
            Self::Stopped(path, why) => write!(
                f,
                "the node in {} stopped before it could begin: {why}; mend that, and start again",
                path.display()
            ),
        }
    }
}

impl From<PlaceError> for DataError {
    fn from(error: PlaceError) -> Self {
        Self::Place(error)
    }
}

impl error::Error for DataError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Self::Place(error) => error.source(),
            _ => None,
        }
    }
}
