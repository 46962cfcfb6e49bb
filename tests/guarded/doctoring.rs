//! Each finding of `latchfs doctor --strict` arises from its fault, is named once, and is gone when
//! the fault is fixed. No lock is freed.

use crate::arriving::Machines;
use crate::auditing::host_dir;
use crate::changed_servers::kill;
use serde_json::Value;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use testing::run;
use testing::{Guard, Scratch, Server, latchfs, shell, soon};

/// Keeps the settings of the kernel as they are: a test that changes them waits, in whichever
/// process.
pub(crate) fn kernel_stays() -> File {
    let machine = File::open("/dev/fuse").expect("each machine of the tests has it");
    machine.lock_shared().expect("waited for");
    machine
}

/// Waits until no test needs the settings of the kernel as they are.
pub(crate) fn kernel_changes() -> File {
    let machine = File::open("/dev/fuse").expect("each machine of the tests has it");
    machine.lock().expect("waited for");
    machine
}

/// Returns the findings of a doctor that is run by `command`: the name and the sentence of each.
#[track_caller]
pub(crate) fn findings_of(
    mut command: Command,
    place: &Path,
    options: &[&str],
) -> Vec<(String, String)> {
    command.args(["doctor", "--strict", "--json"]).arg(place).args(options);
    let output = run(&mut command);
    let said: Value = serde_json::from_str(&output.out)
        .unwrap_or_else(|error| panic!("{error}: {}{}", output.out, output.err));
    let all = said["findings"].as_array().expect("a list");
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    let found: Vec<_> = all
        .iter()
        .filter(|it| it["ok"] == false)
        .inspect(|it| assert!(!text(&it["fix"]).is_empty(), "{it}"))
        .map(|it| (text(&it["check"]), text(&it["says"])))
        .collect();
    assert_eq!(output.code, i32::from(!found.is_empty()), "{}", output.out);
    found
}

/// Expects findings of these kinds, in this order, and returns their sentences.
#[track_caller]
pub(crate) fn finds(place: &Path, options: &[&str], kinds: &[&str]) -> Vec<String> {
    let (found, says): (Vec<_>, Vec<_>) =
        findings_of(latchfs(), place, options).into_iter().unzip();
    assert_eq!(found, kinds, "{says:#?}");
    says
}

/// Expects one finding of a kind, among others.
#[track_caller]
pub(crate) fn finds_one(place: &Path, kind: &str) {
    let found = findings_of(latchfs(), place, &[]);
    assert_eq!(found.iter().filter(|(it, _)| it == kind).count(), 1, "{kind}: {found:?}");
}

/// Expects one line, which says that nothing is to be fixed.
#[track_caller]
pub(crate) fn is_healthy(place: &Path, options: &[&str]) {
    finds(place, options, &[]);
    let said = run(latchfs().args(["doctor", "--strict"]).arg(place).args(options)).ok();
    assert_eq!((said.lines().count(), &said[..2]), (1, "ok"), "{said}");
}

/// Fixes what doctor can fix, after which nothing is left. Returns the name and the sentence of
/// each finding that was fixed.
#[track_caller]
pub(crate) fn fixed(place: &Path, options: &[&str]) -> Vec<(String, String)> {
    let mut command = latchfs();
    command.args(["doctor", "--strict", "--json", "--fix"]).arg(place).args(options);
    let said: Value = serde_json::from_str(&run(&mut command).ok()).expect("JSON");
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    let all = said["fixed"].as_array().expect("a list").iter();
    let all = all.inspect(|it| assert_eq!(it["done"], true, "{it}"));
    all.map(|it| (text(&it["check"]), text(&it["says"]))).collect()
}

/// Returns the options of a folder whose guard does not run.
pub(crate) fn place(scratch: &Scratch, client: &str) -> [String; 4] {
    let state = scratch.join("state").display().to_string();
    ["--client".to_owned(), client.to_owned(), "--stage".to_owned(), state]
}

/// Returns options as a command takes them.
pub(crate) fn options(place: &[String; 4]) -> [&str; 4] {
    place.each_ref().map(|it| &**it)
}

/// Runs a Python program in a directory until its standard input ends. Returns it once it has
/// printed a line.
pub(crate) fn begin_python(dir: &Path, program: &str) -> Child {
    let mut command = Command::new("/usr/bin/python3");
    command.arg("-c").arg(program).current_dir(dir).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    let mut line = String::new();
    let mut out = BufReader::new(child.stdout.take().expect("piped"));
    out.read_line(&mut line).expect("readable");
    assert_eq!(line, "ready\n");
    child
}

