//! Waiting in line while a request is open.

use crate::harness::{Scratch, Server, eventually};
use latchfs::time::{Span, boot_now};

/// By then the session of a server that is gone is over, on a loaded machine as well.
const SESSION_OVER: Span = Span::from_secs(8);

#[test]
fn first_come_first_served() {
    let server = Server::start(&[]);
    server.curl(&["-X", "POST", "/locks/build?client=a"]).is(200);
    let mut line = Vec::new();
    for (place, client) in ["b", "c", "d"].into_iter().enumerate() {
        let path = format!("/locks/build?client={client}&wait=60s");
        line.push((client, server.open(&["-X", "POST", &path])));
        server.in_line("build", place + 1);
    }
    let mut last = 0;
    let mut before = "a";
    for (client, open) in line {
        server.curl(&["-X", "DELETE", &format!("/locks/build?client={before}")]).is(200);
        let granted = open.reply().is(200);
        assert_eq!(granted["holder"], client);
        let token = granted["token"].as_u64().expect("a token");
        assert!(token > last);
        (last, before) = (token, client);
    }
}

#[test]
fn over_http_2_too() {
    let server = Server::start(&[]);
    server.curl(&["-X", "POST", "/locks/build?client=a"]).is(200);
    let path = "/locks/build?client=b&wait=60s";
    let open = server.open(&["--http2-prior-knowledge", "-X", "POST", path]);
    let gone =
        server.open(&["--http2-prior-knowledge", "-X", "POST", "/locks/build?client=c&wait=60s"]);
    server.in_line("build", 2);
    gone.cut();
    server.in_line("build", 1);
    server.curl(&["-X", "DELETE", "/locks/build?client=a"]).is(200);
    assert_eq!(open.reply().is(200)["holder"], "b");
}

#[test]
fn a_closed_connection_loses_its_place() {
    let server = Server::start(&[]);
    server.curl(&["-X", "POST", "/locks/build?client=a"]).is(200);
    let gone = server.open(&["-X", "POST", "/locks/build?client=b&wait=60s"]);
    server.in_line("build", 1);
    let next = server.open(&["-X", "POST", "/locks/build?client=c&wait=60s"]);
    server.in_line("build", 2);
    let mut events = server.events(&["/events"]);
    gone.cut();
    let left = events.until("left");
    assert_eq!(
        (left.data["client"].as_str(), left.data["why"].as_str()),
        (Some("b"), Some("gone"))
    );
    server.curl(&["-X", "DELETE", "/locks/build?client=a"]).is(200);
    assert_eq!(next.reply().is(200)["holder"], "c");
}

#[test]
fn a_wait_that_is_over_says_who_has_it() {
    let server = Server::start(&[]);
    server.curl(&["-X", "POST", "/locks/build?client=a"]).is(200);
    let refused = server.curl(&["-X", "POST", "/locks/build?client=b&wait=1s"]).is(409);
    assert_eq!(refused["reason"], "waited_in_vain");
    assert_eq!(refused["holder"], "a");
    server.in_line("build", 0);
    // No wait at all is a refusal like any.
    let refused = server.curl(&["-X", "POST", "/locks/build?client=b&wait=0s"]).is(409);
    assert_eq!(refused["holder"], "a");
    server.curl(&["-X", "POST", "/locks/build?client=b&wait=25h"]).is(400);
}

/// Two reentrant requests of one client are one place, and both have the lock.
#[test]
fn the_reentrant_requests_of_a_client_stand_in_line_once() {
    let server = Server::start(&[]);
    server.curl(&["-X", "POST", "/locks/build?client=a"]).is(200);
    let path = "/locks/build?client=b&wait=60s&reentrant=1";
    let (one, two) = (server.open(&["-X", "POST", path]), server.open(&["-X", "POST", path]));
    server.in_line("build", 1);
    eventually("both wait", || {
        let metrics = server.curl(&["/metrics"]).body;
        metrics.contains("latchfs_http_waiting 2").then_some(())
    });
    one.cut();
    eventually("one waits", || {
        let metrics = server.curl(&["/metrics"]).body;
        metrics.contains("latchfs_http_waiting 1").then_some(())
    });
    server.in_line("build", 1);
    server.curl(&["-X", "DELETE", "/locks/build?client=a"]).is(200);
    assert_eq!(two.reply().is(200)["holder"], "b");
}

