//! Machines (network namespaces) for one test; they are removed when the test ends, whatever its
//! result.

use crate::command::{
    COMMAND_LIMIT, Output, eventually_in_cluster, latchfs, latchfs_path, run, signal,
};
use crate::python::dedent;
use crate::scratch::Scratch;
use std::cell::Cell;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

/// The port on which servers listen.
pub const PORT: u16 = 8_080;
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// A test network: machines on one switch, and a scratch directory for all of their files.
pub struct Net {
    tag: String,
    scratch: Scratch,
    machines: usize,
}

impl Net {
    /// Makes a switch without machines.
    pub fn new() -> Self {
        let tag = format!("lfs{}x{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let net = Self { tag, scratch: Scratch::new(), machines: 0 };
        let switch = net.switch();
        ip(&["netns", "add", &switch]);
        ip(&["-n", &switch, "link", "add", "switch", "type", "bridge"]);
        ip(&["-n", &switch, "link", "set", "switch", "up"]);
        net
    }

    fn switch(&self) -> String {
        format!("{}s", self.tag)
    }

    /// Adds a machine with a cable to the switch.
    pub fn machine(&mut self) -> Machine {
        self.machines += 1;
        let number = self.machines;
        let (ns, switch, port) =
            (format!("{}m{number}", self.tag), self.switch(), format!("p{number}"));
        ip(&["netns", "add", &ns]);
        ip(&["-n", &ns, "link", "set", "lo", "up"]);
        let cable = ["link", "add", "eth0", "netns", &ns, "type", "veth", "peer", "name", &port];
        ip(&[&cable[..], &["netns", &switch]].concat());
        ip(&["-n", &switch, "link", "set", &port, "master", "switch", "up"]);
        let address = format!("10.77.0.{number}");
        ip(&["-n", &ns, "addr", "add", &format!("{address}/24"), "dev", "eth0"]);
        ip(&["-n", &ns, "link", "set", "eth0", "up"]);
        Machine { ns, address, scratch: self.scratch.path().to_owned(), number }
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        let mut all: Vec<_> = (1..=self.machines).map(|n| format!("{}m{n}", self.tag)).collect();
        all.push(self.switch());
        for ns in all {
            let _gone = Command::new("ip").args(["netns", "del", &ns]).status();
        }
    }
}

#[track_caller]
fn ip(args: &[&str]) {
    run(Command::new("ip").args(args)).ok();
}

/// A machine: a network namespace with one address.
#[derive(Clone)]
pub struct Machine {
    /// The name of the network namespace.
    pub ns: String,
    /// Its address on the switch.
    pub address: String,
    scratch: PathBuf,
    number: usize,
}

impl Machine {
    /// Returns a command that runs on this machine.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.ns)).arg(program);
        // The machines of a test are connected by an unencrypted network.
        command.env("LATCHFS_PLAIN_TOKEN", "true");
        if let Some(version) = KNOWN.get() {
            command.env("LATCHFS_KNOWN_VERSION", version.to_string());
        }
        command
    }

    /// Returns the path of a file of this machine.
    pub fn path(&self, name: &str) -> PathBuf {
        self.scratch.join(format!("m{}-{name}", self.number))
    }

    /// Runs a shell script on this machine.
    #[track_caller]
    pub fn sh(&self, script: &str) -> Output {
        run(self.command("sh").args(["-c", script]))
    }

    /// Connects the network cable of this machine, or disconnects it.
    pub fn cable(&self, plugged: bool) {
        ip(&["-n", &self.ns, "link", "set", "eth0", if plugged { "up" } else { "down" }]);
    }

    /// Starts or stops dropping all TCP packets that arrive at this machine. Packets that it sends
    /// still get out.
    pub fn deaf(&self, deaf: bool) {
        let script = if deaf {
            "nft add table ip t; nft add chain ip t in '{ type filter hook input priority 0; }'; \
             nft add rule ip t in iifname eth0 ip protocol tcp drop"
        } else {
            "nft delete table ip t"
        };
        self.sh(script).ok();
    }

    /// Starts a server on this machine with the options `more`.
    #[track_caller]
    pub fn serve(&self, more: &str) -> Daemon {
        let listen = format!("{}:{PORT}", self.address);
        let mut args = vec!["serve".to_owned(), "--listen".to_owned(), listen];
        args.extend(["--data".to_owned(), self.path("data").display().to_string()]);
        args.extend(insecure().map(str::to_owned));
        args.extend(more.split_whitespace().map(str::to_owned));
        Daemon::start(self, args, "listening")
    }

    /// Returns the URL of the server on this machine.
    pub fn url(&self) -> String {
        format!("http://{}:{PORT}", self.address)
    }

