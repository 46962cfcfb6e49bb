//! The guard that a command is about: that of a view, or that of a folder without one.
//!
//! Requests to the guard of a folder that has no view, through its Unix socket.
//!
//! The answers of guards, whether they have a view or not.
//!
//! The file `view` in the directory of a machine: where its guard shows the folder. It stays when
//! the guard is killed, so that `doctor --strict` misses the view.

#[cfg(target_os = "linux")]
use super::view_requests;
use crate::base::said;
use crate::cli::argument_types::absolute;
use crate::cli::background;
use crate::cli::exit::{CliError, CliResult, Exit};
use crate::cli::guard::guard_parts::PlaceArgs;
use crate::cli::output;
use crate::engine::RefusalKind;
use crate::guard::folder::folder_record::FolderRecord;
use crate::guard::without_view::socket_path;
use crate::storage::atomic_file::{Durable, replace};
use crate::time::Span;
#[cfg(target_os = "linux")]
use kernel::machine_facts::own_uid;
#[cfg(target_os = "linux")]
use kernel::mountinfo::{self, MountPoint};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// The view or the folder that a command is about.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct EndpointArgs {
    /// The view, or the folder where it has none [default: the one that contains the current
    /// directory, or the only view]
    #[arg(value_name = "VIEW|FOLDER")]
    given: Option<PathBuf>,
    #[command(flatten)]
    place: PlaceArgs,
}

/// A guard that takes requests.
pub(in crate::cli) enum GuardEndpoint {
    /// The guard of a view.
    #[cfg(target_os = "linux")]
    View(MountPoint),
    /// The guard of a folder that has no view, which may not run.
    Folder(PlainFolder),
}

impl EndpointArgs {
    /// Returns the place of a guard without a view.
    pub(in crate::cli) const fn place(&self) -> &PlaceArgs {
        &self.place
    }

    /// Returns the guard that the arguments name.
    pub(in crate::cli) fn find(&self) -> CliResult<GuardEndpoint> {
        GuardEndpoint::find(self.given.as_deref(), &self.place)
    }
}

#[cfg(target_os = "linux")]
fn views() -> CliResult<Vec<MountPoint>> {
    let mounts =
        mountinfo::read().map_err(|error| CliError::system("the mounts can't be read", &error))?;
    Ok(mounts.into_iter().filter(MountPoint::is_view).collect())
}

/// Returns the views of root and of this user: any user can show a view that tells anything.
#[cfg(target_os = "linux")]
fn own_views() -> CliResult<Vec<MountPoint>> {
    let mut views = views()?;
    views.retain(|view| view.mounter == 0 || view.mounter == own_uid());
    Ok(views)
}

/// Returns the view in which a path lies. One that lies in a view as it stands is not resolved,
/// because a guard that hangs would not answer.
#[cfg(target_os = "linux")]
fn view_around(path: &Path) -> CliResult<Option<GuardEndpoint>> {
    let mut views = views()?;
    let around = |dir: &Path| views.iter().rposition(|mount| dir.starts_with(&mount.dir));
    let found = around(path).or_else(|| around(&mountinfo::resolve(path).ok()?));
    Ok(found.map(|at| GuardEndpoint::View(views.swap_remove(at))))
}

/// Returns the view of a folder, if root or this user shows it.
#[cfg(target_os = "linux")]
fn view_of(folder: &Path) -> CliResult<Option<GuardEndpoint>> {
    let shows = |view: &MountPoint| {
        let status = view_requests::request(view, &json!({"do": "status"}), AnswerWait::Never);
        status.is_ok_and(|status| status["folder"].as_str().map(Path::new) == Some(folder))
    };
    Ok(own_views()?.into_iter().find(shows).map(GuardEndpoint::View))
}

/// Returns `None`: this system has no views.
#[cfg(not(target_os = "linux"))]
fn view_of(_folder: &Path) -> CliResult<Option<GuardEndpoint>> {
    Ok(None)
}

/// Returns `None`: this system has no views.
#[cfg(not(target_os = "linux"))]
fn view_around(_path: &Path) -> CliResult<Option<GuardEndpoint>> {
    Ok(None)
}

/// Returns the only view.
#[cfg(target_os = "linux")]
fn only_view() -> CliResult<GuardEndpoint> {
    let mut views = own_views()?;
    match views.len() {
        1 => Ok(GuardEndpoint::View(views.swap_remove(0))),
        0 => Err(CliError::unavailable(
            "no guarded folder is shown on this machine; show one with 'latchfs guard FOLDER \
             VIEW', or name a folder that has no view",
        )),
        _ => {
            let dirs = views.iter().map(|view| output::harmless(&view.dir.to_string_lossy()));
            Err(CliError::usage(format!(
                "several guarded folders are shown here, so name one of {}; 'latchfs guard ls' \
                 shows their states",
                dirs.collect::<Vec<_>>().join(", ")
            )))
        }
    }
}

