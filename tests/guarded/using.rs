//! The commands, policies and refusals of a guard.

use crate::harness::{Guard, Scratch, Server, latchfs, shell};
use crate::support::run;
use serde_json::Value;
use std::fs;

fn status(guard: &Guard) -> Value {
    serde_json::from_str(&guard.ask("status", &["--json"]).ok()).expect("JSON")
}

#[test]
fn a_folder_without_a_record_is_not_shown() {
    let scratch = Scratch::new();
    let guard = |options: &[&str]| {
        run(latchfs().arg("guard").arg(scratch.folder()).arg(scratch.0.join("view")).args(options))
    };
    let why = guard(&[]).exits(69);
    assert!(why.contains("--alone") && why.contains("--server URL"), "{why}");
    scratch.init(&["--alone"]);
    let twice = run(latchfs().args(["guard", "init", "--alone"]).arg(scratch.folder())).exits(69);
    assert!(twice.contains("is guarded already"), "{twice}");
    let far = guard(&["--stage", "/dev/shm/latchfs-guarded"]).exits(69);
    assert!(far.contains("another file system"), "{far}");
    let _ = fs::remove_dir_all("/dev/shm/latchfs-guarded");
    let root = run(latchfs().args(["guard", "init", "/", "--alone"])).exits(64);
    assert!(root.contains("/ can't be guarded"), "{root}");
    let first = Guard::start(&scratch, "view", &[]);
    let second = latchfs()
        .arg("guard")
        .arg(scratch.folder())
        .arg(scratch.0.join("other"))
        .arg("--stage")
        .arg(scratch.0.join("state"))
        .output()
        .expect("it runs");
    let second = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(second.contains("another guard of this machine"), "{second}");
    let inside = run(latchfs().args(["guard", "init", "--alone"]).arg(&first.view)).exits(64);
    assert!(inside.contains("name the real folder"), "{inside}");
}

#[test]
fn a_change_takes_the_lock_and_give_ends_it() {
    let scratch = Scratch::new();
    scratch.init(&["--alone"]);
    let guard = Guard::start(&scratch, "view", &[]);
    assert_eq!(status(&guard)["state"], "reading");
    fs::write(guard.path("a"), "1").expect("the lock is free");
    let held = status(&guard);
    assert_eq!((&held["state"], &held["tenure"]["owner"]), (&"holding".into(), &"host".into()));
    guard.ask("give", &[]).ok();
    assert_eq!(status(&guard)["state"], "reading");
    guard.ask("take", &["--try"]).ok();
    assert!(status(&guard)["tenure"]["token"].as_u64() > held["tenure"]["token"].as_u64());
    guard.ask("wait", &[]).ok();
}

#[test]
fn without_the_lock_a_change_is_refused_with_a_sentence() {
    let scratch = Scratch::new();
    scratch.init(&["--alone"]);
    let guard = Guard::start(&scratch, "view", &["--on-write", "refuse"]);
    for change in ["echo x > a", "mkdir d", "ln -s x l", "rm -r .", "mv x y"] {
        let why = shell(&guard.view, change).fails();
        assert!(!why.is_empty(), "{change}");
    }
    let refused = fs::write(guard.path("a"), "1").expect_err("the lock is not held");
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    assert!(guard.why().contains("latchfs guard take"), "{}", guard.why());
    guard.ask("take", &[]).ok();
    fs::write(guard.path("a"), "1").expect("the lock is held");
}

#[test]
fn two_sessions_do_not_change_a_folder_at_the_same_time() {
    let scratch = Scratch::new();
    scratch.init(&["--alone"]);
    let guard = Guard::start(&scratch, "view", &["--owner", "session"]);
    shell(&guard.view, "setsid -w sh -c 'echo one > a; exec sleep 0'").ok();
    let other = shell(&guard.view, "setsid -w sh -c 'echo two > a'").fails();
    assert!(other.contains("Read-only file system"), "{other}");
    assert!(guard.why().contains("another login session") || guard.why().contains("session of"));
    assert_eq!(fs::read_to_string(scratch.folder().join("a")).expect("there"), "one\n");
}

#[test]
fn the_lock_of_another_machine_keeps_changes_out() {
    let scratch = Scratch::new();
    let server = Server::start(&scratch);
    scratch.init(&["--server", &server.url, "--shared-storage"]);
    let first = Guard::start(&scratch, "one", &["--client", "m1", "--shared-storage"]);
    let second = Guard::start(&scratch, "two", &["--client", "m2", "--shared-storage"]);
    fs::write(first.path("a"), "one").expect("the lock is free");
    let refused = fs::write(second.path("a"), "two").expect_err("m1 holds the lock");
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    assert!(second.why().contains("m1 holds the lock"), "{}", second.why());
    let tried = second.ask("take", &["--try"]).exits(75);
    assert!(tried.contains("m1 holds the lock"), "{tried}");
    let waiting = std::thread::spawn({
        let view = second.view.clone();
        move || run(latchfs().args(["guard", "take"]).arg(view)).ok()
    });
    crate::harness::eventually("the wish of m2", || {
        status(&first)["wanted_by"].as_str().filter(|client| *client == "m2").map(drop)
    });
    first.ask("give", &[]).ok();
    assert!(waiting.join().expect("no panic").contains("holding"));
    fs::write(second.path("a"), "two").expect("m2 holds the lock");
    assert_eq!(fs::read_to_string(scratch.folder().join("a")).expect("there"), "two");
}
