//! Seed 000, "Distributed Lock Service (Homelab)": one lock over HTTP with leases and a grace
//! period. `contrib/test` runs these tests as well on servers with a log on disk.

use serde_json::{Value, json};
use std::thread;
use testing::{Reply, Server, eventually};

fn keys(value: &Value) -> Vec<String> {
    value.as_object().expect("an object").keys().cloned().collect()
}

fn post(server: &Server, query: &str) -> Reply {
    server.curl(&["-X", "POST", &format!("/lock?{query}")])
}

// "Single server, in-memory state (no persistence needed)"
#[test]
fn state_in_memory_is_gone_with_the_server() {
    let options = ["--memory", "--grant-at-once"];
    let server = Server::listen(&options);
    post(&server, "client=laptop1").is(200);
    drop(server);
    assert_eq!(Server::listen(&options).curl(&["/lock"]).is(200)["is_expired"], true);
}

// "Less than 5 clients", "Use `sync.Mutex` for thread safety"
#[test]
fn one_of_concurrent_clients_gets_the_lock() {
    let server = Server::start(&[]);
    let codes: Vec<u16> = thread::scope(|scope| {
        let client = |number: usize| {
            let server = &server;
            scope.spawn(move || post(server, &format!("client=laptop{number}")).code)
        };
        let clients: Vec<_> = (0..4).map(client).collect();
        clients.into_iter().map(|client| client.join().expect("no failure")).collect()
    });
    assert_eq!(codes.iter().filter(|code| **code == 200).count(), 1, "{codes:?}");
    assert_eq!(codes.iter().filter(|code| **code == 409).count(), 3, "{codes:?}");
}

// "t=0s laptop1 acquires lock (ttl=30s, grace=5s)", "t=10s laptop1 renews → lock extended to
// t=40s", "t=20s laptop1 renews → lock extended to t=50s", "t=25s laptop1 closes lid (stops
// renewing)", "t=50s lock expires, grace period starts (until t=55s)", "t=52s laptop2 tries POST
// /lock → 409 (grace period)", "t=56s laptop2 tries POST /lock → 200 (grace expired, lock granted)"
//
// "Return 409 Conflict with message "grace period active""
//
// The test has a shorter ttl and grace, and the server's own events serve as the clock.
#[test]
fn timeline_of_the_specification() {
    let server = Server::start(&["--grace", "3s"]);
    let mut events = server.events(&["/events"]);
    for turn in 0..3 {
        let held = post(&server, "client=laptop1&ttl=1s").is(200);
        assert_eq!(held["holder"], "laptop1");
        assert!(held["expires_at"].as_str().is_some_and(|at| at.ends_with('Z')), "{held}");
        assert_eq!(events.event().kind, if turn == 0 { "granted" } else { "renewed" });
    }
    // The laptop goes to sleep: no more renewals.
    events.until("expired");
    let refused = post(&server, "client=laptop2").is(409);
    assert_eq!(refused["message"], "grace period active");
    let status = server.curl(&["/lock"]).is(200);
    assert_eq!((&status["holder"], &status["is_expired"]), (&json!("laptop1"), &json!(true)));
    assert_eq!(refused["expires_at"], status["expires_at"]);
    events.until("lapsed");
    assert_eq!(post(&server, "client=laptop2").is(200)["holder"], "laptop2");
}

// "When a lock expires, the previous holder gets a short exclusive window to reclaim it before it
// becomes available to others.", "If X == previous holder → grant lock, return 200"
#[test]
fn holder_may_renew_within_grace() {
    let server = Server::start(&["--grace", "10s"]);
    let mut events = server.events(&["/events"]);
    post(&server, "client=laptop1&ttl=1s").is(200);
    events.until("expired");
    post(&server, "client=laptop2").is(409);
    post(&server, "client=laptop1").is(200);
    events.until("renewed");
    assert_eq!(server.curl(&["/lock"]).is(200)["is_expired"], false);
}

// "If current holder == X: Renew: set ExpiresAt = now + T, GraceUntil = now + T + grace"
#[test]
fn renewal_sets_expiry_and_grace() {
    let server = Server::start(&["--grace", "1h"]);
    let token = post(&server, "client=laptop1&ttl=2s").is(200)["token"].clone();
    post(&server, "client=laptop1&ttl=1h").is(200);
    let status = server.curl(&["/locks/default"]).is(200);
    assert_eq!((&status["ttl_ms"], &status["grace_ms"]), (&json!(3_600_000), &json!(3_600_000)));
    assert_eq!(status["token"], token, "the tenure goes on");
    assert!(status["expires_in_ms"].as_u64() > Some(3_500_000), "{status}");
    let time = |field: &str| status[field].as_str().expect("a time").to_owned();
    assert!(time("grace_until") > time("expires_at"), "{status}");
}

