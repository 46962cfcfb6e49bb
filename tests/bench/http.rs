//! Measures the HTTP server next to redis-server and etcd: the same clients acquire and release
//! locks, each on a connection of its own.

use crate::Effort;
use crate::report::{Table, least, median, number, poll, verdict};
use crate::servers::{Serving, State, etcd, latchfs, redis};
use latchfs::time::{Span, boot_now};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// The numbers of concurrent clients with which each server is measured, one number after the
/// other.
const CLIENTS: [usize; 2] = [1, 64];
/// Target: for a single client, the median latency is at most this many times that of Redis.
const SINGLE_WANTED: f64 = 1.5;
/// Target: many clients get at least this share of the lock-unlock pairs per second of Redis.
const REDIS_WANTED: f64 = 0.5;
/// Target: many clients get at least this many times the lock-unlock pairs per second of etcd.
const ETCD_WANTED: f64 = 5.0;

/// The requests and answers by which clients lock and unlock on a kind of server.
pub(crate) trait Speech: Send + Sync {
    /// Prepares a connection before the measurement. Returns the etcd lease id or the Redis script
    /// id that later requests need, or an empty string.
    fn greet(&self, line: &mut Line) -> Result<String, String>;
    /// Returns the request by which the client takes its lock; `session` is the text that `greet`
    /// has returned.
    fn take(&self, client: usize, session: &str) -> Vec<u8>;
    /// Returns the request by which the client releases its lock; `session` is the text that
    /// `greet` has returned.
    fn give(&self, client: usize, session: &str) -> Vec<u8>;
    /// Reads the answer to one request, and returns whether it reports success.
    fn answer(&self, line: &mut Line) -> Result<bool, String>;
}

/// A server under measurement.
#[derive(Clone, Copy)]
pub(crate) struct Target<'a> {
    pub(crate) name: &'static str,
    pub(crate) address: &'a str,
    pub(crate) speech: &'a dyn Speech,
}

/// A client's connection to a server under measurement.
pub(crate) struct Line {
    stream: BufReader<TcpStream>,
    body: Vec<u8>,
}

impl Line {
    pub(crate) fn to(address: &str) -> Result<Self, String> {
        let stream = TcpStream::connect(address).map_err(|error| format!("{address}: {error}"))?;
        stream.set_nodelay(true).map_err(|error| error.to_string())?;
        Ok(Self { stream: BufReader::with_capacity(16 << 10, stream), body: Vec::new() })
    }

    /// Sets the read timeout of the connection. Returns whether the call has succeeded.
    pub(crate) fn wait_at_most(&mut self, patience: Span) -> bool {
        self.stream.get_ref().set_read_timeout(Some(patience.as_duration())).is_ok()
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.stream.get_mut().write_all(bytes).map_err(|error| format!("can't send: {error}"))
    }

    /// Reads a line from the server, and returns it with its line end.
    pub(crate) fn text(&mut self) -> Result<&[u8], String> {
        self.body.clear();
        let read = self.stream.read_until(b'\n', &mut self.body);
        match read.map_err(|error| format!("can't read: {error}"))? {
            0 => Err("the connection was closed".to_owned()),
            _ => Ok(&self.body),
        }
    }

    /// Reads an HTTP/1.1 response with a content length, and returns its status code.
    pub(crate) fn http(&mut self) -> Result<u16, String> {
        let code = std::str::from_utf8(self.text()?.get(9..12).unwrap_or_default());
        let code = code.ok().and_then(|code| code.parse().ok()).ok_or("no status line")?;
        let mut length = 0;
        loop {
            let line = self.text()?.trim_ascii();
            if line.is_empty() {
                break;
            }
            let (name, value) = line.split_at(line.iter().position(|b| *b == b':').unwrap_or(0));
            if name.eq_ignore_ascii_case(b"content-length") {
                let digits = std::str::from_utf8(&value[1..]).unwrap_or_default();
                length = digits.trim().parse().map_err(|_| "an odd length")?;
            }
        }
        self.body.resize(length, 0);
        self.stream.read_exact(&mut self.body).map_err(|error| error.to_string())?;
        Ok(code)
    }

    /// Returns the body of the last response that was read.
    pub(crate) fn body(&self) -> &[u8] {
        &self.body
    }
}

/// The result of one round of a measurement of one server.
pub(crate) struct Run {
    pub(crate) pairs_per_second: f64,
    pub(crate) p50: f64,
    p99: f64,
}

pub(crate) fn run(effort: Effort) -> Result<(), String> {
    let servers = [
        latchfs("latchfs, kept", State::Kept)?,
        latchfs("latchfs, in memory", State::None)?,
        redis("Redis, kept", State::Kept)?,
        redis("Redis, in memory", State::None)?,
        etcd()?,
    ];
    let targets: Vec<_> = servers.iter().map(Serving::target).collect();
    for clients in CLIENTS {
        let runs = rounds(clients, &targets, effort)?;
        compare(clients, &targets, &runs);
    }
    Ok(())
}

