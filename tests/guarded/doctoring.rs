//! Each finding of `latchfs doctor --strict` arises from its fault, is named once, and is gone when
//! the fault is mended. No lock is freed.

use crate::arriving::Machines;
use crate::auditing::host_dir;
use crate::changed_servers::kill;
use crate::harness::{Guard, Scratch, Server, eventually, latchfs, shell};
use crate::support::run;
use serde_json::Value;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Returns the findings of a doctor that is run by `command`: the name and the sentence of each.
#[track_caller]
fn findings_of(mut command: Command, place: &Path, options: &[&str]) -> Vec<(String, String)> {
    command.args(["doctor", "--strict", "--json"]).arg(place).args(options);
    let output = run(&mut command);
    let said: Value = serde_json::from_str(&output.out)
        .unwrap_or_else(|error| panic!("{error}: {}{}", output.out, output.err));
    let all = said["findings"].as_array().expect("a list");
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    let found: Vec<_> = all
        .iter()
        .filter(|it| it["ok"] == false)
        .inspect(|it| assert!(!text(&it["mend"]).is_empty(), "{it}"))
        .map(|it| (text(&it["check"]), text(&it["says"])))
        .collect();
    assert_eq!(output.code, i32::from(!found.is_empty()), "{}", output.out);
    found
}

/// Expects findings of these kinds, in this order, and returns their sentences.
#[track_caller]
fn finds(place: &Path, options: &[&str], kinds: &[&str]) -> Vec<String> {
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

/// Expects one line, which says that nothing is to be mended.
#[track_caller]
fn is_healthy(place: &Path, options: &[&str]) {
    finds(place, options, &[]);
    let said = run(latchfs().args(["doctor", "--strict"]).arg(place).args(options)).ok();
    assert_eq!((said.lines().count(), &said[..2]), (1, "ok"), "{said}");
}

/// Returns the options of a folder whose guard does not run.
fn place(scratch: &Scratch, client: &str) -> [String; 4] {
    let state = scratch.0.join("state").display().to_string();
    ["--client".to_owned(), client.to_owned(), "--stage".to_owned(), state]
}

/// Runs a Python program in a directory until its standard input ends. Returns it once it has
/// printed a line.
fn begin_python(dir: &Path, program: &str) -> Child {
    let mut command = Command::new("/usr/bin/python3");
    command.arg("-c").arg(program).current_dir(dir).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    let mut line = String::new();
    let mut out = BufReader::new(child.stdout.take().expect("piped"));
    out.read_line(&mut line).expect("readable");
    assert_eq!(line, "ready\n");
    child
}

fn end_python(mut child: Child) {
    drop(child.stdin.take());
    child.wait().expect("it ends");
}

/// Returns the token under which the folder's lock is held.
fn token(url: &str, name: &str) -> Value {
    let shown = run(latchfs().args(["status", name, "--json", "--server", url])).ok();
    let shown: Value = serde_json::from_str(&shown).expect("JSON");
    shown["token"].clone()
}

/// view-missing, stage-leftover, unsure, audit-chain: the guard is killed while a program saves.
#[test]
fn killed_guard_is_mended_and_keeps_its_lock() {
    let machines = Machines::new();
    let (first, second) = (place(&machines.first, "m1"), place(&machines.second, "m2"));
    let (first, second) = (first.each_ref().map(|it| &**it), second.each_ref().map(|it| &**it));
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
    eventually("the end of the guard", || fs::metadata(one.path("old")).err());
    let kinds = ["view-missing", "stage-leftover"];
    finds(&one.view, &["--stage", first[3]], &kinds);
    let says = finds(&machines.first.folder(), &first, &kinds);
    assert!(says[0].contains("is gone, and its mount is still there"), "{says:?}");
    drop(half);
    finds(&machines.first.folder(), &[&first[..], &["--mend"]].concat(), &[]);
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
    two.ask("accept", &["--reason", "m1 is gone"]).ok();
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
    let machines = Machines::new();
    let second = place(&machines.second, "m2");
    let second = second.each_ref().map(|it| &**it);
    let folder = machines.second.folder();
    is_healthy(&folder, &second);
    let one = machines.start(1, &[]);
    fs::write(one.path("old"), "newer than old").expect("ready");
    fs::write(one.path("a"), "of m1").expect("ready");
    one.ask("give", &[]).ok();
    one.end();
    is_healthy(&machines.first.folder(), &place(&machines.first, "m1").each_ref().map(|it| &**it));
    finds(&folder, &second, &["marker-missing"]);
    machines.carry_markers();
    let says = finds(&folder, &second, &["not-arrived", "superseded"]);
    assert!(says[0].contains("'a' is not here yet"), "{says:?}");
    assert!(says[1].contains("'old' the version of tenure ") || says[1].contains("'old' m1's"));
    machines.carry("old");
    fs::write(folder.join("a"), "by a phone").expect("past the guard");
    shell(&folder, "touch -d '1 minute ago' a").ok();
    // A file that was changed a moment ago may still be on its way.
    eventually("the foreign version", || {
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
    let mut machines = Machines::new();
    let (first, second) = (place(&machines.first, "m1"), place(&machines.second, "m1"));
    let (first, second) = (first.each_ref().map(|it| &**it), second.each_ref().map(|it| &**it));
    let one = machines.start(1, &[]);
    one.ask("take", &[]).ok();
    finds(&machines.second.folder(), &second, &["same-name"]);
    is_healthy(&machines.first.folder(), &first);
    one.end();

    // A server of another kind answers.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let other = format!("http://{}", listener.local_addr().expect("bound"));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { continue };
            let _ = stream.read(&mut [0; 4_096]);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}");
        }
    });
    let options = [&first[..], &["--server", &other]].concat();
    finds(&machines.first.folder(), &options, &["server-too-old"]);

    let address = machines.server.url.trim_start_matches("http://").to_owned();
    kill(&machines.server);
    let data = machines.first.0.join("another").display().to_string();
    machines.server = Server::start_at(&address, &["--data", &data]);
    finds(&machines.first.folder(), &first, &["other-engine"]);

    let scratch = Scratch::new();
    let library = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1";
    assert!(Path::new(library).exists(), "libfaketime is missing; contrib/test installs it");
    let mut command = latchfs();
    command.env("LD_PRELOAD", library).env("FAKETIME", "+90s");
    command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    let data = scratch.0.join("server").display().to_string();
    let server = Server::start_as(command, "127.0.0.1:0", &["--data", &data]);
    scratch.init(&["--server", &server.url, "--client", "m1"]);
    let own = place(&scratch, "m1");
    let says = finds(&scratch.folder(), &own.each_ref().map(|it| &**it), &["clock"]);
    assert!(says[0].contains("at least 1m"), "{says:?}");
}

