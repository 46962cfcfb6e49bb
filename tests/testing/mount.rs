//! Mounts the real program for one test, and removes all that the test made at the end, even if it
//! fails.

use crate::backend::{self, Behind};
use crate::command::{Output, eventually, is_durable, latchfs, latchfs_path, lines, run, signal};
use crate::python::{PRELUDE, dedent};
use crate::scratch::{Scratch, mounts};
use crate::server::Server;
use serde_json::Value;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

/// A user other than root, whom [`users`] creates.
pub const ALICE: &str = "latchfs-a";
/// Another user, as [`ALICE`].
pub const BOB: &str = "latchfs-b";
/// Timeout for the start and for the end of a mount.
const MOUNT_LIMIT: Duration = Duration::from_secs(20);

/// Creates the users [`ALICE`] and [`BOB`] unless they exist.
pub fn users() {
    static MADE: OnceLock<()> = OnceLock::new();
    MADE.get_or_init(|| {
        for user in [ALICE, BOB] {
            let mut id = Command::new("id");
            if run(id.arg(user)).code != 0 {
                let mut add = Command::new("useradd");
                run(add.args(["--no-create-home", "--shell", "/usr/sbin/nologin", user])).ok();
            }
        }
    });
}

/// Returns the directory in which `contrib/test` installs packages of pip and npm.
pub fn tools() -> PathBuf {
    let profile = Path::new(latchfs_path()).parent().and_then(Path::parent);
    let tools = profile.expect("the program lies in the target directory").join("test-tools");
    assert!(tools.is_dir(), "{} is missing; run contrib/test once", tools.display());
    tools
}

/// The mount that a test asks for: the backend, the number of directories, and the options of the
/// daemon.
pub struct Setup {
    scratch: Scratch,
    dirs: usize,
    args: Vec<String>,
    state: bool,
    behind: Behind,
    descriptors: Option<(u64, u64)>,
}

impl Setup {
    /// One directory, mounted by the client `laptop1`, with a state file.
    pub fn new() -> Self {
        assert!(Path::new("/dev/fuse").exists(), "/dev/fuse is missing: nothing can be mounted");
        let args = ["--client", "laptop1"].map(str::to_owned).to_vec();
        let (scratch, behind) = (Scratch::open_to_all(), Behind::Itself);
        Self { scratch, dirs: 1, args, state: true, behind, descriptors: None }
    }

    /// One directory, in which a client has the locks of this server.
    pub fn of(server: &Server, client: &str) -> Self {
        Self::new().only(&format!("--client {client} --server {}", server.url)).no_state()
    }

    /// Uses this backend for the mounts of the test. If the backend is a server or a cluster, and
    /// the test has one directory, the harness also makes a second mount of the same locks, in
    /// which commands of other users run; with a cluster, the second mount uses another node.
    #[must_use]
    pub fn behind(mut self, behind: Behind) -> Self {
        self.behind = behind;
        self
    }

    /// Adds command-line arguments of the daemon, split at spaces.
    #[must_use]
    pub fn with(mut self, args: &str) -> Self {
        self.args.extend(args.split(' ').map(str::to_owned));
        self
    }

    /// Replaces all command-line arguments of the daemon by `args`. The harness still adds
    /// `--state`, `--data` or `--server`.
    #[must_use]
    pub fn only(mut self, args: &str) -> Self {
        self.args.clear();
        self.with(args)
    }

    /// Makes the daemon mount `count` directories, which are named `locks`, `locks2`, `locks3` and
    /// so on.
    #[must_use]
    pub fn dirs(mut self, count: usize) -> Self {
        self.dirs = count;
        self
    }

    /// Mounts without the option `--state` or `--data`, which the harness otherwise adds.
    #[must_use]
    pub fn no_state(mut self) -> Self {
        self.state = false;
        self
    }

    /// Sets the soft and the hard limit of the number of descriptors that the daemon may open.
    #[must_use]
    pub fn descriptors(mut self, limits: (u64, u64)) -> Self {
        self.descriptors = Some(limits);
        self
    }

    /// Starts the daemon, and waits until all directories are mounted.
    #[track_caller]
    pub fn start(self) -> Mount {
        let mut mount = self.prepare();
        mount.start();
        mount
    }

