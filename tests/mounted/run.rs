//! `latchfs run` and `latchfs wait`: commands under a lock, and waiting in the queue of a lock.

use latchfs::holder_id::Maker;
use latchfs::time::{Span, boot_now};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;
use testing::*;

/// A script that runs in the background, with its output line by line; it is killed when this value
/// is dropped.
pub(crate) struct Job(Child, std::sync::mpsc::Receiver<String>);

impl Job {
    pub(crate) fn new(m: &Mount, script: &str) -> Self {
        let mut command = Command::new("sh");
        let command = m.within(command.args(["-c", script]));
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("sh is there");
        let said = lines(child.stdout.take().expect("piped"));
        Self(child, said)
    }

    /// Returns the next line of the output.
    #[track_caller]
    pub(crate) fn line(&self) -> String {
        self.1.recv_timeout(Duration::from_secs(20)).expect("it says something")
    }

    #[track_caller]
    pub(crate) fn says(&self, wanted: &str) {
        assert_eq!(self.line(), wanted);
    }

    pub(crate) fn pid(&self) -> i32 {
        self.0.id().cast_signed()
    }

    /// Asserts that the script keeps running for `span`, and prints nothing.
    #[track_caller]
    pub(crate) fn goes_on(&mut self, span: Duration) {
        assert_eq!(self.1.recv_timeout(span), Err(RecvTimeoutError::Timeout), "it goes on");
        assert_eq!(self.0.try_wait().expect("it is our child"), None);
    }

    /// Waits until the script ends, and returns its exit code.
    #[track_caller]
    pub(crate) fn ends(&mut self) -> Option<i32> {
        let status = eventually("its end", || self.0.try_wait().expect("it is our child"));
        status.code()
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _reaped = self.0.wait();
    }
}

/// `run` holds the lock while its command runs, even beyond the ttl, and then releases it. `run`
/// returns the command's exit code, and sets variables for lock, token and directory.
#[test]
fn a_command_runs_under_a_lock() {
    let m = Setup::new().with("--ttl 1s --grace 0s").start();
    let script = "echo $LATCHFS_LOCK $LATCHFS_DIR; cat .latchfs/status/build; sleep 1.5; \
                  cat .latchfs/status/build; exit 7";
    let seen = m.latchfs(&["run", "build", "--", "sh", "-c", script]);
    assert_eq!(seen.code, 7, "{seen:?}");
    assert_eq!(seen.out.matches("\"phase\": \"held\"").count(), 2, "{}", seen.out);
    assert!(seen.out.starts_with(&format!("build {}\n", m.dir().display())), "{}", seen.out);
    assert_eq!(m.phase("build"), "free");
    assert_eq!(m.latchfs(&["run", "x", "--", "sh", "-c", "kill -9 $$"]).code, 128 + 9);
    for (program, code, next) in [
        ("/no/such/program", 127, "no such file or directory; check the path"),
        ("no-such-program", 127, "in a directory of PATH; a builtin of the shell needs -c"),
        ("/etc/passwd", 126, "permission denied; check that it may be executed: chmod +x"),
    ] {
        let refused = m.latchfs(&["run", "x", "--", program]);
        assert_eq!(refused.code, code, "{refused:?}");
        assert!(refused.err.contains(&format!("{program} can't be run: ")), "{refused:?}");
        assert!(refused.err.contains(next), "{refused:?}");
    }
    assert_eq!(m.phase("x"), "free");
    let grace = ["run", "x", "--grace", "7s", "--", "cat", ".latchfs/status/x"];
    assert!(m.latchfs(&grace).ok().contains("\"grace_ms\": 7000"));
}

