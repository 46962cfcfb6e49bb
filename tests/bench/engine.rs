//! Measures the engine alone: no file system, no journal, no mutex.

use crate::Effort;
use crate::report::{Table, median, own_micros_each, own_seconds};
use latchfs::engine::{
    Acquire, ClientId, Command, Engine, FileAttrs, Grace, LeaseKey, LeaseTerms, LockName, Mode, Op,
    OpenSession, Outcome, Ownership, Patch, QueuePolicy, Release, Ttl,
};
use latchfs::time::{Span, Time};
use std::process;
use std::sync::LazyLock;

/// Returns a lock name as a CI system would choose it; the names are spread over the alphabet.
pub(crate) fn name(number: usize) -> LockName {
    let team = number.wrapping_mul(2_654_435_761) % 997;
    let text = format!("team-{team:03}/build-{number:07}");
    LockName::parse(&text).expect("it is a valid name")
}

/// Returns one of fifty clients. Each client id is parsed only once, as a mount does for its users.
fn client(number: usize) -> ClientId {
    static CLIENTS: LazyLock<Vec<ClientId>> = LazyLock::new(|| {
        let parsed = |number| ClientId::parse(&format!("runner{number:02}:ci"));
        (0..50).map(|number| parsed(number).expect("it is a valid client")).collect()
    });
    CLIENTS[number % CLIENTS.len()].clone()
}

pub(crate) fn term(ttl: Span, grace: Span) -> LeaseTerms {
    let ttl = Ttl::new(ttl).expect("it is a valid ttl");
    LeaseTerms::Own(ttl, Grace::new(grace).expect("it is a valid grace"))
}

/// The note (the text shown to anyone who finds a lock held) of the leases in this measurement. It
/// is as long as real notes are.
const NOTE: &str = "release 2024.1 of the shop, ask in #ops";

/// Returns the command that `mkdir` sends. Its strings are separate allocations, as those that come
/// from the kernel are.
pub(crate) fn acquire(number: usize, term: LeaseTerms, note: Option<&str>) -> Command {
    let holder_id = format!("runner{:02}:ci:{}:8731245", number % 50, 1_000 + number % 60_000);
    let attrs = FileAttrs { mode: 0o755, uid: 1_000, gid: 1_000, ..FileAttrs::default() };
    let patch = Patch {
        holder_id: Some(holder_id.into()),
        note: note.map(Into::into),
        attrs: Some(attrs),
        ..Patch::default()
    };
    let (name, client) = (name(number), client(number));
    let (mode, hold, line) = (Mode::Exclusive, Ownership::Exclusive(None), QueuePolicy::Skip);
    Op::Acquire(Acquire { mode, hold, line, patch, ..Acquire::new(name, client, term) }).into()
}

pub(crate) fn release(number: usize) -> Command {
    let key = LeaseKey { name: name(number), client: client(number), token: None };
    Op::Release(Release::of(key)).into()
}

/// Returns an engine in which `count` locks are held: those whose numbers are even.
fn holding(count: usize, note: Option<&str>) -> Engine {
    let (mut engine, mut events) = (Engine::default(), Vec::new());
    let term = term(Span::from_secs(3_600), Span::from_secs(5));
    for number in 0..count {
        let command = acquire(2 * number, term, note);
        let answer = engine.apply(Time::from_secs(1), &command, &mut events);
        assert!(answer.is_ok(), "the lock is free: {answer:?}");
        events.clear();
    }
    engine
}

pub(crate) fn run(effort: Effort) -> Result<(), String> {
    let mut table =
        Table::new("The engine alone (processor time)", &["", "measured", "wanted", ""]);
    for (held, wanted) in [(1_000, 2.0), (effort.of(1_000_000), 3.0)] {
        let what = format!("acquire + release, {held} locks held");
        table.limit(&what, acquire_and_release(held, effort), "us", wanted);
    }
    for sessions in [1_000, effort.of(100_000)] {
        let what = format!("a keep-alive, {sessions} sessions with a lease each");
        table.shown(&what, keep_alive(sessions, effort), "us");
    }
    let count = effort.of(1_000_000);
    let megabytes = |notes| memory_in_a_child(count, notes).map(|bytes| bytes as f64 / 1e6);
    let what = format!("memory for {count} held locks");
    table.limit(&what, megabytes("bare")?, "MB", 400.0 * count as f64 / 1e6);
    table.shown("  with a note each", megabytes("noted")?, "MB");
    let count = effort.of(100_000);
    let (whole, longest) = expire(count);
    let what = format!("{count} leases that expire at one moment");
    table.limit(&what, whole, "s", 1.0);
    table.shown("  longest acquire meanwhile", longest * 1e3, "ms");
    Ok(())
}

