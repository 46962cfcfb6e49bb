//! Runs the real program as a server for one test, sends requests with curl, and kills the server
//! at the end of the test.

use crate::command::{eventually, is_durable, latchfs, run, signal};
use crate::scratch::Scratch;
use serde_json::Value;
use std::fs;
use std::io::{BufRead as _, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

/// The name of the Unix socket in the directory of a server.
const SOCKET: &str = "http.sock";
/// Time limit of a request in seconds: only a request that hangs takes so long, even on a loaded
/// machine.
const REQUEST_LIMIT_SECS: &str = "60";

/// A running server, which is killed when it is dropped.
pub struct Server {
    child: Child,
    out: BufReader<ChildStdout>,
    /// The URL of the first address at which it listens.
    pub url: String,
    scratch: Scratch,
}

impl Server {
    /// Starts a server on a free port with additional options. It keeps its state in memory only,
    /// except in the run of the tests with data directories ([`is_durable`]).
    #[track_caller]
    pub fn start(options: &[&str]) -> Self {
        Self::start_in(Scratch::new(), "127.0.0.1:0", options)
    }

    /// Starts a server like [`Self::start`] that also listens at a Unix socket, for resets.
    #[track_caller]
    pub fn with_socket(options: &[&str]) -> Self {
        let scratch = Scratch::new();
        let socket = scratch.path().join(SOCKET);
        Self::start_in(scratch, &format!("127.0.0.1:0,unix:{}", socket.display()), options)
    }

    #[track_caller]
    fn start_in(scratch: Scratch, address: &str, options: &[&str]) -> Self {
        let mut command = latchfs();
        command.args(["serve", "--listen", address]);
        if is_durable() {
            command.arg("--data").arg(scratch.path().join("data"));
        } else {
            command.args(["--memory", "--grant-at-once"]);
        }
        Self::spawn(command.args(options), scratch)
    }

    /// Starts a server on a free port, with no other options than `options`.
    #[track_caller]
    pub fn listen(options: &[&str]) -> Self {
        Self::at("127.0.0.1:0", options)
    }

    /// Starts a server that listens on `address`, with the options `options`.
    #[track_caller]
    pub fn at(address: &str, options: &[&str]) -> Self {
        Self::serve(latchfs(), address, options)
    }

    /// Starts a server that keeps its state in the scratch directory of a test.
    #[track_caller]
    pub fn of(scratch: &Scratch) -> Self {
        Self::of_data(&scratch.join("server"))
    }

    /// Starts a server that keeps its state in the data directory `data`.
    #[track_caller]
    pub fn of_data(data: &Path) -> Self {
        Self::listen(&["--data", &data.display().to_string()])
    }

    /// Starts the daemon of a user's own locks, which keeps a journal in `state` as a mount does.
    #[track_caller]
    pub fn of_own_locks(state: &Path) -> Self {
        Self::listen(&["--state", &state.display().to_string(), "--detached"])
    }

    /// Starts a server by `command`, which runs latchfs.
    #[track_caller]
    pub fn serve(mut command: Command, address: &str, options: &[&str]) -> Self {
        command.args(["serve", "--listen", address]).args(options);
        Self::spawn(&mut command, Scratch::new())
    }

    /// Starts a mount at `dir` that also serves HTTP on a Unix socket.
    #[track_caller]
    pub fn mounted(dir: &Path) -> Self {
        let scratch = Scratch::new();
        let mut command = latchfs();
        let socket = format!("unix:{}", scratch.path().join("http.sock").display());
        command.arg("mount").arg(dir).args([
            "--listen",
            &socket,
            "--state",
            "none",
            "--grant-at-once",
        ]);
        Self::spawn(command.args(["--client", "box"]), scratch)
    }

    /// Starts a server by `command`, and waits until it says where it listens. The log goes to
    /// `scratch`, which the server keeps.
    #[track_caller]
    pub fn spawn(command: &mut Command, scratch: Scratch) -> Self {
        let log = fs::File::create(scratch.path().join("log")).expect("a fresh directory");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        let is_json = command.get_args().any(|word| word == "json");
        let mut child = command.spawn().expect("the program is there");
        let mut out = BufReader::new(child.stdout.take().expect("piped"));
        if is_json {
            let url = eventually("the server starts", || url_in_log(&scratch));
            return Self { child, out, url, scratch };
        }
        let mut line = String::new();
        out.read_line(&mut line).expect("it says something or ends");
        if line.starts_with("latchfs: mounted ") {
            line.clear();
            out.read_line(&mut line).expect("it says something or ends");
        }
        let Some(rest) = line.strip_prefix("latchfs: listening on ") else {
            let log = fs::read_to_string(scratch.path().join("log")).unwrap_or_default();
            panic!("no server: {line}{log}");
        };
        let url = rest.split(' ').next().expect("an address").to_owned();
        Self { child, out, url, scratch }
    }

    /// Returns the next line that the server prints.
    #[track_caller]
    pub fn says(&mut self) -> String {
        let mut line = String::new();
        self.out.read_line(&mut line).expect("it says something or ends");
        line
    }

    /// Returns the server's log.
    pub fn log(&self) -> String {
        fs::read_to_string(self.scratch.path().join("log")).unwrap_or_default()
    }

    /// Returns the process id of the server.
    pub fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// Sends the server a signal.
    pub fn signal(&self, number: i32) {
        signal(self.pid(), number);
    }

    /// Waits until the server has ended, and returns its exit code.
    pub fn wait(&mut self) -> Option<i32> {
        self.child.wait().expect("it is our child").code()
    }

    /// Runs curl with the arguments `arguments`, of which the last is a path on the server; returns
    /// the response.
    #[track_caller]
    pub fn curl(&self, arguments: &[&str]) -> Reply {
        let (path, options) = arguments.split_last().expect("a path at least");
        let mut command = Command::new("curl");
        command.args(["-sS", "-i", "--max-time", REQUEST_LIMIT_SECS]).args(options);
        let output = command.args(self.target(path)).output().expect("curl is there");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "curl {arguments:?}: {said}");
        // The conversion to text is lossy, because a backup is binary.
        Reply::parse(&String::from_utf8_lossy(&output.stdout))
    }
}

