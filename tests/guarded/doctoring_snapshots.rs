//! Findings of `latchfs doctor --strict` about folder snapshots and lock records that were
//! interrupted.

use crate::arriving::Machines;
use crate::doctoring::{
    begin_python, end_python, finds, fixed, is_healthy, kernel_stays, options, place, token,
};
use crate::faulty_markers::{Traced, is_dead};
use serde_json::Value;
use std::fs;
use std::io::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use testing::{Guard, Scratch, Server, latchfs, soon};
use testing::{Output, run};

/// A folder with some files, whose lock a server decides, so that snapshots are copies.
struct Site {
    scratch: Scratch,
    server: Server,
    lock: String,
}

impl Site {
    fn new() -> Self {
        Self::with(&[])
    }

    /// Makes a guarded folder by `guard init` with these options as well.
    fn with(options: &[&str]) -> Self {
        let scratch = Scratch::with_folder();
        for name in ["a", "b", "c", "d"] {
            fs::write(scratch.folder().join(name), format!("old {name}")).expect("a folder");
        }
        let server = Server::of(&scratch);
        scratch.init(&[&["--server", &server.url, "--client", "m1"], options].concat());
        let record = fs::read(scratch.folder().join(".latchfs/folder")).expect("there");
        let record: Value = serde_json::from_slice(&record).expect("JSON");
        let lock = format!("folder-{}", record["id"].as_str().expect("an id"));
        Self { scratch, server, lock }
    }

    /// Starts the guard, which takes the lock and keeps it. No marker is written meanwhile.
    fn start(&self, view: &str) -> Guard {
        self.start_with(view, &[])
    }

    fn start_with(&self, view: &str, more: &[&str]) -> Guard {
        let options = ["--client", "m1", "--ttl", "1h", "--settle", "1h"];
        let options = [&options[..], more].concat();
        let guard = Guard::start(&self.scratch, view, &options);
        guard.request("take", &[]).ok();
        guard
    }

    fn token(&self) -> Value {
        token(&self.server.url, &self.lock)
    }

    fn snapshots(&self) -> PathBuf {
        let id = self.lock.trim_start_matches("folder-");
        self.scratch.join("state").join(id).join("snapshots")
    }
}

fn snapshot(guard: &Guard, args: &[&str]) -> Output {
    let (first, rest) = args.split_at(if matches!(args[0], "take" | "ls") { 1 } else { 2 });
    run(latchfs().arg("folder-snapshot").args(first).arg(&guard.view).args(rest))
}

fn taken(guard: &Guard) -> String {
    let answer = snapshot(guard, &["take", "--json"]).ok();
    let answer: Value = serde_json::from_str(&answer).expect("JSON");
    answer["id"].as_str().expect("a name").to_owned()
}

/// Runs a command by which the guard reaches a system call that kills it before it is made.
fn killed_at(guard: &Guard, call: &str, when: u32, command: &[&str]) {
    let what = format!("signal=KILL:when={when}");
    let injected = Traced::inject(guard, call, &what);
    let output = snapshot(guard, command);
    assert_ne!(output.code, 0, "{output:?}");
    soon("the end of the guard", || is_dead(guard).then_some(()));
    drop(injected);
}