/// Two `run` commands of the same user exclude each other: the second waits in the queue, `--try`
/// and a short `--wait` give up with exit code 75, and a signal ends a waiter.
#[test]
fn the_second_run_waits_in_the_queue() {
    let m = mount();
    let mut first = Job::new(&m, "exec latchfs run build -- sh -c 'echo on; exec sleep 100'");
    first.says("on");
    let tried = m.latchfs(&["run", "build", "--try", "--", "true"]);
    assert!(tried.exits(75).contains("is held by"));
    let waited = m.latchfs(&["run", "build", "--wait", "200ms", "--", "true"]);
    assert!(waited.exits(75).contains("after 200ms"));
    let waiting = |count: usize| {
        eventually("the line", || {
            let line = m.status("build")["waiters"].as_array().map(Vec::len);
            (line.unwrap_or(0) == count).then_some(())
        });
    };
    let mut second = Job::new(&m, "exec latchfs run build -- echo second");
    waiting(1);
    let mut third = Job::new(&m, "exec latchfs run build -- echo third");
    waiting(2);
    signal(second.pid(), libc::SIGINT);
    assert_eq!(second.ends(), None, "SIGINT ends it");
    waiting(1);
    signal(first.pid(), libc::SIGTERM);
    assert_eq!(first.ends(), Some(128 + libc::SIGTERM), "the signal was passed on");
    third.says("third");
    assert_eq!(third.ends(), Some(0));
    assert_eq!(m.phase("build"), "free");
}

/// When the lock of a `latchfs run` is stolen, all processes of its command are dead before the new
/// holder has the lock, even those that have left the process group. Then `run` executes the
/// `--on-lost` command and exits with 76.
#[test]
fn all_is_dead_when_the_lock_is_lost() {
    let m = mount();
    let mut job = Job::new(
        &m,
        "exec latchfs run build --on-lost 'echo lost $LATCHFS_LOCK' -- \
         sh -c 'trap \"\" TERM; setsid sleep 300 & echo $!; while :; do sleep 1; done'",
    );
    let line = job.1.recv_timeout(Duration::from_secs(20)).expect("the pid of the one that left");
    let left: i32 = line.parse().expect("a pid");
    let end = format!(
        "latchfs steal build --reason test && ! grep -qv '^.*) Z' /proc/{left}/stat 2>/dev/null"
    );
    m.sh(&end).ok();
    job.says("lost build");
    assert_eq!(job.ends(), Some(76));
}

/// When `latchfs run` is killed, its command ends, and the lock is released.
#[test]
fn the_command_dies_with_run() {
    let m = mount();
    let mut job = Job::new(&m, "exec latchfs run build -- sh -c 'echo $$; exec sleep 300'");
    let line = job.1.recv_timeout(Duration::from_secs(20)).expect("the command's pid");
    signal(job.pid(), libc::SIGKILL);
    assert_eq!(job.ends(), None);
    m.until("build", "free");
    eventually("the command's end", || {
        let stat = std::fs::read_to_string(format!("/proc/{line}/stat")).unwrap_or_default();
        (stat.is_empty() || stat.contains(") Z")).then_some(())
    });
}

/// `latchfs wait` waits in the lock's queue, and the caller has the lock when the command returns.
#[test]
fn wait_returns_with_the_lock() {
    let m = mount();
    m.sh_as(ALICE, "mkdir build").ok();
    m.latchfs(&["wait", "build", "--timeout", "100ms"]).exits(75);
    assert_eq!(m.status("build")["waiters"].as_array().map_or(0, Vec::len), 0);
    let mut job = Job::new(&m, "exec latchfs wait build --json | grep holder_id | cut -d: -f3");
    eventually("the waiter", || {
        let line = m.status("build")["waiters"].as_array().map(Vec::len);
        (line == Some(1)).then_some(())
    });
    m.sh_as(ALICE, "rmdir build").ok();
    job.says("root");
    assert_eq!(job.ends(), Some(0));
    assert_eq!(m.status("build")["holder"], "laptop1:root");
    m.latchfs(&["wait", "build", "--timeout", "100ms"]).exits(75);
    assert!(m.latchfs(&["wait", "build", "--reentrant"]).ok().starts_with("acquired build"));
    m.latchfs(&["release", "build", "--any"]).ok();
    m.latchfs(&["wait", "build"]).ok();
    m.latchfs(&["release", "build"]).ok();
}

