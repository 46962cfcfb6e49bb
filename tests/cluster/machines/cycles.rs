//! Waiters through restarts of the server: flock(2), `.latchfs/wait/NAME` and `run --server` wait
//! for one lock each while the server is killed and restarted, and the holder releases the locks at
//! about the same time.

use crate::machines::crowd::{Chance, GRACE, MARGIN, TTL, TTL_AND_GRACE, seed};
use latchfs::time::{Span, boot_now};
use std::process::{Child, Stdio};
use std::time::Duration;
use testing::net::{Daemon, Machine, Mount, Net, Program};
use testing::{eventually_in_cluster, latchfs_path};

/// The number of waiters of each kind in the mount, and the number of `run` commands that use the
/// server directly.
const EACH: usize = 3;
const RUNS: usize = 2;
/// The names of the three locks: one is waited for by flock(2), one by `.latchfs/wait/NAME`, and
/// one by `latchfs run`.
const LOCKS: [&str; 3] = ["flock", "wait", "run"];

/// A Python program that holds all three locks, starts threads that wait for two of them, and
/// releases the locks on command.
const WAITERS: &str = "
    from builtins import print as explain
    held = []
    def hold():
        for name in 'flock', 'wait', 'run':
            held.append(open(name, 'w'))
            fcntl.flock(held[-1], fcntl.LOCK_EX)
        print('held')
    def release():
        while held:
            held.pop().close()
    def flock():
        with open('flock', 'w') as f:
            fcntl.flock(f, fcntl.LOCK_EX)
    def wait():
        with open('.latchfs/wait/wait') as f:
            granted = f.read()
        try:
            os.unlink('wait')
        except OSError as e:
            with open('.latchfs/status/wait') as f:
                explain('granted', granted, 'but', e, 'with', f.read(), file=sys.stderr)
            raise
    def end(kind, number):
        print(kind.__name__, number, said(kind))
    def start(function, *args):
        threading.Thread(target=function, args=args, daemon=True).start()
    for line in sys.stdin:
        match line.strip():
            case 'hold':
                start(hold)
            case 'release':
                start(release)
            case 'wait':
                for number in range(int(sys.argv[1])):
                    start(end, flock, number)
                    start(end, wait, number)
";

/// Returns the number of rounds; `contrib/faults` makes 1,000.
fn rounds() -> usize {
    let named = std::env::var("LATCHFS_ROUNDS").ok().and_then(|text| text.parse().ok());
    named.unwrap_or(10)
}

/// Returns how many clients wait for a lock, according to its status; `None` if the status can't be
/// read.
fn waiting(mount: &Mount, name: &str) -> Option<usize> {
    let status = std::fs::read(mount.dir().join(".latchfs/status").join(name)).ok()?;
    let status: serde_json::Value = serde_json::from_slice(&status).ok()?;
    status["waiters"].as_array().map(Vec::len)
}

/// A `latchfs run` command that uses the server directly; it is killed when dropped.
struct Run(Child);

impl Run {
    fn start(machine: &Machine, url: &str, number: usize) -> Self {
        let client = format!("runner{number}");
        let mut command = machine.command(latchfs_path());
        command.args(["run", "run", "--server", url, "--client", &client, "--ttl", TTL]);
        command.args(["--", "true"]).stdin(Stdio::null()).stderr(Stdio::null());
        Self(command.spawn().expect("nsenter is there"))
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _reaped = self.0.wait();
    }
}

/// Kills and restarts the server. The holder releases its locks before, during or after the
/// restart; returns which of the three.
fn power_cycle(
    server: &mut Daemon,
    (waiters, client): (&mut Program, &Machine),
    chance: &mut Chance,
) -> &'static str {
    let which = chance.below(3);
    let mut pause = |longest_ms: u64| {
        let span = Duration::from_micros(chance.below(1_000 * longest_ms));
        client.sh(&format!("sleep {:.6}", span.as_secs_f64())).ok();
    };
    match which {
        0 => {
            waiters.send_line("release");
            pause(20);
            server.kill();
            pause(300);
            server.restart();
            "released before"
        }
        1 => {
            server.kill();
            pause(50);
            waiters.send_line("release");
            pause(300);
            server.restart();
            "released meanwhile"
        }
        _ => {
            server.kill();
            pause(300);
            server.restart();
            pause(300);
            waiters.send_line("release");
            "released after"
        }
    }
}