const KEY: &str = "Idempotency-Key: nightly-7";

/// The key names the place in the queue and later the grant, whatever becomes of connections.
#[test]
fn a_request_with_a_key_keeps_its_place_and_its_grant() {
    let server = Server::start(&[]);
    server.curl(&["-X", "POST", "/locks/build?client=a"]).is(200);
    let wait = ["-X", "POST", "-H", KEY, "/locks/build?client=b&wait=60s"];
    let lost = server.open(&wait);
    server.in_line("build", 1);
    let behind = server.open(&["-X", "POST", "/locks/build?client=c&wait=60s"]);
    server.in_line("build", 2);
    lost.cut();
    // Two at once, as a client that has given a first try up for lost.
    let (one, two) = (server.open(&wait), server.open(&wait));
    eventually("three wait", || {
        let metrics = server.curl(&["/metrics"]).body;
        metrics.contains("latchfs_http_waiting 3").then_some(())
    });
    server.in_line("build", 2);
    server.curl(&["-X", "DELETE", "/locks/build?client=a"]).is(200);
    let (one, two) = (one.reply().is(200), two.reply().is(200));
    assert_eq!((&one["holder"], &one["token"]), (&"b".into(), &two["token"]));
    let again = server.curl(&wait);
    assert_eq!(again.header("idempotent-replayed"), Some("true"));
    assert_eq!(again.is(200)["token"], one["token"]);
    // Another request under the key is refused, not answered with the grant.
    let other = ["-X", "POST", "-H", KEY, "/locks/other?client=b&wait=60s"];
    server.curl(&other).is(422);
    server
        .curl(&["-X", "DELETE", &format!("/locks/build?client=b&token={}", one["token"])])
        .is(200);
    assert_eq!(behind.reply().is(200)["holder"], "c");
    // One effect: the tenure is over, and the key does not begin another.
    let again = server.curl(&wait).is(200);
    assert_eq!((&again["token"], &again["current"]["holder"]), (&one["token"], &"c".into()));
}

/// Granted while nobody was connected: the repeat is told, and the lock is held once.
#[test]
fn a_grant_that_nobody_heard_of_is_told_to_the_repeat() {
    let server = Server::start(&[]);
    server.curl(&["-X", "POST", "/locks/build?client=a"]).is(200);
    let wait = ["-X", "POST", "-H", KEY, "/locks/build?client=b&wait=60s&ttl=60s"];
    let lost = server.open(&wait);
    server.in_line("build", 1);
    lost.cut();
    eventually("nobody waits over HTTP", || {
        let metrics = server.curl(&["/metrics"]).body;
        metrics.contains("latchfs_http_waiting 0").then_some(())
    });
    let mut events = server.events(&["/events"]);
    server.curl(&["-X", "DELETE", "/locks/build?client=a"]).is(200);
    let granted = events.until("granted");
    let told = server.curl(&wait).is(200);
    assert_eq!(told["token"], granted.data["token"]);
    assert_eq!(server.curl(&["/locks/build"]).is(200)["token"], told["token"]);
}

/// A place that nobody asks for any more is left, and a late repeat says so.
#[test]
fn the_place_of_a_key_that_is_not_repeated_is_left() {
    let server = Server::start(&[]);
    server.curl(&["-X", "POST", "/locks/build?client=a"]).is(200);
    let wait = ["-X", "POST", "-H", KEY, "/locks/build?client=b&wait=2s"];
    let lost = server.open(&wait);
    server.in_line("build", 1);
    let mut events = server.events(&["/events"]);
    lost.cut();
    let left = events.until("left");
    assert_eq!(left.data["client"], "b");
    let late = server.curl(&wait).is(410);
    assert!(late["detail"].as_str().is_some_and(|why| why.contains("new request key")), "{late}");
    server.in_line("build", 0);
    // A client that waited in vain is told which client has the lock.
    let other = ["-X", "POST", "-H", "Idempotency-Key: other", "/locks/build?client=b&wait=1s"];
    assert_eq!(server.curl(&other).is(409)["reason"], "waited_in_vain");
}

