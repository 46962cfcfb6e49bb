//! Guarded folders without a view: programs change the folder directly, between `guard take` and
//! `guard give`. The other machine shows its copy through a view, so that both kinds of guard work
//! together.

use crate::arriving::{Machines, begin_take, markers, not_ready, state};
use serde_json::Value;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use testing::{Guard, Scratch, latchfs, pause, python, soon};
use testing::{Output, run, signal};

/// A machine that uses its copy of the folder without a view.
struct Plain<'a> {
    scratch: &'a Scratch,
    client: &'static str,
}

impl Plain<'_> {
    fn command(&self, request: &str, options: &[&str]) -> Command {
        let mut command = latchfs();
        command.args(["guard", request]).arg(self.scratch.folder()).args(["--client", self.client]);
        command.arg("--stage").arg(self.scratch.join("state"));
        if ["take", "accept"].contains(&request) {
            command.args(["--ttl", "2s"]);
        }
        command.args(options);
        command
    }

    fn request(&self, request: &str, options: &[&str]) -> Output {
        run(&mut self.command(request, options))
    }

    fn status(&self) -> Value {
        serde_json::from_str(&self.request("status", &["--json"]).ok()).expect("JSON")
    }

    /// Returns the process of the guard, if there is one.
    fn pid(&self) -> Option<i32> {
        Some(self.status()["pid"].as_i64()? as i32)
    }

    fn kill(&self) {
        signal(self.pid().expect("it runs"), libc::SIGKILL);
        soon("the end of the guard", || self.pid().is_none().then_some(()));
    }

    /// Takes the lock in the background.
    fn begin_take(&self) -> std::thread::JoinHandle<Output> {
        let mut command = self.command("take", &[]);
        std::thread::spawn(move || run(&mut command))
    }

    fn file(&self, name: &str) -> PathBuf {
        self.scratch.folder().join(name)
    }

    /// Returns the directory of this machine in the state directory.
    fn host(&self) -> PathBuf {
        let mut ids = fs::read_dir(self.scratch.join("state")).expect("there").flatten();
        let id = ids.find(|entry| entry.path().is_dir()).expect("the folder's");
        id.path().join(self.client)
    }

    fn connect(&self) -> UnixStream {
        UnixStream::connect(self.host().join("ctl")).expect("the guard runs")
    }
}

impl Drop for Plain<'_> {
    fn drop(&mut self) {
        let status = self.command("status", &["--json"]).output().expect("it runs");
        let status: Value = serde_json::from_slice(&status.stdout).unwrap_or_default();
        if let Some(pid) = status["pid"].as_i64() {
            signal(pid as i32, libc::SIGKILL);
        }
    }
}

fn plain(machines: &Machines) -> Plain<'_> {
    Plain { scratch: &machines.first, client: "m1" }
}

/// Returns the last handover of the folder's lock, as the server remembers it.
fn handover(machines: &Machines, lock: &str) -> String {
    let command = ["status", "--json", "--server", &machines.server.url, lock];
    run(latchfs().args(command)).ok()
}