/// lost, around, descriptors, stage-synced, sync-settings, other-filesystem.
#[test]
fn machine_and_sync_tool_are_checked() {
    let scratch = Scratch::new();
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
    guard.ask("lost", &["--drop", "1"]).ok();
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
    eventually("the descriptors are closed", || {
        findings_of(latchfs(), &guard.view, &[]).is_empty().then_some(())
    });

    fs::create_dir(scratch.0.join(".stfolder")).expect("made by a sync tool");
    finds(&guard.view, &[], &["stage-synced"]);
    fs::remove_dir(scratch.0.join(".stfolder")).expect("there");
    syncthing_is_checked(&scratch, &guard);
    guard.end();

    let own = place(&scratch, &hostname());
    let own = own.each_ref().map(|it| &**it);
    is_healthy(&scratch.folder(), &own);
    let moved = "mv state old; mkdir state; mount -t tmpfs none state; cp -a old/. state/";
    shell(&scratch.0, moved).ok();
    let says = findings_of(latchfs(), &scratch.folder(), &own);
    shell(&scratch.0, "umount state; rmdir state; mv old state").ok();
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
    let home = scratch.0.join("syncthing");
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
        ["maxConflicts", "receiveonly", "watcher", "line 2 of .stignore"].into_iter().enumerate()
    {
        let is_it = |says: &String| says.starts_with("sync-settings: ") && says.contains(part);
        assert!(found.get(at).is_some_and(is_it), "{part}: {found:?}");
    }
    assert_eq!(found.len(), 4, "{found:?}");
    fs::write(&ignore, "!/.latchfs\n.*\n").expect("written");
    assert_eq!(shared("sendreceive", "true", "10"), Vec::<String>::new());
    fs::remove_file(&ignore).expect("there");
}
