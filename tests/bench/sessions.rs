//! Many sessions kept alive by the HTTP server, beside as many keys that redis-server is asked not
//! to forget yet: what the machine takes for so many small requests, whoever answers.
//!
//! A request a millisecond leaves processors with nothing to do in between. A virtual one is given
//! back to its host then, and what it takes to have it again, with its caches cold, is counted as
//! work of whoever is woken: at times more than the work itself, by how busy the host is. So it is
//! shown as well what both take while processors stay awake; the limit is for what is really taken.

use crate::Effort;
use crate::awake::Awake;
use crate::http::Line;
use crate::report::{Table, number, poll};
use crate::servers::{Serving, State, latchfs, redis, resp};
use latchfs::time::{Span, boot_now};
use std::thread;

/// Sessions that are kept alive.
const SESSIONS: usize = 10_000;

/// Of one processor, in percent.
const WANTED: f64 = 5.0;

/// How long one lives.
const TTL_SECS: u64 = 30;

/// Each is renewed after a third of its ttl.
const PERIOD: Span = Span::from_secs(TTL_SECS / 3);

/// Connections that the requests come by.
const CONNECTIONS: usize = 4;

/// A server, and a request for each thing that it is to keep.
struct Keeping {
    server: Serving,
    requests: Vec<Vec<u8>>,
}

pub(crate) fn run(effort: Effort) -> Result<(), String> {
    let count = effort.of(SESSIONS);
    let (ours, theirs) = (sessions(count)?, keys(count)?);
    let title = format!("{count} of {TTL_SECS} s, each kept alive after a third of it");
    let mut table = Table::new(&title, &["of a processor", "measured", "wanted", ""]);
    table.limit("latchfs, sessions", ours.share()?, "%", WANTED);
    table.row(&["Redis, keys", &percent(theirs.share()?), "", ""]);
    let _awake = Awake::start()?;
    table.row(&["latchfs, processors awake", &percent(ours.share()?), "", ""]);
    table.row(&["Redis, processors awake", &percent(theirs.share()?), "", ""]);
    Ok(())
}

fn percent(share: f64) -> String {
    format!("{} %", number(share))
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
    /// Sends each request once, and gives the share of a processor that it took, in percent.
    fn share(&self) -> Result<f64, String> {
        let before = self.server.work()?;
        let begun = boot_now();
        let kept: Vec<Result<(), String>> = thread::scope(|scope| {
            let each = self.requests.chunks(self.requests.len().div_ceil(CONNECTIONS));
            let work: Vec<_> = each.map(|part| scope.spawn(move || self.send(part))).collect();
            work.into_iter().map(|work| work.join().expect("a client does not panic")).collect()
        });
        kept.into_iter().collect::<Result<(), _>>()?;
        let took = boot_now().since(begun).as_nanos() as f64 / 1e9;
        Ok(100.0 * (self.server.work()? - before) / took)
    }

    /// Sends requests by one connection, evenly over a third of the ttl.
    fn send(&self, requests: &[Vec<u8>]) -> Result<(), String> {
        let mut line = Line::to(&self.server.address)?;
        let begun = boot_now();
        for (number, request) in requests.iter().enumerate() {
            let due = PERIOD.as_nanos() * number as u64 / requests.len() as u64;
            let due = begun + Span::from_nanos(due);
            poll(PERIOD, || boot_now() >= due);
            line.send(request)?;
            if !self.server.speech.answer(&mut line)? {
                return Err(String::from_utf8_lossy(line.body()).into_owned());
            }
        }
        poll(PERIOD, || boot_now() >= begun + PERIOD);
        Ok(())
    }
}