/// Measures all servers in interleaved rounds, and prints a table of the results.
pub(crate) fn rounds(
    clients: usize,
    servers: &[Target<'_>],
    effort: Effort,
) -> Result<Vec<Vec<Run>>, String> {
    let mut runs: Vec<Vec<Run>> = servers.iter().map(|_| Vec::new()).collect();
    for _ in 0..effort.rounds.min(5) {
        for (server, runs) in servers.iter().zip(&mut runs) {
            runs.push(measure(*server, clients, effort)?);
        }
    }
    report(clients, servers, &runs);
    Ok(runs)
}

/// Returns the median over the rounds of one figure of a round, which `of` selects.
pub(crate) fn middle(runs: &[Run], of: fn(&Run) -> f64) -> f64 {
    median(&runs.iter().map(of).collect::<Vec<_>>())
}

fn report(clients: usize, servers: &[Target<'_>], runs: &[Vec<Run>]) {
    let title = format!("Lock and unlock, {clients} clients: medians of interleaved rounds");
    let columns = ["", "pairs/s", "p50 us", "p99 us", "least p50"];
    let mut table = Table::new(&title, &columns);
    for (server, runs) in servers.iter().zip(runs) {
        let lowest = least(&runs.iter().map(|run| run.p50).collect::<Vec<_>>());
        table.row(&[
            server.name,
            &number(middle(runs, |run| run.pairs_per_second)),
            &number(middle(runs, |run| run.p50)),
            &number(middle(runs, |run| run.p99)),
            &number(lowest),
        ]);
    }
}

fn compare(clients: usize, servers: &[Target<'_>], runs: &[Vec<Run>]) {
    let pairs: Vec<f64> =
        runs.iter().map(|runs| middle(runs, |run| run.pairs_per_second)).collect();
    let mut table = Table::new("", &["", "measured", "wanted", ""]);
    // A latchfs server is compared with the Redis server that stores its state in the same way: in
    // a file or only in memory.
    for (own, other) in [(0, 2), (1, 3)] {
        let of = servers[other].name;
        if clients == 1 {
            let slower = middle(&runs[own], |run| run.p50) / middle(&runs[other], |run| run.p50);
            table.limit(&format!("p50 beside {of}"), slower, "times", SINGLE_WANTED);
        } else {
            at_least(&mut table, of, pairs[own] / pairs[other], REDIS_WANTED);
        }
    }
    if clients > 1 {
        at_least(&mut table, servers[4].name, pairs[0] / pairs[4], ETCD_WANTED);
    }
}

/// Adds a row to the table with a ratio that should be at least `wanted`.
pub(crate) fn at_least(table: &mut Table, of: &str, ratio: f64, wanted: f64) {
    let (what, text) = (format!("pairs/s beside {of}"), format!("{} times", number(ratio)));
    table.row(&[&what, &text, &format!(">= {wanted}"), verdict(-ratio, -wanted)]);
}

/// Runs all clients concurrently, and measures each of their lock-unlock pairs.
fn measure(server: Target<'_>, clients: usize, effort: Effort) -> Result<Run, String> {
    let lasts = Span::from_millis(effort.of(2_000).max(200) as u64);
    let stop = AtomicBool::new(false);
    let start = boot_now();
    let each: Vec<Result<Vec<u32>, String>> = thread::scope(|scope| {
        let work: Vec<_> = (0..clients)
            .map(|client| {
                scope.spawn({
                    let stop = &stop;
                    move || pairs(server, client, stop)
                })
            })
            .collect();
        poll(lasts, || false);
        stop.store(true, Ordering::Relaxed);
        work.into_iter().map(|work| work.join().expect("a client does not panic")).collect()
    });
    let took = boot_now().since(start).as_nanos() as f64 / 1e9;
    let mut all = Vec::new();
    for times in each {
        all.extend(times?);
    }
    all.sort_unstable();
    let at = |share: usize| all.get(all.len() * share / 100).map_or(f64::NAN, |ns| f64::from(*ns));
    Ok(Run {
        pairs_per_second: all.len() as f64 / took,
        p50: at(50) / 1_000.0,
        p99: at(99) / 1_000.0,
    })
}

fn pairs(server: Target<'_>, client: usize, stop: &AtomicBool) -> Result<Vec<u32>, String> {
    let mut line = Line::to(server.address)?;
    let session = server.speech.greet(&mut line)?;
    let (take, give) = (server.speech.take(client, &session), server.speech.give(client, &session));
    let mut times = Vec::with_capacity(1 << 16);
    while !stop.load(Ordering::Relaxed) {
        let begun = boot_now();
        for said in [&take, &give] {
            line.send(said)?;
            if !server.speech.answer(&mut line)? {
                let body = String::from_utf8_lossy(line.body()).into_owned();
                return Err(format!("{} refuses what nobody else has: {body}", server.name));
            }
        }
        times.push(u32::try_from(boot_now().since(begun).as_nanos()).unwrap_or(u32::MAX));
    }
    Ok(times)
}
