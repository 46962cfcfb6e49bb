//! The paths that the markers of the sync barrier name: each one that was changed through the view,
//! however its name came or went meanwhile.

use crate::arriving::{Machines, begin_take, markers, not_ready, state};
use std::fs::{self};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use testing::run;
use testing::{Guard, latchfs, pause, python, soon};

/// Returns what the markers name that are not in `before`: each path, with ` gone` for one under
/// which no file stands, and ` foreign` for one that was changed past the view.
fn named(machines: &Machines, before: &[PathBuf]) -> Vec<String> {
    let new = markers(&machines.first).into_iter().filter(|path| !before.contains(path));
    let mut all = Vec::new();
    for path in new {
        let text = fs::read_to_string(path).expect("there");
        let marker: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        for change in marker["changes"].as_array().expect("a list") {
            let gone = if change["type"] == "gone" { " gone" } else { "" };
            let foreign = if change["foreign"] == true { " foreign" } else { "" };
            all.push(format!("{}{gone}{foreign}", change["path"].as_str().expect("a path")));
        }
    }
    all.sort();
    all
}

/// Makes files with the same content, and gives the lock up, so that the ledger knows them.
fn make(machines: &Machines, guard: &Guard, names: &[&str]) -> Vec<PathBuf> {
    for name in names {
        let path = guard.path(name);
        fs::create_dir_all(path.parent().expect("below the view")).expect("ready");
        fs::write(path, "before").expect("ready");
    }
    guard.request("give", &[]).ok();
    markers(&machines.first)
}

/// A mount over a directory, which ends with the value.
struct Mounted(PathBuf);

