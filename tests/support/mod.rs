//! Tools of all test suites that run the real program: commands that end or are killed at a limit,
//! signals, and a polling loop for state that can only be observed by polling.

#![allow(dead_code)] // each suite uses a part of it

use std::io::Read;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

/// Timeout of a command, which only a hang exceeds, even on a busy machine.
pub(crate) const COMMAND_LIMIT: Duration = Duration::from_secs(60);

/// Returns the number of rounds of a long test: `short` in a normal test run, `long` when
/// `contrib/long-tests` runs the full form.
pub(crate) fn rounds(short: usize, long: usize) -> usize {
    if std::env::var_os("LATCHFS_LONG_TESTS").is_some() { long } else { short }
}

/// The interval between two polls of [`look`].
const POLL_EVERY: Duration = Duration::from_millis(20);

/// The result of a command that has ended.
#[derive(Debug)]
pub(crate) struct Output {
    /// The exit code; for a command that was killed, 128 plus the signal, as in a shell.
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Output {
    /// Returns the standard output; fails unless the command succeeded.
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert_eq!(self.code, 0, "the command failed\nout: {}\nerr: {}", self.out, self.err);
        self.out
    }

    /// Returns the standard error; fails if the command succeeded.
    #[track_caller]
    pub(crate) fn fails(self) -> String {
        assert_ne!(self.code, 0, "the command succeeded\nout: {}\nerr: {}", self.out, self.err);
        self.err
    }

    /// Returns the standard error; fails unless the command ended with the exit code `code`.
    #[track_caller]
    pub(crate) fn exits(self, code: i32) -> String {
        assert_eq!(self.code, code, "wrong exit code\nout: {}\nerr: {}", self.out, self.err);
        self.err
    }
}

/// How long a killed command may take to close its output.
const KILL_LIMIT: Duration = Duration::from_secs(5);

/// Runs a command to its end. If it takes too long, kills it and all processes that it started.
#[track_caller]
pub(crate) fn run(command: &mut Command) -> Output {
    run_within(COMMAND_LIMIT, command)
}

/// Runs a command to its end. If it takes longer than `limit`, kills it and all processes that it
/// started.
#[track_caller]
pub(crate) fn run_within(limit: Duration, command: &mut Command) -> Output {
    let said = format!("{command:?}");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn().unwrap_or_else(|error| panic!("can't start {said}: {error}"));
    let out = drain(child.stdout.take().expect("piped"));
    let err = drain(child.stderr.take().expect("piped"));
    let take = |pipe: &Receiver<String>, limit| pipe.recv_timeout(limit).ok();
    let (out, err) = match (take(&out, limit), take(&err, limit)) {
        (Some(out), Some(err)) => (out, err),
        // A program that failed and left another one behind, which keeps its standard error open,
        // counts as hanging, so the panic reports what it printed.
        (some_out, some_err) => {
            signal(-child.id().cast_signed(), libc::SIGKILL);
            let rest = |some: Option<String>, pipe| some.or_else(|| take(pipe, KILL_LIMIT));
            let (out, err) = (rest(some_out, &out), rest(some_err, &err));
            panic!("hangs: {said}\nout: {out:?}\nerr: {err:?}");
        }
    };
    let status = child.wait().expect("it is our child");
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    Output { code, out, err }
}

/// Removes a directory of a test, even if mount points in it are sealed and therefore immutable.
pub(crate) fn remove_tree(dir: &std::path::Path) {
    let mut chattr = Command::new("chattr");
    let _none_there = chattr.args(["-R", "-f", "-i"]).arg(dir).stderr(Stdio::null()).status();
    let _left = std::fs::remove_dir_all(dir);
}

/// Reads a pipe to its end on a separate thread; the receiver gets the text.
pub(crate) fn drain(mut pipe: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        let mut bytes = vec![];
        let end = pipe.read_to_end(&mut bytes);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        // The send fails if the command hung, because the receiver is then gone.
        let _gone = end.map(|_| sender.send(text));
    });
    receiver
}

/// Sends a signal to a process, or to a group (negative id).
#[allow(unsafe_code)]
pub(crate) fn signal(pid: i32, number: i32) {
    // SAFETY: kill(2) touches no memory of this process.
    let result = unsafe { libc::kill(pid, number) };
    let error = std::io::Error::last_os_error();
    let is_gone = error.raw_os_error() == Some(libc::ESRCH);
    assert!(result == 0 || is_gone, "kill {pid}: {error}");
}

/// Polls up to `polls_max` times until `look` returns a value, and returns that value.
#[track_caller]
pub(crate) fn poll<T>(polls_max: usize, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    for _ in 0..polls_max {
        if let Some(seen) = look() {
            return seen;
        }
        thread::sleep(POLL_EVERY);
    }
    panic!("never seen: {what}");
}