/// Returns the microseconds of an acquire and a release, at random positions among the held locks.
fn acquire_and_release(held: usize, effort: Effort) -> f64 {
    let mut engine = holding(held, None);
    let mut events = Vec::new();
    let term = term(Span::from_secs(30), Span::from_secs(5));
    // The commands are built beforehand, because building them is the work of the front ends.
    let pairs: Vec<_> = (0..4_096)
        .map(|turn: usize| {
            let number = 2 * (turn.wrapping_mul(2_654_435_761) % held) + 1;
            (acquire(number, term, None), release(number))
        })
        .collect();
    let mut now = Time::from_secs(2);
    let mut rounds = Vec::new();
    for _ in 0..effort.rounds {
        rounds.push(own_micros_each(pairs.len() * 4, |turn| {
            let (acquire, release) = &pairs[turn % pairs.len()];
            for command in [acquire, release] {
                now = now + Span::from_nanos(1_000);
                let answer = engine.apply(now, command, &mut events);
                assert!(answer.is_ok(), "nobody else is there");
                events.clear();
            }
        }));
    }
    median(&rounds)
}

/// Returns the microseconds of one keep-alive of a session; each goes to another session.
fn keep_alive(sessions: usize, effort: Effort) -> f64 {
    let (mut engine, mut events) = (Engine::default(), Vec::new());
    let mut now = Time::from_secs(1);
    let mut opened = Vec::with_capacity(sessions);
    for number in 0..sessions {
        let ttl = Some(Ttl::new(Span::from_secs(3_600)).expect("it is a valid ttl"));
        let grace = Grace::new(Span::from_secs(5)).expect("it is a valid grace");
        let open = Op::OpenSession(OpenSession { client: client(number), ttl, grace });
        let Ok(Outcome::SessionOpened(id)) = engine.apply(now, &open.into(), &mut events) else {
            panic!("it is opened");
        };
        let lease = acquire(number, LeaseTerms::Session(id), None);
        engine.apply(now, &lease, &mut events).expect("the lock is free");
        events.clear();
        opened.push(Command::from(Op::KeepAlive(id)));
    }
    let mut rounds = Vec::new();
    for _ in 0..effort.rounds {
        rounds.push(own_micros_each(10_000, |turn| {
            now = now + Span::from_nanos(1_000);
            // Consecutive keep-alives go to sessions that are far from each other in the engine's
            // table, as when many clients keep their sessions alive.
            let which = turn.wrapping_mul(2_654_435_761) % sessions;
            engine.apply(now, &opened[which], &mut events).expect("it lives");
            events.clear();
        }));
    }
    median(&rounds)
}

/// Returns two times in seconds: how long the engine takes until all `count` leases have expired
/// while other clients acquire and release locks, and the longest time that one acquire and release
/// took. Each command first expires all leases that are due, so a command may take long.
fn expire(count: usize) -> (f64, f64) {
    let mut engine = holding(1_000, None);
    let mut events = Vec::new();
    let start = Time::from_secs(10);
    let lasting = term(Span::from_secs(10), Span::from_secs(5));
    for number in 0..count {
        let command = acquire(2 * number + 1, lasting, None);
        engine.apply(start, &command, &mut events).expect("the lock is free");
        events.clear();
    }
    let others: Vec<_> = (0..1_000)
        .map(|other| 2 * (count + other) + 1)
        .map(|n| (acquire(n, lasting, None), release(n)))
        .collect();
    let mut longest = 0.0_f64;
    let (whole, ()) = own_seconds(|| {
        // All leases reach the end of their ttl at 20 s, and the end of their grace period at 25 s.
        // The time of the commands advances from half a second before to half a second after each
        // of these times.
        for around in [20, 25] {
            for step in 0..1_000 {
                let now = Time::from_secs(around) - Span::from_millis(500 - step);
                let (acquire, release) = &others[step as usize];
                let (taken, ()) = own_seconds(|| {
                    for command in [acquire, release] {
                        engine.apply(now, command, &mut events).expect("the lock is free");
                    }
                    events.clear();
                });
                longest = longest.max(taken);
            }
        }
    });
    assert_eq!(engine.locks(), 1_000, "all have expired but those that last");
    (whole, longest)
}

/// Measures memory in a new process, in which nothing else was allocated before.
fn memory_in_a_child(count: usize, notes: &str) -> Result<u64, String> {
    let this = std::env::current_exe().map_err(|error| error.to_string())?;
    let output = process::Command::new(this).args(["memory", &count.to_string(), notes]).output();
    let output = output.map_err(|error| format!("can't start the child: {error}"))?;
    let said = String::from_utf8_lossy(&output.stdout);
    said.trim().parse().map_err(|_| format!("the child said: {said}"))
}

/// Runs in the child process of the memory measurement: prints the bytes of memory that `count`
/// held locks take.
pub(crate) fn print_memory(count: &str, notes: &str) -> Result<(), String> {
    let count = count.parse().map_err(|_| format!("'{count}' is not a number"))?;
    let before = resident()?;
    let engine = holding(count, (notes == "noted").then_some(NOTE));
    let after = resident()?;
    assert_eq!(engine.locks(), count, "all are held");
    println!("{}", after - before);
    Ok(())
}

/// Returns the resident memory of this process, in bytes.
fn resident() -> Result<u64, String> {
    let status = std::fs::read_to_string("/proc/self/status").map_err(|error| error.to_string())?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.map(|kib| kib * 1_024).ok_or_else(|| "/proc/self/status has no VmRSS".to_owned())
}
