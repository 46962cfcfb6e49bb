//! The example programs of `contrib`, each run by its own interpreter. Each runs a command under a
//! lock, and stops the command before the lock can be granted to another client.

use crate::http::tls::Certs;
use latchfs::time::{Span, Time, boot_now};
use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use testing::{Scratch, Server, drain, eventually, run, signal};

const NAME: &str = "team/demo";

/// The ttl that the examples request from the server.
const TTL: Span = Span::from_secs(5);
const TTL_SECS: &str = "5";

/// A command to run under a lock. It fails if another one runs at the same time, and ends when it
/// reads a line from the pipe `go`.
const EXCLUSIVE: &str =
    r#"mkdir busy && echo "$LATCHFS_TOKEN" >> tokens && read -r _ < go && rmdir busy"#;

/// A command to run under a lock: two processes that keep the pipe `alive` open, and ignore
/// SIGTERM.
const STUBBORN: &str = "trap '' TERM; exec > alive; echo begun; sleep 30 & sleep 30";

/// One run of an example in the background, in a directory with the named pipes `alive` and `go`.
struct Example {
    child: Child,
}

impl Example {
    fn start(program: Command, server: &Server, dir: &Scratch, script: &str) -> Self {
        Self::start_under(NAME, program, server, dir, script)
    }

    fn start_under(
        name: &str,
        mut program: Command,
        server: &Server,
        dir: &Scratch,
        script: &str,
    ) -> Self {
        program.args([name, "ci", "sh", "-c", script]).current_dir(dir.path());
        program.env("LATCHFS_SERVER", &server.url).env("LATCHFS_TTL", TTL_SECS);
        program.stdin(Stdio::null()).stderr(Stdio::piped()).process_group(0);
        Self { child: program.spawn().expect("contrib/test installs the interpreter") }
    }

    /// Waits for the example to exit, and returns its exit code and its stderr.
    fn ends(&mut self) -> (Option<i32>, String) {
        let errors = drain(self.child.stderr.take().expect("piped"));
        let status = eventually("its end", || self.child.try_wait().expect("it is our child"));
        (status.code(), errors.recv_timeout(std::time::Duration::from_secs(5)).unwrap_or_default())
    }
}

impl Drop for Example {
    /// Terminates the example program when this value is dropped, because a failed test may have
    /// left it running.
    fn drop(&mut self) {
        signal(self.child.id().cast_signed(), libc::SIGTERM);
        let _ = self.child.wait();
    }
}

fn scratch() -> Scratch {
    let dir = Scratch::new();
    run(Command::new("mkfifo").args(["alive", "go"]).current_dir(dir.path())).ok();
    dir
}

/// Waits until the command [`STUBBORN`] has started, and opens the pipe that both of its processes
/// keep open.
fn begins(dir: &Scratch) -> File {
    let path = dir.path().join("alive");
    let mut first = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&path);
    let first = first.as_mut().expect("a pipe");
    eventually("the command", || {
        let mut word = [0; 6];
        matches!(first.read(&mut word), Ok(6)).then_some(())
    });
    File::open(path).expect("a pipe")
}

/// Waits until all processes of the command [`STUBBORN`] have ended, and returns the time.
fn is_dead_at(mut alive: File) -> Time {
    alive.read_to_end(&mut vec![]).expect("a pipe");
    boot_now()
}

