//! Measures the cost of flock(2) on a mount, and the latency until the next waiter gets a lock.

use crate::Effort;
use crate::mounts::Mount;
use crate::report::{Table, least, median, micros_each, number, verdict};
use latchfs::time::{Span, Time, boot_now};
use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::{env, io, thread};

/// Target: a flock and unlock takes at most this many times as long as on the file system that does
/// no work.
const RATIO_WANTED: f64 = 1.2;
/// Target: passing the lock to a waiter takes at most this many times as long as on the file system
/// that only keeps queues.
const HAND_OVER_RATIO_WANTED: f64 = 1.5;
/// The target for the time until the next waiter gets the lock of a killed holder, in milliseconds.
const KILLED_MS_WANTED: f64 = 100.0;
/// Timeout for a waiter to start waiting, and to get the lock.
const PATIENCE: Span = Span::from_secs(20);

/// The name of the lock file for which the processes and threads compete.
const FILE: &str = "contended";

pub(crate) fn run(effort: Effort) -> Result<(), String> {
    let mounts = [Mount::tmpfs()?, Mount::null()?, Mount::latchfs(&["--ttl", "1h"])?];
    let pairs = mounts.iter().map(|mount| Pair::on(mount.dir())).collect::<Result<Vec<_>, _>>();
    let pairs = pairs.map_err(|error| error.to_string())?;
    let (count, hand_overs) = (effort.of(1_000), effort.of(100).max(10));
    let mut alone = [const { Vec::new() }; 3];
    let mut handed = [const { Vec::new() }; 3];
    for round in 0..=effort.rounds {
        for turn in 0..pairs.len() {
            let which = (turn + round) % pairs.len();
            let pair = &pairs[which];
            let cost = micros_each(count, |_| {
                pair.own.lock().expect("it is free");
                pair.own.unlock().expect("it is ours");
            });
            let micros = pair.hand_over(hand_overs)?;
            // The results of the first round are dropped, because it only warms up.
            if round > 0 {
                alone[which].push(cost);
                handed[which].push(micros);
            }
        }
    }
    let columns = ["", "tmpfs", "nothing", "latchfs", "ratio", "wanted", "", "least", "ratio"];
    let title = "flock, us: medians of interleaved rounds, and the least";
    let mut table = Table::new(title, &columns);
    row(&mut table, "flock + unlock, uncontended", &alone, RATIO_WANTED);
    row(&mut table, "from unlock to the next waiter running", &handed, HAND_OVER_RATIO_WANTED);
    drop(table);
    drop(pairs);
    killed(effort, &mounts)
}

fn row(table: &mut Table, what: &str, [tmpfs, null, latchfs]: &[Vec<f64>; 3], wanted: f64) {
    let ratio = median(latchfs) / median(null);
    table.row(&[
        what,
        &number(median(tmpfs)),
        &number(median(null)),
        &number(median(latchfs)),
        &number(ratio),
        &format!("<= {wanted}"),
        verdict(ratio, wanted),
        &format!("{} / {}", number(least(null)), number(least(latchfs))),
        &number(least(latchfs) / least(null)),
    ]);
}

fn open(dir: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(dir.join(FILE))
}

/// Two open files of one lock file. The measuring thread locks and unlocks `own`; the thread of
/// `other` waits for the lock.
struct Pair {
    own: File,
    other: Waiter,
}

/// A thread that locks the file each time it is ordered to, and reports when it got the lock.
struct Waiter {
    dir: PathBuf,
    tid: i32,
    orders: Option<Sender<()>>,
    had: Receiver<Time>,
    thread: Option<JoinHandle<()>>,
}

impl Pair {
    fn on(dir: &Path) -> io::Result<Self> {
        let own = open(dir)?;
        // The open with `O_CREAT` has acquired a lease for the client. The first flock converts it
        // to a lease of the open file, so one flock and unlock precede the measurement.
        own.lock()?;
        own.unlock()?;
        Ok(Self { own, other: Waiter::on(dir)? })
    }

    /// Returns the median time from before the unlock until the waiter runs, in microseconds.
    fn hand_over(&self, count: usize) -> Result<f64, String> {
        let mut each = Vec::with_capacity(count);
        for _ in 0..count {
            self.own.lock().map_err(|error| error.to_string())?;
            self.other.wait()?;
            let start = boot_now();
            self.own.unlock().map_err(|error| error.to_string())?;
            each.push(self.other.had()?.since(start).as_nanos() as f64 / 1_000.0);
        }
        Ok(median(&each))
    }
}