/// Of two concurrent runs of `acquire build && work; release build`, one works, and the other
/// neither works nor releases the lock that it has not acquired.
#[test]
fn two_scripts_of_one_user_exclude_each_other() {
    let m = mount();
    m.sh("mkfifo $T/go").ok();
    let script = "latchfs acquire build --json | grep '\"token'; echo working; cat $T/go; \
                  latchfs release build";
    let first = Job::new(&m, script);
    let held = eventually("the lock", || (m.phase("build") == "held").then(|| m.status("build")));
    first.says(&format!("  \"token\": {},", held["token"]));
    first.says("working");
    let script = "latchfs acquire build && echo working; latchfs release build";
    let second = m.sh(script).exits(77);
    assert!(second.contains("lock 'build' is held by your own user, "), "{second}");
    let maker = held["holder_id"].as_str().and_then(Maker::parse).expect("it names a process");
    assert_eq!(maker.process.pid.cast_signed(), first.pid(), "the shell, which works on");
    let why = format!("was acquired by process {} and not from this shell; ", first.pid());
    assert!(second.contains(&why) && second.contains("'--any'"), "{second}");
    assert!(!second.contains("working"), "{second}");
    assert_eq!(m.status("build")["token"], held["token"]);
    m.sh("echo > $T/go").ok();
    first.says("");
    first.says("released build");
    assert_eq!(m.phase("build"), "free");
    // Two scripts that use `latchfs wait` instead of `latchfs acquire` both get the lock, one after
    // the other.
    let first =
        Job::new(&m, "latchfs wait build > /dev/null; echo one; cat $T/go; latchfs release build");
    first.says("one");
    let mut second =
        Job::new(&m, "latchfs wait build > /dev/null; echo two; latchfs release build");
    eventually("the waiter", || {
        let line = m.status("build")["waiters"].as_array().map(Vec::len);
        (line == Some(1)).then_some(())
    });
    second.goes_on(Duration::from_millis(300));
    m.sh("echo > $T/go").ok();
    second.says("two");
    second.says("released build");
}

/// `latchfs run NAME --slot KEY` runs a command once per key. A command that fails releases the
/// lock `NAME@KEY`, so that it can be run again; one that succeeds keeps the lock.
#[test]
fn a_slot_runs_once() {
    let m = mount();
    let run =
        |script: &str| m.latchfs(&["run", "backup", "--slot", "monday", "--", "sh", "-c", script]);
    assert_eq!(run("exit 3").code, 3);
    assert_eq!(run("echo done").ok(), "done\n");
    let repeated = run("echo twice");
    assert_eq!(
        (repeated.code, &*repeated.out, &*repeated.err),
        (0, "", ""),
        "cron mails what it prints"
    );
    let output = m.latchfs(&["run", "backup", "--slot", "monday", "-v", "-E", "9", "true"]);
    assert!(output.exits(9).contains("nothing is left to do: lock 'backup@monday' is held by"));
    for empty in ["", " "] {
        let said = m.latchfs(&["run", "backup", "--slot", empty, "--", "true"]).exits(64);
        assert!(said.contains("the key of a slot is empty; name what runs once"), "{said}");
    }
    // A slot at work is another's as well.
    let mut job = Job::new(&m, "exec latchfs run backup --slot tuesday -- sh -c 'echo on; read x'");
    assert_eq!(job.ends(), Some(1), "its standard input is empty");
    let (table, apart) = (m.latchfs(&["ls"]).ok(), m.latchfs(&["ls", "--slots"]).ok());
    assert!(!table.contains("backup@monday"), "{table}");
    assert!(table.ends_with("finished slots: 1; 'latchfs ls --slots' lists them\n"), "{table}");
    assert!(apart.contains("\nfinished slots (1):\nNAME ") && apart.contains("backup@monday"));
    let status = m.status("backup@monday");
    assert_eq!((status["phase"].clone(), status["note"].clone()), ("held".into(), "done".into()));
}

/// A `run` whose command ends when the file `go` appears in the scratch directory.
const UNTIL_TOLD: &str =
    "exec latchfs run build -- sh -c 'echo on; until [ -e $T/go ]; do sleep 0.1; done; echo off'";

