//! Graceful shutdown of a server: no new grants, answers to waiters, exit code 0.

use testing::Server;

#[test]
fn waiters_and_event_streams_are_notified_of_the_shutdown() {
    let mut server = Server::start(&[]);
    server.curl(&["-X", "POST", "/locks/build?client=a"]).is(200);
    let waits = server.open(&["-X", "POST", "/locks/build?client=b&wait=60s"]);
    server.in_line("build", 1);
    let mut events = server.events(&["/events"]);
    server.signal(libc::SIGTERM);
    // At a shutdown the server first sends the event `closing` on each event stream, and then keeps
    // running for a moment.
    assert_eq!(events.until("closing").kind, "closing");
    let answer = waits.reply().is(503);
    assert_eq!(answer["kind"], "E_CONSISTENCY_UNAVAILABLE");
    assert!(events.try_event().is_none());
    assert_eq!(server.wait(), Some(0));
}

#[test]
fn draining_server_is_not_ready_and_grants_nothing() {
    let mut server = Server::start(&[]);
    server.curl(&["-X", "POST", "/locks/build?client=a"]).is(200);
    // A server with an open connection drains for a moment before it exits.
    let mut events = server.events(&["/events"]);
    server.signal(libc::SIGTERM);
    events.until("closing");
    assert_eq!(server.curl(&["/readyz"]).code, 503);
    assert_eq!(server.curl(&["-X", "POST", "/locks/other?client=a"]).code, 503);
    assert_eq!(server.curl(&["-X", "DELETE", "/locks/build?client=a"]).code, 200);
    assert_eq!(server.wait(), Some(0));
}

#[test]
fn held_lock_is_still_held_after_a_restart() {
    let scratch = testing::Scratch::new();
    let data = scratch.path().join("data").display().to_string();
    let mut server = Server::listen(&["--data", &data]);
    let held = server.curl(&["-X", "POST", "/locks/build?client=a&ttl=1h"]).is(200);
    server.signal(libc::SIGTERM);
    assert_eq!(server.wait(), Some(0));
    let server = Server::listen(&["--data", &data]);
    assert_eq!(server.curl(&["/locks/build"]).is(200)["token"], held["token"]);
    server.curl(&["-X", "POST", "/locks/build?client=b"]).is(409);
}
