//! The requests of the line protocol and their replies.

use std::sync::Barrier;
use std::thread;
use testing::{LineConnection, Lines, eventually};

#[test]
fn replies_of_the_original_protocol() {
    let lines = Lines::start(&[]);
    for (line, word) in [
        ("OWN,build,a", "NONE"),
        ("LOCK,build,a", "SUCCESS"),
        ("OWN,build,b", "a"),
        ("LOCK,build,b", "FAIL"),
        // LOCK is not reentrant: it fails for every lock that is held, even if the client of the
        // request is the holder.
        ("LOCK,build,a", "FAIL"),
        ("UNLOCK,build,b", "FAIL"),
        ("OWN,build,b", "a"),
        ("UNLOCK,build,a", "SUCCESS"),
        ("UNLOCK,build,a", "FAIL"),
        ("OWN,build,a", "NONE"),
        ("LOCK,team/build,laptop1:alice,1m", "SUCCESS"),
        ("OWN,team/build,x", "laptop1:alice"),
        ("RENEW,team/build,laptop1:alice", "SUCCESS"),
        ("RENEW,team/build,laptop1:alice,2h", "SUCCESS"),
        ("RENEW,team/build,x", "FAIL"),
        ("RENEW,other,x", "FAIL"),
        ("LOCK", "INVALID_FORMAT"),
        ("LOCK,a", "INVALID_FORMAT"),
        ("LOCK,,a", "INVALID_FORMAT"),
        ("LOCK,a,b,forever", "INVALID_FORMAT"),
        ("OWN,a,b,c", "INVALID_FORMAT"),
        ("REGISTER,somewhere", "INVALID_FORMAT"),
        ("", "INVALID_FORMAT"),
        ("STEAL,a,b", "INVALID_COMMAND"),
        ("lock,a,b", "INVALID_COMMAND"),
    ] {
        assert_eq!(lines.request(line), word, "{line}");
    }
    let status = lines.server.curl(&["/locks/team/build"]).is(200);
    assert_eq!(
        (&status["holder"], &status["ttl_ms"]),
        (&"laptop1:alice".into(), &7_200_000.into())
    );
}

#[test]
fn many_lines_on_one_connection_are_answered_in_order() {
    let lines = Lines::start(&[]);
    let mut talk = lines.connect();
    talk.send(b"LOCK,a,x\nOWN,a,y\r\nFOO,1,2\nUNLOCK,a,x\nOWN,a,y\nLOCK,cut,x");
    talk.finish();
    let words: Vec<_> = std::iter::from_fn(|| talk.word()).collect();
    let all = ["SUCCESS", "x", "INVALID_COMMAND", "SUCCESS", "NONE", "SUCCESS"];
    assert_eq!(words, all, "the last line needs no end");
    assert_eq!(lines.request("OWN,cut,y"), "x");
}

#[test]
fn one_of_64_clients_gets_each_lock() {
    const CLIENTS: usize = 64;
    const LOCKS: usize = 20;
    let lines = Lines::start(&[]);
    let start = Barrier::new(CLIENTS);
    let won: Vec<Vec<bool>> = thread::scope(|scope| {
        let client = |number: usize| {
            let (lines, start) = (&lines, &start);
            move || {
                let mut talk = lines.connect();
                start.wait();
                let ask = |lock: usize| talk.request(&format!("LOCK,lock{lock},client{number}"));
                (0..LOCKS).map(ask).map(|word| word == "SUCCESS").collect()
            }
        };
        let clients: Vec<_> = (0..CLIENTS).map(|number| scope.spawn(client(number))).collect();
        clients.into_iter().map(|client| client.join().expect("no failure")).collect()
    });
    for lock in 0..LOCKS {
        let wins = |client: &usize| won[*client].get(lock) == Some(&true);
        let winners: Vec<_> = (0..CLIENTS).filter(wins).collect();
        let [winner] = winners[..] else { panic!("lock{lock} has {} owners", winners.len()) };
        assert_eq!(lines.request(&format!("OWN,lock{lock},x")), format!("client{winner}"));
    }
}

/// Locks that were acquired over HTTP are visible over the line protocol, and vice versa.
#[test]
fn locks_are_shared_with_http() {
    let lines = Lines::start(&[]);
    lines.server.curl(&["-X", "POST", "/locks/build?client=web"]).is(200);
    assert_eq!(lines.request("OWN,build,x"), "web");
    assert_eq!(lines.request("LOCK,build,x"), "FAIL");
    assert_eq!(lines.request("UNLOCK,build,web"), "SUCCESS");
    assert_eq!(lines.request("LOCK,build,x"), "SUCCESS");
    lines.server.curl(&["-X", "POST", "/locks/build?client=web"]).is(409);
}

#[test]
fn lock_expires_and_grace_reserves_it_for_its_owner() {
    let lines = Lines::start(&["--grace", "1h"]);
    assert_eq!(lines.request("LOCK,build,a,1s"), "SUCCESS");
    eventually("grace", || {
        let status = lines.server.curl(&["/locks/build"]).json();
        (status["phase"] == "grace").then_some(())
    });
    assert_eq!(lines.request("LOCK,build,b"), "FAIL");
    assert_eq!(lines.request("OWN,build,b"), "a", "nobody else may take it");
    assert_eq!(lines.request("RENEW,build,a,1h"), "SUCCESS", "its owner may come back");
    let lines = Lines::start(&["--grace", "0s"]);
    assert_eq!(lines.request("LOCK,build,a,1s"), "SUCCESS");
    eventually("the end", || (lines.request("OWN,build,b") == "NONE").then_some(()));
    assert_eq!(lines.request("UNLOCK,build,a"), "FAIL");
    assert_eq!(lines.request("LOCK,build,b"), "SUCCESS");
}

#[test]
fn draining_server_only_releases_locks() {
    let mut lines = Lines::start(&[]);
    let mut talk = lines.connect();
    assert_eq!(talk.request("LOCK,build,a"), "SUCCESS");
    // A server that is asked to exit waits a moment for open event streams. This event stream makes
    // it wait, so that the line protocol's port still accepts requests during the shutdown.
    let mut events = lines.server.events(&["/events"]);
    lines.server.signal(libc::SIGTERM);
    events.until("closing");
    assert_eq!(talk.request("LOCK,other,a"), "ERROR");
    assert_eq!(talk.request("UNLOCK,build,a"), "SUCCESS");
    assert_eq!(talk.word(), None, "then the connection ends");
    assert_eq!(lines.server.wait(), Some(0));
}

#[test]
fn idle_connections_do_not_delay_the_shutdown() {
    let mut lines = Lines::start(&[]);
    let idle: Vec<LineConnection> = (0..10).map(|_| lines.connect()).collect();
    // Besides the idle connections there is one that has sent half a line. It must not delay the
    // shutdown.
    let mut half = lines.connect();
    half.send(b"LOCK,bui");
    eventually("all are there", || (lines.metric("latchfs_line_connections")? == 11).then_some(()));
    lines.server.signal(libc::SIGTERM);
    assert_eq!(lines.server.wait(), Some(0));
    for mut talk in idle {
        assert_eq!(talk.word(), None);
    }
    assert_eq!(half.word(), None);
}