    /// Mounts the locks of `server` at each of `dirs` on this machine, by one daemon.
    #[track_caller]
    pub fn mount_all(&self, server: &str, dirs: &[&str], more: &str) -> Mount {
        let dirs: Vec<_> = dirs.iter().map(|dir| self.path(dir)).collect();
        let mut args = vec!["mount".to_owned()];
        args.extend(dirs.iter().map(|dir| dir.display().to_string()));
        args.extend(["--server".to_owned(), server.to_owned(), "--foreground".to_owned()]);
        args.extend(more.split_whitespace().map(str::to_owned));
        if !more.contains("--client") {
            args.extend(["--client".to_owned(), format!("machine{}", self.number)]);
        }
        let daemon = Daemon::start(self, args, "mounted");
        // The daemon reports each directory when it is mounted, but `start` waits only for the
        // first report.
        for dir in &dirs {
            eventually_in_cluster("all are mounted", || {
                dir.join(".latchfs").exists().then_some(())
            });
        }
        Mount { machine: self.clone(), dirs, daemon }
    }

    /// Mounts the locks of `server` at `locks` on this machine.
    #[track_caller]
    pub fn mount(&self, server: &str, more: &str) -> Mount {
        self.mount_all(server, &["locks"], more)
    }
}

/// Returns the option that lets a server serve other machines without credentials, if this version
/// of the program has one.
fn insecure() -> Option<&'static str> {
    let help = run(latchfs().args(["serve", "--help"])).ok();
    help.contains("--insecure").then_some("--insecure")
}

thread_local! {
    /// The version that programs know, in a build with the feature `planted-version`.
    static KNOWN: Cell<Option<u8>> = const { Cell::new(None) };
}

/// Has the programs that this thread starts from now on know this version.
pub fn know(version: u8) {
    KNOWN.set(Some(version));
}

/// A latchfs process on a machine.
pub struct Daemon {
    child: Child,
    log: PathBuf,
    machine: Machine,
    args: Vec<String>,
    word: &'static str,
    environment: Vec<(&'static str, String)>,
}

impl Daemon {
    /// Starts a daemon, and waits until it prints a line that contains `word`.
    #[track_caller]
    pub fn start(machine: &Machine, args: Vec<String>, word: &'static str) -> Self {
        Self::start_with(machine, args, word, Vec::new())
    }