/// Checks that two runs of an example program exclude each other: each run is a client of its own,
/// and one waits in the queue of the lock until the command of the other run has ended.
fn exclude_each_other(program: fn(&Scratch) -> Command) {
    let (server, dir) = (Server::start(&[]), scratch());
    let start = || Example::start(program(&dir), &server, &dir, EXCLUSIVE);
    let mut both = [start(), start()];
    // The FIFO is opened for reading and writing, because an open only for writing would block
    // until a reader opens it.
    let go = OpenOptions::new().read(true).write(true).open(dir.path().join("go"));
    let mut go = go.expect("a pipe");
    let tokens = || fs::read_to_string(dir.path().join("tokens")).unwrap_or_default();
    eventually("the first command", || (tokens().lines().count() == 1).then_some(()));
    server.in_line(NAME, 1);
    let view = server.curl(&["/locks/team/demo"]).is(200);
    let holder = view["holder"].as_str().expect("it is held").to_owned();
    let waiter = view["waiters"][0]["client"].as_str().expect("a waiter").to_owned();
    assert!(holder.starts_with("ci-") && waiter.starts_with("ci-") && holder != waiter, "{view}");
    // The second run waits in the queue for longer than the ttl, so the example must keep the
    // session of a waiting run alive.
    let later = boot_now() + TTL + Span::from_secs(1);
    eventually("more than a ttl", || (boot_now() > later).then_some(()));
    assert_eq!(tokens().lines().count(), 1);
    go.write_all(b"go\n").expect("a pipe");
    eventually("the second command", || (tokens().lines().count() == 2).then_some(()));
    go.write_all(b"go\n").expect("a pipe");
    for example in &mut both {
        let (code, errors) = example.ends();
        assert_eq!(code, Some(0), "{errors}");
    }
    let tokens: Vec<u64> = tokens().lines().map(|token| token.parse().expect("one")).collect();
    assert!(tokens[0] < tokens[1], "{tokens:?}");
    assert_eq!(server.curl(&["/locks/team/demo"]).is(200)["phase"], "free");
}

/// Checks that the example kills its command before the session expires, if the server stops
/// answering.
fn stop_in_time(program: fn(&Scratch) -> Command, silence: i32) {
    let (server, dir) = (Server::start(&[]), scratch());
    let mut example = Example::start(program(&dir), &server, &dir, STUBBORN);
    let alive = begins(&dir);
    let silent_at = boot_now();
    server.signal(silence);
    let lived = is_dead_at(alive).since(silent_at);
    assert!(lived < TTL, "it lived for {lived:?}");
    let (code, errors) = example.ends();
    assert_eq!(code, Some(76), "{errors}");
    assert!(errors.contains("the lock is lost"), "{errors}");
}

/// Checks that the example kills its command soon after its lock was stolen.
fn stop_when_stolen(program: fn(&Scratch) -> Command) {
    let (server, dir) = (Server::start(&[]), scratch());
    let mut example = Example::start(program(&dir), &server, &dir, STUBBORN);
    let alive = begins(&dir);
    let stolen_at = boot_now();
    server.curl(&["-X", "POST", "/locks/team/demo/steal?client=other&reason=test"]).is(200);
    let lived = is_dead_at(alive).since(stolen_at);
    assert!(lived < TTL, "it lived for {lived:?}");
    let (code, errors) = example.ends();
    assert_eq!(code, Some(76), "{errors}");
    assert_eq!(server.curl(&["/locks/team/demo"]).is(200)["holder"], "other");
}

/// Checks that SIGTERM makes the example end its command at once, and then its session.
fn stop_on_request(program: fn(&Scratch) -> Command) {
    let (server, dir) = (Server::start(&[]), scratch());
    let mut example = Example::start(program(&dir), &server, &dir, STUBBORN);
    let alive = begins(&dir);
    signal(example.child.id().cast_signed(), libc::SIGTERM);
    let (code, errors) = example.ends();
    assert_eq!(code, Some(143), "{errors}");
    let ended_at = boot_now();
    assert!(is_dead_at(alive).since(ended_at) < Span::from_secs(1), "it outlived the example");
    assert_eq!(server.curl(&["/locks/team/demo"]).is(200)["phase"], "free");
}

/// Checks that the example returns the exit code of its command.
fn give_the_code_back(program: fn(&Scratch) -> Command) {
    let (server, dir) = (Server::start(&[]), scratch());
    let script = r#"test "$LATCHFS_LOCK" = team/demo && exit 7"#;
    let (code, errors) = Example::start(program(&dir), &server, &dir, script).ends();
    assert_eq!(code, Some(7), "{errors}");
    assert_eq!(server.curl(&["/locks/team/demo"]).is(200)["phase"], "free");
}

