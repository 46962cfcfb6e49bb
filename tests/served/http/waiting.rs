//! HTTP requests that wait in the queue of a lock.

use latchfs::time::{Span, boot_now};
use serde_json::json;
use testing::{Reply, Scratch, Server, eventually, is_durable, run_latchfs};

/// A server keeps its waiting requests in their queues by a session. This is the time after which
/// the session of a dead or suspended server has certainly expired, even on a loaded machine.
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

/// Each waiter learns its place, and how many must have had the lock before it: two that will share
/// the lock have the same number ahead.
#[test]
fn each_waiter_has_its_place_in_the_status() {
    let server = Server::start(&[]);
    server.curl(&["-X", "POST", "/locks/build?client=a"]).is(200);
    let clients = ["b&mode=shared", "c&mode=shared", "d", "e&mode=shared"];
    let mut open = vec![];
    for (before, client) in clients.into_iter().enumerate() {
        let path = format!("/locks/build?client={client}&wait=60s");
        open.push(server.open(&["-X", "POST", &path]));
        server.in_line("build", before + 1);
    }
    let places = || {
        let status = server.curl(&["/locks/build"]).is(200);
        let waiters = status["waiters"].as_array().expect("a queue").iter();
        let place = |waiter: &serde_json::Value| json!([waiter["position"], waiter["ahead"]]);
        waiters.map(place).collect::<Vec<_>>()
    };
    assert_eq!(places(), [json!([1, 0]), json!([2, 0]), json!([3, 2]), json!([4, 3])]);
    let (code, said) = run_latchfs(&["status", "build", "--server", &server.url]);
    assert!(code == Some(0) && said.contains("3. d, 2 ahead, for "), "{said}");
    assert!(said.contains("2. c, for "), "{said}");
    server.curl(&["-X", "DELETE", "/locks/build?client=a"]).is(200);
    server.in_line("build", 2);
    assert_eq!(places(), [json!([1, 0]), json!([2, 1])]);
}