/// Statistics of all rounds so far: the numbers of waits that ended with the lock and with a
/// refusal, and the duration of the slowest round.
#[derive(Default)]
struct Count {
    granted: usize,
    refused: usize,
    slowest: Span,
}

/// Checks that every waiter of a round gets an answer within the sum of the ttl, the grace period
/// and a margin.
#[track_caller]
fn all_end(waiters: &Program, mut runs: Vec<Run>, round: &str, count: &mut Count) {
    let begun = boot_now();
    let limit = TTL_AND_GRACE + MARGIN;
    for ended in 0..2 * EACH {
        let left = (begun + limit).since(boot_now());
        let line = waiters.line_within(left.as_duration());
        let line = line.unwrap_or_else(|| {
            panic!("{round}: {} waiters of the mount are stuck", 2 * EACH - ended)
        });
        println!("  {line} after {}", boot_now().since(begun));
        if line.ends_with(" OK") { count.granted += 1 } else { count.refused += 1 }
    }
    for (number, Run(child)) in runs.iter_mut().enumerate() {
        let status = eventually_in_cluster("the end of a run, or the limit", || {
            let late = boot_now().since(begun) > limit;
            let ended = child.try_wait().expect("it is our child");
            assert!(ended.is_some() || !late, "{round}: run {number} is stuck");
            ended
        });
        println!("  run {number} {status} after {}", boot_now().since(begun));
        if status.success() { count.granted += 1 } else { count.refused += 1 }
    }
    count.slowest = count.slowest.max(boot_now().since(begun));
}

/// A server, a mount, and the program with the waiters.
struct Waiting {
    server: Daemon,
    mount: Mount,
    client: Machine,
    url: String,
    waiters: Program,
    _net: Net,
}

impl Waiting {
    fn new() -> Self {
        let mut net = Net::new();
        let (machine, client) = (net.machine(), net.machine());
        let (server, url) = (machine.serve(""), machine.url());
        let mount = client.mount(&url, &format!("--ttl {TTL} --grace {GRACE}"));
        let waiters = mount.python(WAITERS, &[&EACH.to_string()]);
        Self { server, mount, client, url, waiters, _net: net }
    }

    /// Acquires all three locks and starts all waiters. Returns the `run` commands among them.
    #[track_caller]
    fn all_wait(&mut self) -> Vec<Run> {
        self.waiters.send_line("hold");
        self.waiters.says("held");
        self.waiters.send_line("wait");
        let runs = (0..RUNS).map(|number| Run::start(&self.client, &self.url, number)).collect();
        let wanted = [EACH, EACH, RUNS];
        eventually_in_cluster("all wait", || {
            let is_full =
                |(name, wanted): (&&str, &usize)| waiting(&self.mount, name) == Some(*wanted);
            LOCKS.iter().zip(&wanted).all(is_full).then_some(())
        });
        runs
    }
}

#[test]
fn no_waiter_is_stuck_after_a_power_cycle() {
    let mut chance = Chance(seed());
    let mut all = Waiting::new();
    let (begun, mut count) = (boot_now(), Count::default());
    for round in 0..rounds() {
        let runs = all.all_wait();
        let cut_at = boot_now();
        let when = power_cycle(&mut all.server, (&mut all.waiters, &all.client), &mut chance);
        println!("round {round}: {when}, within {}", boot_now().since(cut_at));
        all_end(&all.waiters, runs, &format!("round {round}, {when}"), &mut count);
        eventually_in_cluster("all is free", || {
            let entries = std::fs::read_dir(all.mount.dir()).ok()?;
            (entries.count() == 0).then_some(())
        });
    }
    let Count { granted, refused, slowest } = count;
    println!(
        "{} rounds in {}: {granted} waiters were granted their lock, {refused} were refused; \
         the slowest round took {slowest}",
        rounds(),
        boot_now().since(begun)
    );
    assert!(granted > 9 * refused, "{refused} of {} were refused", granted + refused);
}

/// Checks that [`all_end`] detects waiters that get no answer: here the holder never releases its
/// locks, so `all_end` must panic.
#[test]
#[should_panic(expected = "the round without a release: 6 waiters of the mount are stuck")]
fn a_waiter_that_is_never_served_is_detected() {
    let mut all = Waiting::new();
    let runs = all.all_wait();
    all.server.kill();
    all.server.restart();
    all_end(&all.waiters, runs, "the round without a release", &mut Count::default());
}