    /// Prepares directories and servers, without starting the daemon that mounts.
    pub fn prepare(self) -> Mount {
        let dirs: Vec<_> = (1..=self.dirs)
            .map(|n| if n == 1 { "locks".to_owned() } else { format!("locks{n}") })
            .map(|name| self.scratch.join(&name))
            .collect();
        for dir in &dirs {
            fs::create_dir(dir).expect("the scratch directory is empty");
        }
        for name in ["t", "state"] {
            fs::create_dir(self.scratch.join(name)).expect("the scratch directory is empty");
        }
        let open = fs::Permissions::from_mode(0o777);
        fs::set_permissions(self.scratch.join("t"), open).expect("ours");
        let mut args = self.args;
        let (mut servers, mut beside) = (Vec::new(), None);
        if self.behind != Behind::Itself {
            servers = backend::servers(&self.scratch, self.behind);
            args.extend(["--server".to_owned(), servers[0].url.clone()]);
            // There is no second mount for other users if the test has several directories, because
            // such a test itself decides which user works in which directory.
            if self.dirs == 1 {
                let dir = self.scratch.join("beside");
                fs::create_dir(&dir).expect("the scratch directory is empty");
                let url = servers[1 % servers.len()].url.clone();
                beside = Some(Beside { dir, url, daemon: None });
            }
        } else if self.state {
            let option = if is_durable() { "--data" } else { "--state" };
            args.extend([option.to_owned(), self.scratch.join("state").display().to_string()]);
        }
        let (scratch, descriptors) = (self.scratch, self.descriptors);
        Mount { dirs, args, daemon: None, beside, servers, scratch, descriptors }
    }
}

/// The second mount of the same locks, for commands of other users.
struct Beside {
    dir: PathBuf,
    url: String,
    daemon: Option<Child>,
}

/// A daemon with its mounts, and the scratch directory of the test.
pub struct Mount {
    dirs: Vec<PathBuf>,
    args: Vec<String>,
    daemon: Option<Child>,
    beside: Option<Beside>,
    /// The servers, which are dropped after the mounts.
    servers: Vec<Server>,
    scratch: Scratch,
    descriptors: Option<(u64, u64)>,
}

/// Starts a daemon with one mount and the default configuration.
#[track_caller]
pub fn mount() -> Mount {
    Setup::new().start()
}

impl Mount {
    /// Returns the first mount point.
    pub fn dir(&self) -> &Path {
        &self.dirs[0]
    }

    /// Returns the mount point number `index` of the daemon.
    pub fn dir_at(&self, index: usize) -> &Path {
        &self.dirs[index]
    }

    /// Returns an ordinary directory outside of the mount, which every user may write to.
    pub fn scratch(&self) -> PathBuf {
        self.scratch.join("t")
    }

    /// Returns the directory in which the daemon keeps its state.
    pub fn state(&self) -> PathBuf {
        self.scratch.join("state")
    }

    /// Returns the process id of the daemon.
    pub fn pid(&self) -> i32 {
        self.daemon.as_ref().expect("it runs").id().cast_signed()
    }

    /// Returns the process id of the first server.
    pub fn server_pid(&self) -> i32 {
        self.servers[0].pid()
    }

    /// Returns the command that runs the daemon in the foreground.
    pub fn command(&self) -> Command {
        let mut command = Command::new("prlimit");
        if let Some((soft, hard)) = self.descriptors {
            command.arg(format!("--nofile={soft}:{hard}")).arg(latchfs_path());
        } else {
            command = latchfs();
        }
        command.arg("mount").args(&self.dirs).arg("--foreground").args(&self.args);
        command
    }

    /// Returns the mount point on which commands of other users run: that of the second mount, if
    /// there is one.
    pub fn others(&self) -> &Path {
        self.beside.as_ref().map_or(self.dir(), |beside| &beside.dir)
    }

    /// Starts the daemon, and waits until it reports that all directories are mounted.
    #[track_caller]
    pub fn start(&mut self) {
        assert!(self.daemon.is_none(), "it runs already");
        if let Some(Beside { dir, url, .. }) = &self.beside {
            let own = self.args.iter().take_while(|arg| *arg != "--server");
            let mut command = latchfs();
            command.arg("mount").arg(dir).arg("--foreground").args(own).args(["--server", url]);
            let daemon = self.mounted(&mut command, "beside.log", 1);
            self.beside.as_mut().expect("there is one").daemon = Some(daemon);
        }
        self.daemon = Some(self.mounted(&mut self.command(), "log", self.dirs.len()));
    }