/// snapshot-partial: the guard is killed while it takes a snapshot. One whose READY was written is
/// finished, and others are removed.
#[test]
fn interrupted_snapshots_are_finished_or_removed() {
    let _kernel = kernel_stays();
    let site = Site::new();
    let folder = site.scratch.folder();
    let own = place(&site.scratch, "m1");
    let own = options(&own);
    // The intent is the first name that is made, and the rename the last one.
    for (number, (call, when, finished)) in
        [("linkat", 3, 0), ("linkat", 8, 0), ("renameat2", 1, 1)].into_iter().enumerate()
    {
        let guard = site.start(&format!("view{number}"));
        let held = site.token();
        assert!(held.is_u64(), "{held}");
        killed_at(&guard, call, when, &["take"]);
        let kinds = ["view-missing", "stage-leftover", "snapshot-partial"];
        let says = finds(&folder, &own, &kinds);
        assert!(says[2].contains("was interrupted while it was taken"), "{says:?}");
        let fixed = fixed(&folder, &own);
        let counts = format!("{finished} finished and shown now, {} removed", 1 - finished);
        assert!(fixed.contains(&("snapshot-partial".to_owned(), counts)), "{fixed:?}");
        is_healthy(&folder, &own);
        assert_eq!(site.token(), held, "doctor frees no lock");
        let left = fs::read_dir(site.snapshots()).expect("there").count();
        assert_eq!(left, finished, "{call} {when}");
        drop(guard);
    }
    // The start of the guard fixes the same.
    let guard = site.start("view");
    killed_at(&guard, "linkat", 3, &["take"]);
    drop(guard);
    let guard = site.start("view");
    is_healthy(&guard.view, &[]);
    let listed: Value =
        serde_json::from_str(&snapshot(&guard, &["ls", "--json"]).ok()).expect("JSON");
    let id = listed["snapshots"][0]["id"].as_str().expect("the finished one").to_owned();
    snapshot(&guard, &["verify", &id]).ok();
}

/// snapshot-partial on storage that machines share: the snapshot of this machine's killed guard is
/// named and fixed by doctor, and by the next start of the guard.
#[test]
fn interrupted_snapshots_on_shared_storage_are_fixed() {
    let _kernel = kernel_stays();
    let site = Site::with(&["--shared-storage"]);
    let (folder, shared) = (site.scratch.folder(), ["--shared-storage"]);
    let own = place(&site.scratch, "m1");
    let own = options(&own);
    let intents = || {
        let names = fs::read_dir(site.snapshots()).expect("there").flatten();
        names.filter(|it| it.file_name().to_string_lossy().ends_with(".intent")).count()
    };
    // The second directory that is made is that of the files; the rename is the last step.
    for (number, (call, when, finished)) in
        [("mkdirat", 2, 0), ("renameat2", 1, 1)].into_iter().enumerate()
    {
        let guard = site.start_with(&format!("view{number}"), &shared);
        killed_at(&guard, call, when, &["take"]);
        assert_eq!(intents(), 1, "{call}");
        let says = finds(&folder, &own, &["view-missing", "snapshot-partial"]);
        assert!(says[1].contains("was interrupted while it was taken"), "{says:?}");
        let fixed = fixed(&folder, &own);
        let counts = format!("{finished} finished and shown now, {} removed", 1 - finished);
        assert!(fixed.contains(&("snapshot-partial".to_owned(), counts)), "{fixed:?}");
        assert_eq!(intents(), 0, "{call}");
        is_healthy(&folder, &own);
        drop(guard);
    }
    let guard = site.start_with("view", &shared);
    killed_at(&guard, "mkdirat", 2, &["take"]);
    assert_eq!(intents(), 1);
    drop(guard);
    let guard = site.start_with("view", &shared);
    assert_eq!(intents(), 0);
    is_healthy(&guard.view, &[]);
}

/// A snapshot that is being taken is no finding.
#[test]
fn work_on_snapshots_is_no_finding() {
    let _kernel = kernel_stays();
    let site = Site::new();
    let guard = site.start("view");
    let request = "{\"do\": \"snapshot\", \"snapshot\": \"take\"}";
    // The guard waits before the rename that shows the snapshot.
    let injected = Traced::inject(&guard, "renameat2", "delay_enter=5s:when=1");
    std::thread::scope(|scope| {
        let working = scope.spawn(|| guard.request_here(request));
        soon("the intent", || {
            let mut names = fs::read_dir(site.snapshots()).expect("there").flatten();
            names.find(|it| it.file_name().to_string_lossy().ends_with(".intent")).map(drop)
        });
        finds(&guard.view, &[], &[]);
        assert!(!working.is_finished());
        let answer = working.join().expect("it ends");
        assert!(!answer.contains("error"), "{answer}");
    });
    drop(injected);
    is_healthy(&guard.view, &[]);
}