/// Fails: this system has no views.
#[cfg(not(target_os = "linux"))]
fn only_view() -> CliResult<GuardEndpoint> {
    Err(CliError::usage("name the guarded folder, or go into it"))
}

impl GuardEndpoint {
    /// Returns the guards of all views that this user sees: for root, those of all users.
    pub(super) fn of_views() -> CliResult<Vec<Self>> {
        #[cfg(target_os = "linux")]
        let views = if own_uid() == 0 { views() } else { own_views() };
        #[cfg(target_os = "linux")]
        return Ok(views?.into_iter().map(Self::View).collect());
        #[cfg(not(target_os = "linux"))]
        Ok(Vec::new())
    }

    /// Returns the guard of the view or folder in which a path lies, or without one the current
    /// directory; else that of the only view.
    pub(in crate::cli) fn find(given: Option<&Path>, place: &PlaceArgs) -> CliResult<Self> {
        let found = Self::find_any(given, place)?;
        if place.is_given() && !matches!(found, Self::Folder(_)) {
            return Err(CliError::usage(
                "the guard of a view has --client and --stage itself; leave them out here",
            ));
        }
        Ok(found)
    }

    /// Returns the guard like [`Self::find`]. For a view `place` says where the state of its guard
    /// is, if that does not run any more.
    pub(in crate::cli) fn find_any(given: Option<&Path>, place: &PlaceArgs) -> CliResult<Self> {
        let path = match given {
            Some(given) => absolute(given)?,
            None => std::env::current_dir().unwrap_or_default(),
        };
        if let Some(view) = view_around(&path)? {
            return Ok(view);
        }
        if let Some(folder) = PlainFolder::around(&path, place)? {
            return Ok(Self::Folder(folder));
        }
        match given {
            None => only_view(),
            Some(given) => Err(CliError::unavailable(format!(
                "{} is no view of a guarded folder, and no guarded folder; show one with 'latchfs \
                 guard FOLDER VIEW', or make one with 'latchfs guard init'",
                given.display()
            ))),
        }
    }

    /// Returns the guard of the folder's view if this is a folder without a running guard: a guard
    /// may keep its state where only it knows (`--stage`). That guard takes paths in its view only.
    pub(in crate::cli) fn or_view(self) -> CliResult<Self> {
        let folder = match &self {
            #[cfg(target_os = "linux")]
            Self::View(_) => return Ok(self),
            Self::Folder(folder) => folder,
        };
        let view = if folder.connect()?.is_none() { view_of(&folder.dir)? } else { None };
        Ok(view.unwrap_or(self))
    }

    /// Returns the view, or the folder, in which paths lie.
    pub(in crate::cli) fn dir(&self) -> &Path {
        match self {
            #[cfg(target_os = "linux")]
            Self::View(view) => &view.dir,
            Self::Folder(folder) => &folder.dir,
        }
    }

    /// Sends a request to the guard, and returns its answer. `start`: the arguments of `latchfs`
    /// that start the guard of a folder without a view, if the request needs one.
    pub(in crate::cli) fn request(
        &self,
        request: &Value,
        waits: AnswerWait,
        start: Option<&[OsString]>,
    ) -> CliResult<Value> {
        match self {
            #[cfg(target_os = "linux")]
            Self::View(view) => view_requests::request(view, request, waits),
            Self::Folder(folder) => {
                let connection = match start {
                    Some(args) => folder.connect_or_start(args)?,
                    None => folder.connect()?.ok_or_else(|| folder.none())?,
                };
                folder.request(&connection, request, waits)
            }
        }
    }

    /// Waits until this machine holds the lock and everything is here.
    pub(in crate::cli) fn wait(&self) -> CliResult {
        match self {
            #[cfg(target_os = "linux")]
            Self::View(view) => view_requests::wait(view),
            Self::Folder(_) => {
                self.request(&json!({"do": "wait"}), AnswerWait::UntilStopped, None).map(drop)
            }
        }
    }

    /// Returns the state of the guard.
    pub(in crate::cli) fn status(&self) -> CliResult<Value> {
        let status = self.request(&json!({"do": "status"}), AnswerWait::Never, None);
        match self {
            // Looked at afterwards, since a guard may end while it is asked.
            Self::Folder(folder) if status.is_err() && folder.connect()?.is_none() => {
                Ok(folder.status())
            }
            _ => status,
        }
    }

    /// Returns the server that knows the lock of a folder whose guard does not run; `None` if the
    /// guard can be asked, or the folder has no server.
    pub(in crate::cli) fn server_without_guard(&self) -> Option<String> {
        match self {
            #[cfg(target_os = "linux")]
            Self::View(_) => None,
            Self::Folder(folder) => match folder.connect() {
                Ok(None) => folder.record.server.clone(),
                _ => None,
            },
        }
    }

