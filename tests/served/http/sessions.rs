//! Sessions over HTTP: one keep-alive renews all leases and reports lost ones, and the end of a
//! session releases all its locks.

use serde_json::json;
use testing::Server;

#[test]
fn keep_alive_renews_all_leases_and_reports_losses() {
    let server = Server::start(&[]);
    let opened = server.curl(&["-X", "POST", "/sessions?client=a&ttl=2s&grace=1s"]).is(201);
    let id = opened["session"].as_u64().expect("an id");
    let mut tokens = Vec::new();
    for name in ["one", "two"] {
        let path = format!("/locks/{name}?client=a&session={id}");
        let held = server.curl(&["-X", "POST", &path]).is(200);
        assert!(held["expires_in_ms"].as_u64().is_some_and(|left| left <= 2_000), "{held}");
        tokens.push(held["token"].clone());
    }
    let kept = server.curl(&["-X", "POST", &format!("/sessions/{id}/keepalive")]).is(200);
    assert_eq!((&kept["session"], &kept["lost"]), (&json!(id), &json!([])));
    let shown = server.curl(&[&format!("/sessions/{id}")]).is(200);
    assert_eq!((&shown["client"], &shown["held_in_all"]), (&json!("a"), &json!(2)));
    server.curl(&["-X", "POST", "/locks/one/steal?client=b&reason=now"]).is(200);
    let kept = server.curl(&["-X", "POST", &format!("/sessions/{id}/keepalive")]).is(200);
    assert_eq!(kept["lost"], json!([{ "name": "one", "token": tokens[0] }]));
    // A keep-alive has reported the lost lease already, so the next keep-alive does not report it
    // again.
    let kept = server.curl(&["-X", "POST", &format!("/sessions/{id}/keepalive")]).is(200);
    assert_eq!(kept["lost"], json!([]));
}

#[test]
fn ended_session_releases_all_locks() {
    let server = Server::start(&[]);
    let opened = server.curl(&["-X", "POST", "/sessions?client=a"]).is(201);
    let id = &opened["session"];
    server.curl(&["-X", "POST", &format!("/locks/one?client=a&session={id}")]).is(200);
    let next = server.open(&["-X", "POST", "/locks/one?client=b&wait=60s"]);
    server.in_line("one", 1);
    assert_eq!(server.curl(&["-X", "DELETE", &format!("/sessions/{id}")]).is(200)["ended"], true);
    assert_eq!(next.reply().is(200)["holder"], "b");
    for (method, path) in [("POST", "/keepalive"), ("DELETE", ""), ("GET", "")] {
        let over = server.curl(&["-X", method, &format!("/sessions/{id}{path}")]).is(410);
        assert_eq!(over["kind"], "E_LOCK_EXPIRED");
    }
    server.curl(&["-X", "POST", &format!("/locks/x?client=a&session={id}")]).is(410);
}

#[test]
fn expired_session_puts_its_locks_in_grace() {
    let server = Server::start(&[]);
    let mut events = server.events(&["/events"]);
    let opened = server.curl(&["-X", "POST", "/sessions?client=a&ttl=1s&grace=20s"]).is(201);
    let id = &opened["session"];
    let path = format!("/locks/one?client=a&session={id}");
    let token = server.curl(&["-X", "POST", &path]).is(200)["token"].clone();
    events.until("expired");
    let refused = server.curl(&["-X", "POST", "/locks/one?client=b"]).is(409);
    assert_eq!(refused["reason"], "grace");
    server.curl(&["-X", "POST", &format!("/sessions/{id}/keepalive")]).is(410);
    // Another program that sends requests under the same client name can't take over the lock by
    // accident: its acquire is refused.
    let refused = server.curl(&["-X", "POST", "/locks/one?client=a"]).is(409);
    assert_eq!(refused["reason"], "own");
    let detail = refused["detail"].as_str().expect("a sentence");
    assert!(detail.contains("grace period active"), "{detail}");
    let kept = server.curl(&["-X", "POST", &format!("/locks/one?client=a&token={token}")]).is(200);
    assert_eq!(kept["token"], token);
}

#[test]
fn waiting_request_gets_the_lock_for_its_session() {
    let server = Server::start(&[]);
    server.curl(&["-X", "POST", "/locks/one?client=b"]).is(200);
    let id = server.curl(&["-X", "POST", "/sessions?client=a"]).is(201)["session"].clone();
    let path = format!("/locks/one?client=a&wait=60s&session={id}");
    let waits = server.open(&["-X", "POST", &path]);
    server.in_line("one", 1);
    server.curl(&["-X", "DELETE", "/locks/one?client=b"]).is(200);
    assert_eq!(waits.reply().is(200)["holder"], "a");
    let shown = server.curl(&[&format!("/sessions/{id}")]).is(200);
    assert_eq!(shown["held"][0]["name"], "one");
    let path = format!("/locks/two?client=a&wait=60s&session={id}");
    server.curl(&["-X", "POST", "/locks/two?client=b"]).is(200);
    let waits = server.open(&["-X", "POST", &path]);
    server.in_line("two", 1);
    server.curl(&["-X", "DELETE", &format!("/sessions/{id}")]).is(200);
    waits.reply().is(410);
}

#[test]
fn invalid_session_ids_are_refused() {
    let server = Server::start(&[]);
    server.curl(&["/sessions/x"]).is(400);
    server.curl(&["/sessions/0"]).is(400);
    server.curl(&["/sessions/7"]).is(410);
}
