//! `latchfs run --guard`: the program starts when the folder is ready, and is dead before the lock
//! can be another machine's, whatever becomes of the guard and of the server.

use crate::arriving::{Machines, not_ready, state};
use crate::relay::Relay;
use latchfs::time::{Span, Time, Wall, boot_now};
use std::fs;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use testing::{COMMAND_LIMIT, Output, drain, poll, rounds, run, signal};
use testing::{Guard, Scratch, Server, latchfs, pause, soon};

/// The lease of the guards.
const LEASE: Span = Span::from_secs(2);
/// How much earlier a lease certainly lasts than it does: for the drift of clocks, and a margin.
const LEASE_RESERVE: Span = Span::from_millis(52);
/// The number of polls until a program runs, while several start at once on a busy machine.
const START_POLLS_MAX: usize = 3_000;

/// The resolution of `/proc/uptime`.
const UPTIME_STEP: Span = Span::from_millis(10);

/// A program of two processes that end by SIGKILL only, one of them in a session of its own. Each
/// writes the time of the boot clock again and again.
const BEATS: &str = "\
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
with open('of-the-program', 'w') as file:
    file.write('whole')
out = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
if os.fork() == 0:
    os.setsid()
while True:
    with open('/proc/uptime', 'rb') as uptime:
        os.write(out, uptime.read().split()[0] + b'\\n')
    time.sleep(0.002)
";

/// A program that prints the time of the boot clock.
const NOW: &str = "print(open('/proc/uptime').read().split()[0])";

/// A command that runs in the background.
struct Running {
    child: Child,
    out: std::sync::mpsc::Receiver<String>,
    err: std::sync::mpsc::Receiver<String>,
}

impl Running {
    fn start(command: &mut Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.process_group(0).spawn().expect("it starts");
        let out = drain(child.stdout.take().expect("piped"));
        let err = drain(child.stderr.take().expect("piped"));
        Self { child, out, err }
    }

    fn end(mut self) -> Output {
        let take = |pipe: &std::sync::mpsc::Receiver<String>| {
            pipe.recv_timeout(COMMAND_LIMIT).expect("it ends in time")
        };
        let (out, err) = (take(&self.out), take(&self.err));
        let status = self.child.wait().expect("it is our child");
        let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
        Output { code, out, err }
    }
}

/// Returns a command that runs a program under the guard, in its view.
fn under(guard: &Guard, options: &[&str], program: &[&str]) -> Command {
    let mut command = latchfs();
    command.current_dir(&guard.view).args(["run", "--guard"]).arg(&guard.view);
    command.args(options).arg("--").args(program);
    command
}

/// Starts the program that beats, by a command for a program, and waits until it does.
fn start_beats(beats: &Path, under: impl FnOnce(&[&str]) -> Command) -> Running {
    let program = ["python3", "-c", BEATS, beats.to_str().expect("text")];
    let running = Running::start(&mut under(&program));
    poll(START_POLLS_MAX, "the program", || (last_beat(beats)? > Time::ZERO).then_some(()));
    running
}

/// Begins to wait for a lock on another machine. Returns the time at which that has it.
fn other_machine(server: &Server, lock: &str) -> JoinHandle<Time> {
    let mut other = latchfs();
    other.args(["run", "--server", &server.url, "--client", "m2", "--wait", "60s", lock]);
    other.args(["--", "python3", "-c", NOW]);
    thread::spawn(move || time_of(&run(&mut other).ok()))
}

/// Steals a lock for another machine. Returns when the lease of that machine begins.
fn steal(server: &Server, lock: &str) -> JoinHandle<Time> {
    let mut steal = latchfs();
    steal.args(["steal", "--json", "--server", &server.url, "--client", "m2", "--reason", "test"]);
    steal.arg(lock);
    thread::spawn(move || {
        let status: serde_json::Value = serde_json::from_str(&run(&mut steal).ok()).expect("JSON");
        let begins = status["acquired_at"].as_str().expect("a time");
        let millis = run(Command::new("date").args(["-d", begins, "+%s%3N"])).ok();
        let (wall, now) = (Wall::now(), boot_now());
        let millis = wall.secs * 1_000 + i64::from(wall.nanos / 1_000_000)
            - millis.trim().parse::<i64>().expect("a number");
        now - Span::from_millis(u64::try_from(millis).expect("it has begun"))
    })
}

