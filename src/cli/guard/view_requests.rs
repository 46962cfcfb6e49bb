//! Requests to the guard of a view, through its files. The guard may hang, so that each is made by
//! a child process.
//!
//! The daemon behind the view of a guarded folder, as `/proc` shows it. Nothing here touches the
//! view, so that it can report why a daemon does not answer.

use crate::cli::exit::{CliError, CliResult};
use crate::cli::guard::endpoint::{AnswerWait, parsed, progress_of};
use crate::cli::output;
use crate::holder_id::ProcessStart;
use crate::time::Span;
use kernel::child_call::{ANSWER_BYTES_MAX, ChildCall};
use kernel::mountinfo::MountPoint;
use kernel::{device, mountinfo};
use serde_json::{Value, json};
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::{fmt, fs, io};

/// How long a guard may take to answer a question about its state, and how long a request waits
/// before this process checks whether the guard was stopped.
const ANSWER_PATIENCE: Span = Span::from_millis(1_500);

/// Sends a request to the guard of a view, and returns its answer.
pub(in crate::cli) fn request(
    view: &MountPoint,
    request: &Value,
    waits: AnswerWait,
) -> CliResult<Value> {
    parsed(&in_child(view, waits, || exchange(&view.dir, request))?)
}

/// Waits until this machine holds the lock of the folder and everything is here.
pub(in crate::cli) fn wait(view: &MountPoint) -> CliResult {
    let path = view.dir.join(".latchfs/ready");
    in_child(view, AnswerWait::UntilStopped, || read(File::open(path)?)).map(drop)
}

/// Runs an operation on a view in a child process, and returns what it has read.
fn in_child(
    view: &MountPoint,
    waits: AnswerWait,
    work: impl FnOnce() -> io::Result<Vec<u8>>,
) -> CliResult<Vec<u8>> {
    let dir = view.dir.display();
    let failed = |error| CliError::system(&format!("the guard of {dir} can't be asked"), &error);
    let mut call = ChildCall::start(work).map_err(failed)?;
    let mut reported = String::new();
    loop {
        match call.answer(ANSWER_PATIENCE) {
            Ok(Some(answer)) => return Ok(answer),
            Ok(None) => {}
            Err(error) if mountinfo::is_dead(&error) => return Err(dead(view)),
            Err(error) => return Err(failed(error)),
        }
        let state = DaemonState::of(view);
        if waits == AnswerWait::Never || state.is_stopped() {
            return Err(CliError::unavailable(format!(
                "the guard of {dir} has not answered for {ANSWER_PATIENCE}: {state}; then \
                 'latchfs umount {dir}' removes the view"
            )));
        }
        report_progress(view, &mut reported);
    }
}

fn dead(view: &MountPoint) -> CliError {
    let dir = view.dir.display();
    CliError::unavailable(format!(
        "the guard of {dir} is dead: the folder has each file as it was last saved, and the next \
         guard puts what is left of a save that was under way among the lost files; run 'latchfs \
         guard' again, or 'latchfs umount {dir}'"
    ))
}

/// Says on standard error what a request waits for, whenever that has changed.
fn report_progress(view: &MountPoint, reported: &mut String) {
    let request = json!({"do": "status"});
    let Ok(answer) = in_child(view, AnswerWait::Never, || exchange(&view.dir, &request)) else {
        return;
    };
    let waits_for = progress_of(&serde_json::from_slice(&answer).unwrap_or_default());
    if !waits_for.is_empty() && waits_for != *reported {
        output::progress(&format!("waiting: {waits_for}"));
        *reported = waits_for;
    }
}

/// Writes a request to the guard's control file, and reads the answer.
fn exchange(dir: &Path, request: &Value) -> io::Result<Vec<u8>> {
    let path = dir.join(".latchfs/ctl");
    let mut ctl = OpenOptions::new().read(true).write(true).open(path)?;
    ctl.write_all(format!("{request}\n").as_bytes())?;
    ctl.seek(SeekFrom::Start(0))?;
    read(ctl)
}

/// Reads a file of a view. The daemon may be another user's, so its answer is bounded.
fn read(file: File) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    file.take(ANSWER_BYTES_MAX as u64 + 1).read_to_end(&mut text)?;
    Ok(text)
}

/// The state of a daemon that does not answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::cli) enum DaemonState {
    /// A signal has stopped the process.
    Stopped(u32),
    /// A thread of the process sleeps in the kernel, where no signal ends it.
    InKernel(u32, String),
    /// The process runs, or waits for something that `/proc` does not tell.
    Runs(u32),
    /// No process of this pid namespace is the daemon.
    Unseen,
}

impl DaemonState {
    /// Returns the state of the daemon of a view.
    pub(in crate::cli) fn of(view: &MountPoint) -> Self {
        let Some(ProcessStart { pid, .. }) =
            device::daemon_of(&view.source).filter(|daemon| daemon.runs())
        else {
            return Self::Unseen;
        };
        let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let mut state = Self::Runs(pid);
        for thread in threads {
            let status = fs::read_to_string(thread.path().join("status")).unwrap_or_default();
            match field(&status, "State").chars().next() {
                Some('T' | 't') => return Self::Stopped(pid),
                Some('D') => state = Self::InKernel(pid, field(&status, "Name").to_owned()),
                _ => {}
            }
        }
        state
    }

    /// Whether a signal has stopped the process.
    pub(in crate::cli) const fn is_stopped(&self) -> bool {
        matches!(self, Self::Stopped(_))
    }
}

/// Returns a field of `/proc/PID/status`.
fn field<'a>(status: &'a str, name: &str) -> &'a str {
    let lines = status.lines().filter_map(|line| line.split_once(':'));
    lines.filter(|(key, _)| *key == name).map(|(_, value)| value.trim()).next().unwrap_or_default()
}

/// Writes the state as a clause, with the next step.
impl fmt::Display for DaemonState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stopped(pid) => write!(
                f,
                "its process {pid} was stopped by a signal; let it go on with 'kill -CONT {pid}', \
                 or end it with 'kill -KILL {pid}'"
            ),
            Self::InKernel(pid, thread) => write!(
                f,
                "the thread '{thread}' of its process {pid} waits for a disk or another file \
                 system; look after the disk of the folder, or end the process with 'kill -KILL \
                 {pid}'"
            ),
            Self::Runs(pid) => write!(
                f,
                "its process {pid} runs and does not answer; try again, or end it with 'kill -KILL \
                 {pid}'"
            ),
            Self::Unseen => write!(
                f,
                "its process is not among those of this machine that are seen here; look for it \
                 outside of this container"
            ),
        }
    }
}
