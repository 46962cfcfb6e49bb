//! Requests to the guard of a folder that has no view, through its Unix socket.

use super::background;
use super::exit::{CliError, CliResult};
use super::folder_options::PlaceArgs;
use super::guard_answers::{Waits, parsed, progress_of};
use super::output;
use crate::guard::folder_record::FolderRecord;
use crate::guard::without_view::listener::socket_path;
use crate::os_error::said;
use crate::time::Span;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// How long a guard may take to answer a question about its state, and how long a request waits
/// before this process says what it waits for.
const ANSWER_PATIENCE: Span = Span::from_millis(1_500);
/// The maximum length of an answer in bytes.
const FOLDER_ANSWER_BYTES_MAX: usize = 4 << 20;

/// A guarded folder that programs change directly.
#[derive(Debug, Clone)]
pub(super) struct PlainFolder {
    /// The real path of the folder.
    pub(super) dir: PathBuf,
    pub(super) record: FolderRecord,
    pub(super) state: PathBuf,
    /// The directory of this machine in the state directory.
    pub(super) host: PathBuf,
}

/// A connection to the guard of a folder. Requests are made one after the other.
pub(super) struct FolderConnection(UnixStream);

impl PlainFolder {
    /// Returns the guarded folder in which a path lies, if it lies in one.
    pub(super) fn around(path: &Path, place: &PlaceArgs) -> CliResult<Option<Self>> {
        let Ok(real) = path.canonicalize() else { return Ok(None) };
        let record_of = |dir: &Path| Some((dir.to_owned(), FolderRecord::read(dir).ok()?));
        let Some((dir, record)) = real.ancestors().find_map(record_of) else { return Ok(None) };
        let state = place.state()?;
        let host = state.join(&record.id).join(place.client()?.as_str());
        Ok(Some(Self { dir, record, state, host }))
    }

    /// Connects to the guard; `None` if there is none.
    pub(super) fn connect(&self) -> CliResult<Option<FolderConnection>> {
        match UnixStream::connect(socket_path(&self.host)) {
            Ok(stream) => Ok(Some(FolderConnection(stream))),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
                ) =>
            {
                Ok(None)
            }
            Err(error) => Err(self.failed(&error)),
        }
    }

    /// Connects to the guard, which is started by `latchfs` with these arguments if there is none.
    pub(super) fn connect_or_start(&self, args: &[OsString]) -> CliResult<FolderConnection> {
        if let Some(connection) = self.connect()? {
            return Ok(connection);
        }
        let started = background::start_with(args, Some(&self.state));
        match self.connect()? {
            Some(connection) => Ok(connection),
            None => Err(started.err().unwrap_or_else(|| self.none())),
        }
    }

    /// Returns the state of the folder without a guard.
    pub(super) fn status(&self) -> Value {
        json!({
            "folder": self.dir.display().to_string(),
            "state_dir": self.host.display().to_string(),
            "lock": self.record.lock(),
            "state": "reading",
            "tenure": null,
            "next": "no guard runs for the folder on this machine; run 'latchfs guard take' before \
                     you change the folder",
        })
    }

    /// Returns the error of a request that needs a guard.
    pub(super) fn none(&self) -> CliError {
        let dir = self.dir.display();
        CliError::unavailable(format!(
            "no guard runs for {dir} on this machine, so it does not hold the lock; take it with \
             'latchfs guard take {dir}'"
        ))
    }

    fn failed(&self, error: &io::Error) -> CliError {
        let dir = self.dir.display();
        CliError::unavailable(format!(
            "the guard of {dir} can't be asked: {}; it belongs to the user who started it",
            said(error)
        ))
    }

    /// Sends a request, and returns its answer. Says on standard error what it waits for.
    pub(super) fn ask(
        &self,
        connection: &FolderConnection,
        request: &Value,
        waits: Waits,
    ) -> CliResult<Value> {
        connection.send(request).map_err(|error| self.failed(&error))?;
        let mut told = String::new();
        loop {
            match connection.receive(ANSWER_PATIENCE).map_err(|error| self.failed(&error))? {
                Some(answer) => return parsed(&answer),
                None if waits == Waits::Never => {
                    let dir = self.dir.display();
                    return Err(CliError::unavailable(format!(
                        "the guard of {dir} has not answered for {ANSWER_PATIENCE}; look for its \
                         process with 'ps', and let it go on or end it"
                    )));
                }
                None => self.tell_progress(&mut told),
            }
        }
    }

    fn tell_progress(&self, told: &mut String) {
        let Ok(Some(connection)) = self.connect() else { return };
        let Ok(status) = self.ask(&connection, &json!({"do": "status"}), Waits::Never) else {
            return;
        };
        let waits_for = progress_of(&status);
        if !waits_for.is_empty() && waits_for != *told {
            output::progress(&format!("waiting: {waits_for}"));
            *told = waits_for;
        }
    }
}

impl FolderConnection {
    /// Sends a request.
    pub(super) fn send(&self, request: &Value) -> io::Result<()> {
        (&self.0).write_all(format!("{request}\n").as_bytes())
    }

    /// Receives a line, byte by byte, so that the next one stays in the socket. Returns `None` if
    /// nothing comes for so long.
    pub(super) fn receive(&self, patience: Span) -> io::Result<Option<Vec<u8>>> {
        self.0.set_read_timeout(Some(patience.as_duration()))?;
        let (mut line, mut byte) = (Vec::new(), [0]);
        while !line.ends_with(b"\n") {
            match (&self.0).read(&mut byte) {
                Ok(1..) if line.len() < FOLDER_ANSWER_BYTES_MAX => line.push(byte[0]),
                Ok(1..) => return Err(io::ErrorKind::FileTooLarge.into()),
                Ok(0) => return Err(io::Error::other("it ended without an answer; try again")),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && line.is_empty() => {
                    return Ok(None);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Some(line))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_of_a_guard_has_a_bound() {
        let (own, other) = UnixStream::pair().expect("a pair");
        let connection = FolderConnection(own);
        assert_eq!(connection.receive(Span::from_millis(1)).expect("nothing yet"), None);
        (&other).write_all(b"{}\n{").expect("written");
        let line = connection.receive(ANSWER_PATIENCE).expect("a line");
        assert_eq!(line.as_deref(), Some(&b"{}\n"[..]));
        let flood =
            std::thread::spawn(move || while (&other).write_all(&[b'x'; 1 << 12]).is_ok() {});
        let long = connection.receive(ANSWER_PATIENCE).expect_err("no line");
        assert_eq!(long.kind(), io::ErrorKind::FileTooLarge);
        drop(connection);
        flood.join().expect("it ends with the connection");
    }
}