    /// Starts a daemon, and waits until it has reported `count` mounts.
    #[track_caller]
    fn mounted(&self, command: &mut Command, log: &str, count: usize) -> Child {
        let path = self.scratch.join(log);
        let file = File::create(&path).expect("the scratch directory is ours");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(file).process_group(0);
        let mut child = command.spawn().expect("the program was built");
        let lines = lines(child.stdout.take().expect("piped"));
        for _ in 0..count {
            let line = lines.recv_timeout(MOUNT_LIMIT);
            if !line.as_ref().is_ok_and(|line| line.contains("mounted")) {
                signal(child.id().cast_signed(), libc::SIGKILL);
                let log = fs::read_to_string(&path).unwrap_or_default();
                panic!("the first lines say 'mounted', not {line:?}: {log}");
            }
        }
        child
    }

    /// Returns the daemon's standard error.
    pub fn log(&self) -> String {
        fs::read_to_string(self.scratch.join("log")).unwrap_or_default()
    }

    /// Sends a signal to the daemon, waits for its end, and returns its exit code.
    #[track_caller]
    pub fn stop(&mut self, number: i32) -> i32 {
        signal(self.pid(), number);
        self.reap().expect("it ends on a signal")
    }

    /// Kills the daemon by SIGKILL. The mount stays, without a daemon.
    #[track_caller]
    pub fn crash(&mut self) {
        assert_eq!(self.stop(libc::SIGKILL), 128 + libc::SIGKILL);
    }

    /// Waits until the daemon ends by itself, and returns its exit code.
    pub fn ended(&mut self) -> Option<i32> {
        self.reap()
    }

    fn reap(&mut self) -> Option<i32> {
        reap(self.daemon.take()?)
    }

    /// Runs a shell script in the mount point; `$T` is an ordinary directory, and `$D` the mount
    /// point.
    #[track_caller]
    pub fn sh(&self, script: &str) -> Output {
        run(self.within(Command::new("sh").args(["-c", script])))
    }

    /// Runs a shell script in a login session of its own, because the session of the tests may no
    /// longer have a leader.
    #[track_caller]
    pub fn login(&self, script: &str) -> Output {
        run(self.within(Command::new("setsid").args(["-w", "sh", "-c", script])))
    }

    /// Runs a shell script outside of the mount point, for a mount that does not answer.
    #[track_caller]
    pub fn sh_gone(&self, script: &str) -> Output {
        let script = format!("exec 2>&1; {script}");
        let seen = run(self.within(Command::new("sh").args(["-c", &script])).current_dir("/"));
        Output { err: seen.out.clone(), ..seen }
    }

    /// Runs a shell script as another user, in the mount for other users.
    #[track_caller]
    pub fn sh_as(&self, user: &str, script: &str) -> Output {
        users();
        let user_args = [format!("--reuid={user}"), format!("--regid={user}")];
        let mut command = Command::new("setpriv");
        command.args(user_args).args(["--clear-groups", "sh", "-c", script]);
        run(self.within_others(&mut command))
    }

    /// Runs a Python program in the mount point, after [`PRELUDE`].
    #[track_caller]
    pub fn py(&self, program: &str) -> Output {
        users();
        let program = format!("{PRELUDE}\n{}", dedent(program));
        run(self.within(Command::new("python3").args(["-c", &program])))
    }

    /// Runs a Python program with the packages of the tests' virtual environment.
    #[track_caller]
    pub fn py_with_packages(&self, program: &str) -> Output {
        self.py_by(tools().join("venv/bin/python"), program)
    }

    /// Runs a Python program with the given interpreter, which has packages of its own.
    #[track_caller]
    pub fn py_by(&self, python: impl AsRef<Path>, program: &str) -> Output {
        let program = format!("{PRELUDE}\n{}", dedent(program));
        let python = python.as_ref();
        run(self.within(Command::new(python).args(["-W", "ignore", "-c", &program])))
    }

    /// Runs a Node program in the mount point.
    #[track_caller]
    pub fn node(&self, program: &str) -> Output {
        let mut command = Command::new("node");
        let modules = tools().join("npm/node_modules");
        run(self.within(command.env("NODE_PATH", modules).args(["-e", program])))
    }