impl Server {
    /// Returns the arguments by which curl reaches a path of this server.
    pub fn target(&self, path: &str) -> Vec<String> {
        target_at(&self.url, path)
    }

    /// Returns the URL of the Unix socket of a server that [`Self::with_socket`] has started.
    pub fn socket(&self) -> String {
        format!("unix:{}", self.scratch.path().join(SOCKET).display())
    }

    /// Resets locks at the Unix socket of the server, as its user.
    #[track_caller]
    pub fn reset(&self, query: &str) -> Reply {
        let mut command = Command::new("curl");
        command.args(["-sS", "-i", "--max-time", REQUEST_LIMIT_SECS, "-X", "POST"]);
        command.args(target_at(&self.socket(), &format!("/reset?{query}")));
        Reply::parse(&run(&mut command).ok())
    }

    /// Starts a request in the background, since it may wait; the last argument is a path on the
    /// server.
    #[track_caller]
    pub fn open(&self, arguments: &[&str]) -> Open {
        let (path, options) = arguments.split_last().expect("a path at least");
        let mut command = Command::new("curl");
        command.args(["-sS", "-i", "-N", "--max-time", REQUEST_LIMIT_SECS]).args(options);
        command.args(self.target(path)).stdout(Stdio::piped()).stdin(Stdio::null());
        let mut child = command.spawn().expect("curl is there");
        let out = BufReader::new(child.stdout.take().expect("piped"));
        Open { child, out }
    }

    /// Opens an event stream, and returns when it has begun: it will contain all later events.
    #[track_caller]
    pub fn events(&self, arguments: &[&str]) -> Open {
        let mut open = self.open(arguments);
        while let Some(line) = open.line() {
            if line == ": latchfs" {
                return open;
            }
        }
        panic!("the stream never began");
    }

