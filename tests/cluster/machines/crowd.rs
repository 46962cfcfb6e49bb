//! Programs that repeatedly take locks in every way while a server has faults, and the assertions
//! that must hold after the last fault.
//!
//! Every program runs until a file tells it to stop. A program whose wait is never answered does
//! not end, so the test detects it.

use latchfs::time::{Span, boot_now};
use std::hash::{BuildHasher as _, RandomState};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use testing::net::{Machine, Mount};
use testing::{eventually_in_cluster, latchfs_path};

/// The ttl of leases and sessions: so short that some faults last longer.
pub(crate) const TTL: &str = "4s";
/// The grace period of leases and sessions. It is the default, because `latchfs run --server` has
/// no option for it.
pub(crate) const GRACE: &str = "5s";
/// The sum of the ttl and the grace period: a lease that is not renewed is over after this time.
pub(crate) const TTL_AND_GRACE: Span = Span::from_secs(4 + 5);
/// The margin that the test adds to the ttl and the grace period when it waits for the last
/// programs: a request under way when the last fault ends takes 2 s to fail, the mount reconnects
/// once per second, and a loaded machine needs some time.
pub(crate) const MARGIN: Span = Span::from_secs(5);

/// Returns for how long a test injects faults: `otherwise` seconds, or the time that
/// `contrib/faults` sets (10 minutes).
pub(crate) fn patience(otherwise: u64) -> Duration {
    let named = std::env::var("LATCHFS_FAULTS_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(named.unwrap_or(otherwise))
}

/// Returns the seed of a run and prints it; `LATCHFS_SEED` repeats a run.
pub(crate) fn seed() -> u64 {
    let named = std::env::var("LATCHFS_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = named.unwrap_or_else(|| RandomState::new().hash_one(0));
    println!("LATCHFS_SEED={seed}");
    seed
}

/// A generator of random numbers (splitmix64): the same seed gives the same numbers.
pub(crate) struct Chance(pub(crate) u64);

impl Chance {
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }

    /// Waits for a random time: sometimes less than a request may take, sometimes more than a lease
    /// lasts.
    pub(crate) fn linger(&mut self, machine: &Machine) -> Duration {
        let longest = [300, 1_000, 2_500, 6_000][self.below(4) as usize];
        let span = Duration::from_millis(50 + self.below(longest));
        machine.sh(&format!("sleep {:.3}", span.as_secs_f64())).ok();
        span
    }
}

/// The number of programs of each kind that run at the same time on a mount.
const EACH: usize = 3;

/// The Python source that all programs on the mount run; the first argument selects the way in
/// which a program takes locks.
const PRELUDE: &str = "
import fcntl, os, random, subprocess, sys, time
kind, number, stop = sys.argv[1], int(sys.argv[2]), sys.argv[3]
chance = random.Random(int(sys.argv[4]) + number)
rounds = 0
def pause():
    time.sleep(chance.random() / 20)
def flock():
    with open(f'flock{chance.randrange(2)}', 'w') as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        pause()
def lockf():
    with open(f'fcntl{chance.randrange(2)}', 'w') as f:
        fcntl.lockf(f, fcntl.LOCK_EX, 10, 10 * chance.randrange(2))
        pause()
def wait():
    name = f'wait{chance.randrange(2)}'
    with open(f'.latchfs/wait/{name}') as f:
        f.read()
    pause()
    os.unlink(name)
def bound():
    child = subprocess.Popen(['sleep', '60'])
    try:
        with open(f'pid{number}', 'w') as f:
            f.write(f'pid={child.pid}')
        pause()
    finally:
        child.kill()
        child.wait()
while not os.path.exists(stop):
    try:
        globals()[kind]()
        rounds += 1
    except OSError:
        pause()
open(f'{stop}.{kind}{number}', 'w').write(str(rounds))
";

/// The kinds of programs, each of which takes locks in another way.
const KINDS: [&str; 5] = ["run", "flock", "lockf", "wait", "bound"];

/// The running programs, and the file that tells them to stop.
pub(crate) struct Crowd {
    programs: Vec<(String, Child)>,
    stop: PathBuf,
}

impl Crowd {
    /// Starts the programs on a mount. Programs of kind `run` use the servers directly, with the
    /// bearer token from the file `token` if there is one.
    pub(crate) fn begin(mount: &Mount, servers: &str, token: Option<&str>, seed: u64) -> Self {
        let stop = mount.machine.path("stop");
        let mut programs = Vec::new();
        for number in 0..EACH {
            for kind in KINDS {
                let mut command = if kind == "run" {
                    runner(&mount.machine, (servers, token), &stop, number)
                } else {
                    let mut command = mount.machine.command("python3");
                    // Isolated mode (-I) is needed: without it, Python's imports would list the
                    // working directory, which is the mount, and the program would fail before its
                    // start if the server does not answer.
                    command.args(["-I", "-c", PRELUDE, kind, &number.to_string()]).arg(&stop);
                    command.arg((seed >> 1).to_string()).current_dir(mount.dir());
                    command
                };
                programs.push((format!("{kind} {number}"), start(&mut command)));
            }
        }
        Self { programs, stop }
    }

    /// Adds another program that runs beside the others. The method `end` stops it and waits for
    /// its end.
    pub(crate) fn add(&mut self, name: &str, mut command: Command) {
        self.programs.push((name.to_owned(), start(&mut command)));
    }

    /// Tells the programs to stop; called after the last fault. Within the sum of the ttl, the
    /// grace period and a margin, every program must end and every lock must be free.
    #[track_caller]
    pub(crate) fn end(mut self, mount: &Mount) {
        let (well_at, limit) = (boot_now(), TTL_AND_GRACE + MARGIN);
        let is_late = || boot_now().since(well_at) > limit;
        std::fs::write(&self.stop, "").expect("the scratch directory is ours");
        for (name, program) in &mut self.programs {
            let status = eventually_in_cluster("the end of a program, or the limit", || {
                let late = is_late();
                let ended = program.try_wait().expect("it is ours");
                assert!(ended.is_some() || !late, "'{name}' is stuck {limit} after the faults");
                ended
            });
            assert!(status.success(), "'{name}' has died: {status}");
        }
        let ended_after = boot_now().since(well_at);
        eventually_in_cluster("a time when nothing is held, or the limit", || {
            let late = is_late();
            let held = held(mount);
            if held.as_ref().is_some_and(Vec::is_empty) {
                return Some(());
            }
            assert!(!late, "still held {limit} after the faults: {held:?}");
            None
        });
        let free_after = boot_now().since(well_at);
        println!("all programs ended after {ended_after}, all was free after {free_after}");
        for kind in KINDS {
            let rounds: u64 = (0..EACH).map(|number| self.rounds(kind, number)).sum();
            println!("{kind}: {rounds} rounds");
            assert!(rounds > 0, "no lock was ever granted to {kind}");
        }
    }

    /// Returns how often a program has acquired and released a lock so far.
    fn rounds(&self, kind: &str, number: usize) -> u64 {
        let path = format!("{}.{kind}{number}", self.stop.display());
        let text = std::fs::read_to_string(path).unwrap_or_default();
        text.trim().parse().unwrap_or_default()
    }
}

/// Returns the status of each lock that is held now; `None` while the mount can't reach its server.
fn held(mount: &Mount) -> Option<Vec<String>> {
    let entries = std::fs::read_dir(mount.dir()).and_then(Iterator::collect);
    let entries: Vec<_> = match entries {
        Ok(entries) => entries,
        // The file system call timed out: the last fault has just ended, and the mount has not
        // reconnected to the server yet.
        Err(error) if error.raw_os_error() == Some(libc::ETIMEDOUT) => return None,
        Err(error) => panic!("the mount lives: {error}"),
    };
    let status_of = |entry: &std::fs::DirEntry| {
        let name = entry.file_name();
        let path = mount.dir().join(".latchfs/status").join(&name);
        format!("{} {}", name.display(), std::fs::read_to_string(path).unwrap_or_default())
    };
    Some(entries.iter().map(status_of).collect())
}

impl Drop for Crowd {
    fn drop(&mut self) {
        for (_, program) in &mut self.programs {
            let _ended = program.kill();
            let _reaped = program.wait();
        }
    }
}

/// Returns a shell loop that runs `latchfs run` commands on two locks by turns, and counts the
/// commands that ran.
fn runner(
    machine: &Machine,
    (servers, token): (&str, Option<&str>),
    stop: &Path,
    number: usize,
) -> Command {
    let (stop, latchfs) = (stop.display(), latchfs_path());
    let script = format!(
        "n=0; ran=0; while ! [ -e {stop} ]; do n=$((n + 1)); \
         {latchfs} run run$((n % 2)) --server {servers} --client runner --ttl {TTL} -- true && \
         ran=$((ran + 1)); done; echo $ran > {stop}.run{number}"
    );
    let mut command = machine.command("sh");
    command.args(["-c", &script]).envs(token.map(|token| ("LATCHFS_TOKEN_FILE", token)));
    command
}

fn start(command: &mut Command) -> Child {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().expect("it starts")
}
