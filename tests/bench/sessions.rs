//! Many sessions kept alive through the HTTP server, next to redis-server with as many keys whose
//! expiry is extended: the machine's cost of as many small requests to any server.
//!
//! Each session has a connection of its own, as sessions of different machines have. The table also
//! shows a few connections for all sessions, as from a proxy, where each request waits for the one
//! before.

use crate::Effort;
use crate::http::Line;
use crate::report::{Table, number, poll, verdict};
use crate::servers::{Serving, State, latchfs, redis, resp};
use futures_util::future::try_join_all;
use latchfs::time::{Span, Time, boot_now};
use std::io;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{fs, thread};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::runtime::{Builder, Runtime};

/// The number of sessions.
const SESSIONS: usize = 10_000;

/// Target: latchfs takes at most this many times the processor time of Redis for as many keys.
const RATIO_WANTED: f64 = 1.5;

/// Target: the median latency of a keep-alive, in milliseconds.
const ANSWER_WANTED: f64 = 1.0;

/// The ttl of each session, in seconds.
const TTL_SECS: u64 = 30;

/// The interval between two keep-alives of a session.
const PERIOD: Span = Span::from_secs(TTL_SECS / 3);

/// The number of connections that all sessions share in the measurement of a proxy.
const FEW: usize = 4;

/// An upper bound on the size of an answer, which is read by a single read.
const ANSWER_BYTES: usize = 1_024;

/// The interval at which another client acquires and releases a lock during the measurement.
const OTHER_EVERY: Span = Span::from_millis(20);

/// The number of files that this process may open: one connection per session, and some more.
const FILES: libc::rlim_t = SESSIONS as libc::rlim_t + 200;

/// A server, with one keep-alive request for each of its sessions or keys.
struct Keeping {
    server: Serving,
    /// The tokio runtime on which the clients of the measurement run.
    runtime: Runtime,
    requests: Vec<Vec<u8>>,
    /// The first bytes of the answer to a successful keep-alive; another answer ends the benchmark
    /// with an error.
    kept: &'static [u8],
}

/// The result of keeping all sessions alive for one interval.
struct Kept {
    /// The processor time of the server, in percent of one processor.
    share: f64,
    /// The latencies of keep-alives in milliseconds, and those of the lock-unlock pairs of another
    /// client at the same time.
    answers: Vec<f64>,
    others: Vec<f64>,
}

pub(crate) fn run(effort: Effort) -> Result<(), String> {
    may_open_files()?;
    let count = effort.of(SESSIONS);
    let title = format!("{count} of {TTL_SECS} s, each kept alive after a third of it");
    let mut table = Table::new(&title, &["of a processor", "measured", "wanted", ""]);
    let (mut times, mut shares) = (Vec::new(), Vec::new());
    let (begun, stolen_before) = (boot_now(), stolen()?);
    for make in [sessions, keys] {
        let keeping = make(count)?;
        let name = keeping.server.name;
        let mut own = keeping.lines(count)?;
        // This round warms up: after it, the server has received each request once.
        keeping.keep(&mut own, false)?;
        let kept = keeping.keep(&mut own, false)?;
        table.shown(name, kept.share, "%");
        shares.push(kept.share);
        let beside = keeping.keep(&mut own, true)?;
        drop(own);
        let few = keeping.keep(&mut keeping.lines(FEW)?, false)?;
        table.shown(&format!("{name}, by {FEW} connections"), few.share, "%");
        times.push((format!("{name}, an answer"), kept.answers));
        times.push((format!("{name}, lock and unlock meanwhile"), beside.others));
    }
    if let [latchfs, redis] = *shares {
        table.limit("latchfs beside Redis", latchfs / redis, "", RATIO_WANTED);
    }
    let lost = 100.0 * (stolen()? - stolen_before) / (millis_since(begun) / 1e3);
    table.shown("taken by the host of this machine", lost, "%");
    drop(table);
    let mut table = Table::new("How long that takes, in ms", &["", "median", "p99", "wanted", ""]);
    for (what, mut each) in times {
        each.sort_by(f64::total_cmp);
        let at = |percent: usize| each.get(each.len() * percent / 100).copied();
        let (median, p99) = (at(50).unwrap_or(f64::NAN), at(99).unwrap_or(f64::NAN));
        let (median_text, p99) = (number(median), number(p99));
        if what == "latchfs, an answer" {
            let wanted = format!("median <= {}", number(ANSWER_WANTED));
            table.row(&[&what, &median_text, &p99, &wanted, verdict(median, ANSWER_WANTED)]);
        } else {
            table.row(&[&what, &median_text, &p99]);
        }
    }
    Ok(())
}