// "If lock is held by someone else AND not expired (now < ExpiresAt): Return 409 Conflict"
//
// "Response Body: {"holder": "laptop1", "expires_at": "2024-01-15T10:30:00Z"}"
#[test]
fn held_lock_is_refused() {
    let server = Server::start(&[]);
    let held = post(&server, "client=laptop1").is(200);
    let refused = post(&server, "client=laptop2").is(409);
    assert_eq!(refused["message"], "lock is held by another client");
    assert_eq!(refused["holder"], "laptop1");
    assert_eq!(refused["expires_at"], held["expires_at"]);
    assert_eq!(refused["token"], held["token"], "the token of the winner");
    // The lease of a session expires with the session.
    let server = Server::listen(&["--memory", "--grant-at-once"]);
    let session = server.curl(&["-X", "POST", "/sessions?client=a&ttl=1h"]).is(201);
    let path = format!("/locks/default?client=a&session={}", session["session"]);
    server.curl(&["-X", "POST", &path]).is(200);
    let refused = post(&server, "client=laptop2").is(409);
    assert!(refused["expires_at"].is_string(), "{refused}");
}

// "DELETE /lock: Explicitly release the lock.", "200 Lock released", "403 Client doesn't hold the
// lock", "client: Must match current holder"
#[test]
fn only_the_holder_can_release() {
    let server = Server::start(&[]);
    server.curl(&["-X", "DELETE", "/lock?client=laptop1"]).is(403);
    post(&server, "client=laptop1").is(200);
    server.curl(&["-X", "DELETE", "/lock?client=laptop2"]).is(403);
    server.curl(&["-X", "DELETE", "/lock?client=laptop1"]).is(200);
    post(&server, "client=laptop2").is(200);
}

// "GET /lock: Check current lock status.", "Or if no lock: {"holder": "", "is_expired": true}"
//
// The fields of the seed come first, and the fencing token, which the seed does not know, follows.
#[test]
fn answers_have_the_specified_fields_and_the_token() {
    let server = Server::start(&[]);
    let free = server.curl(&["/lock"]);
    assert_eq!(free.is(200), json!({ "holder": "", "is_expired": true }));
    assert_eq!(free.header("etag"), None);
    let answer = post(&server, "client=laptop1");
    let held = answer.is(200);
    assert_eq!(keys(&held), ["holder", "expires_at", "token"]);
    let shown = server.curl(&["/lock"]);
    let status = shown.is(200);
    assert_eq!(keys(&status), ["holder", "expires_at", "is_expired", "grace_until", "token"]);
    assert_eq!(status["expires_at"], held["expires_at"]);
    assert_eq!(status["token"], held["token"]);
    let tag = format!("\"{}\"", held["token"]);
    assert_eq!((answer.header("etag"), shown.header("etag")), (Some(&*tag), Some(&*tag)));
    // A resource that the lock guards can refuse the token of an earlier tenure.
    server.curl(&["-X", "DELETE", "/lock?client=laptop1"]).is(200);
    let next = post(&server, "client=laptop2").is(200);
    assert!(next["token"].as_u64() > held["token"].as_u64(), "{next} {held}");
}

// "ttl: No, Lock duration (default: 30s)", "DefaultTTL = 30 * time.Second", "GracePeriod = 5 *
// time.Second", "Parse TTL with `time.ParseDuration`"
#[test]
fn default_ttl_and_grace() {
    let server = Server::start(&[]);
    post(&server, "client=laptop1").is(200);
    let whole = server.curl(&["/locks/default"]).is(200);
    assert_eq!((&whole["ttl_ms"], &whole["grace_ms"]), (&json!(30_000), &json!(5_000)));
    // The forms that Go's `time.ParseDuration` accepts, which the seed's server uses.
    for (ttl, ms) in [
        ("1m30s", 90_000),
        ("1.5h", 5_400_000),
        ("1500ms", 1_500),
        ("2000000000ns", 2_000),
        ("3000000us", 3_000),
        ("3000000%C2%B5s", 3_000),
        ("3000000%CE%BCs", 3_000),
        ("%2B5s", 5_000),
        ("+5s", 5_000),
    ] {
        post(&server, &format!("client=laptop1&ttl={ttl}")).is(200);
        assert_eq!(server.curl(&["/locks/default"]).is(200)["ttl_ms"], ms, "{ttl}");
    }
}

// "client: Yes, Unique client identifier", "Return JSON responses with appropriate status codes"
#[test]
fn invalid_requests_are_explained() {
    let server = Server::start(&[]);
    let no_client = server.curl(&["-X", "POST", "/lock"]).is(400);
    assert_eq!(no_client["kind"], "E_INVALID");
    assert!(no_client["detail"].as_str().is_some_and(|text| text.contains("client=NAME")));
    let short = post(&server, "client=a&ttl=500ms").is(400);
    assert!(short["detail"].as_str().is_some_and(|text| text.contains("at least 1s")));
    post(&server, "client=a&ttl=30").is(400);
    server.curl(&["-X", "DELETE", "/lock"]).is(400);
    let unknown = post(&server, "client=a&tll=30s").is(400);
    assert!(unknown["detail"].as_str().is_some_and(|text| text.contains("tll")));
}

