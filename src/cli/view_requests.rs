//! Requests to the guard of a view, through its files. The guard may hang, so that each is made by
//! a child process.

use super::exit::{CliError, CliResult};
use super::guard_answers::{Waits, parsed, progress_of};
use super::output;
use super::view_daemon::DaemonState;
use crate::fuse::kernel::child_call::{ANSWER_BYTES_MAX, ChildCall};
use crate::fuse::kernel::mountinfo::{self, MountPoint};
use crate::time::Span;
use serde_json::{Value, json};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

/// How long a guard may take to answer a question about its state, and how long a request waits
/// before this process looks whether the guard was stopped.
const ANSWER_PATIENCE: Span = Span::from_millis(1_500);

/// Sends a request to the guard of a view, and returns its answer.
pub(super) fn ask(view: &MountPoint, request: &Value, waits: Waits) -> CliResult<Value> {
    parsed(&in_child(view, waits, || exchange(&view.dir, request))?)
}

/// Waits until this machine holds the lock of the folder and everything is here.
pub(super) fn wait(view: &MountPoint) -> CliResult {
    let path = view.dir.join(".latchfs/ready");
    in_child(view, Waits::UntilStopped, || read(File::open(path)?)).map(drop)
}

/// Runs an operation on a view in a child process, and returns what it has read.
fn in_child(
    view: &MountPoint,
    waits: Waits,
    work: impl FnOnce() -> io::Result<Vec<u8>>,
) -> CliResult<Vec<u8>> {
    let dir = view.dir.display();
    let failed = |error| CliError::system(&format!("the guard of {dir} can't be asked"), &error);
    let mut call = ChildCall::start(work).map_err(failed)?;
    let mut told = String::new();
    loop {
        match call.answer(ANSWER_PATIENCE) {
            Ok(Some(answer)) => return Ok(answer),
            Ok(None) => {}
            Err(error) if mountinfo::is_dead(&error) => return Err(dead(view)),
            Err(error) => return Err(failed(error)),
        }
        let state = DaemonState::of(view);
        if waits == Waits::Never || state.is_stopped() {
            return Err(CliError::unavailable(format!(
                "the guard of {dir} has not answered for {ANSWER_PATIENCE}: {state}; then \
                 'latchfs umount {dir}' removes the view"
            )));
        }
        tell_progress(view, &mut told);
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
fn tell_progress(view: &MountPoint, told: &mut String) {
    let request = json!({"do": "status"});
    let Ok(answer) = in_child(view, Waits::Never, || exchange(&view.dir, &request)) else { return };
    let waits_for = progress_of(&serde_json::from_slice(&answer).unwrap_or_default());
    if !waits_for.is_empty() && waits_for != *told {
        output::progress(&format!("waiting: {waits_for}"));
        *told = waits_for;
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