/// Starts a latchfs server that stores its state in a journal, and opens sessions on it.
fn sessions(count: usize) -> Result<Keeping, String> {
    let server = latchfs("latchfs", State::Kept)?;
    let mut line = Line::to(&server.address)?;
    let mut requests = Vec::with_capacity(count);
    for number in 0..count {
        let path = format!("/sessions?client=c{number}&ttl={TTL_SECS}s");
        line.send(format!("POST {path} HTTP/1.1\r\nhost: localhost\r\n\r\n").as_bytes())?;
        let code = line.http()?;
        let body = String::from_utf8_lossy(line.body());
        let id = body.strip_prefix("{\"session\":").and_then(|rest| rest.split(',').next());
        let id = id.filter(|_| code == 201).ok_or_else(|| format!("no session: {body}"))?;
        let request = format!("POST /sessions/{id}/keepalive HTTP/1.1\r\nhost: localhost\r\n\r\n");
        requests.push(request.into_bytes());
    }
    Ok(Keeping { server, runtime: runtime()?, requests, kept: b"HTTP/1.1 200 " })
}

/// Sets Redis keys that expire, as the equivalent of sessions.
fn keys(count: usize) -> Result<Keeping, String> {
    let server = redis("Redis", State::Kept)?;
    let mut line = Line::to(&server.address)?;
    line.send(&resp(&["CONFIG", "SET", "maxclients", &FILES.to_string()]))?;
    if !server.speech.answer(&mut line)? {
        return Err("Redis takes not so many clients".to_owned());
    }
    let ttl = (TTL_SECS * 1_000).to_string();
    let mut requests = Vec::with_capacity(count);
    for number in 0..count {
        let key = format!("session{number}");
        line.send(&resp(&["SET", &key, "1", "PX", &ttl]))?;
        if !server.speech.answer(&mut line)? {
            return Err("Redis takes no key".to_owned());
        }
        requests.push(resp(&["PEXPIRE", &key, &ttl]));
    }
    Ok(Keeping { server, runtime: runtime()?, requests, kept: b":1\r\n" })
}

impl Keeping {
    /// Opens connections, and sends a request on each at once. Without that, the first keep-alives
    /// would have to wait until the server has accepted all connections.
    fn lines(&self, count: usize) -> Result<Vec<TcpStream>, String> {
        let mut lines = Vec::with_capacity(count);
        self.runtime.block_on(async {
            let server = self.server.address.parse().map_err(|_| "no address and port")?;
            for (number, request) in
                self.requests[..count.min(self.requests.len())].iter().enumerate()
            {
                // A server leaves half of its connections to clients of other addresses.
                let from = Ipv4Addr::new(127, 0, 0, if number % 2 == 0 { 1 } else { 2 });
                let line = TcpSocket::new_v4().map_err(failed)?;
                line.bind((from, 0).into()).map_err(failed)?;
                let mut line = line.connect(server).await.map_err(failed)?;
                line.set_nodelay(true).map_err(failed)?;
                self.request(&mut line, request).await?;
                lines.push(line);
            }
            Ok(lines)
        })
    }

    async fn request(&self, line: &mut TcpStream, request: &[u8]) -> Result<(), String> {
        line.write_all(request).await.map_err(failed)?;
        let mut answer = [0; ANSWER_BYTES];
        let length = line.read(&mut answer).await.map_err(failed)?;
        let answer = &answer[..length];
        let said = || String::from_utf8_lossy(answer).into_owned();
        if answer.starts_with(self.kept) { Ok(()) } else { Err(said()) }
    }