pub(crate) fn end_python(mut child: Child) {
    drop(child.stdin.take());
    child.wait().expect("it ends");
}

/// Returns the token under which the folder's lock is held.
pub(crate) fn token(url: &str, name: &str) -> Value {
    let shown = run(latchfs().args(["status", name, "--json", "--server", url])).ok();
    let shown: Value = serde_json::from_str(&shown).expect("JSON");
    shown["token"].clone()
}

/// view-missing: `--fix` does what the finding says for a view that is named by its path, whether
/// its mount is still there or not, and wherever its guard kept its state.
#[test]
fn a_dead_view_is_fixed_by_its_path() {
    let scratch = Scratch::with_folder();
    scratch.init(&["--alone"]);
    let state = scratch.join("state").display().to_string();
    for round in 0..5 {
        let guard = Guard::start(&scratch, "view", &[]);
        guard.signal(libc::SIGKILL);
        soon("the end of the guard", || fs::metadata(guard.path("old")).err());
        let view = guard.view.clone();
        let options = if round % 2 == 0 { vec![] } else { vec!["--stage", &state] };
        let says = findings_of(latchfs(), &view, &options);
        let found = says.iter().find(|(kind, _)| kind == "view-missing").expect("it is gone");
        assert!(found.1.contains("is gone, and its mount is still there"), "{says:?}");
        if round == 3 {
            run(Command::new("umount").arg("-l").arg(&view)).ok();
            let says = findings_of(latchfs(), &view, &options);
            assert!(says.iter().any(|(kind, _)| kind == "view-missing"), "{says:?}");
        }
        let fixed = fixed(&view, &options);
        assert!(fixed.iter().any(|(kind, _)| kind == "view-missing"), "{fixed:?}");
        let is_mounted = fs::read_to_string("/proc/self/mountinfo").expect("there");
        assert!(!is_mounted.contains(view.to_str().expect("text")), "round {round}");
        drop(guard);
    }
}

/// view-missing, stage-leftover, unsure, audit-chain: the guard is killed while a program saves.
#[test]
fn killed_guard_is_fixed_and_keeps_its_lock() {
    let _kernel = kernel_stays();
    let machines = Machines::new();
    let (first, second) = (place(&machines.first, "m1"), place(&machines.second, "m2"));
    let (first, second) = (options(&first), options(&second));
    is_healthy(&machines.first.folder(), &first);
    let one = machines.start(1, &["--ttl", "1h"]);
    is_healthy(&one.view, &[]);
    is_healthy(&machines.first.folder(), &first);
    let name = one.status()["lock"].as_str().expect("a name").to_owned();
    let mut half = File::create(one.path("half")).expect("free");
    half.write_all(b"half").expect("staged");
    is_healthy(&one.view, &[]);
    let url = &machines.server.url;
    let held = token(url, &name);
    assert!(held.is_u64(), "{held}");
    one.signal(libc::SIGKILL);
    soon("the end of the guard", || fs::metadata(one.path("old")).err());
    let kinds = ["view-missing", "stage-leftover"];
    finds(&one.view, &["--stage", first[3]], &kinds);
    let says = finds(&machines.first.folder(), &first, &kinds);
    assert!(says[0].contains("is gone, and its mount is still there"), "{says:?}");
    // The dead view says the same of the content that was being saved.
    let left = "what is left of a save that was under way";
    let dead = one.request("status", &[]).exits(69);
    assert!(says[1].contains(left) && dead.contains(left), "{dead}{says:?}");
    drop(half);
    finds(&machines.first.folder(), &[&first[..], &["--fix"]].concat(), &[]);
    is_healthy(&machines.first.folder(), &first);
    assert_eq!(token(url, &name), held, "doctor frees no lock");
    // As long as the lock is held, others wait for its holder.
    is_healthy(&machines.second.folder(), &second);

    let mut steal = latchfs();
    steal.args(["steal", &name, "--server", url, "--client", "m3", "--now"]);
    steal.args(["--reason", "m1 is gone"]);
    run(&mut steal).ok();
    run(latchfs().args(["release", &name, "--server", url, "--client", "m3"])).ok();
    let says = finds(&machines.second.folder(), &second, &["unsure"]);
    assert!(says[0].contains("stolen with --now") && says[0].contains("(for "), "{says:?}");
    let two = machines.start(2, &[]);
    finds(&two.view, &[], &["unsure"]);
    two.request("accept", &["--reason", "m1 is gone"]).ok();
    is_healthy(&two.view, &[]);

    let log = host_dir(&machines.second, "m2").join("audit.log");
    let text = fs::read(&log).expect("there");
    fs::write(&log, &text[..text.len() - 1]).expect("cut");
    let says = finds(&two.view, &[], &["audit-chain"]);
    assert!(says[0].starts_with("line 1 of audit.log"), "{says:?}");
    fs::write(&log, &text).expect("put back");
    is_healthy(&two.view, &[]);
}