    /// Returns the directory of this machine in the state directory of the folder.
    #[cfg_attr(not(target_os = "linux"), allow(irrefutable_let_patterns))]
    pub(in crate::cli) fn state_dir(&self) -> CliResult<PathBuf> {
        if let Self::Folder(folder) = self {
            return Ok(folder.host.clone());
        }
        let status = self.status()?;
        let dir = status["state_dir"].as_str().map(PathBuf::from);
        dir.ok_or_else(|| {
            CliError::unavailable(
                "the guard of the view does not say where its state is; name the directory",
            )
        })
    }
}

/// How long a guard may take to answer a question about its state, and how long a request waits
/// before this process says what it waits for.
const ANSWER_PATIENCE: Span = Span::from_millis(1_500);
/// The maximum length of an answer in bytes.
const FOLDER_ANSWER_BYTES_MAX: usize = 4 << 20;

/// A guarded folder that programs change directly.
#[derive(Debug, Clone)]
pub(in crate::cli) struct PlainFolder {
    /// The real path of the folder.
    pub(in crate::cli) dir: PathBuf,
    pub(in crate::cli) record: FolderRecord,
    pub(in crate::cli) state: PathBuf,
    /// The directory of this machine in the state directory.
    pub(in crate::cli) host: PathBuf,
}

/// A connection to the guard of a folder. Requests are made one after the other.
pub(in crate::cli) struct FolderConnection(UnixStream);

impl PlainFolder {
    /// Returns the guarded folder in which a path lies, if it lies in one.
    pub(in crate::cli) fn around(path: &Path, place: &PlaceArgs) -> CliResult<Option<Self>> {
        let Ok(real) = path.canonicalize() else { return Ok(None) };
        let record_of = |dir: &Path| Some((dir.to_owned(), FolderRecord::read(dir).ok()?));
        let Some((dir, record)) = real.ancestors().find_map(record_of) else { return Ok(None) };
        let state = place.state()?;
        let host = state.join(&record.id).join(place.client()?.as_str());
        Ok(Some(Self { dir, record, state, host }))
    }