/// Ends the session of a guard as an administrator.
fn end_session(scratch: &Scratch, server: &Server) {
    let folders = fs::read_dir(scratch.join("state")).expect("there").flatten();
    let mut records = folders.map(|folder| folder.path().join("m1/session"));
    let session = records.find_map(|path| fs::read_to_string(path).ok());
    let session = session.expect("a session");
    let id = session.split(' ').next().expect("an id");
    let url = format!("{}/sessions/{id}", server.url);
    run(Command::new("curl").args(["-sSf", "-X", "DELETE", &url])).ok();
}

/// Waits until a program has ended whose lock is lost in a way that began between two times, and
/// checks that it was dead in time. `other` gets the lock. Returns how long before that the program
/// was dead.
fn dead_in_time(
    way: Way,
    after: Time,
    (program, beats): (Running, &Path),
    other: JoinHandle<Time>,
) -> Span {
    let why = program.end().exits(76);
    assert!(why.contains("the folder's lock was lost"), "{way:?}: {why}");
    let last = last_beat(beats).expect("it ran");
    let granted = other.join().expect("granted");
    // A guard that says that it has lost the lock does so right after the end of the program.
    let earliest = if way.is_acknowledged() { last - UPTIME_STEP } else { last };
    assert!(earliest < granted, "{way:?}: the program ended {} late", earliest.since(granted));
    if matches!(way, Way::ServerCutOff | Way::StealUnseen | Way::GuardStopped | Way::GuardKilled) {
        let until = after + LEASE - LEASE_RESERVE;
        assert!(last < until, "{way:?}: {} after the end of the lease", last.since(until));
    }
    granted.since(last)
}

/// One folder, its guard, and a server that the guard reaches through a relay.
struct Place {
    guard: Option<Guard>,
    lock: String,
    relay: Relay,
    server: Server,
    scratch: Scratch,
}

impl Place {
    fn new(options: &[&str]) -> Self {
        let scratch = Scratch::with_folder();
        let server = Server::of(&scratch);
        scratch.init(&["--server", &server.url, "--client", "m1"]);
        let relay = Relay::start(&server.url);
        let guard = ["--client", "m1", "--ttl", "2s", "--server", &relay.url];
        let guard = Guard::start(&scratch, "view", &[&guard, options].concat());
        let lock = guard.status()["lock"].as_str().expect("a name").to_owned();
        Self { guard: Some(guard), lock, relay, server, scratch }
    }

    fn guard(&self) -> &Guard {
        self.guard.as_ref().expect("not ended yet")
    }

    fn beats(&self) -> PathBuf {
        self.scratch.join("beats")
    }

    fn start_beats(&self) -> Running {
        start_beats(&self.beats(), |program| under(self.guard(), &[], program))
    }

    fn other(&self) -> JoinHandle<Time> {
        other_machine(&self.server, &self.lock)
    }

    fn is_wanted(&self) {
        soon("the wish", || self.guard().status()["wanted_by"].as_str().map(drop));
    }
}

/// Parses a time of the boot clock, in seconds with two decimals.
fn time_of(uptime: &str) -> Time {
    let hundredths: u64 = uptime.trim().replace('.', "").parse().expect("a number");
    Time::from_nanos(hundredths * UPTIME_STEP.as_nanos())
}

/// Returns the latest time at which the last beat can have been.
fn last_beat(beats: &Path) -> Option<Time> {
    let beats = fs::read_to_string(beats).ok()?;
    // The last line may not be complete.
    let (whole, _) = beats.rsplit_once('\n')?;
    whole.lines().map(time_of).max().map(|last| last + UPTIME_STEP)
}

