//! Programs that lock through a mount in every way, again and again, while the server fails; and
//! what must be so when all is well again.
//!
//! Every program goes on until a file tells it to stop. One that never learns what became of its
//! wait does not end, and that is how it is found.

use crate::net::{LATCHFS, Machine, Mount, eventually};
use std::hash::{BuildHasher as _, RandomState};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// How long a lease or a session lasts, and its grace: short, so that some faults last longer.
pub(crate) const TTL: &str = "4s";

/// For how long faults are made in a suite.
pub(crate) fn patience() -> Duration {
    let named = std::env::var("LATCHFS_FAULTS_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(named.unwrap_or(30))
}

/// The seed of a run, which is said, and taken from the environment to repeat a run.
pub(crate) fn seed() -> u64 {
    let named = std::env::var("LATCHFS_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = named.unwrap_or_else(|| RandomState::new().hash_one(0));
    println!("LATCHFS_SEED={seed}");
    seed
}

/// Numbers from a seed (splitmix64).
pub(crate) struct Chance(pub(crate) u64);

impl Chance {
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }

    /// Lets time pass: some faults are shorter than a request may take, some longer than a lease.
    pub(crate) fn linger(&mut self, machine: &Machine) -> Duration {
        let longest = [300, 1_000, 2_500, 6_000][self.below(4) as usize];
        let span = Duration::from_millis(50 + self.below(longest));
        machine.sh(&format!("sleep {:.3}", span.as_secs_f64())).ok();
        span
    }
}

/// Programs of each kind.
const EACH: usize = 3;

/// What the programs in Python begin with.
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

/// The programs, and what tells them to stop.
pub(crate) struct Crowd {
    programs: Vec<(String, Child)>,
    stop: PathBuf,
}

impl Crowd {
    /// Begins; `run` asks the servers by itself, with the token in a file if one is needed.
    pub(crate) fn begin(mount: &Mount, servers: &str, token: Option<&str>, seed: u64) -> Self {
        let stop = mount.machine.path("stop");
        let mut programs = Vec::new();
        for number in 0..EACH {
            for kind in ["flock", "lockf", "wait", "bound"] {
                let mut command = mount.machine.command("python3");
                // Isolated: otherwise its imports list the directory in which it runs, the mount,
                // and it dies of a server that does not answer before it has begun.
                command.args(["-I", "-c", PRELUDE, kind, &number.to_string()]).arg(&stop);
                command.arg((seed >> 1).to_string()).current_dir(mount.dir());
                programs.push((format!("{kind} {number}"), start(&mut command)));
            }
            let runner = runner(&mount.machine, (servers, token), &stop);
            programs.push((format!("run {number}"), runner));
        }
        Self { programs, stop }
    }

    /// All is well again: every program comes to its end, and every lock is free.
    #[track_caller]
    pub(crate) fn end(mut self, mount: &Mount) {
        std::fs::write(&self.stop, "").expect("the scratch directory is ours");
        for (name, program) in &mut self.programs {
            let ended = || program.try_wait().expect("it is ours");
            let status = eventually(&format!("the end of '{name}', which is stuck"), ended);
            // The exit code of a shell is that of the last `run`, which may have been refused.
            assert!(status.success() || name.starts_with("run "), "'{name}' has died: {status}");
        }
        eventually("a time when nothing is held", || {
            let entries = std::fs::read_dir(mount.dir()).and_then(Iterator::collect);
            let held: Vec<_> = match entries {
                Ok(held) => held,
                // The last fault has just ended, and the mount has not reached the server yet. An
                // empty list would be wrong then: the mount says that it does not know.
                Err(error) if error.raw_os_error() == Some(libc::ETIMEDOUT) => return None,
                Err(error) => panic!("the mount lives: {error}"),
            };
            held.is_empty().then_some(())
        });
        for kind in ["flock", "lockf", "wait", "bound"] {
            let rounds = |number| {
                let path = format!("{}.{kind}{number}", self.stop.display());
                let text = std::fs::read_to_string(path).unwrap_or_default();
                text.parse::<u64>().unwrap_or_default()
            };
            let rounds: u64 = (0..EACH).map(rounds).sum();
            println!("{kind}: {rounds} rounds");
            assert!(rounds > 0, "nobody was ever granted a lock by {kind}");
        }
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        for (_, program) in &mut self.programs {
            let _ended = program.kill();
            let _reaped = program.wait();
        }
    }
}

/// `latchfs run` in a loop, two locks in turn for all of them.
fn runner(machine: &Machine, (servers, token): (&str, Option<&str>), stop: &Path) -> Child {
    let script = format!(
        "n=0; while ! [ -e {} ]; do n=$((n + 1)); \
         {LATCHFS} run run$((n % 2)) --server {servers} --client runner --ttl {TTL} -- true; done",
        stop.display()
    );
    let mut command = machine.command("sh");
    command.args(["-c", &script]).envs(token.map(|token| ("LATCHFS_TOKEN_FILE", token)));
    start(&mut command)
}

fn start(command: &mut Command) -> Child {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().expect("it starts")
}