/// The changes of programs between `take` and `give` are in the marker, and the other machine is
/// not ready before all of it has arrived; and the other way round.
#[test]
fn changes_between_take_and_give_reach_the_other_machine() {
    let machines = Machines::new();
    let (one, two) = (plain(&machines), machines.start(2, &[]));
    let why = one.request("give", &[]).exits(69);
    assert!(why.contains("no guard runs") && why.contains("latchfs guard take"), "{why}");
    one.request("wait", &[]).exits(69);
    assert_eq!(one.status()["state"], "reading");
    let away = one.request("take", &["--for", "1h"]).exits(75);
    assert!(away.contains("through a view only"), "{away}");
    let taken = one.request("take", &[]).ok();
    assert!(taken.contains("holding (token"), "{taken}");
    let status = one.status();
    assert_eq!(status["state"], "holding");
    // Nobody sees the first change, so that it was announced before.
    let lock = status["lock"].as_str().expect("a name").to_owned();
    assert!(handover(&machines, &lock).contains(" dirty "), "{}", handover(&machines, &lock));
    one.request("wait", &[]).ok();
    fs::write(one.file("a"), "of m1").expect("written");
    fs::create_dir(one.file("dir")).expect("made");
    fs::write(one.file("dir/b"), "of m1 as well").expect("written");
    fs::remove_file(one.file("old")).expect("there");
    one.request("give", &[]).ok();
    soon("the end of the guard", || one.pid().is_none().then_some(()));
    assert!(handover(&machines, &lock).contains(" clean "), "{}", handover(&machines, &lock));
    let taking = begin_take(&two);
    not_ready(&two, "the marker of m1's tenure");
    machines.carry_markers();
    not_ready(&two, "3 of 63 files of m1's tenure");
    for path in ["a", "old", "dir/b"] {
        assert_eq!(state(&two), "arriving");
        machines.carry(path);
    }
    assert!(taking.join().expect("taken").contains("holding"));
    fs::write(two.path("c"), "of m2").expect("held");
    two.request("give", &[]).ok();
    let taking = one.begin_take();
    soon("m1 waits for the files of m2", || {
        let why = one.status()["not_ready"].as_str()?.to_owned();
        why.contains("the marker of m2's tenure").then_some(())
    });
    // So long that the client asks what it waits for.
    pause(std::time::Duration::from_secs(4));
    machines.carry_back();
    let taken = taking.join().expect("no panic");
    assert!(taken.err.contains("waiting: the marker of m2's tenure"), "{taken:?}");
    assert!(taken.ok().contains("holding"));
    assert_eq!(fs::read_to_string(one.file("c")).expect("there"), "of m2");
    one.request("give", &[]).ok();
}

/// A guard that is killed has reported none of its changes. The next take of its machine tells it
/// by a late marker, even if another machine has the lock.
#[test]
fn a_killed_guard_without_a_view_leaves_the_others_unsure_until_its_next_take() {
    let machines = Machines::new();
    let (one, two) = (plain(&machines), machines.start(2, &[]));
    one.request("take", &[]).ok();
    fs::write(one.file("a"), "of m1").expect("written");
    one.kill();
    assert_eq!(one.status()["state"], "reading");
    let taking = begin_take(&two);
    not_ready(&two, "m1 (token");
    machines.carry_all();
    not_ready(&two, "has not said what it changed");
    let held = one.request("take", &["--try"]).exits(75);
    assert!(held.contains("m2 holds the lock"), "{held}");
    soon("the late marker", || {
        let texts = markers(&machines.first).into_iter().flat_map(fs::read_to_string);
        texts
            .into_iter()
            .find(|text| text.contains("\"path\":\"a\"") && text.contains("\"last\":true"))
    });
    assert_eq!(state(&two), "arriving");
    machines.carry_markers();
    assert!(taking.join().expect("taken").contains("holding"));
    soon("the end of the guard", || one.pid().is_none().then_some(()));
}

/// The loss of the lock is reported by a command, by the log and by the state, and the next take
/// tells the other machines what was changed.
#[test]
fn a_lost_lock_is_reported_and_the_next_take_names_what_was_changed() {
    let machines = Machines::new();
    let (one, two) = (plain(&machines), machines.start(2, &[]));
    let event_file = machines.first.join("event");
    let on_lost = format!("echo \"$LATCHFS_EVENT\" > {}", event_file.display());
    one.request("take", &["--on-lost", &on_lost]).ok();
    let mut events = one.connect();
    events.write_all(b"{\"do\":\"events\"}\n").expect("taken");
    let mut events = BufReader::new(events).lines().map(|line| line.expect("an event"));
    assert!(events.next().expect("the first").contains("following"));
    fs::write(one.file("a"), "of m1").expect("written");
    machines.server.signal(libc::SIGSTOP);
    assert!(events.any(|event| event.contains("\"event\":\"lost\"")), "the event");
    soon("the command", || {
        fs::read_to_string(&event_file).ok().filter(|event| event.contains("\"event\":\"lost\""))
    });
    machines.server.signal(libc::SIGCONT);
    let status = one.status();
    assert_eq!(status["state"], "reading");
    assert!(status["next"].to_string().contains("programs must not write"), "{status}");
    let log = fs::read_to_string(machines.first.join("state/latchfs.log")).expect("a log");
    assert!(log.contains("is lost"), "{log}");
    machines.carry_all();
    let unsure = two.request("take", &["--try"]).exits(75);
    assert!(unsure.contains("m1 (token"), "{unsure}");
    let pid = one.pid();
    assert!(pid.is_some(), "it waits for a person");
    one.request("take", &[]).ok();
    assert_eq!(one.pid(), pid);
    one.request("give", &[]).ok();
    machines.carry_all();
    two.request("take", &[]).ok();
    assert_eq!(fs::read_to_string(two.path("a")).expect("there"), "of m1");
}