/// The command's exit code is kept if the daemon ends before the lock is released, and a sentence
/// says what becomes of the lock.
#[test]
fn exit_code_is_kept_if_the_daemon_has_ended_meanwhile() {
    let mut m = mount();
    let script = format!("latchfs run build -- sh -c 'kill -9 {}; exit 7'", m.pid());
    let said = m.sh(&script).exits(7);
    assert!(said.contains("lock 'build' could not be released: "), "{said}");
    assert!(said.contains("ends by itself, after its ttl and grace"), "{said}");
    assert_eq!(m.ended(), Some(128 + libc::SIGKILL));
}

/// If the daemon is dead, nothing renews the lease. `latchfs run` notices that and ends its
/// command: not at once, but before the lease is over and another client can get the lock.
#[test]
fn a_dead_daemon_ends_the_command_in_time() {
    let mut m = Setup::new().with("--ttl 3s --grace 2s").start();
    let mut job = Job::new(&m, UNTIL_TOLD);
    job.says("on");
    let asked_at = boot_now();
    let left = m.status("build")["expires_in_ms"].as_u64().expect("it expires");
    let (expires, grace) = (asked_at + Span::from_millis(left), Span::from_secs(2));
    m.crash();
    // `latchfs run` renewed the lease at most a second before the crash, so it lets the command run
    // for 800 ms at least.
    job.goes_on(Duration::from_millis(800));
    assert_eq!(job.ends(), Some(76));
    let now = boot_now();
    assert!(now < expires + Span::from_secs(1) + grace, "{}", now.since(expires));
    assert_eq!(job.1.try_recv().ok(), None, "it was ended, and did not end");
}

/// The lock of a `run` is not lost when another daemon takes over in time: the lease continues.
#[test]
fn a_restart_of_the_daemon_is_survived() {
    let mut m = Setup::new().with("--ttl 3s --grace 0s").start();
    let mut job = Job::new(&m, UNTIL_TOLD);
    job.says("on");
    let token = m.token("build");
    m.crash();
    m.start();
    m.sh("touch other").ok();
    m.until("other", "free");
    assert_eq!((m.phase("build").as_str(), m.token("build")), ("held", token));
    std::fs::write(m.scratch().join("go"), "").expect("ours");
    job.says("off");
    assert_eq!(job.ends(), Some(0));
    assert_eq!(m.phase("build"), "free");
}

/// So is that of a `hold` with the default ttl, which the new daemon binds to its process.
#[test]
fn a_hold_survives_a_restart_of_the_daemon() {
    let mut m = Setup::new().start();
    let mut job = Job::new(&m, "exec latchfs hold build 2>&1");
    assert!(job.line().starts_with("holding build: token "));
    let token = m.token("build");
    m.crash();
    m.start();
    eventually("it is bound", || m.status("build")["lasts"].as_str().map(str::to_owned));
    job.goes_on(Duration::from_secs(2));
    assert_eq!((m.phase("build").as_str(), m.token("build")), ("held", token));
    signal(job.pid(), libc::SIGTERM);
    job.says("released build");
    assert_eq!(job.ends(), Some(0));
}

/// A suspended daemon. It is continued when this value is dropped, even if the test fails.
struct Stopped(i32);

impl Stopped {
    fn new(m: &Mount) -> Self {
        signal(m.pid(), libc::SIGSTOP);
        Self(m.pid())
    }

    /// Stops the daemon while no process of a job waits for its answer. The kernel lets no process
    /// end that waits for the answer to a request which a stopped daemon has already read.
    #[track_caller]
    fn between_requests(m: &Mount, job: &Job) -> Self {
        eventually("a daemon that stops between requests", || {
            let stopped = Self::new(m);
            eventually("a stopped daemon", || {
                tasks(m.pid()).iter().all(|task| state_of(task) == Some('T')).then_some(())
            });
            (!waits_for_an_answer(job.0.id().cast_signed())).then_some(stopped)
        })
    }
}

/// Returns the directories in /proc of all threads of a process.
fn tasks(pid: i32) -> Vec<PathBuf> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
    tasks.into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

fn state_of(task: &Path) -> Option<char> {
    let stat = std::fs::read_to_string(task.join("stat")).ok()?;
    stat.rsplit(") ").next()?.chars().next()
}

