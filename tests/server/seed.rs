//! The single-lock API: the requests, responses and timeline of its original specification (the
//! seed), word for word.

use crate::harness::Server;
use serde_json::json;

/// The timeline in the specification, in seconds: acquire at 0, renew at 10 and 20, begin of the
/// grace period at 50, refusal at 52, grant to another client at 56. The server's own events serve
/// as the clock.
#[test]
fn timeline_of_the_specification() {
    let server = Server::start(&["--grace", "3s"]);
    let mut events = server.events(&["/events"]);
    for turn in 0..3 {
        let held = server.curl(&["-X", "POST", "/lock?client=laptop1&ttl=1s"]).is(200);
        assert_eq!(held["holder"], "laptop1");
        assert!(held["expires_at"].as_str().is_some_and(|at| at.ends_with('Z')), "{held}");
        assert_eq!(events.event().kind, if turn == 0 { "granted" } else { "renewed" });
    }
    // The client laptop1 sends no more renewals, as if the laptop were asleep.
    events.until("expired");
    let refused = server.curl(&["-X", "POST", "/lock?client=laptop2"]).is(409);
    assert_eq!(refused["message"], "grace period active");
    let status = server.curl(&["/lock"]).is(200);
    assert_eq!((&status["holder"], &status["is_expired"]), (&json!("laptop1"), &json!(true)));
    events.until("lapsed");
    assert_eq!(server.curl(&["-X", "POST", "/lock?client=laptop2"]).is(200)["holder"], "laptop2");
}

#[test]
fn holder_may_renew_within_grace() {
    let server = Server::start(&["--grace", "10s"]);
    let mut events = server.events(&["/events"]);
    server.curl(&["-X", "POST", "/lock?client=laptop1&ttl=1s"]).is(200);
    events.until("expired");
    server.curl(&["-X", "POST", "/lock?client=laptop2"]).is(409);
    server.curl(&["-X", "POST", "/lock?client=laptop1"]).is(200);
    events.until("renewed");
    assert_eq!(server.curl(&["/lock"]).is(200)["is_expired"], false);
}

#[test]
fn held_lock_is_refused() {
    let server = Server::start(&[]);
    server.curl(&["-X", "POST", "/lock?client=laptop1"]).is(200);
    let refused = server.curl(&["-X", "POST", "/lock?client=laptop2"]).is(409);
    assert_eq!(refused["message"], "lock is held by another client");
    assert_eq!(refused["holder"], "laptop1");
}

#[test]
fn only_the_holder_can_release() {
    let server = Server::start(&[]);
    server.curl(&["-X", "DELETE", "/lock?client=laptop1"]).is(403);
    server.curl(&["-X", "POST", "/lock?client=laptop1"]).is(200);
    server.curl(&["-X", "DELETE", "/lock?client=laptop2"]).is(403);
    server.curl(&["-X", "DELETE", "/lock?client=laptop1"]).is(200);
    server.curl(&["-X", "POST", "/lock?client=laptop2"]).is(200);
}

#[test]
fn status_has_the_specified_fields_only() {
    let server = Server::start(&[]);
    let free = server.curl(&["/lock"]);
    assert_eq!(free.is(200), json!({ "holder": "", "is_expired": true }));
    let held = server.curl(&["-X", "POST", "/lock?client=laptop1"]).is(200);
    let keys = |value: &serde_json::Value| {
        value.as_object().expect("an object").keys().cloned().collect::<Vec<_>>()
    };
    assert_eq!(keys(&held), ["holder", "expires_at"]);
    let status = server.curl(&["/lock"]).is(200);
    assert_eq!(keys(&status), ["holder", "expires_at", "is_expired", "grace_until"]);
    assert_eq!(status["expires_at"], held["expires_at"]);
}

/// By default, the ttl of a lock is 30 s and its grace period 5 s.
#[test]
fn default_ttl_and_grace() {
    let server = Server::start(&[]);
    server.curl(&["-X", "POST", "/lock?client=laptop1"]).is(200);
    let whole = server.curl(&["/locks/default"]).is(200);
    assert_eq!((&whole["ttl_ms"], &whole["grace_ms"]), (&json!(30_000), &json!(5_000)));
    server.curl(&["-X", "POST", "/lock?client=laptop1&ttl=1m30s"]).is(200);
    assert_eq!(server.curl(&["/locks/default"]).is(200)["ttl_ms"], 90_000);
}

#[test]
fn invalid_requests_are_explained() {
    let server = Server::start(&[]);
    let no_client = server.curl(&["-X", "POST", "/lock"]).is(400);
    assert_eq!(no_client["kind"], "E_INVALID");
    assert!(no_client["detail"].as_str().is_some_and(|text| text.contains("client=NAME")));
    let short = server.curl(&["-X", "POST", "/lock?client=a&ttl=500ms"]).is(400);
    assert!(short["detail"].as_str().is_some_and(|text| text.contains("at least 1s")));
    server.curl(&["-X", "POST", "/lock?client=a&ttl=30"]).is(400);
    server.curl(&["-X", "DELETE", "/lock"]).is(400);
    let unknown = server.curl(&["-X", "POST", "/lock?client=a&tll=30s"]).is(400);
    assert!(unknown["detail"].as_str().is_some_and(|text| text.contains("tll")));
}