/// Checks that the example does not run its command if the lock is refused.
fn start_nothing_without_the_lock(program: fn(&Scratch) -> Command) {
    let (server, dir) = (Server::start(&[]), scratch());
    let refused = ".latchfs/refused";
    let mut example = Example::start_under(refused, program(&dir), &server, &dir, "echo > ran");
    let (code, errors) = example.ends();
    assert_eq!(code, Some(1), "{errors}");
    assert!(!dir.path().join("ran").exists());
}

/// The secret of a token, which is in a file of its own.
const SECRET: &str = "a-secret-of-32-characters-at-least-ab";

/// Checks that the example trusts the CA of a server alone, and sends a token that no argument of a
/// process has.
fn use_tls_and_a_token(program: fn(&Scratch) -> Command) {
    let (certs, dir) = (Certs::make(), scratch());
    let [tokens, token] = ["tokens.toml", "token"].map(|name| dir.join(name));
    let text = format!("[[token]]\nname = 'ci'\nsecret = '{SECRET}'\nclients = ['ci-*']\n");
    for (path, text) in [(&tokens, text), (&token, format!("{SECRET}\n"))] {
        fs::write(path, text).expect("a fresh directory");
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("it is ours");
    }
    let mut server = certs.serve(&["--tokens", &tokens.display().to_string()]);
    server.url = server.url.replace("127.0.0.1", "localhost");
    let script = "grep -als 'a-secret-of-[3]2' /proc/[0-9]*/cmdline > seen; exit 7";
    let with = |ca: Option<&str>, key: Option<&Path>| {
        let mut program = program(&dir);
        ca.map(|ca| program.env("LATCHFS_CA", certs.path(ca)));
        key.map(|key| program.env("LATCHFS_TOKEN_FILE", key));
        Example::start(program, &server, &dir, script).ends()
    };
    let (code, errors) = with(Some("ca.pem"), Some(&token));
    assert_eq!(code, Some(7), "{errors}");
    let seen = fs::read_to_string(dir.join("seen")).expect("it ran");
    assert!(seen.is_empty(), "{seen}");
    for (ca, key) in [(None, Some(&*token)), (Some("ca.pem"), None)] {
        fs::remove_file(dir.join("seen")).unwrap_or_default();
        let (code, errors) = with(ca, key);
        assert!(code.is_some_and(|code| code != 0 && code != 7), "{code:?}: {errors}");
        assert!(!dir.join("seen").exists(), "{errors}");
    }
}

fn path(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("contrib/examples").join(file)
}

fn interpreted(interpreter: &str, file: &str) -> Command {
    let mut command = Command::new(interpreter);
    command.arg(path(file));
    command
}

fn compiled(dir: &Scratch) -> Command {
    let mut build = Command::new("go");
    build.args(["build", "-o", "lock"]).arg(path("lock.go")).env("GO111MODULE", "off");
    run(build.current_dir(dir.path())).ok();
    Command::new(dir.path().join("lock"))
}

macro_rules! checked {
    ($($language:ident: $program:expr;)*) => {$(
        mod $language {
            use super::*;

            #[test]
            fn two_runs_of_one_client_exclude_each_other() {
                exclude_each_other($program);
            }

            #[test]
            fn a_dead_server_stops_the_command_in_time() {
                stop_in_time($program, libc::SIGKILL);
            }

            #[test]
            fn a_hanging_server_stops_the_command_in_time() {
                stop_in_time($program, libc::SIGSTOP);
            }

            #[test]
            fn a_steal_stops_the_command() {
                stop_when_stolen($program);
            }

            #[test]
            fn a_signal_stops_the_command() {
                stop_on_request($program);
            }

            #[test]
            fn command_does_not_run_without_the_lock() {
                start_nothing_without_the_lock($program);
            }

            #[test]
            fn tls_and_a_token_are_used() {
                use_tls_and_a_token($program);
            }

            #[test]
            fn exit_code_of_the_command_is_returned() {
                give_the_code_back($program);
            }
        }
    )*};
}

checked! {
    sh: |_| interpreted("sh", "lock.sh");
    python: |_| interpreted("python3", "lock.py");
    node: |_| interpreted("node", "lock.mjs");
    ruby: |_| interpreted("ruby", "lock.rb");
    go: compiled;
}
