//! The connection of the watcher of `latchfs run --guard` with the guard, which takes the end of
//! the connection for the end of the program.

use super::folder_requests::FolderConnection;
use super::guard_endpoint::GuardEndpoint;
#[cfg(target_os = "linux")]
use crate::fuse::kernel::mountinfo;
use crate::time::Span;
use serde_json::Value;
#[cfg(target_os = "linux")]
use std::fs::{File, OpenOptions};
use std::io;
#[cfg(target_os = "linux")]
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};

/// How long the watcher waits for the answer of a guard without a view. Who waits for the watcher
/// has a bound of its own.
const ANSWER_PATIENCE: Span = Span::from_secs(24 * 3_600);

/// A connection with a guard, which lasts as long as the program uses the lock.
pub(super) enum GuardLink {
    /// The control file of a view.
    #[cfg(target_os = "linux")]
    View(File),
    /// The socket of a guard without a view.
    Folder(FolderConnection),
}

impl GuardLink {
    /// Connects to a guard that runs.
    pub(super) fn open(endpoint: &GuardEndpoint) -> io::Result<Self> {
        match endpoint {
            #[cfg(target_os = "linux")]
            GuardEndpoint::View(view) => {
                let ctl = view.dir.join(".latchfs/ctl");
                Ok(Self::View(OpenOptions::new().read(true).write(true).open(ctl)?))
            }
            GuardEndpoint::Folder(folder) => match folder.connect() {
                Ok(Some(connection)) => Ok(Self::Folder(connection)),
                _ => Err(io::ErrorKind::ConnectionRefused.into()),
            },
        }
    }

    /// Sends a request to the guard, and returns its answer as a line.
    pub(super) fn exchange(&mut self, request: &Value) -> io::Result<String> {
        match self {
            #[cfg(target_os = "linux")]
            Self::View(ctl) => {
                ctl.seek(SeekFrom::Start(0))?;
                ctl.write_all(format!("{request}\n").as_bytes())?;
                ctl.seek(SeekFrom::Start(0))?;
                let mut answer = String::new();
                ctl.read_to_string(&mut answer)?;
                Ok(answer)
            }
            Self::Folder(connection) => {
                connection.send(request)?;
                let answer = connection.receive(ANSWER_PATIENCE)?;
                let answer = answer.ok_or(io::ErrorKind::TimedOut)?;
                Ok(String::from_utf8_lossy(&answer).into_owned())
            }
        }
    }

    /// Whether no more answers come after this error.
    pub(super) fn is_over(&self, error: &io::Error) -> bool {
        match self {
            #[cfg(target_os = "linux")]
            Self::View(_) => mountinfo::is_dead(error),
            Self::Folder(_) => {
                log::debug!("the guard can't be asked any more: {error}");
                true
            }
        }
    }
}
