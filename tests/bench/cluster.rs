//! Measures a durable server of one node and a cluster of three next to etcd and Redis, and how
//! long a cluster gives no answer when its leader is killed, or transfers leadership.

use crate::Effort;
use crate::groups::Group;
use crate::http::{Line, at_least, middle, rounds};
use crate::mounts::Mount;
use crate::report::{Table, median, micros_each, poll};
use crate::servers::{Serving, State, etcd, latchfs, redis};
use latchfs::time::{Span, Time, boot_now};
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;

/// The numbers of concurrent clients with which each server is measured, one number after the
/// other.
const CLIENTS: [usize; 2] = [1, 64];
/// Target: one durable node serves 64 clients this many times the lock-unlock pairs of one etcd.
const ONE_WANTED: f64 = 4.0;
/// Target: three nodes serve 64 clients this many times the lock-unlock pairs of three etcd nodes.
const THREE_WANTED: f64 = 3.5;
/// Target: three nodes serve a single client this many times the lock-unlock pairs of three etcd
/// nodes.
const SINGLE_WANTED: f64 = 1.0;
/// Number of times that the leader is killed, and that it transfers leadership.
const TURNS: usize = 20;
/// Targets in milliseconds: the longest time without an answer when the leader is killed, and when
/// it transfers leadership.
const KILL_WANTED: f64 = 2_000.0;
const TRANSFER_WANTED: f64 = 100.0;
/// Target: a linearizable read in a cluster takes at most this many times as long as a read of a
/// server in memory.
const LOOK_WANTED: f64 = 3.0;
/// Timeout of a request, after which the client tries the next node.
const ANSWER_PATIENCE: Span = Span::from_millis(300);
/// Timeout after which the cluster is considered unavailable for good.
const GAP_PATIENCE: Span = Span::from_secs(30);

/// Measures lock-unlock pairs of one latchfs node with a log on disk, next to Redis and a single
/// etcd that also sync each change.
pub(crate) fn run_one(effort: Effort) -> Result<(), String> {
    let servers = [
        latchfs("latchfs, synced", State::Synced)?,
        redis("Redis, synced", State::Synced)?,
        etcd()?,
    ];
    let targets: Vec<_> = servers.iter().map(Serving::target).collect();
    for clients in CLIENTS {
        let runs = rounds(clients, &targets, effort)?;
        let pairs: Vec<_> =
            runs.iter().map(|runs| middle(runs, |run| run.pairs_per_second)).collect();
        let mut table = Table::new("", &["", "measured", "wanted", ""]);
        table.shown("pairs/s beside Redis", pairs[0] / pairs[1], "times");
        match clients {
            1 => table.shown("pairs/s beside etcd", pairs[0] / pairs[2], "times"),
            _ => at_least(&mut table, "etcd", pairs[0] / pairs[2], ONE_WANTED),
        }
    }
    Ok(())
}

/// Measures a latchfs cluster of three nodes: lock-unlock pairs next to an etcd cluster, reads, and
/// the time without answers when the leader is killed or transfers leadership.
pub(crate) fn run(effort: Effort) -> Result<(), String> {
    let mut own = Group::latchfs("latchfs, 3 nodes", 3)?;
    beside_etcd(&own, effort)?;
    reads(&own, effort)?;
    let turns = effort.of(TURNS).max(2);
    let killed = gaps(&mut own, turns, |group| {
        let place = group.kill_leader()?;
        Ok(Some(place))
    })?;
    let handed = gaps(&mut own, turns, |group| group.transfer().map(|()| None))?;
    let title = format!("For how long a client is not answered, {turns} times each");
    let mut table = Table::new(&title, &["", "measured", "wanted", ""]);
    table.shown("a leader is killed, median", median(&killed), "ms");
    table.limit("the longest", most(&killed), "ms", KILL_WANTED);
    table.shown("a leader hands over, median", median(&handed), "ms");
    table.limit("the longest", most(&handed), "ms", TRANSFER_WANTED);
    Ok(())
}

fn most(values: &[f64]) -> f64 {
    values.iter().copied().fold(0.0, f64::max)
}

fn beside_etcd(own: &Group, effort: Effort) -> Result<(), String> {
    let other = Group::etcd("etcd, 3 nodes", 3)?;
    for clients in CLIENTS {
        let runs = rounds(clients, &[own.target(), other.target()], effort)?;
        let pairs: Vec<_> =
            runs.iter().map(|runs| middle(runs, |run| run.pairs_per_second)).collect();
        let wanted = if clients == 1 { SINGLE_WANTED } else { THREE_WANTED };
        let mut table = Table::new("", &["", "measured", "wanted", ""]);
        at_least(&mut table, "etcd", pairs[0] / pairs[1], wanted);
    }
    Ok(())
}