/// marker-missing, not-arrived, superseded, foreign, stray, marker-broken: on a machine whose guard
/// never ran.
#[test]
fn files_that_have_not_arrived_are_named_by_their_reasons() {
    let _kernel = kernel_stays();
    let machines = Machines::new();
    let second = place(&machines.second, "m2");
    let second = options(&second);
    let folder = machines.second.folder();
    is_healthy(&folder, &second);
    let one = machines.start(1, &[]);
    fs::write(one.path("old"), "newer than old").expect("ready");
    fs::write(one.path("a"), "of m1").expect("ready");
    one.request("give", &[]).ok();
    one.end();
    is_healthy(&machines.first.folder(), &options(&place(&machines.first, "m1")));
    finds(&folder, &second, &["marker-missing"]);
    machines.carry_markers();
    let says = finds(&folder, &second, &["not-arrived", "superseded"]);
    assert!(says[0].contains("'a' is not here yet"), "{says:?}");
    assert!(says[1].contains("'old' the version of tenure ") || says[1].contains("'old' m1's"));
    machines.carry("old");
    fs::write(folder.join("a"), "by a phone").expect("past the guard");
    shell(&folder, "touch -d '1 minute ago' a").ok();
    // A file that was changed a moment ago may still be on its way.
    soon("the foreign version", || {
        let found = findings_of(latchfs(), &folder, &second);
        found.iter().any(|(kind, _)| kind == "foreign").then_some(())
    });
    finds(&folder, &second, &["foreign"]);
    let copy = folder.join("a.sync-conflict-20260101-000000-ABCDEFG");
    fs::copy(machines.first.folder().join("a"), &copy).expect("as a sync tool makes it");
    let says = finds(&folder, &second, &["stray", "foreign"]);
    assert!(says[0].contains("it is m1's version (tenure "), "{says:?}");
    fs::remove_file(&copy).expect("there");
    machines.carry("a");
    is_healthy(&folder, &second);

    let dir = folder.join(".latchfs/markers");
    let marker = fs::read_dir(dir).expect("there").next().expect("one").expect("readable").path();
    let text = fs::read(&marker).expect("there");
    fs::write(&marker, &text[..text.len() / 2]).expect("half of it came");
    finds(&folder, &second, &["marker-broken", "marker-missing"]);
    fs::write(&marker, &text).expect("the rest came");
    is_healthy(&folder, &second);
}

/// same-name, server-too-old, other-engine, clock.
#[test]
fn servers_and_names_are_checked() {
    let _kernel = kernel_stays();
    let machines = Machines::new();
    let (first, second) = (place(&machines.first, "m1"), place(&machines.second, "m1"));
    let (first, second) = (options(&first), options(&second));
    let one = machines.start(1, &["--ttl", "1h"]);
    one.request("take", &[]).ok();
    let name = one.status()["lock"].as_str().expect("a name").to_owned();
    let held = token(&machines.server.url, &name);
    let says = finds(&machines.second.folder(), &second, &["same-name"]);
    assert!(says[0].contains("this machine's name, m1"), "{says:?}");
    is_healthy(&machines.first.folder(), &first);
    // A guard of the other machine that has the name as well finds it, too.
    let shared = ["--client", "m1", "--ttl", "2s"];
    let two = Guard::start(&machines.second, "view", &shared);
    finds(&two.view, &[], &["same-name"]);
    two.end();
    let two = machines.start(2, &[]);
    is_healthy(&two.view, &[]);
    is_healthy(&machines.second.folder(), &options(&place(&machines.second, "m2")));
    two.end();
    assert_eq!(token(&machines.server.url, &name), held, "doctor frees no lock");
    one.end();
    wrong_servers_are_found(machines, &name);
    wrong_clocks_are_found();
}