impl Mounted {
    fn over(dir: PathBuf) -> Self {
        run(Command::new("mount").args(["-t", "tmpfs", "tmpfs"]).arg(&dir)).ok();
        Self(dir)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

/// Something that is mounted in the folder hides files. They are not gone.
#[test]
fn files_below_a_mount_point_are_not_gone() {
    let machines = Machines::new();
    let one = machines.start(1, &[]);
    let before = make(&machines, &one, &["d/a", "b"]);
    fs::write(one.path("b"), "of m1").expect("ready");
    let mounted = Mounted::over(machines.first.folder().join("d"));
    one.request("give", &[]).ok();
    assert_eq!(named(&machines, &before), ["b"]);
    drop(mounted);
    let before = markers(&machines.first);
    fs::write(one.path("d/a"), "of m1").expect("ready");
    one.request("give", &[]).ok();
    assert_eq!(named(&machines, &before), ["d/a"]);
}

/// An acceptance whose tenure ends meanwhile is none, and the answer says so.
#[test]
fn an_acceptance_in_a_tenure_that_ends_accepts_nothing() {
    let machines = Machines::new();
    let (one, two) = (machines.start(1, &[]), machines.start(2, &["--ttl", "30s"]));
    fs::write(one.path("a"), "of m1").expect("ready");
    one.kill();
    let taking = begin_take(&two);
    not_ready(&two, "has not said what it changed");
    machines.server.signal(libc::SIGSTOP);
    let ask = |options: &'static [&'static str]| {
        let view = two.view.clone();
        std::thread::spawn(move || run(latchfs().arg("guard").args(options).arg(view)))
    };
    let accepting = ask(&["accept", "--reason", "the first laptop is lost"]);
    pause(Duration::from_secs(2));
    let giving = ask(&["give"]);
    let refused = accepting.join().expect("no panic").fails();
    assert!(refused.contains("nothing was accepted"), "{refused}");
    machines.server.signal(libc::SIGCONT);
    drop(giving.join());
    not_ready(&two, "has not said what it changed");
    assert!(!two.path("a").exists() && !taking.is_finished());
    two.request("accept", &["--reason", "the first laptop is lost"]).ok();
    assert!(taking.join().expect("taken").contains("holding"));
}

/// The files that a late marker names are kept before, as far as `--max-lost` allows: otherwise the
/// marker waits, and nothing is kept again and again.
#[test]
fn copies_for_a_late_marker_take_no_more_than_the_lost_files_may() {
    let machines = Machines::new();
    let one = machines.start(1, &[]);
    for name in ["a", "b", "c"] {
        fs::write(one.path(name), "of m1").expect("ready");
    }
    one.kill();
    let before = markers(&machines.first);
    let one = machines.start(1, &["--max-lost", "12"]);
    let taking = begin_take(&one);
    not_ready(&one, "--max-lost");
    assert!(one.request("lost", &[]).ok().is_empty());
    assert_eq!(markers(&machines.first), before);
    one.kill();
    drop(taking.join());
    let one = machines.start(1, &["--max-lost", "15"]);
    one.request("take", &[]).ok();
    let lost = one.request("lost", &["--json"]).ok();
    assert_eq!(lost.matches("\"path\"").count(), 3, "{lost}");
}

/// A guard of root guards a folder of a user, to whom all files in it belong, those of the guard
/// as well.
#[test]
fn the_files_of_a_guard_belong_to_the_owner_of_the_folder() {
    let owner = 54_321;
    let machines = Machines::new_of(owner);
    let one = machines.start(1, &[]);
    fs::write(one.path("a"), "of m1").expect("ready");
    one.request("give", &[]).ok();
    let control = machines.first.folder().join(".latchfs");
    let found = run(Command::new("find").arg(&control).args(["-printf", "%U %G %P\n"])).ok();
    assert!(found.lines().count() >= 6, "directories, record, text and markers: {found}");
    let is_owned = |line: &str| line.starts_with(&format!("{owner} {owner} "));
    assert!(found.lines().all(is_owned), "{found}");
}

/// The names of missing files are for the owner of the folder; other users read counts.
#[test]
fn missing_files_are_named_to_the_owner_of_the_folder() {
    let machines = Machines::new_of(54_321);
    let (one, two) = (machines.start(1, &[]), machines.start(2, &[]));
    fs::write(one.path("secret"), "of m1").expect("ready");
    one.request("give", &[]).ok();
    machines.carry_markers();
    let view = two.view.clone();
    let follow = |uid: u32| {
        let program = "f = open('.latchfs/events')\nline = ''\n\
                       while 'arriving' not in line: line = f.readline()\nprint(line)";
        let view = view.clone();
        std::thread::spawn(move || python(uid, &view, program).ok())
    };
    let events = [54_321, 54_322].map(follow);
    pause(Duration::from_secs(1));
    let taking = begin_take(&two);
    not_ready(&two, "'secret' is not here yet");
    let texts = |uid: u32| {
        let program = "print(open('.latchfs/status').read(), open('.latchfs/missing').read())";
        python(uid, &view, program).ok()
    };
    let [to_owner, to_other] = events.map(|thread| thread.join().expect("no panic"));
    assert!(to_owner.contains("'secret'") && texts(54_321).contains("'secret'"), "{to_owner}");
    let other = texts(54_322);
    assert!(other.contains("1 of 62 files of m1") && !other.contains("secret"), "{other}");
    assert!(to_other.contains("arriving") && !to_other.contains("secret"), "{to_other}");
    machines.carry("secret");
    assert!(taking.join().expect("taken").contains("holding"));
}

/// A release that comes too late hands nothing over. The guard looks afterwards, and writes a late
/// marker, for which the others wait.
#[test]
fn a_late_marker_follows_a_release_that_came_too_late() {
    let machines = Machines::new();
    let one = machines.start(1, &["--ttl", "5s"]);
    // A guard looks for late changes when it begins as well.
    pause(Duration::from_secs(1));
    fs::write(one.path("a"), "of m1").expect("ready");
    machines.server.signal(libc::SIGSTOP);
    let id = fs::read_dir(machines.first.join("state")).expect("there").flatten().next();
    let changes = id.expect("one folder").path().join("m1/changes");
    soon("the handover that follows the marker", || {
        let log = fs::read_to_string(&changes).ok()?;
        (log.contains("\"own\"") && !log.contains("\"begin\"")).then_some(())
    });
    let view = one.view.clone();
    let giving = std::thread::spawn(move || run(latchfs().args(["guard", "give"]).arg(view)).err);
    pause(Duration::from_secs(9));
    machines.server.signal(libc::SIGCONT);
    drop(giving.join());
    let two = machines.start(2, &[]);
    let taking = begin_take(&two);
    soon("the late marker", || {
        machines.carry_all();
        taking.is_finished().then_some(())
    });
    assert!(taking.join().expect("taken").contains("holding"));
    assert_eq!(fs::read_to_string(two.path("a")).expect("there"), "of m1");
}

/// A directory in which nothing can be made, until the value ends.
struct Immutable(PathBuf);

impl Immutable {
    fn make(dir: PathBuf) -> Self {
        run(Command::new("chattr").arg("+i").arg(&dir)).ok();
        Self(dir)
    }
}

impl Drop for Immutable {
    fn drop(&mut self) {
        let _ = Command::new("chattr").arg("-i").arg(&self.0).status();
    }
}

/// A marker that names everything is reported to the lock service only when the marker is there.
#[test]
fn a_marker_that_can_not_be_written_is_not_reported() {
    let machines = Machines::new();
    let (one, two) = (machines.start(1, &[]), machines.start(2, &[]));
    make(&machines, &one, &["a"]);
    let immutable = Immutable::make(machines.first.folder().join(".latchfs/markers"));
    fs::write(one.path("a"), "after").expect("ready");
    one.request("give", &[]).ok();
    machines.carry_all();
    let taking = begin_take(&two);
    not_ready(&two, "has not said what it changed");
    drop(immutable);
    soon("the late marker", || {
        machines.carry_markers();
        (two.status()["state"] == "holding").then_some(())
    });
    taking.join().expect("taken");
    assert_eq!(fs::read_to_string(two.path("a")).expect("there"), "after");
}

/// A machine that comes back learns of an acceptance, also before a marker tells of it.
#[test]
fn an_acceptance_is_reported_before_any_marker() {
    let machines = Machines::new();
    let (one, two) = (machines.start(1, &[]), machines.start(2, &[]));
    fs::write(one.path("a"), "of m1").expect("ready");
    one.kill();
    let dir = machines.second.folder().join(".latchfs/markers");
    fs::create_dir_all(&dir).expect("made");
    let _immutable = Immutable::make(dir);
    two.request("accept", &["--reason", "the first laptop was stolen"]).ok();
    let before = markers(&machines.first);
    let one = machines.start(1, &[]);
    soon("m1 puts its version aside", || {
        one.request("lost", &["--json"]).ok().contains("\"a\"").then_some(())
    });
    assert_eq!(state(&two), "holding");
    // A late marker would follow the copy at once, and claim that the others wait for it.
    pause(Duration::from_secs(2));
    assert_eq!(markers(&machines.first), before);
}