/// Many wait, some go, the rest is served in order and nobody twice.
#[test]
fn a_long_line_with_gaps() {
    let server = Server::start(&[]);
    server.curl(&["-X", "POST", "/locks/build?client=first"]).is(200);
    let mut line = Vec::new();
    for number in 0..40 {
        let path = format!("/locks/build?client=c{number:02}&wait=60s");
        line.push(server.open(&["-X", "POST", &path]));
        server.in_line("build", number + 1);
    }
    let mut stay = Vec::new();
    for (number, open) in line.into_iter().enumerate() {
        if number % 3 == 0 { open.cut() } else { stay.push((number, open)) }
    }
    server.in_line("build", stay.len());
    let mut before = "first".to_owned();
    for (number, open) in stay {
        server.curl(&["-X", "DELETE", &format!("/locks/build?client={before}")]).is(200);
        before = format!("c{number:02}");
        assert_eq!(open.reply().is(200)["holder"], before);
    }
}

/// Waiters of a server that was killed leave the queue with the session of that server, and cost
/// the clients behind them none of their ttls.
#[test]
fn waiters_of_a_killed_server_leave_the_queue() {
    const WAITERS: usize = 5;
    let scratch = Scratch::new();
    let dir = scratch.path().join("kept").display().to_string();
    let options = [if crate::DURABLE { "--data" } else { "--state" }, dir.as_str()];
    let mut server = Server::listen(&options);
    server.curl(&["-X", "POST", "/locks/build?client=a&ttl=10m"]).is(200);
    let dead: Vec<_> = (0..WAITERS)
        .map(|number| {
            let path = format!("/locks/build?client=dead{number}&wait=10m&ttl=10m");
            let open = server.open(&["-X", "POST", &path]);
            server.in_line("build", number + 1);
            open
        })
        .collect();
    server.signal(libc::SIGKILL);
    server.wait();
    dead.into_iter().for_each(crate::harness::Open::cut);
    let server = Server::listen(&options);
    server.in_line("build", WAITERS);
    let began = boot_now();
    let live = server.open(&["-X", "POST", "/locks/build?client=live&wait=60s"]);
    server.in_line("build", WAITERS + 1);
    server.in_line("build", 1);
    let took = boot_now().since(began);
    assert!(took < SESSION_OVER, "{took}");
    server.curl(&["-X", "DELETE", "/locks/build?client=a"]).is(200);
    assert_eq!(live.reply().is(200)["holder"], "live");
}

/// A server that was stopped for longer than its session lasts has its waiters queue anew.
#[test]
fn waiters_of_a_server_that_was_stopped_queue_anew() {
    let server = Server::start(&[]);
    server.curl(&["-X", "POST", "/locks/build?client=a&ttl=10m"]).is(200);
    let waiter = server.open(&["-X", "POST", "/locks/build?client=b&wait=60s"]);
    server.in_line("build", 1);
    let mut events = server.events(&["/events"]);
    server.signal(libc::SIGSTOP);
    let stopped = boot_now();
    eventually("time", || (boot_now().since(stopped) > SESSION_OVER).then_some(()));
    server.signal(libc::SIGCONT);
    // Of a durable node that was stopped, time may have stood still meanwhile.
    if !crate::DURABLE {
        assert_eq!(events.until("left").data["why"], "session_over");
    }
    server.in_line("build", 1);
    server.curl(&["-X", "DELETE", "/locks/build?client=a"]).is(200);
    assert_eq!(waiter.reply().is(200)["holder"], "b");
}
