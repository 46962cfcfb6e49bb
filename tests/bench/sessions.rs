//! Many sessions kept alive by the HTTP server, beside as many keys that redis-server is asked not
//! to forget yet: what the machine takes for so many small requests, whoever answers.
//!
//! Each comes by a connection of its own, as the sessions of as many machines do. How it is when
//! all come by a few, as from a proxy, is shown as well: then each waits for the one before.

use crate::Effort;
use crate::http::Line;
use crate::report::{Table, number};
use crate::servers::{Serving, State, latchfs, redis, resp};
use latchfs::time::{Span, Time, boot_now};
use std::sync::atomic::{AtomicBool, Ordering};
use std::{io, thread};

/// Sessions that are kept alive.
const SESSIONS: usize = 10_000;

/// Of one processor, in percent.
const WANTED: f64 = 5.0;

/// How long one lives.
const TTL_SECS: u64 = 30;

/// Each is renewed after a third of its ttl.
const PERIOD: Span = Span::from_secs(TTL_SECS / 3);

/// Connections of a proxy.
const FEW: usize = 4;

/// Who sends for so many connections at most: each has time to wait for an answer.
const THREADS_MAX: usize = 50;

/// Somebody else takes a lock and gives it back this often.
const OTHER_EVERY: Span = Span::from_millis(20);

/// Connections, and what else a client has open.
const FILES: libc::rlim_t = SESSIONS as libc::rlim_t + 200;

/// A server, and a request for each thing that it is to keep.
struct Keeping {
    server: Serving,
    requests: Vec<Vec<u8>>,
}

/// What came of keeping all for a while.
struct Kept {
    /// Of one processor, in percent.
    share: f64,
    /// How long an answer took, in milliseconds, and how long a lock and unlock beside it.
    answers: Vec<f64>,
    others: Vec<f64>,
}

pub(crate) fn run(effort: Effort) -> Result<(), String> {
    may_open_files()?;
    let count = effort.of(SESSIONS);
    let title = format!("{count} of {TTL_SECS} s, each kept alive after a third of it");
    let mut table = Table::new(&title, &["of a processor", "measured", "wanted", ""]);
    let mut times = Vec::new();
    for keeping in [sessions(count)?, keys(count)?] {
        let name = keeping.server.name;
        let mut own = keeping.lines(count)?;
        // The server has seen all of them once.
        keeping.keep(&mut own, false)?;
        let kept = keeping.keep(&mut own, false)?;
        if name == "latchfs" {
            table.limit("latchfs", kept.share, "%", WANTED);
        } else {
            table.shown(name, kept.share, "%");
        }
        let beside = keeping.keep(&mut own, true)?;
        drop(own);
        let few = keeping.keep(&mut keeping.lines(FEW)?, false)?;
        table.shown(&format!("{name}, by {FEW} connections"), few.share, "%");
        times.push((format!("{name}, an answer"), kept.answers));
        times.push((format!("{name}, lock and unlock meanwhile"), beside.others));
    }
    drop(table);
    let mut table = Table::new("How long that takes, in ms", &["", "median", "p99"]);
    for (what, mut each) in times {
        each.sort_by(f64::total_cmp);
        let at = |percent: usize| each.get(each.len() * percent / 100).copied();
        let at = |percent| number(at(percent).unwrap_or(f64::NAN));
        table.row(&[&what, &at(50), &at(99)]);
    }
    Ok(())
}

/// Sessions of a server that keeps its state.
fn sessions(count: usize) -> Result<Keeping, String> {
    let server = latchfs("latchfs", State::Kept)?;
    let mut line = Line::to(&server.address)?;
    let mut requests = Vec::with_capacity(count);
    for number in 0..count {
        let path = format!("/sessions?client=c{number}&ttl={TTL_SECS}s");
        line.send(format!("POST {path} HTTP/1.1\r\nhost: x\r\n\r\n").as_bytes())?;
        let code = line.http()?;
        let body = String::from_utf8_lossy(line.body());
        let id = body.strip_prefix("{\"session\":").and_then(|rest| rest.split(',').next());
        let id = id.filter(|_| code == 201).ok_or_else(|| format!("no session: {body}"))?;
        let request = format!("POST /sessions/{id}/keepalive HTTP/1.1\r\nhost: x\r\n\r\n");
        requests.push(request.into_bytes());
    }
    Ok(Keeping { server, requests })
}

