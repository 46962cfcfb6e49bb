//! A durable server on a disk that is full, fails, or is read-only: the server stops with an error
//! message, and after a restart all acknowledged changes are there.

use crate::durable::shim::Shim;
use std::fs;
use std::path::Path;
use testing::{HttpConnection, Scratch, Server, SmallDisk, latchfs, run_latchfs};

/// The exit code of a server that stops because its storage has failed.
const UNAVAILABLE: Option<i32> = Some(69);

fn start(data: &Path) -> Server {
    Server::listen(&["--data", &data.display().to_string()])
}

/// Acquires locks until one is refused or the server gives no answer. Returns the number of granted
/// locks, and the last answer.
fn take_until_refused(server: &Server, note: &str) -> (u64, Option<(u16, serde_json::Value)>) {
    let mut talk = HttpConnection::to(&server.url).expect("it listens");
    for number in 0..100_000 {
        let path = format!("/locks/lock{number}?client=a&ttl=1h&note={note}");
        match talk.request("POST", &path) {
            Some((200, body)) => assert_eq!(body["token"], number + 1, "{body}"),
            other => return (number, other),
        }
    }
    panic!("it never ended");
}

/// Fails unless the first `count` locks are held.
#[track_caller]
fn all_are_there(server: &Server, count: u64) {
    let mut talk = HttpConnection::to(&server.url).expect("it listens");
    for number in 0..count {
        let (_, body) = talk.request("GET", &format!("/locks/lock{number}")).expect("it answers");
        assert_eq!(body["token"], number + 1, "{body}");
    }
}

#[test]
fn a_full_disk_stops_the_node() {
    let scratch = Scratch::new();
    let disk = SmallDisk::new(scratch.join("disk"), "size=400k");
    let data = disk.path().join("data");
    let mut server = start(&data);
    let (granted, answer) = take_until_refused(&server, &"n".repeat(500));
    assert!(granted > 100, "{granted}");
    if let Some((code, body)) = answer {
        assert_eq!((code, &body["kind"]), (503, &"E_CONSISTENCY_UNAVAILABLE".into()), "{body}");
    }
    assert_eq!(server.wait(), UNAVAILABLE);
    let log = server.log();
    assert!(log.contains("the log can't be written: no space left on device"), "{log}");
    assert!(log.contains("mend the disk or make room, and start it again"), "{log}");
    // While the disk is full, a start of the server fails with an error message, and loses nothing.
    let said =
        run_latchfs(&["serve", "--listen", "127.0.0.1:0", "--data", &data.display().to_string()]);
    assert_eq!(said.0, UNAVAILABLE, "{}", said.1);
    assert!(said.1.contains("no space left on device"), "{}", said.1);
    disk.remount("size=4m");
    all_are_there(&start(&data), granted);
}

#[test]
fn a_mount_whose_disk_is_full_is_unmounted() {
    let scratch = Scratch::new();
    let disk = SmallDisk::new(scratch.join("disk"), "size=300k");
    let (dir, data) = (scratch.path().join("locks"), disk.path().join("data"));
    let mut command = latchfs();
    let socket = format!("unix:{}", scratch.path().join("http.sock").display());
    command.arg("mount").arg(&dir).args(["--listen", &socket, "--client", "box", "--data"]);
    let mut server = Server::spawn(command.arg(&data), Scratch::new());
    fs::create_dir(dir.join("build")).expect("it is mounted, and the lock is free");
    let names = (0..100_000).map(|number| dir.join(format!("{}{number}", "n".repeat(200))));
    let granted = names.take_while(|name| fs::create_dir(name).is_ok()).count();
    assert!((51..100_000).contains(&granted), "{granted}");
    assert_eq!(server.wait(), UNAVAILABLE);
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("proc is mounted");
    assert!(!mounts.contains(&format!(" {} ", dir.display())), "{mounts}");
    disk.remount("size=4m");
    let server = start(&data);
    let mut talk = HttpConnection::to(&server.url).expect("it listens");
    let (_, body) = talk.request("GET", "/locks/build").expect("it answers");
    assert_eq!((&body["token"], &body["holder"]), (&1.into(), &"box:root".into()), "{body}");
}

#[test]
fn a_failed_sync_is_not_retried() {
    let scratch = Scratch::new();
    let data = scratch.path().join("data");
    let shim = Shim::new(&scratch, scratch.path());
    let mut server = shim.serve(&data);
    let mut talk = HttpConnection::to(&server.url).expect("it listens");
    for number in 0..20 {
        let path = format!("/locks/lock{number}?client=a&ttl=1h");
        assert_eq!(talk.request("POST", &path).expect("it answers").1["token"], number + 1);
    }
    fs::write(&shim.fail, "").expect("there is room");
    // When its disk fails, the server either answers 503 or exits before it answers.
    if let Some((code, body)) = talk.request("POST", "/locks/other?client=a&ttl=1h") {
        assert_eq!((code, &body["kind"]), (503, &"E_CONSISTENCY_UNAVAILABLE".into()), "{body}");
        assert!(body.to_string().contains("the outcome is unknown"), "{body}");
    }
    assert_eq!(server.wait(), UNAVAILABLE);
    assert!(server.log().contains("the log can't be written"), "{}", server.log());
    assert_eq!(fs::read_to_string(&shim.fail).expect("it is there"), "!", "one sync, not more");
    fs::remove_file(&shim.fail).expect("it is there");
    all_are_there(&start(&data), 20);
}

#[test]
fn a_read_only_data_directory_is_reported() {
    let scratch = Scratch::new();
    let disk = SmallDisk::new(scratch.join("disk"), "size=1m");
    let data = disk.path().join("data");
    let mut server = start(&data);
    server.signal(libc::SIGTERM);
    assert_eq!(server.wait(), Some(0));
    disk.remount("ro");
    for data in [data, disk.path().join("new")] {
        let data = data.display().to_string();
        let (code, said) = run_latchfs(&["serve", "--listen", "127.0.0.1:0", "--data", &data]);
        assert_eq!(code, UNAVAILABLE, "{said}");
        assert!(said.contains("read-only file system"), "{said}");
        assert!(said.contains("name another data directory with --data DIR"), "{said}");
    }
}

#[test]
fn two_servers_do_not_share_a_directory() {
    let scratch = Scratch::new();
    let data = scratch.path().join("data");
    let server = start(&data);
    let data = data.display().to_string();
    let (code, said) = run_latchfs(&["serve", "--listen", "127.0.0.1:0", "--data", &data]);
    assert_eq!(code, UNAVAILABLE, "{said}");
    assert!(said.contains(&format!("is in use by process {}", server.pid())), "{said}");
    let (code, said) = run_latchfs(&["serve", "--data", &data, "--state", "none"]);
    assert_eq!(code, Some(64), "{said}");
}
