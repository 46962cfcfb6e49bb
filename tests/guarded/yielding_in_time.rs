//! How soon the lock of a folder is handed over when another machine asks for it, and how little
//! the lock service hears of a machine that is at work.

use crate::arriving::{Machines, begin_take, not_ready, state};
use crate::relay::Relay;
use latchfs::time::{Span, Time, boot_now};
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;
use testing::{Guard, Scratch, Server, pause, soon};

/// How long an event may take.
const EVENT_LIMIT: Duration = Duration::from_secs(30);
/// How often a hand-over is measured. The middle one counts: programs of other tests take time.
const ROUNDS: usize = 5;
/// The option `--yield` of the guards.
const YIELD: Span = Span::from_secs(1);

/// The names of the events of a guard, each with the time at which it was read.
struct Times(Receiver<(String, Time)>);

impl Times {
    fn of(guard: &Guard) -> Self {
        let events = File::open(guard.path(".latchfs/events")).expect("there");
        let (send, receive) = channel();
        thread::spawn(move || {
            for line in BufReader::new(events).lines().map_while(Result::ok) {
                let at = boot_now();
                let event: serde_json::Value = serde_json::from_str(&line).expect("JSON");
                let name = event["event"].as_str().expect("a name").to_owned();
                send.send((name, at)).unwrap_or_default();
            }
        });
        Self(receive)
    }

    /// Returns when the next event with this name was read.
    fn next(&self, name: &str) -> Time {
        loop {
            let (found, at) = self.0.recv_timeout(EVENT_LIMIT).expect("an event");
            if found == name {
                return at;
            }
        }
    }
}

fn median(mut all: Vec<Span>) -> Span {
    all.sort();
    all[all.len() / 2]
}

/// Keeps the second machine's files like those of the first until it holds the lock.
fn carry_until_held(machines: &Machines, guard: &Guard) {
    soon("the lock of the second machine", || {
        machines.carry_all();
        (state(guard) == "holding").then_some(())
    });
}

/// Returns a number of the server's metrics.
pub(crate) fn metric(server: &Server, name: &str) -> u64 {
    let address = server.url.trim_start_matches("http://");
    let mut stream = TcpStream::connect(address).expect("it listens");
    let request = format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("sent");
    let mut page = String::new();
    stream.read_to_string(&mut page).expect("an answer");
    let value = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.and_then(|value| value.trim().parse().ok()).expect(name)
}

/// The lock service hears of 1,000 writes by one announcement and one marker, and by nothing else.
#[test]
fn a_burst_of_writes_makes_one_pair_of_requests() {
    let scratch = Scratch::with_folder();
    let server = Server::of(&scratch);
    scratch.init(&["--server", &server.url, "--client", "m1"]);
    let relay = Relay::start(&server.url);
    // No keep-alive of the session is due meanwhile.
    let options = ["--client", "m1", "--ttl", "10m", "--settle", "1s", "--server", &relay.url];
    let guard = Guard::start(&scratch, "view", &options);
    guard.request("take", &[]).ok();
    let writes = |name: &str| {
        let mut open = File::create(guard.path("in-place.log")).expect("held");
        for number in 0..250 {
            open.write_all(b"a line\n").expect("held");
            fs::write(guard.path(&format!("{name}{}", number % 50)), "whole").expect("held");
        }
        drop(open);
        for number in 0..50 {
            fs::rename(guard.path(&format!("{name}{number}")), guard.path(&format!("r{number}")))
                .expect("held");
        }
    };
    let markers = scratch.folder().join(".latchfs/markers");
    let count = || fs::read_dir(&markers).map_or(0, Iterator::count);
    let before = (metric(&server, "latchfs_log_commands_total"), count());
    let ids = metric(&server, "latchfs_request_ids");
    relay.requests();
    let begun = boot_now();
    writes("x");
    writes("y");
    soon("the marker", || (count() > before.1).then_some(()));
    pause(Duration::from_secs(1));
    let took = boot_now().since(begun);
    let requests = relay.requests();
    let commands = metric(&server, "latchfs_log_commands_total") - before.0;
    let more_ids = metric(&server, "latchfs_request_ids").saturating_sub(ids);
    println!("{commands} commands, {more_ids} more ids, in {took}: {requests:?}");
    assert_eq!(commands, 2, "changes follow, and the marker");
    assert_eq!(requests.len(), 2, "{requests:?}");
    assert_eq!(more_ids, 0, "each command acknowledges the answers before it");
}