/// snapshot-corrupt: a byte of a file, or of `READY`, is changed.
#[test]
fn a_damaged_snapshot_stays_until_a_person_removes_it() {
    let _kernel = kernel_stays();
    let site = Site::new();
    let guard = site.start("view");
    let held = site.token();
    for (damaged, part) in [("tree/b", "b has another content"), ("READY", "is not shown")] {
        let id = taken(&guard);
        is_healthy(&guard.view, &[]);
        let file = site.snapshots().join(&id).join(damaged);
        let mut bytes = fs::read(&file).expect("there");
        bytes[0] ^= 1;
        fs::write(&file, bytes).expect("as a failing disk does it");
        for options in [&[][..], &["--fix"]] {
            let says = finds(&guard.view, options, &["snapshot-corrupt"]);
            assert!(says[0].contains(&id) && says[0].contains(part), "{says:?}");
        }
        // Its undamaged files can be copied.
        let shown = guard.path(".latchfs/snapshots").join(&id).join("a");
        let kept =
            if damaged == "READY" { site.snapshots().join(&id).join("tree/a") } else { shown };
        assert_eq!(fs::read_to_string(kept).expect("there"), "old a");
        snapshot(&guard, &["rm", &id]).ok();
        is_healthy(&guard.view, &[]);
    }
    assert_eq!(site.token(), held, "doctor frees no lock");
}

/// record-leftover: a client of the seed's protocol dies between its `.tmp` and the rename.
#[test]
fn prepared_records_of_ended_programs_are_removed() {
    let _kernel = kernel_stays();
    let machines = Machines::new();
    let (one, two) = (machines.start(1, &["--ttl", "1h"]), machines.start(2, &[]));
    one.request("take", &[]).ok();
    let lock = one.status()["lock"].as_str().expect("a name").to_owned();
    let held = token(&machines.server.url, &lock);
    let locks = two.path(".latchfs/locks");
    let prepared = locks.join(format!("{lock}.lock.tmp"));
    let program = format!(
        "import sys; file = open('{lock}.lock.tmp', 'w'); file.write('{{'); file.flush()\n\
         print('ready', flush=True); sys.stdin.read()"
    );
    // A program that still runs may be about to steal.
    let thief = begin_python(&locks, &program);
    is_healthy(&two.view, &[]);
    end_python(thief);
    finds(&two.view, &[], &["record-leftover"]);
    fs::remove_file(&prepared).expect("as the finding says");
    is_healthy(&two.view, &[]);

    let script =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/served/seeds/seed_002_client.py");
    let mut client = Command::new("strace");
    let calls = "rename,renameat,renameat2";
    client.args(["-qq", "-o", "/dev/null", "-e", &format!("trace={calls}")]);
    client.args(["-e", &format!("inject={calls}:signal=KILL"), "/usr/bin/python3"]);
    client.arg(script).args([&locks, Path::new(&lock)]);
    let mut client = client.stdin(Stdio::piped()).spawn().expect("strace is there");
    client.stdin.take().expect("piped").write_all(b"replace\n").expect("it reads");
    let ended = client.wait().expect("it ends");
    assert!(ended.signal() == Some(libc::SIGKILL), "{ended}");
    assert!(prepared.exists());
    let says = finds(&two.view, &[], &["record-leftover"]);
    assert!(says[0].contains(&format!("{lock}.lock.tmp")), "{says:?}");
    let fixed = fixed(&two.view, &[]);
    assert_eq!(fixed[0].0, "record-leftover");
    assert!(!prepared.exists());
    is_healthy(&two.view, &[]);
    assert_eq!(token(&machines.server.url, &lock), held, "doctor frees no lock");
    assert_eq!(one.status()["state"], "holding");
}
