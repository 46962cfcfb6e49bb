//! Folders, guards and servers of the tests.

use std::fs;
use std::io::{BufRead, BufReader, Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Mutex, MutexGuard, PoisonError};
use testing::{Output, drain, poll, remove_tree, run, signal};

/// The number of polls until a state that a test waits for must be there.
const POLLS_MAX: usize = 500;

/// Waits until `look_once` returns a value.
pub(crate) fn eventually<T>(what: &str, look_once: impl FnMut() -> Option<T>) -> T {
    poll(POLLS_MAX, what, look_once)
}

/// Returns a command that runs latchfs.
pub(crate) fn latchfs() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_latchfs"));
    command.env_remove("LATCHFS_SERVER").env_remove("LATCHFS_DIR");
    command
}

/// Lets time pass in which a guard is stopped or at work: the length of it is what a test is about.
pub(crate) fn pause(length: std::time::Duration) {
    let (_send, never) = std::sync::mpsc::channel::<()>();
    let _ = never.recv_timeout(length);
}

/// Keeps tests apart that stop a guard: one that has files of a stopped guard open delays all
/// programs that another one starts, since each closes its copies of these files when it executes.
pub(crate) fn no_other_stops() -> MutexGuard<'static, ()> {
    static STOPS: Mutex<()> = Mutex::new(());
    STOPS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A directory of one test, which is removed at its end.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = format!("latchfs-guarded-{}-{number}", std::process::id());
        let dir = std::env::temp_dir().join(dir);
        fs::create_dir_all(dir.join("folder")).expect("a fresh directory");
        Self(dir)
    }

    pub(crate) fn folder(&self) -> PathBuf {
        self.0.join("folder")
    }

    /// Runs `latchfs guard init` on the folder.
    pub(crate) fn init(&self, options: &[&str]) {
        let mut command = latchfs();
        command.args(["guard", "init"]).arg(self.folder()).args(options);
        if options.contains(&"--server") {
            command.arg("--stage").arg(self.0.join("state"));
        }
        run(&mut command).ok();
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        remove_tree(&self.0);
    }
}

/// A server on a free port of loopback.
pub(crate) struct Server {
    child: Child,
    pub(crate) url: String,
    _log: Receiver<String>,
}

impl Server {
    pub(crate) fn start(scratch: &Scratch) -> Self {
        Self::start_at("127.0.0.1:0", &["--data", &scratch.0.join("server").display().to_string()])
    }

    /// Starts a server that listens at `address` and has these options.
    pub(crate) fn start_at(address: &str, options: &[&str]) -> Self {
        Self::start_as(latchfs(), address, options)
    }

    /// Starts a server by `command`, which runs latchfs.
    pub(crate) fn start_as(mut command: Command, address: &str, options: &[&str]) -> Self {
        command.args(["serve", "--listen", address]).args(options);
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let url = lines.by_ref().map_while(Result::ok).find_map(|line| {
            let at = line.find("http://")?;
            Some(line[at..].split([' ', '/', ',']).collect::<Vec<_>>()[..3].join("/"))
        });
        let log = drain(child.stderr.take().expect("piped"));
        Self { child, url: url.expect("it says where it listens"), _log: log }
    }