// "1. POST /lock?client=myid&ttl=30s", "2. If 200 → hold lock, do work", "3. Every 10s → POST
// /lock?client=myid&ttl=30s (renew)", "4. On shutdown → DELETE /lock?client=myid"
#[test]
fn client_loop_keeps_the_lock() {
    let server = Server::start(&["--grace", "0s"]);
    let mut events = server.events(&["/events"]);
    let first = post(&server, "client=myid&ttl=3s").is(200);
    // The renewals go on for longer than the ttl.
    for _ in 0..4 {
        eventually("a third of the ttl", || {
            let left = server.curl(&["/locks/default"]).json()["expires_in_ms"].as_u64()?;
            (left < 2_000).then_some(())
        });
        let renewed = post(&server, "client=myid&ttl=3s").is(200);
        assert_eq!(renewed["token"], first["token"]);
    }
    server.curl(&["-X", "DELETE", "/lock?client=myid"]).is(200);
    let kinds: Vec<_> = (0..6).map(|_| events.event().kind).collect();
    assert_eq!(kinds, ["granted", "renewed", "renewed", "renewed", "renewed", "released"]);
}

// "Log lock acquisitions/releases for debugging"
#[test]
fn acquisitions_and_releases_are_logged() {
    let server = Server::start(&["--grace", "0s"]);
    let token = post(&server, "client=laptop1").is(200)["token"].clone();
    server.curl(&["-X", "DELETE", "/lock?client=laptop1"]).is(200);
    let lost = post(&server, "client=laptop2&ttl=1s").is(200)["token"].clone();
    let has = |line: &str| server.log().contains(line).then_some(());
    let of = |client, token| format!(" lock=default client={client} token={token} ");
    let acquired = format!("INFO  lock granted{}waited_ms=0\n", of("laptop1", &token));
    eventually("the acquisition", || has(&acquired));
    eventually("the release", || has(&format!("lock released{}held_ms=", of("laptop1", &token))));
    eventually("the end of the lease", || {
        has(&format!("lock lost{}held_ms=", of("laptop2", &lost)))
    });
    // The log can be switched off.
    let mut silent = Server::start(&["--log-locks", "off"]);
    post(&silent, "client=laptop1").is(200);
    silent.signal(libc::SIGTERM);
    silent.wait();
    assert!(!silent.log().contains("laptop1"), "{}", silent.log());
}

/// A flood of changes has few lines, and one with the number of the others.
#[test]
fn a_flood_of_changes_is_summarized_in_the_log() {
    let mut server = Server::start(&[]);
    let urls: Vec<_> = (0..400)
        .flat_map(|number| server.target(&format!("/locks/flood{number}?client=a")))
        .collect();
    let urls: Vec<_> = urls.iter().map(String::as_str).collect();
    let mut curl = std::process::Command::new("curl");
    curl.args(["-sS", "-X", "POST", "-Z", "--parallel-max", "20"]).args(urls);
    testing::run(&mut curl).ok();
    server.signal(libc::SIGTERM);
    server.wait();
    let log = server.log();
    let lines = log.lines().filter(|line| line.contains(" lock granted lock=")).count() as u64;
    let rest = log.lines().filter_map(|line| {
        let count = line.split_once("suppressed=")?.1.strip_suffix(" like=\"lock granted\"")?;
        count.parse::<u64>().ok()
    });
    assert_eq!(lines + rest.sum::<u64>(), 400, "{log}");
}

// "Configurable grace period via flag", "Prometheus metrics endpoint", "Simple web UI showing lock
// status"
#[test]
fn optional_enhancements_are_there() {
    let server = Server::start(&["--grace", "7s"]);
    post(&server, "client=laptop1").is(200);
    assert_eq!(server.curl(&["/locks/default"]).is(200)["grace_ms"], 7_000);
    let metrics = server.curl(&["/metrics"]).body;
    assert!(metrics.contains("# TYPE latchfs_http_connections "), "{metrics}");
    assert!(server.curl(&["/"]).body.contains("<title>latchfs</title>"));
}

// "ServerAddr = ":8080"": the port is the seed's, and by default only this machine can reach it.
#[test]
fn default_port_is_that_of_the_specification() {
    let (code, help) = testing::run_latchfs(&["serve", "--help"]);
    assert_eq!(code, Some(0));
    assert!(help.contains("[default: 127.0.0.1:8080]"), "{help}");
}
