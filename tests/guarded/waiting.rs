//! Waits for the lock of a folder that outlive the session of the guard.

use crate::arriving::state;
use crate::harness::{Guard, Scratch, Server, eventually, latchfs, no_other_stops, pause};
use crate::support::run;
use std::fs;
use std::time::Duration;

/// The server is stopped for longer than the session of the guard lasts. Neither a person nor a
/// program that waits for the lock hears of that.
#[test]
fn a_wait_goes_on_when_the_session_is_lost() {
    let _alone = no_other_stops();
    let scratch = Scratch::new();
    let server = Server::start(&scratch);
    fs::write(scratch.folder().join("a"), "before").expect("made");
    scratch.init(&["--server", &server.url, "--client", "m1"]);
    let options = ["--client", "m1", "--ttl", "2s", "--on-write", "wait=50s"];
    let guard = Guard::start(&scratch, "view", &options);
    let lock = guard.status()["lock"].as_str().expect("a name").to_owned();
    let other = |arguments: &[&str]| {
        let mut other = latchfs();
        other.args([arguments[0], "--server", &server.url, "--client", "m2", &lock]);
        run(other.args(&arguments[1..])).ok()
    };
    other(&["acquire", "--ttl", "1h"]);
    let taking = crate::arriving::begin_take(&guard);
    let path = guard.path("a");
    let writing = std::thread::spawn(move || fs::write(path, "waited"));
    eventually("both waits", || (guard.status()["waiting"] == 2).then_some(()));
    eventually("a place in the queue", || guard.status()["holder"].as_str().map(drop));
    server.signal(libc::SIGSTOP);
    pause(Duration::from_secs(5));
    server.signal(libc::SIGCONT);
    pause(Duration::from_secs(3));
    assert_eq!(guard.status()["waiting"], 2, "{}", guard.status());
    other(&["release"]);
    let taken = taking.join().expect("no panic");
    assert!(taken.contains("holding"), "{taken}");
    writing.join().expect("no panic").expect("held");
    assert_eq!(state(&guard), "holding");
}