    pub(crate) fn signal(&self, number: i32) {
        signal(self.child.id() as i32, number);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.signal(libc::SIGCONT);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A guard that shows the folder of a test.
pub(crate) struct Guard {
    child: Child,
    pub(crate) view: PathBuf,
    log: Mutex<Receiver<String>>,
}

impl Guard {
    /// Starts a guard whose view has the name `name`, and which keeps its state in `state`.
    pub(crate) fn start(scratch: &Scratch, name: &str, options: &[&str]) -> Self {
        Self::start_as(latchfs(), scratch, name, options)
    }

    /// Starts a guard with at most `descriptors` open files.
    pub(crate) fn start_limited(scratch: &Scratch, name: &str, descriptors: u32) -> Self {
        let mut command = Command::new("prlimit");
        command.arg(format!("--nofile={descriptors}:{descriptors}"));
        command.arg(env!("CARGO_BIN_EXE_latchfs")).env_remove("LATCHFS_SERVER");
        Self::start_as(command, scratch, name, &[])
    }

    /// Starts a guard by `command`, which runs latchfs.
    pub(crate) fn start_as(
        mut command: Command,
        scratch: &Scratch,
        name: &str,
        options: &[&str],
    ) -> Self {
        let view = scratch.0.join(name);
        command.arg("guard").arg(scratch.folder()).arg(&view);
        command.arg("--stage").arg(scratch.0.join("state")).args(options);
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        let mut out = BufReader::new(child.stdout.take().expect("piped"));
        let log = drain(child.stderr.take().expect("piped"));
        let mut line = String::new();
        out.read_line(&mut line).expect("readable");
        if !line.contains("shows") {
            let _ = child.wait();
            panic!("no view: {line}{}", log.recv().unwrap_or_default());
        }
        Self { child, view, log: Mutex::new(log) }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.view.join(name)
    }

    pub(crate) fn signal(&self, number: i32) {
        signal(self.child.id() as i32, number);
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the state of the guard.
    pub(crate) fn status(&self) -> serde_json::Value {
        let status = fs::read_to_string(self.path(".latchfs/status")).expect("readable");
        serde_json::from_str(&status).expect("JSON")
    }

    /// Stops all threads of the guard.
    pub(crate) fn stop(&self) {
        self.signal(libc::SIGSTOP);
        eventually("the stop of all threads", || {
            let threads = fs::read_dir(format!("/proc/{}/task", self.child.id())).ok()?;
            let is_stopped = |dir: PathBuf| {
                let status = fs::read_to_string(dir.join("status")).unwrap_or_default();
                status.is_empty() || status.contains("State:\tT")
            };
            threads.flatten().all(|thread| is_stopped(thread.path())).then_some(())
        });
    }

    /// Runs a request such as `take` or `status` on this guard.
    pub(crate) fn request(&self, request: &str, options: &[&str]) -> Output {
        run(latchfs().args(["guard", request]).arg(&self.view).args(options))
    }

    /// Sends a request without starting a program: a program that is started while files of a
    /// stopped guard are open waits for that guard when it closes its copies of them.
    pub(crate) fn request_here(&self, request: &str) -> String {
        let mut ctl = fs::OpenOptions::new();
        let mut ctl = ctl.read(true).write(true).open(self.path(".latchfs/ctl")).expect("there");
        ctl.write_all(format!("{request}\n").as_bytes()).expect("taken");
        ctl.rewind().expect("from the start");
        let mut answer = String::new();
        ctl.read_to_string(&mut answer).expect("an answer");
        answer
    }

    /// Takes the lock without starting a program.
    pub(crate) fn take_here(&self) {
        let answer = self.request_here("{\"do\": \"take\", \"wait_ms\": 60000}");
        assert!(answer.contains("holding"), "{answer}");
    }

    /// Returns the sentence of the last refusal.
    pub(crate) fn why(&self) -> String {
        fs::read_to_string(self.path(".latchfs/why")).expect("readable")
    }

    /// Kills the guard with SIGKILL, and removes its dead mount.
    pub(crate) fn kill(mut self) -> PathBuf {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it ends");
        unmount(&self.view);
        self.view.clone()
    }

    /// Ends the guard in good order, and returns what it has logged.
    pub(crate) fn end(mut self) -> String {
        self.signal(libc::SIGTERM);
        let status = self.child.wait().expect("it ends");
        let log = self.log.lock().map(|log| log.recv().unwrap_or_default());
        assert!(status.success(), "{status}: {log:?}");
        log.unwrap_or_default()
    }
}

/// A guard that is stopped, until this is dropped. Make it after the files of the guard's view that
/// the test has open: if the test fails, they are closed after it, and a close waits for the guard.
pub(crate) struct Stopped<'a>(&'a Guard);

impl<'a> Stopped<'a> {
    pub(crate) fn of(guard: &'a Guard) -> Self {
        guard.signal(libc::SIGSTOP);
        Self(guard)
    }
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        self.0.signal(libc::SIGCONT);
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.signal(libc::SIGCONT);
        let _ = self.child.kill();
        let _ = self.child.wait();
        unmount(&self.view);
    }
}

/// Removes a mount, if there is one, and makes its directory removable.
fn unmount(view: &Path) {
    let _ = Command::new("umount").arg("-l").arg(view).stderr(Stdio::null()).status();
    let _ = Command::new("chattr").arg("-i").arg(view).stderr(Stdio::null()).status();
}

/// Runs a shell script, with its working directory in `dir`.
pub(crate) fn shell(dir: &Path, script: &str) -> Output {
    run(Command::new("sh").arg("-ec").arg(script).current_dir(dir))
}

/// Runs a Python program as the user `uid`, with its working directory in `dir`.
pub(crate) fn python(uid: u32, dir: &Path, program: &str) -> Output {
    let mut command = Command::new("setpriv");
    command.args(["--clear-groups", &format!("--reuid={uid}"), "/usr/bin/python3", "-c", program]);
    run(command.current_dir(dir))
}
