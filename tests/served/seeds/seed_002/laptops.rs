//! Two machines with a guarded folder each, and clients of the seed's protocol on them.
use serde_json::Value;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use testing::{Guard, Scratch, Server, latchfs, run};

/// Two machines that have copies of one folder, and the server that decides about its lock.
pub(super) struct Laptops {
    scratches: [Scratch; 2],
    pub(super) server: Server,
}

impl Laptops {
    pub(super) fn new() -> Self {
        let scratches = [Scratch::with_folder(), Scratch::with_folder()];
        let server = Server::of(&scratches[0]);
        fs::write(scratches[0].folder().join("notes"), "old").expect("a folder");
        scratches[0].init(&["--server", &server.url, "--client", "laptop1"]);
        let from = format!("{}/", scratches[0].folder().display());
        run(Command::new("rsync").args(["-ac", &from]).arg(scratches[1].folder())).ok();
        Self { scratches, server }
    }

    /// Starts the guard of the machine with this number, 1 or 2. Its leases last 2 s.
    pub(super) fn guard(&self, number: usize) -> Guard {
        self.guard_as(latchfs(), number)
    }

    /// Starts the guard of a machine by `command`, which runs latchfs.
    pub(super) fn guard_as(&self, command: Command, number: usize) -> Guard {
        let client = format!("laptop{number}");
        let options = ["--client", &client, "--ttl", "2s"];
        Guard::start_as(command, &self.scratches[number - 1], "view", &options)
    }

    /// Starts the guard of the first machine with the default lease.
    pub(super) fn default_guard(&self) -> Guard {
        Guard::start(&self.scratches[0], "view", &["--client", "laptop1"])
    }

    /// Returns the content of a file in the folder of the first machine.
    pub(super) fn folder_file(&self, name: &str) -> String {
        fs::read_to_string(self.scratches[0].folder().join(name)).expect("there")
    }

    /// Returns the lines of a log in the server's data directory.
    pub(super) fn server_log(&self, name: &str) -> Vec<Value> {
        let log = self.scratches[0].join("server").join(name);
        let text = fs::read_to_string(log).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.scratches[0].join(name)
    }
}

/// Returns the directory of the records in a view.
pub(super) fn locks(guard: &Guard) -> PathBuf {
    guard.path(".latchfs/locks")
}

/// Returns the name of the lock of a view.
pub(super) fn lock_name(guard: &Guard) -> String {
    guard.status()["lock"].as_str().expect("a name").to_owned()
}

/// Returns the path of the record in a view.
pub(super) fn record(guard: &Guard) -> PathBuf {
    locks(guard).join(format!("{}.lock", lock_name(guard)))
}

/// A client that was written from the text of the seed alone: `seed_002_client.py`.
pub(super) struct SeedClient {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl SeedClient {
    /// Starts a client of the record in a view.
    pub(super) fn on(guard: &Guard) -> Self {
        let script =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/served/seeds/seed_002_client.py");
        let mut command = Command::new("/usr/bin/python3");
        command.arg(script).arg(locks(guard)).arg(lock_name(guard));
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("Python is installed");
        let input = child.stdin.take().expect("piped");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        Self { child, input, output }
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a command without waiting for its answer.
    pub(super) fn send(&mut self, command: &str) {
        writeln!(self.input, "{command}").expect("it runs");
    }

    /// Returns the answer to the last command.
    pub(super) fn answer(&mut self) -> Value {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("readable");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
    }

    pub(super) fn request(&mut self, command: &str) -> Value {
        self.send(command);
        self.answer()
    }

    /// Carries a command out, and returns the record after it.
    #[track_caller]
    pub(super) fn does(&mut self, command: &str) -> Value {
        let answer = self.request(command);
        assert!(answer.get("error").is_none(), "{command}: {answer}");
        answer["ok"].clone()
    }

    /// Returns the class and the errno of the error of a command.
    #[track_caller]
    pub(super) fn fails(&mut self, command: &str) -> (String, String) {
        let answer = self.request(command);
        let text = |field: &str| answer[field].as_str().unwrap_or_default().to_owned();
        assert!(answer.get("error").is_some(), "{command}: {answer}");
        (text("error"), text("errno"))
    }
}

impl Drop for SeedClient {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