/// Keys that expire.
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
    Ok(Keeping { server, requests })
}

impl Keeping {
    /// Connections, each of which has asked for something: else those who ask would have to wait
    /// for all who have come.
    fn lines(&self, count: usize) -> Result<Vec<Line>, String> {
        let mut lines = Vec::with_capacity(count);
        for request in &self.requests[..count.min(self.requests.len())] {
            let mut line = Line::to(&self.server.address)?;
            self.ask(&mut line, request)?;
            lines.push(line);
        }
        Ok(lines)
    }

    fn ask(&self, line: &mut Line, request: &[u8]) -> Result<(), String> {
        line.send(request)?;
        if self.server.speech.answer(line)? {
            Ok(())
        } else {
            Err(String::from_utf8_lossy(line.body()).into_owned())
        }
    }

    /// Sends each request once, by its line or by one of few, and perhaps has somebody else take
    /// a lock meanwhile.
    fn keep(&self, lines: &mut [Line], beside: bool) -> Result<Kept, String> {
        let threads = lines.len().min(THREADS_MAX);
        let mut each: Vec<Vec<&mut Line>> = (0..threads).map(|_| Vec::new()).collect();
        for (number, line) in lines.iter_mut().enumerate() {
            each[number % threads].push(line);
        }
        let over = AtomicBool::new(false);
        let (before, begun) = (self.server.work()?, boot_now());
        let (answers, others) = thread::scope(|scope| {
            let other = beside.then(|| scope.spawn(|| self.lock_and_unlock(&over)));
            let turns = each.into_iter().enumerate();
            let work: Vec<_> = turns
                .map(|(first, lines)| scope.spawn(move || self.send(lines, first, threads)))
                .collect();
            let ends = work.into_iter().map(|work| work.join().expect("a client does not panic"));
            let answers = ends.collect::<Result<Vec<_>, String>>();
            over.store(true, Ordering::Relaxed);
            let others = other.map_or(Ok(Vec::new()), |other| other.join().expect("nor another"));
            Ok::<_, String>((answers?.concat(), others?))
        })?;
        let took = millis_since(begun);
        let share = 100.0 * (self.server.work()? - before) / (took / 1e3);
        // Who is slower than it should be, costs less than it should.
        if took > PERIOD.as_millis() as f64 * 1.02 {
            return Err(format!("{} did not keep all alive in time", self.server.name));
        }
        Ok(Kept { share, answers, others })
    }

    /// Sends every `step`th request from the first on, evenly over a third of the ttl.
    fn send(
        &self,
        mut lines: Vec<&mut Line>,
        first: usize,
        step: usize,
    ) -> Result<Vec<f64>, String> {
        let (begun, count) = (boot_now(), lines.len());
        let mut took = Vec::new();
        for (turn, number) in (first..self.requests.len()).step_by(step).enumerate() {
            let due = PERIOD.as_nanos() * number as u64 / self.requests.len() as u64;
            let due = begun + Span::from_nanos(due);
            sleep_until(due);
            let (line, sent) = (&mut *lines[turn % count], boot_now());
            self.ask(line, &self.requests[number])?;
            took.push(millis_since(sent));
        }
        sleep_until(begun + PERIOD);
        Ok(took)
    }

    /// What somebody else does meanwhile, by a connection of its own.
    fn lock_and_unlock(&self, over: &AtomicBool) -> Result<Vec<f64>, String> {
        let (mut line, speech) = (Line::to(&self.server.address)?, &self.server.speech);
        let session = speech.greet(&mut line)?;
        let mut took = Vec::new();
        while !over.load(Ordering::Relaxed) {
            let begun = boot_now();
            for request in [speech.take(0, &session), speech.give(0, &session)] {
                self.ask(&mut line, &request)?;
            }
            took.push(millis_since(begun));
            sleep_until(begun + OTHER_EVERY);
        }
        Ok(took)
    }
}

fn sleep_until(due: Time) {
    thread::sleep(due.since(boot_now()).as_duration());
}

fn millis_since(begun: Time) -> f64 {
    boot_now().since(begun).as_nanos() as f64 / 1e6
}

/// This process, and those that it starts, may have that many files open.
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