/// How the lock is lost.
#[derive(Debug, Clone, Copy)]
enum Way {
    ServerCutOff,
    Steal,
    /// A steal of which the guard hears nothing.
    StealUnseen,
    SessionEnded,
    GuardKilled,
    GuardStopped,
    GuardEnds,
    Overdue,
}

impl Way {
    const ALL: [Self; 7] = [
        Self::ServerCutOff,
        Self::Steal,
        Self::StealUnseen,
        Self::SessionEnded,
        Self::GuardKilled,
        Self::GuardStopped,
        Self::GuardEnds,
    ];

    const fn is_acknowledged(self) -> bool {
        matches!(self, Self::Steal | Self::SessionEnded | Self::GuardEnds)
    }
}

/// Loses the lock under a program that ignores SIGTERM. Returns how long before the lock could be
/// another's the program was dead.
fn lose(way: Way) -> Span {
    let options: &[&str] = match way {
        Way::Overdue => &["--yield", "1s", "--max", "2s"],
        _ => &["--yield", "1s"],
    };
    let mut place = Place::new(options);
    let program = place.start_beats();
    let other = (!matches!(way, Way::Steal | Way::StealUnseen)).then(|| place.other());
    if other.is_some() {
        place.is_wanted();
    }
    match way {
        Way::ServerCutOff | Way::StealUnseen => place.relay.cut(),
        Way::SessionEnded => end_session(&place.scratch, &place.server),
        Way::GuardKilled => drop(place.guard.take().expect("runs").kill()),
        Way::GuardStopped => place.guard().stop(),
        Way::GuardEnds => drop(place.guard.take().expect("runs").end()),
        Way::Steal | Way::Overdue => {}
    }
    let other = other.unwrap_or_else(|| steal(&place.server, &place.lock));
    dead_in_time(way, boot_now(), (program, &place.beats()), other)
}

/// The bound of the contract: in each of many rounds the program is dead before the lock can be
/// another's.
#[test]
fn the_program_is_dead_before_the_lock_is_anothers() {
    for _ in 0..rounds(2, 40) {
        let all = Way::ALL.map(|way| (way, thread::spawn(move || lose(way))));
        for (way, lost) in all {
            println!("{way:?}: dead {} before", lost.join().expect("no panic"));
        }
    }
}

/// A program that does nothing keeps the lock, until another machine has waited for `--max`.
#[test]
fn a_program_keeps_the_lock_until_the_maximum() {
    let place = Place::new(&["--yield", "1s", "--max", "4s"]);
    let program = Running::start(&mut under(place.guard(), &[], &["sleep", "1000"]));
    soon("the lock", || (state(place.guard()) == "holding").then_some(()));
    let other = place.other();
    place.is_wanted();
    let wanted = boot_now();
    pause(Duration::from_millis(2_500));
    assert_eq!(state(place.guard()), "holding", "the program runs");
    let refused = place.guard().request("give", &[]).exits(75);
    assert!(refused.contains("'latchfs run --guard' has started uses the lock"), "{refused}");
    program.end().exits(76);
    let granted = other.join().expect("granted").since(wanted);
    assert!(granted > Span::from_millis(3_500) && granted < Span::from_secs(10), "{granted}");
    println!("dead {} before", lose(Way::Overdue));
}

