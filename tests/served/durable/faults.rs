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

/// The locks that a server has granted, one token after the other.
#[derive(Default)]
struct GrantedLocks {
    first_token: u64,
    count: u64,
}

impl GrantedLocks {
    /// Acquires the next lock. Returns the answer of the server unless it is a grant.
    fn acquire(
        &mut self,
        talk: &mut HttpConnection,
        note: &str,
    ) -> Result<(), Option<(u16, serde_json::Value)>> {
        let path = format!("/locks/lock{}?client=a&ttl=1h&note={note}", self.count);
        match talk.request("POST", &path) {
            Some((200, body)) => {
                let token = body["token"].as_u64().expect("a token");
                if self.count == 0 {
                    self.first_token = token;
                }
                assert_eq!(token, self.first_token + self.count, "{body}");
                self.count += 1;
                Ok(())
            }
            other => Err(other),
        }
    }

    /// Fails unless all of them are held.
    #[track_caller]
    fn are_held(&self, server: &Server) {
        let mut talk = HttpConnection::to(&server.url).expect("it listens");
        for number in 0..self.count {
            let path = format!("/locks/lock{number}");
            let (_, body) = talk.request("GET", &path).expect("it answers");
            assert_eq!(body["token"], self.first_token + number, "{body}");
        }
    }
}

/// Acquires locks until one is refused or the server gives no answer. Returns the granted locks,
/// and the last answer.
fn take_until_refused(
    server: &Server,
    note: &str,
) -> (GrantedLocks, Option<(u16, serde_json::Value)>) {
    let mut talk = HttpConnection::to(&server.url).expect("it listens");
    let mut granted = GrantedLocks::default();
    for _ in 0..100_000 {
        if let Err(other) = granted.acquire(&mut talk, note) {
            return (granted, other);
        }
    }
    panic!("it never ended");
}

#[test]
fn a_full_disk_stops_the_node() {
    let scratch = Scratch::new();
    let disk = SmallDisk::new(scratch.join("disk"), "size=400k");
    let data = disk.path().join("data");
    let mut server = start(&data);
    let (granted, answer) = take_until_refused(&server, &"n".repeat(500));
    assert!(granted.count > 100, "{}", granted.count);
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
    granted.are_held(&start(&data));
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
    let status = fs::read(dir.join(".latchfs/status/build")).expect("it is mounted");
    let status: serde_json::Value = serde_json::from_slice(&status).expect("JSON");
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
    let holder = (&body["token"], &body["holder"]);
    assert_eq!(holder, (&status["token"], &"box:root".into()), "{body}");
}

#[test]
fn a_failed_sync_is_not_retried() {
    let scratch = Scratch::new();
    let data = scratch.path().join("data");
    let shim = Shim::new(&scratch, scratch.path());
    let mut server = shim.serve(&data);
    let mut talk = HttpConnection::to(&server.url).expect("it listens");
    let mut granted = GrantedLocks::default();
    for _ in 0..20 {
        granted.acquire(&mut talk, "").expect("it is free");
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
    granted.are_held(&start(&data));
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
    let (code, said) = run_latchfs(&["serve", "--data", &data, "--memory"]);
    assert_eq!(code, Some(64), "{said}");
}

/// A server whose disk was lost begins with an empty directory. It repeats no token of the lost
/// one, and a resource that knows those tokens still tells old holders from new ones.
#[test]
fn tokens_rise_when_the_directory_is_lost() {
    let scratch = Scratch::new();
    let data = scratch.path().join("data");
    let mut last = 1_700_000_000 << 20;
    for _ in 0..3 {
        let mut server = start(&data);
        let granted = server.curl(&["-X", "POST", "/locks/build?client=a&ttl=1h"]).is(200);
        let token = granted["token"].as_u64().expect("a token");
        assert!(last < token && token < 1 << 53, "{token} after {last}");
        last = token;
        server.signal(libc::SIGKILL);
        server.wait();
        fs::remove_dir_all(&data).expect("nobody uses it any more");
    }
}
