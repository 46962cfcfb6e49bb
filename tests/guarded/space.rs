//! The space that unpublished and lost content may take, and changes that never ask another machine
//! for the lock.
use serde_json::Value;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt as _;
use std::process::Command;
use testing::{Guard, Scratch, Server, shell, soon};

fn status(guard: &Guard) -> Value {
    serde_json::from_str(&guard.request("status", &["--json"]).ok()).expect("JSON")
}

/// Returns the bytes of unpublished content and of lost files.
fn used(guard: &Guard) -> (u64, u64) {
    let status = status(guard);
    let bytes = |name: &str| status[name].as_u64().expect("a number");
    (bytes("staged_bytes"), bytes("lost_bytes"))
}

#[track_caller]
fn is_full<T: std::fmt::Debug>(result: io::Result<T>) {
    assert_eq!(result.expect_err("there is no space").raw_os_error(), Some(libc::ENOSPC));
}

#[test]
fn unpublished_content_has_a_bound() {
    let scratch = Scratch::with_folder();
    scratch.init(&["--alone"]);
    let guard = Guard::start(&scratch, "view", &["--max-stage", "40K"]);
    let path = guard.path("a");
    let file = File::create(&path).expect("free");
    file.write_all_at(&vec![1; 24 << 10], 0).expect("there is space");
    file.write_all_at(&[1; 4 << 10], 4 << 10).expect("nothing is added");
    assert_eq!(used(&guard), (24 << 10, 0));
    file.set_len(8 << 10).expect("shorter");
    assert_eq!(used(&guard), (8 << 10, 0));
    let other = File::create(guard.path("b")).expect("free");
    other.write_all_at(&vec![2; 32 << 10], 0).expect("exactly full");
    assert_eq!(used(&guard), (40 << 10, 0));
    is_full(file.write_all_at(b"x", 8 << 10));
    assert!(guard.why().contains("--max-stage"), "{}", guard.why());
    is_full(fs::write(guard.path("c"), "x"));
    // Files that are there can be read, published and removed.
    assert_eq!(fs::read(guard.path("b")).expect("readable").len(), 32 << 10);
    other.sync_all().expect("published");
    // A child that inherits the spoiled file closes it: it is put aside.
    assert_eq!(used(&guard), (0, 8 << 10));
    fs::remove_file(guard.path("b")).expect("removed");
    drop(file);
    assert_eq!(used(&guard), (0, 8 << 10), "a file that is not whole is put aside");
    assert!(!scratch.folder().join("a").exists());
    let script = "fallocate -l 4096 d; cp d e; truncate -s 8G f; rm d e f; echo 1 > g; echo 2 > g";
    shell(&guard.view, script).ok();
    assert_eq!(used(&guard).0, 0);
    let removed = File::create(guard.path("h")).expect("free");
    removed.write_all_at(&vec![1; 40 << 10], 0).expect("exactly full");
    fs::remove_file(guard.path("h")).expect("removed");
    drop(removed);
    soon("the space is free", || (used(&guard).0 == 0).then_some(()));
}

#[test]
fn lost_files_have_a_bound_and_are_never_dropped() {
    let scratch = Scratch::with_folder();
    scratch.init(&["--alone"]);
    let guard = Guard::start(&scratch, "view", &["--max-lost", "32K"]);
    fs::write(guard.path("old"), "old").expect("free");
    let lose = |bytes: usize| {
        let mut file = File::create(guard.path("lost")).expect("there is space");
        file.write_all(&vec![b'x'; bytes]).expect("there is space");
        guard.request("give", &[]).ok();
        drop(file);
    };
    lose(20 << 10);
    let mut file = File::create(guard.path("more")).expect("there is space");
    is_full(file.write_all(&[1; (12 << 10) + 1]));
    drop(file);
    guard.request("lost", &["--drop", "2"]).ok();
    lose(12 << 10);
    assert_eq!(used(&guard), (0, 32 << 10));
    is_full(fs::write(guard.path("old"), "new"));
    is_full(File::options().append(true).open(guard.path("old")));
    is_full(fs::write(guard.path("new"), "new"));
    assert!(guard.why().contains("latchfs guard lost"), "{}", guard.why());
    assert_eq!(fs::read(guard.path("old")).expect("readable"), b"old");
    let kept = guard.request("lost", &["--json"]).ok();
    assert_eq!(kept.matches("\"number\"").count(), 2, "{kept}");
    shell(&guard.view, "mkdir d; mv old d/; chmod 600 d/old; rm d/old; rmdir d").ok();
    guard.request("lost", &["--drop", "1"]).ok();
    fs::write(guard.path("new"), "new").expect("there is space again");
    guard.end();
    let guard = Guard::start(&scratch, "view", &["--max-lost", "12K"]);
    assert_eq!(used(&guard), (0, 12 << 10), "the lost files of an earlier guard count");
    is_full(fs::write(guard.path("new"), "newer"));
}

#[test]
fn a_change_that_never_asks_takes_a_free_lock_alone() {
    let scratch = Scratch::with_folder();
    let server = Server::of(&scratch);
    scratch.init(&["--server", &server.url, "--shared-storage"]);
    fs::create_dir(scratch.folder().join(".git")).expect("made");
    fs::write(scratch.folder().join(".git/index.lock"), "").expect("written");
    let options =
        |client| ["--client", client, "--shared-storage", "--ttl", "1h", "--on-write", "wait=30m"];
    let first = Guard::start(&scratch, "one", &options("m1"));
    let second = Guard::start(&scratch, "two", &options("m2"));
    first.request("take", &[]).ok();
    let refused = fs::write(second.path(".git/index.lock"), "x").expect_err("it never asks");
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    assert!(second.why().contains("m1 holds the lock"), "{}", second.why());
    assert_eq!(status(&first)["wanted_by"], Value::Null);
    fs::write(scratch.folder().join("other"), "").expect("written");
    let mut waiting = Command::new("sh");
    waiting.args(["-c", "echo x > other"]).current_dir(&second.view);
    let mut waiting = waiting.spawn().expect("it starts");
    soon("the other change asks", || (status(&first)["wanted_by"] == "m2").then_some(()));
    let refused = fs::write(second.path(".git/index.lock"), "x").expect_err("it never waits");
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    assert!(waiting.try_wait().expect("a child").is_none(), "the other change still waits");
    first.request("give", &[]).ok();
    assert!(waiting.wait().expect("it ends").success());
    second.request("give", &[]).ok();
    fs::write(first.path(".git/index.lock"), "x").expect("the lock is free");
    assert_eq!(status(&first)["state"], "holding");
}