#[test]
fn the_programs_own_exit_code_is_passed_on_and_the_lock_given_back() {
    let place = Place::new(&[]);
    let guard = place.guard();
    let script = "echo $LATCHFS_TOKEN >token; exit 7";
    run(&mut under(guard, &[], &["sh", "-c", script])).exits(7);
    assert_eq!(state(guard), "reading", "it was taken for the program");
    let token = fs::read_to_string(place.scratch.folder().join("token")).expect("published");
    assert_eq!(token.trim(), guard.status()["last_tenure"]["token"].to_string());
    run(&mut under(guard, &[], &["/nowhere/program"])).exits(127);
    assert_eq!(state(guard), "reading");
    run(&mut under(guard, &[], &["sh", "-c", "kill -TERM $$"])).exits(128 + 15);
    // A lock that was held before stays held.
    guard.request("take", &[]).ok();
    let held = guard.status()["tenure"]["token"].clone();
    run(&mut under(guard, &[], &["true"])).ok();
    assert_eq!(guard.status()["tenure"]["token"], held);
    guard.request("give", &[]).ok();
    // The last of two programs gives it back.
    let second =
        Running::start(&mut under(guard, &[], &["sh", "-c", "until [ -e end ]; do :; done"]));
    soon("the use", || (guard.status()["used_by"].as_array()?.len() == 1).then_some(()));
    run(&mut under(guard, &[], &["true"])).ok();
    assert_eq!(state(guard), "holding", "the first one took it, and uses it");
    let other = ["sh", "-c", "touch end; until [ -e end2 ]; do :; done"];
    let third = Running::start(&mut under(guard, &[], &other));
    second.end().ok();
    assert_eq!(state(guard), "holding", "the third one uses it");
    fs::write(guard.path("end2"), "").expect("held");
    third.end().ok();
    assert_eq!(state(guard), "reading", "it was taken for the second one");
    let usage = run(latchfs().args(["run", "--guard"]).arg(&guard.view).args(["a", "--", "true"]));
    assert!(usage.exits(64).contains("cannot be used with"));
    let own = ["printf", "%s ", "a", "--", "b"];
    let said = run(latchfs().args(["run", "--guard"]).arg(&guard.view).args(own)).ok();
    assert_eq!(said, "a -- b ", "a '--' of the command is its own");
}

/// A signal ends the program, and a killed `run` takes it along.
#[test]
fn signals_reach_the_program() {
    let place = Place::new(&[]);
    let guard = place.guard();
    // Also right after the use began, when the program may not have started yet.
    for _ in 0..rounds(10, 100) {
        let running = Running::start(&mut under(guard, &[], &["sleep", "1000"]));
        soon("the use", || (guard.status()["used_by"].as_array()?.len() == 1).then_some(()));
        signal(running.child.id() as i32, libc::SIGTERM);
        running.end().exits(128 + 15);
        assert_eq!(state(guard), "reading");
    }
    let running = place.start_beats();
    signal(running.child.id() as i32, libc::SIGKILL);
    soon("the lock given back", || (state(guard) == "reading").then_some(()));
    let last = last_beat(&place.beats()).expect("it ran");
    pause(Duration::from_millis(100));
    assert_eq!(last_beat(&place.beats()), Some(last), "both processes are dead");
    running.end().exits(128 + 9);
}

#[test]
fn the_program_starts_when_everything_is_here() {
    let machines = Machines::new();
    let (one, two) = (machines.start(1, &[]), machines.start(2, &[]));
    fs::write(one.path("a"), "of m1").expect("free");
    let busy = run(&mut under(&two, &["--try"], &["true"]));
    let busy = busy.exits(75);
    assert!(busy.contains("m1 holds the lock"), "{busy}");
    let late = run(&mut under(&two, &["--wait", "1s"], &["true"]));
    late.exits(75);
    one.request("give", &[]).ok();
    let running = Running::start(&mut under(&two, &[], &["cat", "a"]));
    not_ready(&two, "the marker of m1's tenure");
    pause(Duration::from_secs(2));
    assert_eq!(state(&two), "arriving");
    assert!(running.out.try_recv().is_err(), "it has not ended");
    machines.carry_all();
    let ended = running.end();
    assert!(ended.err.contains("waiting: the marker of m1's tenure"), "{}", ended.err);
    assert_eq!(ended.ok(), "of m1");
}

/// A folder without a view, and a server that its guard reaches through a relay.
struct PlainPlace {
    lock: String,
    relay: Relay,
    server: Server,
    scratch: Scratch,
}

impl PlainPlace {
    fn new() -> Self {
        let scratch = Scratch::with_folder();
        let server = Server::of(&scratch);
        let relay = Relay::start(&server.url);
        // The guard asks the server that the record names.
        scratch.init(&["--server", &relay.url, "--client", "m1"]);
        let place = Self { lock: String::new(), relay, server, scratch };
        let lock = place.status()["lock"].as_str().expect("a name").to_owned();
        Self { lock, ..place }
    }