    /// Sends one keep-alive for each session. The sessions share the connections `lines`, of which
    /// there may be one for each session or a few. With `beside`, another client acquires and
    /// releases a lock during that time.
    fn keep(&self, lines: &mut [TcpStream], beside: bool) -> Result<Kept, String> {
        let over = AtomicBool::new(false);
        let before = self.server.work()?;
        let (answers, others) = thread::scope(|scope| {
            let other = beside.then(|| scope.spawn(|| self.lock_and_unlock(&over)));
            let answers = self.send(lines);
            over.store(true, Ordering::Relaxed);
            let others = other.map_or(Ok(Vec::new()), |other| other.join().expect("no panic"));
            Ok::<_, String>((answers?, others?))
        })?;
        // The processor time is divided by the length of the interval between two keep-alives of a
        // session, even if sending all keep-alives took longer than that.
        let share = 100.0 * (self.server.work()? - before) / PERIOD.as_duration().as_secs_f64();
        Ok(Kept { share, answers, others })
    }

    /// Sends all keep-alives, spread evenly over a third of the ttl, on one thread. The cost of
    /// waking the clients, which run on other machines in reality, should not count as work of the
    /// server.
    fn send(&self, lines: &mut [TcpStream]) -> Result<Vec<f64>, String> {
        let begun = boot_now();
        let took = self.runtime.block_on(async {
            let (step, turns) = (lines.len(), lines.iter_mut().enumerate());
            let each = turns.map(|(first, line)| self.send_by(line, first, step, begun));
            let took = try_join_all(each).await;
            sleep_until(begun + PERIOD).await;
            took
        })?;
        Ok(took.concat())
    }

    /// Sends every `step`th keep-alive from number `first` on, each when it is due.
    async fn send_by(
        &self,
        line: &mut TcpStream,
        first: usize,
        step: usize,
        begun: Time,
    ) -> Result<Vec<f64>, String> {
        let mut took = Vec::new();
        for number in (first..self.requests.len()).step_by(step) {
            let due = PERIOD.as_nanos() * number as u64 / self.requests.len() as u64;
            sleep_until(begun + Span::from_nanos(due)).await;
            let sent = boot_now();
            self.request(line, &self.requests[number]).await?;
            took.push(millis_since(sent));
        }
        Ok(took)
    }

    /// Acquires and releases a lock repeatedly as another client, on a connection of its own, until
    /// `over` is set.
    fn lock_and_unlock(&self, over: &AtomicBool) -> Result<Vec<f64>, String> {
        let (mut line, speech) = (Line::to(&self.server.address)?, &self.server.speech);
        let session = speech.greet(&mut line)?;
        let mut took = Vec::new();
        while !over.load(Ordering::Relaxed) {
            let begun = boot_now();
            for request in [speech.take(0, &session), speech.give(0, &session)] {
                line.send(&request)?;
                if !speech.answer(&mut line)? {
                    return Err(String::from_utf8_lossy(line.body()).into_owned());
                }
            }
            took.push(millis_since(begun));
            poll(PERIOD, || boot_now() >= begun + OTHER_EVERY);
        }
        Ok(took)
    }
}

/// Returns the seconds for which the host has run other guests on the processors of this virtual
/// machine (steal time).
fn stolen() -> Result<f64, String> {
    let stat = fs::read_to_string("/proc/stat").map_err(|error| error.to_string())?;
    // The line `cpu` sums all processors; its fields are: "cpu", user, nice, system, idle, iowait,
    // irq, softirq, steal.
    let ticks = stat.split_whitespace().nth(8).and_then(|ticks| ticks.parse::<u64>().ok());
    Ok(ticks.unwrap_or_default() as f64 / 100.0)
}

async fn sleep_until(due: Time) {
    tokio::time::sleep(due.since(boot_now()).as_duration()).await;
}

fn runtime() -> Result<Runtime, String> {
    Builder::new_current_thread().enable_all().build().map_err(failed)
}

#[allow(clippy::needless_pass_by_value)] // as `map_err` hands it over
fn failed(error: io::Error) -> String {
    format!("a connection fails: {error}")
}

fn millis_since(begun: Time) -> f64 {
    boot_now().since(begun).as_nanos() as f64 / 1e6
}

/// Raises the limit of open files to [`FILES`], for this process and those that it starts.
#[allow(unsafe_code)]
fn may_open_files() -> Result<(), String> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid rlimit to write to.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } == 0;
    limit.rlim_cur = limit.rlim_cur.max(FILES);
    limit.rlim_max = limit.rlim_max.max(FILES);
    // SAFETY: `limit` is a valid rlimit to read.
    if known && unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } == 0 {
        Ok(())
    } else {
        Err(format!("{FILES} files can't be open at once: {}", io::Error::last_os_error()))
    }
}