impl Waiter {
    fn on(dir: &Path) -> io::Result<Self> {
        let file = open(dir)?;
        let (orders, ordered) = channel::<()>();
        let (tell, had) = channel();
        let (say_tid, tid) = channel();
        let thread = thread::spawn(move || {
            let _ = say_tid.send(tid_of_this());
            for () in ordered {
                file.lock().expect("waiting ends with the lock");
                let now = boot_now();
                file.unlock().expect("it is ours");
                let _ = tell.send(now);
            }
        });
        let tid = tid.recv().map_err(io::Error::other)?;
        let (dir, orders, thread) = (dir.to_owned(), Some(orders), Some(thread));
        Ok(Self { dir, tid, orders, had, thread })
    }

    /// Orders the thread to lock the file, and returns as soon as the thread's lock request waits
    /// in the queue of the lock.
    fn wait(&self) -> Result<(), String> {
        let orders = self.orders.as_ref().ok_or("it has ended")?;
        orders.send(()).map_err(|error| error.to_string())?;
        let path = format!("/proc/self/task/{}/syscall", self.tid);
        let call = format!("{} ", libc::SYS_flock);
        let start = boot_now();
        while !fs::read_to_string(&path).unwrap_or_default().starts_with(&call) {
            if boot_now().since(start) > PATIENCE {
                return Err("a thread never waits for its lock".to_owned());
            }
            thread::yield_now();
        }
        // The server handles requests in order, so it has received the lock request when it answers
        // this stat.
        fs::metadata(self.dir.join(FILE)).map(drop).map_err(|error| error.to_string())
    }

    /// Returns the time at which the waiter's thread got the lock. When this function returns, the
    /// thread has already released the lock.
    fn had(&self) -> Result<Time, String> {
        self.had.recv_timeout(PATIENCE.as_duration()).map_err(|error| error.to_string())
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.orders = None;
        let _ended = self.thread.take().map(JoinHandle::join);
    }
}

#[allow(unsafe_code)]
fn tid_of_this() -> i32 {
    // SAFETY: gettid takes no arguments and touches no memory.
    unsafe { libc::gettid() }
}

/// Measures how soon the next waiter gets the lock of a killed holder.
fn killed(effort: Effort, mounts: &[Mount; 3]) -> Result<(), String> {
    let count = effort.of(1_000).max(20);
    let mut table = Table::new(
        &format!("From kill -9 of the holder to the next waiter running, {count} times, ms"),
        &["", "median", "p99", "longest", "wanted", ""],
    );
    for (what, mount) in ["tmpfs", "nothing", "latchfs"].into_iter().zip(mounts) {
        let waiter = Waiter::on(mount.dir()).map_err(|error| error.to_string())?;
        let mut each = Vec::with_capacity(count);
        for _ in 0..count {
            let mut holder = Holder::of(&mount.dir().join(FILE))?;
            waiter.wait()?;
            let start = boot_now();
            holder.0.kill().map_err(|error| error.to_string())?;
            each.push(waiter.had()?.since(start).as_nanos() as f64 / 1e6);
        }
        each.sort_by(f64::total_cmp);
        let p99 = each[(count * 99).div_ceil(100) - 1];
        let longest = each.last().copied().unwrap_or(f64::NAN);
        let is_ours = what == "latchfs";
        let wanted = format!("p99 <= {KILLED_MS_WANTED:.0}");
        table.row(&[
            what,
            &number(median(&each)),
            &number(p99),
            &number(longest),
            if is_ours { &wanted } else { "" },
            if is_ours { verdict(p99, KILLED_MS_WANTED) } else { "" },
        ]);
    }
    Ok(())
}

/// A child process that holds the lock until it is killed.
struct Holder(Child);

impl Holder {
    fn of(path: &Path) -> Result<Self, String> {
        let this = env::current_exe().map_err(|error| error.to_string())?;
        let mut command = Command::new(this);
        command.arg("hold").arg(path).stdin(Stdio::piped()).stdout(Stdio::piped());
        let child = command.spawn().map_err(|error| format!("can't start {command:?}: {error}"))?;
        let mut holder = Self(child);
        let mut said = [0; 1];
        let out = holder.0.stdout.as_mut().ok_or("its output is piped")?;
        out.read_exact(&mut said).map_err(|error| format!("a holder does not hold: {error}"))?;
        Ok(holder)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs in the child process that holds a lock: locks a file until standard input ends.
pub(crate) fn hold(path: &str) -> Result<(), String> {
    let failed = |error: io::Error| format!("{path}: {error}");
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
    let file = file.map_err(failed)?;
    file.lock().map_err(failed)?;
    println!("held");
    io::stdout().flush().map_err(failed)?;
    let _end = io::stdin().read(&mut [0; 1]);
    Ok(())
}
