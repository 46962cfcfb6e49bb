//! The reports of a guard about its tenures: events, the command of `--on-lost`, and the reasons of
//! refusals, each after a real loss.
use serde_json::Value;
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use testing::{Guard, Scratch, Server, latchfs, run, soon};

/// How long an event may take.
const EVENT_LIMIT: Duration = Duration::from_secs(20);

/// The events of a guard, read by `cat`.
pub(crate) struct Events(Child, Receiver<Value>);

impl Events {
    pub(crate) fn of(guard: &Guard) -> Self {
        let mut cat = Command::new("cat");
        let cat = cat.arg(guard.path(".latchfs/events")).stdout(Stdio::piped());
        // The end of the guard is an error of the read.
        let cat = cat.stderr(Stdio::null()).spawn();
        let mut cat = cat.expect("it starts");
        let out = BufReader::new(cat.stdout.take().expect("piped"));
        let (send, events) = channel();
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                let event = serde_json::from_str(&line).expect("JSON");
                send.send(event).unwrap_or_default();
            }
        });
        // The reader gets the events from its open on.
        let open = PathBuf::from(format!("/proc/{}/fd/3", cat.id()));
        soon("the reader has the events open", || fs::read_link(&open).ok());
        Self(cat, events)
    }

    #[track_caller]
    pub(crate) fn next(&self, name: &str) -> Value {
        let event = self.1.recv_timeout(EVENT_LIMIT).expect("an event");
        assert_eq!(event["event"], name, "{event}");
        assert!(event["at"].is_string(), "{event}");
        event
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A guard with a server whose losses are written to a file.
struct EventRig {
    scratch: Scratch,
    server: Server,
    guard: Guard,
    events: Events,
    lock: String,
}

impl EventRig {
    fn start(options: &[&str]) -> Self {
        let scratch = Scratch::with_folder();
        let server = Server::of(&scratch);
        scratch.init(&["--server", &server.url]);
        let losses = scratch.join("losses");
        let on_lost = format!("printf '%s\\n' \"$LATCHFS_EVENT\" >>'{}'", losses.display());
        let options = [&["--client", "m1", "--on-lost", &on_lost], options].concat();
        let guard = Guard::start(&scratch, "view", &options);
        let events = Events::of(&guard);
        let lock = guard.status()["lock"].as_str().expect("a name").to_owned();
        Self { scratch, server, guard, events, lock }
    }

    /// Waits until the command of `--on-lost` has run `count` times. Returns its last event.
    fn loss(&self, count: usize) -> Value {
        let losses = self.scratch.join("losses");
        let line = soon("the command has run", || {
            let text = fs::read_to_string(&losses).ok()?;
            let complete = text.ends_with('\n') && text.lines().count() == count;
            complete.then(|| text.lines().last().map(str::to_owned)).flatten()
        });
        serde_json::from_str(&line).expect("JSON")
    }

    fn latchfs(&self, args: &[&str]) {
        run(latchfs().args(args).args(["--server", &self.server.url])).ok();
    }
}

#[track_caller]
fn refused<T>(result: io::Result<T>, errno: i32) {
    let error = result.err().expect("it is refused");
    assert_eq!(error.raw_os_error(), Some(errno), "{error}");
}

#[test]
fn a_steal_is_reported() {
    let rig = EventRig::start(&[]);
    let mut open = File::create(rig.guard.path("a")).expect("the lock is free");
    open.write_all(b"unpublished").expect("held");
    let held = rig.events.next("held");
    rig.latchfs(&["steal", &rig.lock, "--client", "m2", "--reason", "maintenance"]);
    let lost = rig.events.next("lost");
    assert_eq!((&lost["token"], &lost["put_aside"][0]["path"]), (&held["token"], &"a".into()));
    assert_eq!(lost["why"], "the lock service ended the lease");
    assert_eq!(rig.loss(1), lost);
    refused(open.write_all(b"more"), libc::ESTALE);
    let why = rig.guard.why();
    assert!(why.contains("a tenure that is over (the lock service ended the lease"), "{why}");
    refused(fs::write(rig.guard.path("b"), "1"), libc::EROFS);
    let why = rig.guard.why();
    assert!(
        why.contains("b was not changed") && why.contains("m2 holds the lock of this folder"),
        "{why}"
    );
    rig.latchfs(&["release", &rig.lock, "--client", "m2"]);
    soon("the lock is free", || fs::write(rig.guard.path("b"), "1").ok());
    rig.events.next("held");
}

#[test]
fn an_end_by_an_administrator_is_reported() {
    let rig = EventRig::start(&[]);
    let open = File::create(rig.guard.path("a.log")).expect("the lock is free");
    rig.events.next("held");
    rig.latchfs(&["release", "--all", "--client", "m1"]);
    let lost = rig.events.next("lost");
    assert_eq!(lost["why"], "the lock service ended the lease");
    rig.loss(1);
    refused((&open).write_all(b"x"), libc::ESTALE);

    soon("the lock is free", || fs::write(rig.guard.path("b"), "1").ok());
    rig.events.next("held");
    let record = format!("state/{}/m1/session", rig.lock.trim_start_matches("folder-"));
    let record = fs::read_to_string(rig.scratch.join(record)).expect("it is there");
    let session = record.split(' ').next().expect("a session");
    let address = rig.server.url.trim_start_matches("http://");
    let mut server = TcpStream::connect(address).expect("it listens");
    write!(server, "DELETE /sessions/{session} HTTP/1.1\r\nHost: {address}\r\n")
        .and_then(|()| write!(server, "Connection: close\r\n\r\n"))
        .expect("sent");
    let mut answer = String::new();
    server.read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 20"), "{answer}");
    let lost = rig.events.next("lost");
    assert_eq!(lost["why"], "the lock service ended the lease");
    assert_eq!(rig.loss(2), lost);
    // The guard opens another session by itself.
    soon("a new session", || fs::write(rig.guard.path("b"), "2").ok());
}