#[test]
fn waiting_works_over_http_2() {
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
fn closed_connection_loses_its_place() {
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
fn timed_out_wait_names_the_holder() {
    let server = Server::start(&[]);
    server.curl(&["-X", "POST", "/locks/build?client=a"]).is(200);
    let refused = server.curl(&["-X", "POST", "/locks/build?client=b&wait=1s"]).is(409);
    assert_eq!(refused["reason"], "waited_in_vain");
    assert_eq!(refused["holder"], "a");
    server.in_line("build", 0);
    // A request with a wait of 0 s is refused like one without a wait.
    let refused = server.curl(&["-X", "POST", "/locks/build?client=b&wait=0s"]).is(409);
    assert_eq!(refused["holder"], "a");
    server.curl(&["-X", "POST", "/locks/build?client=b&wait=25h"]).is(400);
}

/// A waiter that is removed from the queue hears by whom, and not that its time is over.
#[test]
fn each_end_of_a_wait_has_its_own_sentence() {
    let server = Server::with_socket(&[]);
    server.curl(&["-X", "POST", "/locks/build?client=a"]).is(200);
    let give_up = || server.curl(&["-X", "DELETE", "/locks/build?client=b"]);
    let reset = || server.reset("of=b&client=root&reason=x");
    for (ends, why, says) in [
        (&give_up as &dyn Fn() -> Reply, "asked", "given up by another request"),
        (&reset, "reset", "an administrator has ended"),
    ] {
        for key in [None, Some(format!("Idempotency-Key: {why}"))] {
            let path = "/locks/build?client=b&wait=60s";
            let mut words = vec!["-X", "POST"];
            words.extend(key.iter().flat_map(|key| ["-H", key]));
            words.push(path);
            let waits = server.open(&words);
            server.in_line("build", 1);
            ends().is(200);
            let refused = waits.reply().is(409);
            let said = refused["detail"].as_str().unwrap_or_default();
            assert!(said.contains(says) && !said.contains("timed out"), "{refused}");
            assert_eq!((&refused["why"], &refused["holder"]), (&json!(why), &json!("a")));
        }
    }
}

/// Two waiting requests with `reentrant` (the client may get the lock although it already holds it)
/// of one client share one place in the queue, and both get the lock.
#[test]
fn reentrant_requests_of_a_client_share_one_place() {
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

/// The Idempotency-Key of a waiting request identifies its queue place and later its grant, even if
/// connections are lost.
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
    // Two identical requests wait at the same time, as from a client that has timed out and
    // retried.
    let (one, two) = (server.open(&wait), server.open(&wait));
    eventually("three wait", || {
        let metrics = server.curl(&["/metrics"]).body;
        metrics.contains("latchfs_http_waiting 3").then_some(())
    });
    server.in_line("build", 2);
    server.curl(&["-X", "DELETE", "/locks/build?client=a"]).is(200);
    let (one, two) = (one.reply().is(200), two.reply().is(200));
    assert_eq!((&one["holder"], &one["token"]), (&"b".into(), &two["token"]));
    let repeated = server.curl(&wait);
    assert_eq!(repeated.header("idempotent-replayed"), Some("true"));
    assert_eq!(repeated.is(200)["token"], one["token"]);
    // A different request with the same key is refused, and does not get the grant as its response.
    let other = ["-X", "POST", "-H", KEY, "/locks/other?client=b&wait=60s"];
    server.curl(&other).is(422);
    server
        .curl(&["-X", "DELETE", &format!("/locks/build?client=b&token={}", one["token"])])
        .is(200);
    assert_eq!(behind.reply().is(200)["holder"], "c");
    // The first request got a lease that has been released since, and another client holds the lock
    // now. A repeat of the first request gets the first response, and does not acquire the lock
    // again.
    let repeated = server.curl(&wait).is(200);
    assert_eq!((&repeated["token"], &repeated["current"]["holder"]), (&one["token"], &"c".into()));
}

/// If the lock is granted while no client is connected, a repeat of the request gets the grant, and
/// the lock is held only once.
#[test]
fn repeat_gets_a_grant_made_without_a_connection() {
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
    let answer = server.curl(&wait).is(200);
    assert_eq!(answer["token"], granted.data["token"]);
    assert_eq!(server.curl(&["/locks/build"]).is(200)["token"], answer["token"]);
}

/// A queue place expires if its request is not repeated, and a late repeat of the request is
/// refused.
#[test]
fn place_of_a_key_without_repeats_expires() {
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
    // If a request has waited in the queue until its timeout, the `reason` in its response says so.
    let other = ["-X", "POST", "-H", "Idempotency-Key: other", "/locks/build?client=b&wait=1s"];
    assert_eq!(server.curl(&other).is(409)["reason"], "waited_in_vain");
}

/// Many clients wait, and some of them disconnect: the others get the lock in order, once each.
#[test]
fn long_queue_with_disconnects_is_served_in_order() {
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

/// Requests that wait at a server leave the queue after the server was killed, when the session by
/// which it keeps them in the queue expires. They do not delay the clients behind them by their own
/// ttls.
#[test]
fn waiters_of_a_killed_server_leave_the_queue() {
    const WAITERS: usize = 5;
    let scratch = Scratch::new();
    let dir = scratch.path().join("kept");
    let start = if is_durable() { Server::of_data } else { Server::of_own_locks };
    let mut server = start(&dir);
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
    dead.into_iter().for_each(testing::Open::cut);
    let server = start(&dir);
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

/// If a server is suspended for longer than the session by which it keeps its waiting requests in
/// the queue, these requests enter the queue again.
#[test]
fn waiters_of_a_suspended_server_queue_again() {
    let server = Server::start(&[]);
    server.curl(&["-X", "POST", "/locks/build?client=a&ttl=10m"]).is(200);
    let waiter = server.open(&["-X", "POST", "/locks/build?client=b&wait=60s"]);
    server.in_line("build", 1);
    let mut events = server.events(&["/events"]);
    server.signal(libc::SIGSTOP);
    let stopped = boot_now();
    eventually("time", || (boot_now().since(stopped) > SESSION_OVER).then_some(()));
    server.signal(libc::SIGCONT);
    // A session expires when the clock of the server's engine passes the end of the session. With a
    // durable log, this clock may leave out the time of the suspension, so only servers in memory
    // must report the expiry.
    if !is_durable() {
        assert_eq!(events.until("left").data["why"], "session_over");
    }
    server.in_line("build", 1);
    server.curl(&["-X", "DELETE", "/locks/build?client=a"]).is(200);
    assert_eq!(waiter.reply().is(200)["holder"], "b");
}

/// A reentrant `wait` or `acquire` with `--server` renews the lease of its client, as it does on a
/// mount.
#[test]
fn a_reentrant_wait_at_a_server_renews_the_own_lease() {
    let server = Server::start(&[]);
    let by = ["--server", &server.url, "--client", "a"];
    let acquire = [&["acquire", "build"], &by[..]].concat();
    assert_eq!(run_latchfs(&acquire).0, Some(0));
    let token = server.curl(&["/locks/build"]).is(200)["token"].clone();
    let wait = [&["wait", "build", "--reentrant", "--wait", "30s"], &by[..]].concat();
    let (code, said) = run_latchfs(&wait);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(server.curl(&["/locks/build"]).is(200)["token"], token);
    let (code, said) = run_latchfs(&[&["wait", "build", "--wait", "1s"], &by[..]].concat());
    assert_eq!(code, Some(75), "{said}");
    assert!(said.contains("timed out after 1s waiting for lock 'build'"), "{said}");
}