    /// Returns a command about the folder.
    fn guard(&self, request: &str) -> Command {
        let mut command = latchfs();
        command.args(["guard", request]).arg(self.scratch.folder()).args(["--client", "m1"]);
        command.arg("--stage").arg(self.scratch.join("state"));
        command
    }

    fn status(&self) -> serde_json::Value {
        let status = run(self.guard("status").arg("--json")).ok();
        serde_json::from_str(&status).expect("JSON")
    }

    /// Returns the process of the guard, if there is one.
    fn pid(&self) -> Option<i32> {
        Some(self.status()["pid"].as_i64()? as i32)
    }

    /// Returns a command that runs a program in the folder while the lock is held.
    fn under(&self, program: &[&str]) -> Command {
        let mut command = latchfs();
        command.current_dir(self.scratch.folder()).args(["run", "--guard", "."]);
        command.args(["--client", "m1", "--ttl", "2s", "--stage"]);
        command.arg(self.scratch.join("state")).arg("--").args(program);
        command
    }
}

/// Loses the lock of a folder without a view under a program that ignores SIGTERM. Returns how long
/// before the lock could be another's the program was dead.
fn lose_without_view(way: Way) -> Span {
    let place = PlainPlace::new();
    let beats = place.scratch.join("beats");
    let program = start_beats(&beats, |program| place.under(program));
    let guard = place.pid().expect("it runs");
    match way {
        Way::ServerCutOff | Way::StealUnseen => place.relay.cut(),
        Way::SessionEnded => end_session(&place.scratch, &place.server),
        Way::Steal => {}
        Way::GuardKilled => signal(guard, libc::SIGKILL),
        Way::GuardStopped => signal(guard, libc::SIGSTOP),
        Way::GuardEnds | Way::Overdue => signal(guard, libc::SIGTERM),
    }
    let after = boot_now();
    // A guard that ends gives the lock up after the program, so the other one waits from now on.
    let other = match way {
        Way::Steal | Way::StealUnseen => steal(&place.server, &place.lock),
        _ => other_machine(&place.server, &place.lock),
    };
    let dead = dead_in_time(way, after, (program, &beats), other);
    // The others have ended, and their id may be another process's.
    if !matches!(way, Way::GuardKilled | Way::GuardEnds | Way::Overdue) {
        signal(guard, libc::SIGKILL);
    }
    dead
}

/// Without a view nothing but the end of the program keeps it from writing: in each of many rounds
/// it is dead before the lock can be another's.
#[test]
fn without_a_view_the_program_is_dead_before_the_lock_is_anothers() {
    for _ in 0..rounds(2, 40) {
        let all = Way::ALL.map(|way| (way, thread::spawn(move || lose_without_view(way))));
        for (way, lost) in all {
            println!("{way:?}, without a view: dead {} before", lost.join().expect("no panic"));
        }
    }
}

#[test]
fn a_program_runs_under_the_lock_of_a_folder_without_a_view() {
    let place = PlainPlace::new();
    run(&mut place.under(&["sh", "-c", "echo $LATCHFS_TOKEN >token; exit 7"])).exits(7);
    assert!(place.scratch.folder().join("token").exists());
    soon("the end of the guard", || place.pid().is_none().then_some(()));
    // A lock that was held before stays held, and nobody gives it up under the program.
    run(place.guard("take").args(["--ttl", "2s"])).ok();
    let second = Running::start(&mut place.under(&["sh", "-c", "until [ -e end ]; do :; done"]));
    soon("the use", || (place.status()["used_by"].as_array()?.len() == 1).then_some(()));
    assert_eq!(place.status()["ttl_ms"], 2_000, "by which the program's end is counted");
    let refused = run(&mut place.guard("give")).exits(75);
    assert!(refused.contains("'latchfs run --guard' has started uses the lock"), "{refused}");
    fs::write(place.scratch.folder().join("end"), "").expect("writable");
    second.end().ok();
    assert_eq!(place.status()["state"], "holding");
    run(&mut place.guard("give")).ok();
}