/// Whether a thread of a process, or of one of its descendants, waits for the answer of a FUSE
/// daemon.
fn waits_for_an_answer(pid: i32) -> bool {
    tasks(pid).iter().any(|task| {
        let read = |file: &str| std::fs::read_to_string(task.join(file)).unwrap_or_default();
        let waits = read("wchan").starts_with("request_wait_answer");
        let of_child = |child: &str| child.parse().is_ok_and(waits_for_an_answer);
        waits || read("children").split_whitespace().any(of_child)
    })
}

impl Drop for Stopped {
    fn drop(&mut self) {
        signal(self.0, libc::SIGCONT);
    }
}

/// A daemon that is suspended for less than the ttl does not affect the command of a `run`. If it
/// is suspended for longer, the command is ended, because the lease may be over when the daemon
/// continues.
#[test]
fn a_stopped_daemon_ends_the_command_only_after_the_ttl() {
    let m = Setup::new().with("--ttl 4s --grace 2s").start();
    let mut job = Job::new(&m, UNTIL_TOLD);
    job.says("on");
    let token = m.token("build");
    let stopped = Stopped::new(&m);
    job.goes_on(Duration::from_millis(1_500));
    drop(stopped);
    assert_eq!(m.token("build"), token);
    job.goes_on(Duration::from_secs(4));
    assert_eq!((m.phase("build").as_str(), m.token("build")), ("held", token));
    let stopped = Stopped::between_requests(&m, &job);
    let stopped_at = boot_now();
    assert_eq!(job.ends(), Some(76));
    let took = boot_now().since(stopped_at);
    drop(stopped);
    assert!(took < Span::from_secs(4 + 2), "{took}");
}

/// A command whose workers leave its group, ignore SIGTERM and keep running. It prints its own pid
/// and those of the workers.
const WORKS: &str = "sh -c 'echo $$; for n in 1 2 3 4 5 6 7 8; do \
    setsid sh -c \"trap : TERM HUP; echo \\$\\$; while :; do sleep 0.01; done\" & done; wait'";
const WORKERS: usize = 8;

/// A Python program that waits in the lock's queue, and prints the processes that are alive when it
/// is granted the lock.
const NEXT: &str = "
import os, sys
def works(pid):
    try:
        with open(f'/proc/{pid}/stat') as f:
            return f.read().rsplit(') ', 1)[1][0] not in 'ZX'
    except (FileNotFoundError, ProcessLookupError):
        return False
with open('.latchfs/wait/build') as f:
    f.read()
print('granted while these work:', [pid for pid in sys.argv[1:] if works(pid)], flush=True)
os.unlink('build')
";