    /// Starts a daemon with additional environment variables. Waits until the daemon prints a line
    /// that contains `word`.
    #[track_caller]
    pub fn start_with(
        machine: &Machine,
        args: Vec<String>,
        word: &'static str,
        environment: Vec<(&'static str, String)>,
    ) -> Self {
        let (daemon, mut out) = Self::spawn(machine, args, word, environment);
        let mut line = String::new();
        out.read_line(&mut line).expect("it says something, or ends");
        assert!(line.contains(word), "it said '{line}', and: {}", daemon.log());
        drain(out);
        daemon
    }

    /// Starts a daemon without waiting until it prints anything; [`drain`] must read its output. A
    /// restart waits for `word`.
    pub fn spawn(
        machine: &Machine,
        args: Vec<String>,
        word: &'static str,
        environment: Vec<(&'static str, String)>,
    ) -> (Self, BufReader<ChildStdout>) {
        let log = machine.path(&format!("log{}", COUNT.fetch_add(1, Ordering::Relaxed)));
        let err = fs::File::create(&log).expect("the scratch directory is ours");
        let mut command = machine.command(latchfs_path());
        command.args(&args).env("RUST_LOG", "info").envs(environment.iter().cloned());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(err).process_group(0);
        let mut child = command.spawn().expect("nsenter is there");
        let out = BufReader::new(child.stdout.take().expect("piped"));
        let machine = machine.clone();
        (Self { child, log, machine, args, word, environment }, out)
    }

    /// Returns the process id.
    pub fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// Returns what the daemon has logged.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Sends the daemon a signal.
    pub fn signal(&self, number: i32) {
        signal(self.pid(), number);
    }

    /// Kills the daemon by SIGKILL, as in a crash.
    pub fn kill(&mut self) {
        self.signal(libc::SIGKILL);
        self.child.wait().expect("it is our child");
    }

    /// Starts the daemon again with the same arguments.
    #[track_caller]
    pub fn restart(&mut self) {
        let (machine, args) = (self.machine.clone(), std::mem::take(&mut self.args));
        let environment = std::mem::take(&mut self.environment);
        *self = Self::start_with(&machine, args, self.word, environment);
    }

    /// Ends the daemon by SIGTERM, as a service manager does, and waits for its end.
    pub fn end(&mut self) {
        self.signal(libc::SIGTERM);
        self.child.wait().expect("it is our child");
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.signal(libc::SIGCONT);
        self.signal(libc::SIGKILL);
        let _ended = self.child.wait();
    }
}

/// Reads a daemon's output to its end in a thread, so that the daemon never blocks on a full pipe:
/// a daemon with several mounts prints a line for each.
pub fn drain(mut out: BufReader<ChildStdout>) {
    thread::spawn(move || std::io::copy(&mut out, &mut std::io::sink()));
}

/// The mounts of one daemon, on one machine.
pub struct Mount {
    /// The machine of the mount.
    pub machine: Machine,
    dirs: Vec<PathBuf>,
    /// The daemon that mounts.
    pub daemon: Daemon,
}

impl Mount {
    /// Returns the first mount point.
    pub fn dir(&self) -> &Path {
        &self.dirs[0]
    }

    /// Returns all mount points.
    pub fn dirs(&self) -> &[PathBuf] {
        &self.dirs
    }

    /// Runs a shell script in the first mount point, on the machine of the mount.
    #[track_caller]
    pub fn sh(&self, script: &str) -> Output {
        let script = format!("cd '{}' && {script}", self.dir().display());
        self.machine.sh(&script)
    }

    /// Starts a Python program in the first mount point. The program exchanges lines with the test.
    #[track_caller]
    pub fn python(&self, program: &str, args: &[&str]) -> Program {
        let mut command = self.machine.command("python3");
        let program = format!("{PRELUDE}\n{}", dedent(program));
        command.args(["-u", "-c", &program]).args(args).current_dir(self.dir());
        Program::start(&mut command)
    }

    /// Returns the content of `.latchfs/server`.
    pub fn server_page(&self) -> serde_json::Value {
        let page = fs::read(self.dir().join(".latchfs/server")).expect("a page");
        serde_json::from_slice(&page).expect("JSON")
    }

    /// Returns how many operations the mount has sent to the server so far. One HTTP request (a
    /// batch) can contain several operations.
    pub fn asks(&self) -> u64 {
        let page = fs::read_to_string(self.dir().join(".latchfs/metrics")).expect("a page");
        let line = page.lines().find(|line| line.starts_with("latchfs_server_asks_total "));
        line.and_then(|line| line.split(' ').nth(1)?.parse().ok()).expect("a count")
    }

    /// Waits until the mount reports `contact` as the state of its connection to the server.
    #[track_caller]
    pub fn is(&self, contact: &str) {
        eventually_in_cluster(contact, || (self.server_page()["contact"] == contact).then_some(()));
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        self.daemon.signal(libc::SIGCONT);
        for dir in &self.dirs {
            let _gone = Command::new("umount").arg("-l").arg(dir).status();
        }
    }
}

/// The lines that precede each Python program of these tests.
const PRELUDE: &str = "
import errno, fcntl, os, sys, threading, time
now = time.monotonic_ns
# One write for each line: threads say some at once.
def print(*words):
    os.write(1, (' '.join(map(str, words)) + '\\n').encode())
def said(call, *args):
    try:
        call(*args)
        return 'OK'
    except OSError as e:
        return errno.errorcode.get(e.errno, str(e.errno))
";

/// A Python program on a machine of the test: the test writes lines to its input, and reads lines
/// from its output.
pub struct Program {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Program {
    /// Starts a program, and reads its output line by line.
    #[track_caller]
    pub fn start(command: &mut Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        let mut child = command.spawn().expect("it is installed");
        let (send, lines) = channel();
        let out = BufReader::new(child.stdout.take().expect("piped"));
        thread::spawn(move || {
            // The error is ignored: the send fails if the test has stopped reading.
            let _gone = out.lines().map_while(Result::ok).try_for_each(|line| send.send(line));
        });
        let input = child.stdin.take();
        Self { child, input, lines }
    }

    /// Waits for the program's next line of output, and returns it.
    #[track_caller]
    pub fn line(&self) -> String {
        self.lines
            .recv_timeout(COMMAND_LIMIT)
            .unwrap_or_else(|error| panic!("it says nothing: {error}"))
    }

    /// Returns the program's next line of output, or `None` after `limit`.
    pub fn line_within(&self, limit: Duration) -> Option<String> {
        self.lines.recv_timeout(limit).ok()
    }

    /// Whether the program prints nothing for 300 ms.
    pub fn is_silent(&self) -> bool {
        self.lines.recv_timeout(Duration::from_millis(300)).is_err()
    }

    /// Checks the next line of output.
    #[track_caller]
    pub fn says(&self, wanted: &str) {
        assert_eq!(self.line(), wanted);
    }

    /// Sends a line of input to the program.
    pub fn send_line(&mut self, line: &str) {
        let input = self.input.as_mut().expect("open until the end");
        writeln!(input, "{line}").expect("it reads");
    }

    /// Returns the process id.
    pub fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// Waits for the program to end; returns its exit code, or 128 plus the signal that killed it.
    pub fn ended(mut self) -> i32 {
        drop(self.input.take());
        let status = self.child.wait().expect("it is our child");
        status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        signal(-self.pid(), libc::SIGKILL);
        let _ended = self.child.wait();
    }
}