/// A marker that is made while a program writes would not be true. The guard says so, and makes it
/// as soon as nothing changes any more.
#[test]
fn a_give_while_a_program_writes_is_marked_later() {
    let machines = Machines::new();
    let one = plain(&machines);
    one.request("take", &[]).ok();
    let mut big = fs::File::create(one.file("big")).expect("made");
    big.write_all(&vec![b'x'; 40_000_000]).expect("written");
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let writer = std::thread::spawn(move || {
        while stopped.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
            big.write_all(b"x").expect("written");
        }
    });
    let given = one.request("give", &[]);
    drop(stop);
    writer.join().expect("no panic");
    assert!(given.err.contains("files were changed while the last marker"), "{given:?}");
    given.ok();
    soon("the late marker", || {
        let texts = markers(&machines.first).into_iter().flat_map(fs::read_to_string);
        texts.into_iter().find(|text| text.contains("\"path\":\"big\""))
    });
    soon("the end of the guard", || one.pid().is_none().then_some(()));
}

/// A person goes on without what has not arrived, also where no guard runs yet.
#[test]
fn an_acceptance_starts_a_guard_without_a_view() {
    let machines = Machines::new();
    let (one, two) = (plain(&machines), machines.start(2, &[]));
    fs::write(two.path("b"), "of m2").expect("the lock is free");
    two.kill();
    let accepted = one.request("accept", &["--reason", "m2 is broken"]);
    assert!(accepted.ok().contains("holding"));
    assert_eq!(one.status()["state"], "holding");
    fs::write(one.file("a"), "of m1").expect("written");
    one.request("give", &[]).ok();
    let accepted = markers(&machines.first).into_iter().flat_map(fs::read_to_string);
    assert!(accepted.into_iter().any(|text| text.contains("m2 is broken")));
}

/// A folder has one guard on each machine, with or without a view.
#[test]
fn a_view_and_a_guard_without_one_exclude_each_other() {
    let machines = Machines::new();
    let one = plain(&machines);
    one.request("take", &[]).ok();
    let mut view = latchfs();
    view.arg("guard").arg(one.scratch.folder()).arg(one.scratch.join("view"));
    let why = run(view.args(["--client", "m1", "--stage"]).arg(one.scratch.join("state")));
    let why = why.exits(69);
    assert!(why.contains("another guard of this machine"), "{why}");
    assert!(why.contains("'latchfs guard give "), "{why}");
    one.request("give", &[]).ok();
    soon("the end of the guard", || one.pid().is_none().then_some(()));
    let view = machines.start(1, &[]);
    let why = one.request("take", &[]).exits(69);
    assert!(why.contains("name its view in place of the folder"), "{why}");
    view.request("take", &[]).ok();
    let named =
        run(latchfs().args(["guard", "status", "--client", "m1"]).arg(&view.view)).exits(64);
    assert!(named.contains("leave them out"), "{named}");
}

/// A client that does not wait any more leaves the queue, and then nobody needs the guard.
#[test]
fn a_wait_for_the_lock_ends_with_its_client() {
    let machines = Machines::new();
    let (one, two) = (plain(&machines), machines.start(2, &["--keep"]));
    two.request("take", &[]).ok();
    let mut waiting = one.command("take", &[]);
    let mut waiting = waiting.stderr(Stdio::null()).spawn().expect("it starts");
    soon("m2 hears of it", || (two.status()["wanted_by"] == "m1").then_some(()));
    waiting.kill().expect("it runs");
    waiting.wait().expect("it ends");
    soon("the end of the guard", || one.pid().is_none().then_some(()));
    soon("m2 hears of it", || two.status()["wanted_by"].is_null().then_some(()));
}

