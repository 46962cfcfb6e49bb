//! Runs commands that end or are killed at a limit, latchfs among them; sends signals; and polls
//! for state that can only be observed by polling.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read};
use std::os::fd::IntoRawFd as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

/// The path of the program under test: cargo puts it beside the directory of the test binaries.
static LATCHFS: LazyLock<String> = LazyLock::new(|| {
    let test = std::env::current_exe().expect("a program knows its path");
    let program = test.parent().and_then(Path::parent).map(|profile| profile.join("latchfs"));
    let program = program.filter(|program| program.exists());
    let program = program.unwrap_or_else(|| panic!("no latchfs above {}", test.display()));
    program.into_os_string().into_string().expect("the target directory has a name in UTF-8")
});

/// Returns the path of latchfs as cargo has built it for the tests.
pub fn latchfs_path() -> &'static str {
    &LATCHFS
}

/// Returns the path of a Python program that `contrib/test` has installed, or of its interpreter.
pub fn python_tool(name: &str) -> PathBuf {
    let target = Path::new(latchfs_path()).ancestors().nth(2).expect("a target directory");
    target.join("test-tools/venv/bin").join(name)
}

/// Returns a command that runs latchfs, which takes no server, mount or directory from the
/// environment.
pub fn latchfs() -> Command {
    let mut command = Command::new(latchfs_path());
    command.env_remove("LATCHFS_SERVER").env_remove("LATCHFS_DIR").env_remove("LATCHFS_DATA");
    command
}

/// Runs latchfs with these arguments to its end; returns its exit code and its output.
#[track_caller]
pub fn run_latchfs(arguments: &[&str]) -> (Option<i32>, String) {
    let Output { code, out, err } = run(latchfs().args(arguments));
    (Some(code), out + &err)
}

/// Whether servers and mounts that may keep their state anywhere keep it in a data directory
/// (`--data`): `LATCHFS_TESTS_DATA=1` runs their tests a second time, on durable ones.
pub fn is_durable() -> bool {
    std::env::var_os("LATCHFS_TESTS_DATA").is_some_and(|value| value == "1")
}

/// Timeout of a command, which only a hang exceeds, even on a busy machine.
pub const COMMAND_LIMIT: Duration = Duration::from_secs(60);

/// Returns the number of rounds of a long test: `short` in a normal test run, `long` when
/// `contrib/long-tests` runs the full form.
pub fn rounds(short: usize, long: usize) -> usize {
    if std::env::var_os("LATCHFS_LONG_TESTS").is_some() { long } else { short }
}

/// The interval between two polls.
const POLL_EVERY: Duration = Duration::from_millis(20);

/// The result of a command that has ended.
#[derive(Debug)]
pub struct Output {
    /// The exit code; for a command that was killed, 128 plus the signal, as in a shell.
    pub code: i32,
    /// The standard output.
    pub out: String,
    /// The standard error.
    pub err: String,
}

impl Output {
    /// Returns the standard output; fails unless the command succeeded.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(self.code, 0, "the command failed\nout: {}\nerr: {}", self.out, self.err);
        self.out
    }

    /// Returns the standard error; fails if the command succeeded.
    #[track_caller]
    pub fn fails(self) -> String {
        assert_ne!(self.code, 0, "the command succeeded\nout: {}\nerr: {}", self.out, self.err);
        self.err
    }

    /// Returns the standard error; fails unless the command ended with the exit code `code`.
    #[track_caller]
    pub fn exits(self, code: i32) -> String {
        assert_eq!(self.code, code, "wrong exit code\nout: {}\nerr: {}", self.out, self.err);
        self.err
    }
}

/// How long a killed command may take to close its output.
const KILL_LIMIT: Duration = Duration::from_secs(5);

/// Runs a command to its end. If it takes too long, kills it and all processes that it started.
#[track_caller]
pub fn run(command: &mut Command) -> Output {
    run_within(COMMAND_LIMIT, command)
}

/// Runs a command to its end. If it takes longer than `limit`, kills it and all processes that it
/// started.
#[track_caller]
pub fn run_within(limit: Duration, command: &mut Command) -> Output {
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
pub fn remove_tree(dir: &Path) {
    let mut chattr = Command::new("chattr");
    let _none_there = chattr.args(["-R", "-f", "-i"]).arg(dir).stderr(Stdio::null()).status();
    let _left = std::fs::remove_dir_all(dir);
}

/// Reads a pipe to its end on a separate thread; the receiver gets the text.
pub fn drain(mut pipe: impl Read + Send + 'static) -> Receiver<String> {
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

/// Reads a pipe in a thread, and returns a receiver of its lines.
pub fn lines(pipe: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                // After the receiver is gone the pipe is still read, because a full pipe would
                // block its writer.
            }
        }
    });
    receiver
}

/// Returns a port of loopback on which nothing listens. It is below those that the system chooses
/// by itself, so that no connection of another program takes it before the caller uses it.
pub fn free_port() -> u16 {
    const PORTS: std::ops::Range<u32> = 16_384..32_768;
    static GIVEN: AtomicU32 = AtomicU32::new(0);
    // Other processes of tests begin elsewhere.
    let first = std::process::id().wrapping_mul(101);
    let mut ports = PORTS.map(|_| {
        let offset = first.wrapping_add(GIVEN.fetch_add(1, Ordering::Relaxed));
        (PORTS.start + offset % (PORTS.end - PORTS.start)) as u16
    });
    let is_free = |port: &u16| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok();
    ports.find(is_free).expect("there are ports")
}

/// Closes a file, and returns the result of close(2).
#[allow(unsafe_code)]
pub fn close(file: File) -> io::Result<()> {
    // SAFETY: the descriptor is open, and nothing else closes it.
    match unsafe { libc::close(file.into_raw_fd()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Sends a signal to a process, or to a group (negative id).
#[allow(unsafe_code)]
pub fn signal(pid: i32, number: i32) {
    // SAFETY: kill(2) touches no memory of this process.
    let result = unsafe { libc::kill(pid, number) };
    let error = io::Error::last_os_error();
    let is_gone = error.raw_os_error() == Some(libc::ESRCH);
    assert!(result == 0 || is_gone, "kill {pid}: {error}");
}

/// Polls up to `polls_max` times until `look` returns a value, and returns that value.
#[track_caller]
pub fn poll<T>(polls_max: usize, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    for _ in 0..polls_max {
        if let Some(seen) = look() {
            return seen;
        }
        thread::sleep(POLL_EVERY);
    }
    panic!("never seen: {what}");
}

/// Polls `look` for at most 10 s until it returns a value, and returns that value. A guard answers
/// on its own machine.
#[track_caller]
pub fn soon<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    poll(500, what, look)
}

/// Polls `look` for at most 20 s until it returns a value, and returns that value.
#[track_caller]
pub fn eventually<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    poll(1_000, what, look)
}

/// Polls `look` for at most 30 s until it returns a value, and returns that value: between machines
/// there may be timeouts and elections.
#[track_caller]
pub fn eventually_in_cluster<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    poll(1_500, what, look)
}