/// Whether a process is alive and not a zombie.
fn works(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// A `latchfs run` whose command and worker processes are running, and a waiter for the same lock.
struct Running {
    job: Job,
    supervisor: i32,
    command: i32,
    workers: Vec<i32>,
    next: Job,
}

impl Running {
    /// Starts `latchfs run` with the given options. `by_user` is a command prefix that may change
    /// the user, such as `setpriv`.
    #[track_caller]
    fn new(m: &Mount, by_user: &str, options: &str) -> Self {
        let job = Job::new(m, &format!("exec {by_user} latchfs run build {options} -- {WORKS}"));
        let number = || {
            let line = job.1.recv_timeout(Duration::from_secs(20)).expect("the pid of a process");
            line.parse::<i32>().expect("a pid")
        };
        let command = number();
        let workers: Vec<_> = (0..WORKERS).map(|_| number()).collect();
        assert!(workers.iter().all(|pid| works(*pid)) && m.phase("build") == "held");
        let children = format!("/proc/{0}/task/{0}/children", job.pid());
        let supervisor = std::fs::read_to_string(children).expect("it runs");
        let supervisor = supervisor.trim().parse().expect("one child");
        std::fs::write(m.scratch().join("next.py"), NEXT).expect("ours");
        let pids = workers.iter().map(i32::to_string).collect::<Vec<_>>().join(" ");
        let next = Job::new(m, &format!("exec python3 -I $T/next.py {command} {pids}"));
        eventually("the waiter", || {
            let line = m.status("build")["waiters"].as_array().map(Vec::len);
            (line == Some(1)).then_some(())
        });
        Self { job, supervisor, command, workers, next }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        for pid in self.workers.iter().filter(|pid| works(**pid)) {
            signal(*pid, libc::SIGKILL);
        }
    }
}

const NONE_WORKS: &str = "granted while these work: []";

/// Returns two test setups, each a mount and the options for `latchfs run`. In the first, the
/// options are empty, so `run` uses the mount. In the second, they are `--server URL`, so `run`
/// uses the server behind the mount.
pub(crate) fn targets() -> [(Mount, String); 2] {
    let behind = Setup::new().behind(Behind::Server).start();
    let page = behind.sh("cat .latchfs/server").ok();
    let page: serde_json::Value = serde_json::from_str(&page).expect("JSON");
    let url = page["server"]["url"].as_str().expect("its URL").to_owned();
    [(mount(), String::new()), (behind, format!("--server {url}"))]
}

/// SIGKILL of `run` ends all processes that its command has started, even those that have left the
/// group, and only then is the lock granted to the next waiter.
#[test]
fn all_is_dead_before_the_lock_of_a_killed_run_is_free() {
    for (m, options) in targets() {
        let mut running = Running::new(&m, "", &options);
        signal(running.job.pid(), libc::SIGKILL);
        running.next.says(NONE_WORKS);
        assert_eq!(running.job.ends(), None);
    }
    users();
    let m = mount();
    let by_user = format!("setpriv --reuid={ALICE} --regid={ALICE} --clear-groups");
    let mut running = Running::new(&m, &by_user, "");
    signal(running.job.pid(), libc::SIGKILL);
    running.next.says(NONE_WORKS);
    running.job.ends();
}

/// SIGKILL of the supervisor of `run` ends all processes of the command too, and `run` ends by
/// SIGKILL. The lock of a server is released then; its session would hold it for 35 s more.
#[test]
fn all_is_dead_before_the_lock_of_a_killed_supervisor_is_free() {
    for (m, options) in targets() {
        let mut running = Running::new(&m, "", &options);
        signal(running.supervisor, libc::SIGKILL);
        running.next.says(NONE_WORKS);
        assert_eq!(running.job.ends(), None, "killed by the same signal");
    }
}

/// SIGKILL of the command's first process ends the others before the lock is released.
#[test]
fn all_is_dead_before_the_lock_of_a_killed_command_is_free() {
    for (m, options) in targets() {
        let mut running = Running::new(&m, "", &options);
        signal(running.command, libc::SIGKILL);
        running.next.says(NONE_WORKS);
        assert_eq!(running.job.ends(), Some(128 + libc::SIGKILL));
    }
}

/// `latchfs run` consists of two processes. When both are killed at once, no process is left to end
/// the whole command: only its first process dies, and the lock stays held for its ttl and grace
/// period.
#[test]
fn a_lock_outlives_both_processes_of_its_run_by_its_ttl() {
    for (m, options) in targets() {
        let mut running = Running::new(&m, "", &format!("{options} --ttl 3s"));
        signal(running.job.pid(), libc::SIGSTOP);
        signal(running.supervisor, libc::SIGKILL);
        signal(running.job.pid(), libc::SIGKILL);
        let killed_at = boot_now();
        eventually("the end of the command", || (!works(running.command)).then_some(()));
        let line = running.next.1.recv_timeout(Duration::from_secs(20)).expect("it is granted");
        let after = boot_now().since(killed_at);
        assert!(line.starts_with("granted ") && after > Span::from_secs(2), "{line}: {after}");
        running.job.ends();
    }
}

/// `latchfs run` consists of a front process and a supervisor, which renews the lease. If the
/// supervisor is stopped (SIGSTOP), the front process sends it SIGCONT, so that the lock is not
/// lost.
#[test]
fn a_stopped_supervisor_is_continued_and_keeps_the_lock() {
    let m = Setup::new().with("--ttl 2s --grace 0s").start();
    let mut job = Job::new(&m, UNTIL_TOLD);
    job.says("on");
    let token = m.token("build");
    let children = format!("/proc/{0}/task/{0}/children", job.pid());
    let supervisor = std::fs::read_to_string(children).expect("it runs");
    signal(supervisor.trim().parse().expect("one child"), libc::SIGSTOP);
    job.goes_on(Duration::from_secs(4));
    assert_eq!((m.phase("build").as_str(), m.token("build")), ("held", token));
    std::fs::write(m.scratch().join("go"), "").expect("ours");
    job.says("off");
    assert_eq!(job.ends(), Some(0));
}

/// A Python program that controls a shell with one job on a terminal: Ctrl-Z stops the job for
/// longer than the ttl, then `fg` continues it, and it reads its input.
const JOB_CONTROL: &str = r#"
import pty, signal
SCRIPT = 'echo on; read line; echo "off $line"; exit 3'
def shell():
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    job = os.fork()
    if job == 0:
        os.setpgid(0, 0)
        os.tcsetpgrp(0, os.getpgrp())
        signal.signal(signal.SIGTTOU, signal.SIG_DFL)
        os.execvp('latchfs', ['latchfs', 'run', 'build', '--', 'sh', '-c', SCRIPT])
    _, status = os.waitpid(job, os.WUNTRACED)
    print('stopped', os.WIFSTOPPED(status), os.tcgetpgrp(0) == job, flush=True)
    time.sleep(3)
    os.tcsetpgrp(0, job)
    os.killpg(job, signal.SIGCONT)
    print('continued', flush=True)
    _, status = os.waitpid(job, 0)
    print('ended', os.WEXITSTATUS(status), flush=True)
pid, master = pty.fork()
if pid == 0:
    try:
        shell()
    finally:
        os._exit(0)
seen = b''
def until(word):
    global seen
    while word not in seen:
        seen += os.read(master, 1000)
until(b'on\r\n')
with open('.latchfs/status/build') as f:
    token = json.load(f)['token']
os.write(master, b'\x1a')
until(b'stopped True True')
until(b'continued')
with open('.latchfs/status/build') as f:
    status = json.load(f)
assert (status['phase'], status['token']) == ('held', token), status
os.write(master, b'word\n')
until(b'off word')
until(b'ended 3')
"#;

#[test]
fn a_job_that_is_stopped_at_the_terminal_keeps_its_lock() {
    let m = Setup::new().with("--ttl 1s --grace 0s").start();
    m.py(JOB_CONTROL).ok();
    assert_eq!(m.phase("build"), "free");
}

/// Processes that the command of a `run` leaves running are ended, and only then is the lock
/// released.
#[test]
fn what_a_command_leaves_running_is_ended() {
    let m = mount();
    let script = "setsid sh -c 'trap : TERM; echo $$; while :; do sleep 0.01; done' & \
                  read line < $T/go; exit 3";
    m.sh("mkfifo $T/go").ok();
    let mut job = Job::new(
        &m,
        &format!("exec latchfs run build -- sh -c '{}'", script.replace('\'', "'\\''")),
    );
    let line = job.1.recv_timeout(Duration::from_secs(20)).expect("the pid of the worker");
    let worker = line.parse().expect("a pid");
    assert!(works(worker));
    m.sh("echo > $T/go").ok();
    assert_eq!(job.ends(), Some(3), "the exit code of the command");
    assert!(!works(worker), "it is dead when run has ended");
    assert_eq!(m.phase("build"), "free");
}

/// A `run` that is killed while it waits leaves the queue, and never starts its command.
#[test]
fn a_killed_run_leaves_the_queue() {
    let m = mount();
    let mut first = Job::new(&m, "exec latchfs run build -- sh -c 'echo on; exec sleep 100'");
    first.says("on");
    let mut second = Job::new(&m, "exec latchfs run build -- echo second");
    let waiting = |count: usize| {
        eventually("the line", || {
            let line = m.status("build")["waiters"].as_array().map(Vec::len);
            (line.unwrap_or(0) == count).then_some(())
        });
    };
    waiting(1);
    signal(second.pid(), libc::SIGKILL);
    second.ends();
    waiting(0);
    signal(first.pid(), libc::SIGTERM);
    assert_eq!(first.ends(), Some(128 + libc::SIGTERM));
    assert!(second.1.recv().is_err(), "it says nothing");
}