/// Something else listens at the address of the server, then a server with other data.
fn wrong_servers_are_found(mut machines: Machines, name: &str) {
    let url = machines.server.url.clone();
    let folder = machines.first.folder();
    let own = place(&machines.first, "m1");
    let own = options(&own);
    let mut acquire = latchfs();
    acquire.args(["acquire", name, "--server", &url, "--client", "m9", "--ttl", "1h"]);
    run(&mut acquire).ok();
    let held = token(&url, name);
    assert!(held.is_u64(), "{held}");
    let address = url.trim_start_matches("http://").to_owned();
    let data = |name: &str| machines.first.join(name).display().to_string();
    let (right, wrong) = (data("server"), data("another"));

    kill(&machines.server);
    let port = address.rsplit(':').next().expect("a port");
    let mut other = Command::new("/usr/bin/python3");
    other.args(["-m", "http.server", "--bind", "127.0.0.1", port]).current_dir(&folder);
    let mut other = other.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
    soon("the other server", || TcpStream::connect(&address).ok());
    let says = finds(&folder, &own, &["server-too-old"]);
    assert!(says[0].contains("does not speak the protocol"), "{says:?}");
    other.kill().expect("it runs");
    other.wait().expect("it ends");
    machines.server = Server::at(&address, &["--data", &right]);
    is_healthy(&folder, &own);
    assert_eq!(token(&url, name), held, "doctor frees no lock");

    kill(&machines.server);
    machines.server = Server::at(&address, &["--data", &wrong]);
    finds(&folder, &own, &["other-engine"]);
    kill(&machines.server);
    machines.server = Server::at(&address, &["--data", &right]);
    is_healthy(&folder, &own);
    assert_eq!(token(&url, name), held, "doctor frees no lock");

    // The old data is gone for good.
    kill(&machines.server);
    machines.server = Server::at(&address, &["--data", &wrong]);
    machines.first.init(&["--new-id", "--server", &url, "--client", "m1"]);
    is_healthy(&folder, &own);
}

fn wrong_clocks_are_found() {
    let scratch = Scratch::with_folder();
    let library = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1";
    assert!(Path::new(library).exists(), "libfaketime is missing; contrib/test installs it");
    let clock = scratch.join("clock");
    fs::write(&clock, "+90s").expect("writable");
    let mut command = latchfs();
    command.env("LD_PRELOAD", library).env("FAKETIME_TIMESTAMP_FILE", &clock);
    command.env("FAKETIME_NO_CACHE", "1").env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    let data = scratch.join("server").display().to_string();
    let server = Server::serve(command, "127.0.0.1:0", &["--data", &data]);
    scratch.init(&["--server", &server.url, "--client", "m1"]);
    let guard = Guard::start(&scratch, "view", &["--client", "m1"]);
    guard.request("take", &[]).ok();
    let name = guard.status()["lock"].as_str().expect("a name").to_owned();
    let held = token(&server.url, &name);
    let own = place(&scratch, "m1");
    for (place, own) in [(&scratch.folder(), &options(&own)[..]), (&guard.view, &[])] {
        let says = finds(place, own, &["clock"]);
        assert!(says[0].contains("at least 1m"), "{says:?}");
    }
    // The server notices a step of its clock when it reads the clock again, some milliseconds
    // later. The threads of libfaketime may overwrite what another has parsed, and parse a text
    // again only if it is another one.
    let beside = clock.with_extension("new");
    let mut zeros = ["+0", "-0"].iter().cycle();
    soon("the server's clock to be right", || {
        fs::write(&beside, zeros.next()?).expect("writable");
        fs::rename(&beside, &clock).expect("renamed");
        findings_of(latchfs(), &guard.view, &[]).is_empty().then_some(())
    });
    is_healthy(&guard.view, &[]);
    assert_eq!(token(&server.url, &name), held, "doctor frees no lock");
}

