//! Guards of the real program, which show the folder of a test.

use crate::command::{Output, drain, latchfs, latchfs_path, run, signal, soon};
use crate::scratch::Scratch;
use std::fs;
use std::io::{BufRead, BufReader, Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::Receiver;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Lets time pass in which a guard is stopped or at work: the length of it is what a test is about.
pub fn pause(length: std::time::Duration) {
    let (_send, never) = std::sync::mpsc::channel::<()>();
    let _ = never.recv_timeout(length);
}

/// Keeps tests apart that stop a guard: one that has files of a stopped guard open delays all
/// programs that another one starts, since each closes its copies of these files when it executes.
pub fn no_other_stops() -> MutexGuard<'static, ()> {
    static STOPS: Mutex<()> = Mutex::new(());
    STOPS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A guard that shows the folder of a test.
pub struct Guard {
    child: Child,
    /// Where the guard shows the folder.
    pub view: PathBuf,
    log: Mutex<Receiver<String>>,
}

impl Guard {
    /// Starts a guard whose view has the name `name`, and which keeps its state in `state`.
    pub fn start(scratch: &Scratch, name: &str, options: &[&str]) -> Self {
        Self::start_as(latchfs(), scratch, name, options)
    }

    /// Starts a guard with at most `descriptors` open files.
    pub fn start_limited(scratch: &Scratch, name: &str, descriptors: u32) -> Self {
        let mut command = Command::new("prlimit");
        command.arg(format!("--nofile={descriptors}:{descriptors}"));
        command.arg(latchfs_path()).env_remove("LATCHFS_SERVER");
        Self::start_as(command, scratch, name, &[])
    }

    /// Starts a guard by `command`, which runs latchfs.
    pub fn start_as(mut command: Command, scratch: &Scratch, name: &str, options: &[&str]) -> Self {
        let view = scratch.join(name);
        command.arg("guard").arg(scratch.folder()).arg(&view);
        command.arg("--stage").arg(scratch.join("state")).args(options);
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

    /// Returns the path of a file in the view.
    pub fn path(&self, name: &str) -> PathBuf {
        self.view.join(name)
    }

    /// Sends the guard a signal.
    pub fn signal(&self, number: i32) {
        signal(self.child.id() as i32, number);
    }

    /// Returns the process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the state of the guard.
    pub fn status(&self) -> serde_json::Value {
        let status = fs::read_to_string(self.path(".latchfs/status")).expect("readable");
        serde_json::from_str(&status).expect("JSON")
    }

    /// Returns the token of the tenure, which must go on.
    pub fn token(&self) -> u64 {
        self.status()["tenure"]["token"].as_u64().expect("held")
    }

    /// Returns what was kept out of the folder.
    pub fn lost(&self) -> Vec<serde_json::Value> {
        let lost = self.request("lost", &["--json"]).ok();
        let lost: serde_json::Value = serde_json::from_str(&lost).expect("JSON");
        lost["lost"].as_array().expect("a list").clone()
    }

    /// Stops all threads of the guard.
    pub fn stop(&self) {
        self.signal(libc::SIGSTOP);
        soon("the stop of all threads", || {
            let threads = fs::read_dir(format!("/proc/{}/task", self.child.id())).ok()?;
            let is_stopped = |dir: PathBuf| {
                let status = fs::read_to_string(dir.join("status")).unwrap_or_default();
                status.is_empty() || status.contains("State:\tT")
            };
            threads.flatten().all(|thread| is_stopped(thread.path())).then_some(())
        });
    }

    /// Runs a request such as `take` or `status` on this guard.
    pub fn request(&self, request: &str, options: &[&str]) -> Output {
        run(latchfs().args(["guard", request]).arg(&self.view).args(options))
    }

    /// Sends a request without starting a program: a program that is started while files of a
    /// stopped guard are open waits for that guard when it closes its copies of them.
    pub fn request_here(&self, request: &str) -> String {
        let mut ctl = fs::OpenOptions::new();
        let mut ctl = ctl.read(true).write(true).open(self.path(".latchfs/ctl")).expect("there");
        ctl.write_all(format!("{request}\n").as_bytes()).expect("taken");
        ctl.rewind().expect("from the start");
        let mut answer = String::new();
        ctl.read_to_string(&mut answer).expect("an answer");
        answer
    }

    /// Takes the lock without starting a program.
    pub fn take_here(&self) {
        let answer = self.request_here("{\"do\": \"take\", \"wait_ms\": 60000}");
        assert!(answer.contains("holding"), "{answer}");
    }

    /// Returns the sentence of the last refusal.
    pub fn why(&self) -> String {
        fs::read_to_string(self.path(".latchfs/why")).expect("readable")
    }

    /// Kills the guard with SIGKILL, and removes its dead mount.
    pub fn kill(mut self) -> PathBuf {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it ends");
        unmount(&self.view);
        self.view.clone()
    }

    /// Ends the guard in good order, and returns what it has logged.
    pub fn end(mut self) -> String {
        self.signal(libc::SIGTERM);
        let status = self.child.wait().expect("it ends");
        let log = self.log.lock().map(|log| log.recv().unwrap_or_default());
        assert!(status.success(), "{status}: {log:?}");
        log.unwrap_or_default()
    }
}

/// A guard that is stopped, until this is dropped. Make it after the files of the guard's view that
/// the test has open: if the test fails, they are closed after it, and a close waits for the guard.
pub struct Stopped<'a>(&'a Guard);

impl<'a> Stopped<'a> {
    /// Stops a guard.
    pub fn of(guard: &'a Guard) -> Self {
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
pub fn shell(dir: &Path, script: &str) -> Output {
    run(Command::new("sh").arg("-ec").arg(script).current_dir(dir))
}

/// Runs a Python program as the user `uid`, with its working directory in `dir`.
pub fn python(uid: u32, dir: &Path, program: &str) -> Output {
    let mut command = Command::new("setpriv");
    command.args(["--clear-groups", &format!("--reuid={uid}"), "/usr/bin/python3", "-c", program]);
    run(command.current_dir(dir))
}
