//! Lost tenures: a guard that is stopped past its lease, or killed, changes nothing any more.
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use testing::{Guard, Scratch, Server, close, no_other_stops, soon};

#[track_caller]
fn is_stale<T: std::fmt::Debug>(result: io::Result<T>) {
    assert_eq!(result.expect_err("the tenure is over").raw_os_error(), Some(libc::ESTALE));
}

#[test]
fn a_guard_that_was_stopped_past_its_lease_harms_nothing() {
    let _stops = no_other_stops();
    let scratch = Scratch::with_folder();
    let server = Server::of(&scratch);
    scratch.init(&["--server", &server.url, "--shared-storage"]);
    let options = |client| ["--client", client, "--shared-storage", "--ttl", "2s"];
    let first = Guard::start(&scratch, "one", &options("m1"));
    let second = Guard::start(&scratch, "two", &options("m2"));
    let real = |name: &str| scratch.folder().join(name);
    for round in 0..testing::rounds(2, 50) {
        first.request("take", &[]).ok();
        fs::write(first.path("whole"), "before").expect("held");
        fs::write(first.path("log.log"), "start\n").expect("held");
        let mut saved = File::create(first.path("whole")).expect("held");
        saved.write_all(b"half of m1").expect("held");
        let appended = File::options().append(true).open(first.path("log.log")).expect("held");
        (&appended).write_all(b"m1\n").expect("held");
        first.signal(libc::SIGSTOP);
        second.take_here();
        fs::write(second.path("whole"), format!("m2 {round}")).expect("held");
        first.signal(libc::SIGCONT);
        is_stale(saved.write_all(b", the rest"));
        is_stale(saved.sync_all());
        is_stale(close(saved));
        is_stale(appended.write_at(b"late", 0));
        is_stale(appended.sync_all());
        assert_eq!(fs::read_to_string(real("whole")).expect("there"), format!("m2 {round}"));
        assert_eq!(fs::read_to_string(real("log.log")).expect("there"), "start\nm1\n");
        let lost = soon("the half is kept", || {
            let lost = first.request("lost", &["--json"]).ok();
            (lost.matches("\"whole\"").count() == round + 1).then_some(lost)
        });
        assert!(lost.contains("the lock was lost"), "{lost}");
        second.request("give", &[]).ok();
    }
}

#[test]
fn a_guard_without_its_server_stops_changes_before_the_lease_ends() {
    let scratch = Scratch::with_folder();
    let server = Server::of(&scratch);
    scratch.init(&["--server", &server.url]);
    let guard = Guard::start(&scratch, "view", &["--ttl", "2s"]);
    let mut file = File::create(guard.path("a")).expect("the lock is free");
    file.write_all(b"x").expect("held");
    server.signal(libc::SIGSTOP);
    soon("the end of the tenure", || file.write_all(b"x").err());
    is_stale(close(file));
    let refused = fs::write(guard.path("b"), "y").expect_err("the lock can't be had");
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    server.signal(libc::SIGCONT);
    soon("a new tenure", || fs::write(guard.path("b"), "y").ok());
    assert!(!scratch.folder().join("a").exists());
    assert!(guard.request("lost", &[]).ok().contains(" a\n"));
}

#[test]
fn a_killed_guard_leaves_whole_versions() {
    let scratch = Scratch::with_folder();
    scratch.init(&["--alone"]);
    for round in 0..testing::rounds(3, 100) {
        let guard = Guard::start(&scratch, "view", &[]);
        let before = format!("version {round}").repeat(1_000);
        fs::write(guard.path("kept"), &before).expect("the lock is free");
        let mut half = File::create(guard.path("kept")).expect("held");
        half.write_all(b"half").expect("held");
        guard.kill();
        drop(half);
        let kept = fs::read_to_string(scratch.folder().join("kept")).expect("there");
        assert!(kept == before, "round {round}");
    }
    let guard = Guard::start(&scratch, "view", &[]);
    fs::write(guard.path("kept"), "after").expect("a new tenure");
    guard.end();
}

/// A lost file whose name is no UTF-8, and would change the colors of a terminal, gets that very
/// name back. Lists have a text for it that nothing can do harm with, and JSON also has the bytes.
#[test]
fn a_lost_file_whose_name_is_no_text_gets_its_name_back() {
    const NAME: &[u8] = b"caf\xe9\x1b[31m.txt";
    const BASE64: &str = "Y2Fm6RtbMzFtLnR4dA==";
    let scratch = Scratch::with_folder();
    scratch.init(&["--alone"]);
    let guard = Guard::start(&scratch, "view", &[]);
    for text in ["first", "second"] {
        let mut half = File::create(guard.view.join(OsStr::from_bytes(NAME))).expect("free");
        half.write_all(text.as_bytes()).expect("held");
        guard.request_here("{\"do\": \"give\"}");
        is_stale(half.write_all(b", the rest"));
    }
    let listed = guard.request("lost", &[]).ok();
    assert!(listed.contains("caf\u{fffd} [31m.txt\n") && !listed.contains('\x1b'), "{listed:?}");
    let listed: serde_json::Value =
        serde_json::from_str(&guard.request("lost", &["--json"]).ok()).expect("JSON");
    for file in listed["lost"].as_array().expect("an array") {
        assert_eq!(file["path"], "caf\u{fffd}\u{1b}[31m.txt");
        assert_eq!(file["path_bytes"], BASE64);
    }
    let beside = b"caf\xe9\x1b[31m (restored 2).txt";
    for (number, name, text) in [("1", NAME, "first"), ("2", beside, "second")] {
        let said = guard.request("lost", &["--restore", number]).ok();
        assert!(said.starts_with("latchfs: restored as caf\u{fffd} [31m"), "{said:?}");
        let restored = scratch.folder().join(OsStr::from_bytes(name));
        assert_eq!(fs::read_to_string(restored).expect("its very name"), text);
    }
}