    /// Runs `latchfs` on this mount.
    #[track_caller]
    pub fn latchfs(&self, args: &[&str]) -> Output {
        run(self.within(latchfs().args(args)))
    }

    /// Runs `latchfs` outside of the mount point, for a daemon that does not answer.
    #[track_caller]
    pub fn latchfs_outside(&self, args: &[&str]) -> Output {
        run(self.within(latchfs().args(args)).current_dir("/"))
    }

    /// Sets the working directory and the environment variables of a command that runs in the mount
    /// for other users.
    pub fn within_others<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        let dir = self.others();
        self.within(command).current_dir(dir).env("LATCHFS_DIR", dir).env("D", dir)
    }

    /// Sets the directory and the environment that every command of a test has.
    pub fn within<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        let path = std::env::var("PATH").expect("there is one");
        let own = Path::new(latchfs_path()).parent().expect("it is a file").display();
        command
            .current_dir(self.dir())
            .env("PATH", format!("{own}:{path}"))
            .env("LATCHFS_DIR", self.dir())
            .env("D", self.dir())
            .env("D2", self.dirs.get(1).unwrap_or(&self.dirs[0]))
            .env("OTHERS", self.others())
            .env("T", self.scratch())
            .env("LC_ALL", "C.UTF-8")
    }

    /// Returns the status of a lock, even if the lock is free.
    #[track_caller]
    pub fn status(&self, name: &str) -> Value {
        let file = name.replace('/', "%2F");
        json(&self.sh(&format!("cat '.latchfs/status/%2F{file}'")).ok())
    }

    /// Returns the phase of a lock, as its status names it: `free`, `held`, or `grace` (the lease
    /// has expired, but its holder can still renew it).
    #[track_caller]
    pub fn phase(&self, name: &str) -> String {
        text(&self.status(name)["phase"])
    }

    /// Returns the token of a held lock.
    #[track_caller]
    pub fn token(&self, name: &str) -> u64 {
        let status = self.status(name);
        status["token"].as_u64().unwrap_or_else(|| panic!("no token in {status}"))
    }

    /// Waits until the lock `name` is in the phase `phase`: `free`, `held`, or `grace` (the lease
    /// has expired, but its holder can still renew it).
    #[track_caller]
    pub fn until(&self, name: &str, phase: &str) {
        eventually(&format!("{name} is {phase}"), || (self.phase(name) == phase).then_some(()));
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let others = self.beside.as_mut().and_then(|beside| beside.daemon.take());
        for child in self.daemon.take().into_iter().chain(others) {
            signal(child.id().cast_signed(), libc::SIGTERM);
            let ended = reap(child);
            if thread::panicking() {
                eprintln!("the daemon's log:\n{}", self.log());
            } else {
                assert_eq!(ended, Some(0), "SIGTERM ends the daemon well: {}", self.log());
            }
        }
        for dir in self.dirs.iter().chain(self.beside.as_ref().map(|beside| &beside.dir)) {
            while mounts().contains(dir) {
                let gone = Command::new("umount").arg("-l").arg(dir).status();
                assert!(gone.is_ok_and(|status| status.success()), "umount {}", dir.display());
            }
        }
    }
}

/// Waits for the end of a daemon, and returns its exit code; `None` if it had to be killed.
fn reap(mut child: Child) -> Option<i32> {
    let pid = child.id().cast_signed();
    let (sender, receiver) = channel();
    thread::spawn(move || {
        let _gone = child.wait().map(|status| sender.send(status));
    });
    let ended = receiver.recv_timeout(MOUNT_LIMIT);
    if ended.is_err() {
        signal(pid, libc::SIGKILL);
    }
    let status = ended.ok()?;
    Some(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)))
}

/// Returns the resident memory of the daemon.
pub fn memory_kb(m: &Mount) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", m.pid())).expect("it lives");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("Linux says it");
    let number = line.split_whitespace().nth(1).expect("a number");
    number.parse().expect("a number")
}

/// Parses JSON text. A failure shows the text.
#[track_caller]
pub fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("no JSON ({error}): {text:?}"))
}

/// Returns the string that a JSON value holds.
#[track_caller]
pub fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("no text: {value}")).to_owned()
}