/// Measures reads of a lock, in a cluster and on a single server in memory.
fn reads(own: &Group, effort: Effort) -> Result<(), String> {
    let memory = latchfs("latchfs, in memory", State::None)?;
    let targets = [own.target().address, memory.address.as_str()];
    let mut lines = [Line::to(targets[0])?, Line::to(targets[1])?];
    for line in &mut lines {
        request(line, b"POST /locks/seen?client=c&ttl=1h HTTP/1.1\r\nhost: localhost\r\n\r\n")?;
    }
    let mut times = [vec![], vec![]];
    for _ in 0..effort.rounds {
        for (line, times) in lines.iter_mut().zip(&mut times) {
            let mut failed = None;
            times.push(micros_each(effort.of(2_000), |_| {
                let seen = request(line, b"GET /locks/seen HTTP/1.1\r\nhost: localhost\r\n\r\n");
                failed = failed.take().or(seen.err());
            }));
            failed.map_or(Ok(()), Err)?;
        }
    }
    let mut table = Table::new("Looking at a lock", &["", "measured", "wanted", ""]);
    let mut compare = |how: &str, times: &[Vec<f64>; 2]| {
        let (agreed, memory) = (median(&times[0]), median(&times[1]));
        table.shown(&format!("{how}, three nodes"), agreed, "us");
        table.shown(&format!("{how}, one server in memory"), memory, "us");
        table.limit(&format!("{how}, ratio"), agreed / memory, "times", LOOK_WANTED);
    };
    compare("GET", &times);
    compare("cat", &cats(targets, effort)?);
    Ok(())
}

/// Measures reads of a lock through mounts of the two servers.
fn cats(servers: [&str; 2], effort: Effort) -> Result<[Vec<f64>; 2], String> {
    let mount = |server| Mount::remote(&format!("http://{server}"));
    let mounts = [mount(servers[0])?, mount(servers[1])?];
    let files = mounts.each_ref().map(|mount| mount.dir().join("seen"));
    let mut times = [vec![], vec![]];
    for _ in 0..effort.rounds {
        for (file, times) in files.iter().zip(&mut times) {
            let mut failed = None;
            times.push(micros_each(effort.of(1_000), |_| {
                failed = failed.take().or(fs::read(file).err());
            }));
            failed.map_or(Ok(()), |error| Err(format!("{}: {error}", file.display())))?;
        }
    }
    Ok(times)
}

fn request(line: &mut Line, bytes: &[u8]) -> Result<(), String> {
    line.send(bytes)?;
    match line.http()? {
        200 | 201 => Ok(()),
        _ => Err(String::from_utf8_lossy(line.body()).into_owned()),
    }
}

/// Applies `act` to the cluster `turns` times while a client renews its lock. Returns one number
/// for each application: the longest time between two answers to that client, in milliseconds.
fn gaps(
    group: &mut Group,
    turns: usize,
    mut act: impl FnMut(&mut Group) -> Result<Option<usize>, String>,
) -> Result<Vec<f64>, String> {
    let (addresses, stop) = (group.addresses(), AtomicBool::new(false));
    let (say, answered) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn({
            let stop = &stop;
            move || renew(&addresses, stop, &say)
        });
        let mut all = Vec::new();
        let mut measure = || {
            for _ in 0..turns {
                all.push(gap(group, &mut act, &answered)?);
            }
            Ok(())
        };
        let done: Result<(), String> = measure();
        stop.store(true, Ordering::Relaxed);
        done.map(|()| all)
    })
}

/// Applies `act` to the cluster once, and returns the longest time between two answers to a client,
/// in milliseconds.
fn gap(
    group: &mut Group,
    act: &mut impl FnMut(&mut Group) -> Result<Option<usize>, String>,
    answered: &mpsc::Receiver<Time>,
) -> Result<f64, String> {
    group.agree()?;
    let mut last = answered.try_iter().last().unwrap_or_else(boot_now);
    let killed = act(group)?;
    let acted = boot_now();
    let mut longest = Span::ZERO;
    // The longest gap is final once answers have arrived, since `act` was applied, for longer than
    // that gap plus two request timeouts.
    let calm = ANSWER_PATIENCE + ANSWER_PATIENCE;
    while last < acted || last.since(acted) < longest + calm {
        let patience = GAP_PATIENCE.as_duration();
        let next = answered.recv_timeout(patience).map_err(|_| "nothing is answered any more")?;
        longest = longest.max(next.since(last));
        last = next;
    }
    if let Some(place) = killed {
        group.restart(place)?;
    }
    Ok(longest.as_nanos() as f64 / 1e6)
}

/// Renews one lock until `stop`, through any node that answers, and sends the time of each answer
/// to the measurement.
fn renew(addresses: &[String], stop: &AtomicBool, say: &mpsc::Sender<Time>) {
    let mut place = 0;
    while !stop.load(Ordering::Relaxed) {
        let address = &addresses[place % addresses.len()];
        place += 1;
        let Ok(mut line) = Line::to(address) else {
            // The connection to a node has failed, so the client waits a moment and tries the next
            // node.
            poll(Span::from_millis(5), || false);
            continue;
        };
        let patient = line.wait_at_most(ANSWER_PATIENCE);
        while patient && !stop.load(Ordering::Relaxed) {
            let renewal = b"POST /locks/gap?client=c&ttl=60s&reentrant=true HTTP/1.1\r\n\
                            host: localhost\r\n\r\n";
            if request(&mut line, renewal).is_err() {
                break;
            }
            // The error is ignored: the send fails only when the measurement has ended and dropped
            // the receiver.
            let _ = say.send(boot_now());
            poll(Span::from_millis(1), || false);
        }
    }
}