/// lost, around, descriptors, stage-synced, sync-settings, other-filesystem.
#[test]
fn machine_and_sync_tool_are_checked() {
    let _kernel = kernel_stays();
    let scratch = Scratch::with_folder();
    scratch.init(&["--alone"]);
    let guard = Guard::start_limited(&scratch, "view", 1_256);
    fs::write(guard.path("a"), "1").expect("free");
    is_healthy(&guard.view, &[]);
    shell(
        &guard.view,
        "python3 -c \"
import os
file = open('half', 'w'); file.write('half'); file.flush(); os.kill(os.getpid(), 9)\" || true",
    )
    .ok();
    finds(&guard.view, &[], &["lost"]);
    guard.request("lost", &["--drop", "1"]).ok();
    is_healthy(&guard.view, &[]);

    let database = "
import sqlite3, sys
db = sqlite3.connect('db')
db.execute('create table if not exists t (x)'); db.execute('select * from t').fetchall()
print('ready', flush=True); sys.stdin.read()";
    let around = begin_python(&scratch.folder(), database);
    let says = finds(&guard.view, &[], &["around"]);
    assert!(says[0].contains("/folder/db open past the view"), "{says:?}");
    end_python(around);
    let through = begin_python(&guard.view, database);
    is_healthy(&guard.view, &[]);
    end_python(through);

    let hog = "
import os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
held = []
try:
    while len(held) < 2000: held.append(os.open('a', os.O_RDONLY))
except OSError: pass
for fd in held[:16]: os.close(fd)
print('ready', flush=True); sys.stdin.read()";
    let hog = begin_python(&guard.view, hog);
    finds(&guard.view, &[], &["descriptors"]);
    end_python(hog);
    soon("the descriptors are closed", || {
        findings_of(latchfs(), &guard.view, &[]).is_empty().then_some(())
    });

    fs::create_dir(scratch.join(".stfolder")).expect("made by a sync tool");
    finds(&guard.view, &[], &["stage-synced"]);
    fs::remove_dir(scratch.join(".stfolder")).expect("there");
    syncthing_is_checked(&scratch, &guard);
    guard.end();

    let own = place(&scratch, &hostname());
    let own = options(&own);
    is_healthy(&scratch.folder(), &own);
    let moved = "mv state old; mkdir state; mount -t tmpfs none state; cp -a old/. state/";
    shell(scratch.path(), moved).ok();
    let says = findings_of(latchfs(), &scratch.folder(), &own);
    shell(scratch.path(), "umount state; rmdir state; mv old state").ok();
    let kinds: Vec<_> = says.iter().map(|(kind, _)| kind.as_str()).collect();
    assert_eq!(kinds, ["other-filesystem"], "{says:?}");
    is_healthy(&scratch.folder(), &own);
}

fn hostname() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").expect("there");
    name.trim().to_owned()
}

/// Shares the folder by a new Syncthing, with settings that lose versions.
fn syncthing_is_checked(scratch: &Scratch, guard: &Guard) {
    let home = scratch.join("syncthing");
    let mut generate = Command::new("syncthing");
    generate.args(["generate", "--no-default-folder", "--skip-port-probing", "--home"]).arg(&home);
    run(generate.env("STNOUPGRADE", "1")).ok();
    let path = home.join("config.xml");
    let config = fs::read_to_string(&path).expect("it was made");
    let shared = |kind: &str, watched: &str, conflicts: &str| {
        let folder = scratch.folder();
        let element = format!(
            "<folder id=\"f\" label=\"\" path=\"{}\" type=\"{kind}\" \
             fsWatcherEnabled=\"{watched}\"><maxConflicts>{conflicts}</maxConflicts></folder>",
            folder.display()
        );
        let (start, rest) = config.split_once("<device ").expect("this device");
        fs::write(&path, format!("{start}{element}<device {rest}")).expect("written");
        let mut command = latchfs();
        command.env("STHOMEDIR", &home);
        let found = findings_of(command, &guard.view, &[]);
        found.into_iter().map(|(kind, says)| format!("{kind}: {says}")).collect::<Vec<_>>()
    };
    let ignore = scratch.folder().join(".stignore");
    fs::write(&ignore, "// mine\n.*\n").expect("written");
    let found = shared("receiveonly", "false", "0");
    for (at, part) in
        ["maxConflicts", "receiveonly", "watcher", "ignore pattern 2"].into_iter().enumerate()
    {
        let is_it = |says: &String| says.starts_with("sync-settings: ") && says.contains(part);
        assert!(found.get(at).is_some_and(is_it), "{part}: {found:?}");
    }
    assert_eq!(found.len(), 4, "{found:?}");
    fs::write(&ignore, "!/.latchfs\n.*\n").expect("written");
    assert_eq!(shared("sendreceive", "true", "10"), Vec::<String>::new());
    fs::remove_file(&ignore).expect("there");
}