/// Other users neither start a second guard nor make requests to the first one.
#[test]
fn other_users_neither_take_nor_give() {
    let machines = Machines::new();
    let one = plain(&machines);
    one.request("take", &[]).ok();
    for dir in [one.scratch.path().to_owned(), one.scratch.folder()] {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o777)).expect("its owner");
    }
    let state = one.scratch.join("state-of-4001");
    let latchfs = testing::latchfs_path();
    let program = format!(
        "import os, sys
os.execv('{latchfs}', ['latchfs', 'guard', 'take', '{}', '--client', 'm1', '--stage', '{}'])",
        one.scratch.folder().display(),
        state.display()
    );
    let why = python(4_001, one.scratch.path(), &program).fails();
    assert!(why.contains("another guard of this machine"), "{why}");
    // The directory of the machine is private. Behind it, the socket asks who has connected.
    for dir in
        [one.scratch.join("state"), one.host().join(".."), one.host(), one.host().join("ctl")]
    {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o777)).expect("its owner");
    }
    let ask = "
import json, socket
s = socket.socket(socket.AF_UNIX)
s.connect('state-link/ctl')
f = s.makefile('rw')
for what in ['give', 'take', 'accept', 'status']:
    f.write(json.dumps({'do': what, 'reason': 'x'}) + '\\n')
    f.flush()
    print(f.readline())
";
    std::os::unix::fs::symlink(one.host(), one.scratch.join("state-link")).expect("made");
    let answers = python(4_001, one.scratch.path(), ask).ok();
    assert_eq!(answers.matches("only root").count(), 3, "{answers}");
    assert!(answers.contains("\"state\":\"holding\""), "{answers}");
    assert_eq!(one.status()["state"], "holding");
    one.request("give", &[]).ok();
}

/// Clients that send too much, nothing, or are too many do not stop the guard.
#[test]
fn hostile_clients_do_not_stop_the_guard() {
    let machines = Machines::new();
    let one = plain(&machines);
    one.request("take", &[]).ok();
    let answer = |mut stream: UnixStream| {
        let mut text = String::new();
        // The connection may be closed before all was read.
        let _ = stream.read_to_string(&mut text);
        text
    };
    let mut long = one.connect();
    let _ = long.write_all(&[b'x'; 10_000]);
    assert!(answer(long).contains("too long"));
    let mut none = one.connect();
    none.write_all(b"no JSON\n").expect("taken");
    assert!(answer(none).contains("no JSON"));
    let mut half = one.connect();
    half.write_all(b"{\"do\":").expect("taken");
    let mut idle: Vec<_> = (0..100).map(|_| one.connect()).collect();
    assert!(answer(idle.pop().expect("the last")).contains("programs are connected"));
    // Those that send nothing are closed after some seconds.
    assert_eq!(answer(half), "");
    soon("an answer", || {
        let asked = one.request("status", &["--json"]);
        (asked.code == 0 && asked.out.contains("\"holding\"")).then_some(())
    });
    // Requests without a reader of the answers.
    let mut deaf = one.connect();
    deaf.set_write_timeout(Some(std::time::Duration::from_secs(1))).expect("set");
    for _ in 0..10_000 {
        if deaf.write_all(b"{\"do\":\"status\"}\n").is_err() {
            break;
        }
    }
    assert_eq!(one.status()["state"], "holding");
    one.request("give", &[]).ok();
    soon("the end of the guard", || one.pid().is_none().then_some(()));
}

/// Several machines on one storage need a view: nothing else keeps a late writer out.
#[test]
fn shared_storage_needs_a_view() {
    let scratch = Scratch::with_folder();
    let server = testing::Server::of(&scratch);
    scratch.init(&["--server", &server.url, "--shared-storage"]);
    let one = Plain { scratch: &scratch, client: "m1" };
    let why = one.request("take", &[]).exits(64);
    assert!(why.contains("only a view keeps a machine"), "{why}");
    let view = Guard::start(&scratch, "view", &["--client", "m1", "--shared-storage"]);
    view.request("take", &[]).ok();
}