/// The lock is given up within `--yield` + 50 ms after the last change if there is nothing to mark,
/// and within `--yield` + 1 s with a marker.
#[test]
fn a_machine_that_is_asked_hands_over_in_time() {
    let machines = Machines::new();
    let (one, two) = (machines.start(1, &["--yield", "1s"]), machines.start(2, &["--yield", "1s"]));
    let times = Times::of(&one);
    let (mut unmarked, mut marked) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        for has_changed in [false, true] {
            one.take_here();
            times.next("held");
            if has_changed {
                fs::write(one.path("a"), round.to_string()).expect("held");
            }
            let since = boot_now();
            let taking = begin_take(&two);
            let took = times.next("given").since(since);
            if has_changed {
                marked.push(took);
            } else {
                unmarked.push(took);
            }
            carry_until_held(&machines, &two);
            assert!(taking.join().expect("taken").contains("holding"));
            two.request("give", &[]).ok();
        }
    }
    println!("handed over after {unmarked:?} without a marker, {marked:?} with one");
    let early = YIELD.as_millis() - 100;
    assert!(unmarked.iter().chain(&marked).all(|took| took.as_millis() > early), "too early");
    assert!(median(unmarked) < YIELD + Span::from_millis(50));
    assert!(median(marked) < YIELD + Span::from_secs(1));
}

/// A machine that saves files again and again keeps the lock until `--max`.
#[test]
fn a_busy_machine_keeps_the_lock_until_the_maximum() {
    let machines = Machines::new();
    let one = machines.start(1, &["--yield", "1s", "--max", "3s"]);
    let two = machines.start(2, &[]);
    let times = Times::of(&one);
    one.take_here();
    let path = one.path("a");
    let ends = std::sync::Arc::new(AtomicBool::new(false));
    let is_over = std::sync::Arc::clone(&ends);
    let writer = thread::spawn(move || {
        let mut saved = 0;
        while !is_over.load(Ordering::Relaxed) && fs::write(&path, saved.to_string()).is_ok() {
            saved += 1;
            pause(Duration::from_millis(50));
        }
        saved
    });
    let taking = begin_take(&two);
    let asked = times.next("wanted");
    let took = times.next("given").since(asked);
    ends.store(true, Ordering::Relaxed);
    let saved = writer.join().expect("no panic");
    println!("handed over after {took}, {saved} saves");
    assert!(saved > 20, "{saved} saves");
    assert!(took > Span::from_millis(2_900), "{took}");
    assert!(took < Span::from_secs(5), "{took}");
    carry_until_held(&machines, &two);
    assert!(taking.join().expect("taken").contains("holding"));
}

/// A machine whose files have not arrived gives the lock up as soon as another one asks.
#[test]
fn a_machine_that_is_not_ready_hands_over_at_once() {
    let machines = Machines::new();
    let one = machines.start(1, &["--yield", "1s"]);
    let two = machines.start(2, &["--on-write", "wait=5m", "--yield", "20s"]);
    fs::write(one.path("old"), "of m1").expect("free");
    one.request("give", &[]).ok();
    let times = Times::of(&two);
    let path = two.path("old");
    let writing = thread::spawn(move || fs::write(path, "of m2"));
    not_ready(&two, "the marker of m1's tenure");
    // It has compared its files several times by now.
    pause(Duration::from_secs(1));
    assert_eq!(state(&two), "arriving");
    let taking = begin_take(&one);
    let asked = times.next("wanted");
    let took = times.next("given").since(asked);
    println!("handed over after {took}");
    assert!(took < Span::from_millis(500), "{took}");
    assert!(taking.join().expect("taken").contains("holding"));
    carry_until_held(&machines, &two);
    writing.join().expect("no panic").expect("written");
}