    /// Waits until `count` waiters are in the queue of a lock.
    pub fn in_line(&self, name: &str, count: usize) {
        eventually("waiters", || {
            let status = self.curl(&[&format!("/locks/{name}")]).json();
            let waiters = status["waiters"].as_array().map_or(0, Vec::len);
            (waiters == count).then_some(())
        });
    }
}

/// Returns the URL of a server that logs in JSON, once it has started.
fn url_in_log(scratch: &Scratch) -> Option<String> {
    let log = fs::read_to_string(scratch.path().join("log")).ok()?;
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let started = lines.into_iter().find(|line| line["message"] == "server started")?;
    Some(format!("http://{}", started["address"].as_str()?))
}

/// Returns the arguments by which curl reaches a path of the server at `url`.
fn target_at(url: &str, path: &str) -> Vec<String> {
    match url.strip_prefix("unix:") {
        None => vec![format!("{url}{path}")],
        Some(socket) => {
            ["--unix-socket", socket, &format!("http://localhost{path}")].map(str::to_owned).into()
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An HTTP response.
#[derive(Debug)]
pub struct Reply {
    /// The status code.
    pub code: u16,
    head: String,
    /// The body, as text.
    pub body: String,
}

impl Reply {
    #[track_caller]
    fn parse(text: &str) -> Self {
        let (head, body) = text.split_once("\r\n\r\n").expect("a head");
        let code = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a code");
        Self { code, head: head.to_owned(), body: body.to_owned() }
    }

    /// Whether the response came over HTTP/2.
    pub fn is_http_2(&self) -> bool {
        self.head.starts_with("HTTP/2 ")
    }

    /// Returns the value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.filter(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value).next()
    }

    /// Parses the body as JSON.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Checks the status code, and returns the body as JSON.
    #[track_caller]
    pub fn is(&self, code: u16) -> Value {
        assert_eq!(self.code, code, "{self:?}");
        self.json()
    }
}

/// A request in progress: curl in the background.
pub struct Open {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Open {
    /// Waits for the whole response to the request.
    #[track_caller]
    pub fn reply(mut self) -> Reply {
        let mut text = String::new();
        self.out.read_to_string(&mut text).expect("text");
        Reply::parse(&text)
    }

    /// Closes the connection of the request by killing curl.
    pub fn cut(mut self) {
        self.child.kill().expect("it is our child");
        let _ = self.child.wait();
    }

    /// Waits for the next line of a stream, and returns it without its newline; `None` at the end
    /// of the stream.
    pub fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        let count = self.out.read_line(&mut line).expect("text");
        (count > 0).then(|| line.trim_end().to_owned())
    }

    /// Waits for the next event of a stream.
    #[track_caller]
    pub fn event(&mut self) -> Event {
        self.try_event().expect("the stream goes on")
    }

    /// Waits for the next event of a stream; `None` at the end of the stream.
    pub fn try_event(&mut self) -> Option<Event> {
        let (mut id, mut kind, mut data) = (None, None, None);
        loop {
            let line = self.line()?;
            match line.split_once(": ") {
                Some(("id", value)) => id = Some(value.to_owned()),
                Some(("event", value)) => kind = Some(value.to_owned()),
                Some(("data", value)) => data = serde_json::from_str(value).ok(),
                _ if line.is_empty() && kind.is_some() => break,
                _ => {}
            }
        }
        let (kind, data) = (kind.unwrap_or_default(), data.unwrap_or_default());
        Some(Event { id: id.unwrap_or_default(), kind, data })
    }

    /// Waits for the next event of the kind `kind`, skips events of other kinds, and returns it.
    #[track_caller]
    pub fn until(&mut self, kind: &str) -> Event {
        loop {
            let event = self.event();
            if event.kind == kind {
                return event;
            }
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One event of an event stream.
#[derive(Debug)]
pub struct Event {
    /// The field `id`.
    pub id: String,
    /// The field `event`.
    pub kind: String,
    /// The field `data`, as JSON.
    pub data: Value,
}