    /// Connects to the guard; `None` if there is none.
    pub(in crate::cli) fn connect(&self) -> CliResult<Option<FolderConnection>> {
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
    pub(in crate::cli) fn status(&self) -> Value {
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
    pub(in crate::cli) fn none(&self) -> CliError {
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
    pub(in crate::cli) fn request(
        &self,
        connection: &FolderConnection,
        request: &Value,
        waits: AnswerWait,
    ) -> CliResult<Value> {
        connection.send(request).map_err(|error| self.failed(&error))?;
        let mut reported = String::new();
        loop {
            match connection.receive(ANSWER_PATIENCE).map_err(|error| self.failed(&error))? {
                Some(answer) => return parsed(&answer),
                None if waits == AnswerWait::Never => {
                    let dir = self.dir.display();
                    return Err(CliError::unavailable(format!(
                        "the guard of {dir} has not answered for {ANSWER_PATIENCE}; look for its \
                         process with 'ps', and let it go on or end it"
                    )));
                }
                None => self.report_progress(&mut reported),
            }
        }
    }

    fn report_progress(&self, reported: &mut String) {
        let Ok(Some(connection)) = self.connect() else { return };
        let Ok(status) = self.request(&connection, &json!({"do": "status"}), AnswerWait::Never)
        else {
            return;
        };
        let waits_for = progress_of(&status);
        if !waits_for.is_empty() && waits_for != *reported {
            output::progress(&format!("waiting: {waits_for}"));
            *reported = waits_for;
        }
    }
}

impl FolderConnection {
    /// Sends a request.
    pub(in crate::cli) fn send(&self, request: &Value) -> io::Result<()> {
        (&self.0).write_all(format!("{request}\n").as_bytes())
    }

    /// Receives a line, byte by byte, so that the next one stays in the socket. Returns `None` if
    /// nothing comes for so long.
    pub(in crate::cli) fn receive(&self, patience: Span) -> io::Result<Option<Vec<u8>>> {
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

/// How long a request waits for the guard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cli) enum AnswerWait {
    /// The guard must answer at once.
    Never,
    /// The guard may take its time, as long as its process was not stopped.
    UntilStopped,
}

/// Returns the answer of a guard, or the error that it names.
pub(in crate::cli) fn parsed(answer: &[u8]) -> CliResult<Value> {
    let answer: Value = serde_json::from_slice(answer)
        .map_err(|error| CliError::unavailable(format!("the guard's answer: {error}")))?;
    answered(answer)
}

/// Returns an answer, or the error that it names.
pub(in crate::cli) fn answered(answer: Value) -> CliResult<Value> {
    let Some(why) = answer["error"].as_str() else { return Ok(answer) };
    let kind = RefusalKind::ALL.into_iter().find(|kind| answer["code"] == kind.as_str());
    let exit = kind.map_or(Exit::Conflict, Exit::of);
    Err(CliError::Said(exit, why.to_owned()))
}

/// Returns what a guard waits for, as its state says.
pub(super) fn progress_of(status: &Value) -> String {
    let text = |name: &str| status[name].as_str().map(output::harmless);
    text("snapshot")
        .or_else(|| text("not_ready"))
        .or_else(|| text("excluded_by"))
        .or_else(|| match (text("holder"), text("holder_away_until")) {
            (Some(holder), Some(until)) => {
                Some(format!("{holder} holds the lock, and is away until {until}"))
            }
            (holder, _) => holder.map(|holder| format!("{holder} holds the lock")),
        })
        .or_else(|| text("trouble"))
        .unwrap_or_default()
}

/// Returns the directories of machines in a state directory, one for each folder.
pub(super) fn hosts(state: &Path) -> impl Iterator<Item = PathBuf> {
    let below = |dir: &Path| fs::read_dir(dir).into_iter().flatten().flatten();
    below(state).flat_map(move |id| below(&id.path())).map(|host| host.path())
}

/// Returns the state of the guard without a view that has this directory, if it answers.
pub(super) fn status_at(host: &Path) -> Option<Value> {
    let connection = FolderConnection(UnixStream::connect(socket_path(host)).ok()?);
    connection.send(&json!({"do": "status"})).ok()?;
    parsed(&connection.receive(ANSWER_PATIENCE).ok()??).ok()
}

/// The file name of the record of a view.
const NAME: &str = "view";

/// The folder and the view of a guard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::cli) struct ViewRecord {
    /// The guarded folder.
    pub(in crate::cli) folder: PathBuf,
    /// The directory at which the view is mounted.
    pub(in crate::cli) view: PathBuf,
    /// The servers that decide about the lock, if it is not an engine of the guard.
    #[serde(default)]
    pub(in crate::cli) server: Option<String>,
}

impl ViewRecord {
    /// Reads the record in the directory of a machine, if its guard has a view or was killed.
    pub(in crate::cli) fn read(host: &Path) -> Option<Self> {
        serde_json::from_slice(&fs::read(host.join(NAME)).ok()?).ok()
    }

    /// Writes the record. Only `doctor` needs it, so a failure is no reason to show no view.
    #[cfg_attr(not(target_os = "linux"), allow(dead_code))]
    pub(in crate::cli) fn note(host: &Path, folder: &Path, view: &Path, server: Option<String>) {
        let record = Self { folder: folder.to_owned(), view: view.to_owned(), server };
        if let Err(error) = record.write(host) {
            log::warn!("doctor would not miss the view: {error}");
        }
    }

    #[cfg_attr(not(target_os = "linux"), allow(dead_code))]
    fn write(&self, host: &Path) -> io::Result<()> {
        let text = serde_json::to_string(self).map_err(io::Error::other)?;
        replace(&host.join(NAME), &[text.as_bytes(), b"\n"], Durable::No).map(drop)
    }

    /// Removes the record: the view is not wanted any more.
    pub(in crate::cli) fn remove(host: &Path) {
        if let Err(error) = fs::remove_file(host.join(NAME)) {
            log::debug!("the record of the view stays: {error}");
        }
    }

    /// Returns the record of a view, with the directory of its machine, from those in a state
    /// directory.
    pub(in crate::cli) fn of_view(state: &Path, view: &Path) -> Option<(Self, PathBuf)> {
        hosts(state).find_map(|host| {
            let record = Self::read(&host).filter(|record| record.view == view)?;
            Some((record, host))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::net::UnixListener;

    /// A guard without a view ends after a `give`, at any moment of a question.
    #[test]
    fn a_guard_that_ends_while_it_is_asked_is_none() {
        let dir = std::env::temp_dir().join(format!("latchfs-ending-{}", std::process::id()));
        fs::create_dir(&dir).expect("the temporary directory can be written");
        let socket = socket_path(&dir);
        let guard = UnixListener::bind(&socket).expect("a short path");
        let ending = std::thread::spawn(move || {
            let (asked, _) = guard.accept().expect("a question");
            fs::remove_file(&socket).expect("there");
            drop((guard, asked));
        });
        let endpoint = GuardEndpoint::Folder(PlainFolder {
            dir: dir.clone(),
            record: FolderRecord::new(None, 1, false),
            state: dir.clone(),
            host: dir.clone(),
        });
        let status = endpoint.status().expect("the state without a guard");
        ending.join().expect("no panic");
        assert_eq!(status["state"], "reading");
        fs::remove_dir(dir).expect("empty");
    }

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
