//! The stream of events: what it shows, how it is resumed, what the slow are told.

use crate::harness::Server;
use serde_json::json;

#[test]
fn what_happens_as_it_happens() {
    let server = Server::start(&[]);
    let mut events = server.events(&["/events"]);
    server.curl(&["-X", "POST", "/locks/build?client=a"]).is(200);
    let granted = events.event();
    assert_eq!(granted.kind, "granted");
    assert_eq!((&granted.data["name"], &granted.data["holder"]), (&json!("build"), &json!("a")));
    server.curl(&["-X", "DELETE", "/locks/build?client=a"]).is(200);
    assert_eq!(events.event().kind, "released");
}

#[test]
fn it_goes_on_behind_the_last_one_seen() {
    let server = Server::start(&[]);
    let mut events = server.events(&["/events"]);
    for name in ["one", "two", "three"] {
        server.curl(&["-X", "POST", &format!("/locks/{name}?client=a")]).is(200);
    }
    let first = events.event();
    drop(events);
    let header = format!("Last-Event-ID: {}", first.id);
    let mut events = server.events(&["-H", &header, "/events"]);
    assert_eq!(events.event().data["name"], "two");
    assert_eq!(events.event().data["name"], "three");
    let mut events = server.events(&[&format!("/events?since={}", first.id)]);
    assert_eq!(events.event().data["name"], "two");
    // An id of another server, or of the one before this was started anew.
    let mut events = server.events(&["-H", "Last-Event-ID: 0.0-99", "/events"]);
    assert_eq!(events.event().kind, "lost");
    assert_eq!(events.event().data["name"], "one");
}

#[test]
fn only_what_one_asks_for() {
    let server = Server::start(&[]);
    let mut events = server.events(&["/events?prefix=team/"]);
    for name in ["other", "team/one", "teams", "team/two"] {
        server.curl(&["-X", "POST", &format!("/locks/{name}?client=a")]).is(200);
    }
    assert_eq!(events.event().data["name"], "team/one");
    assert_eq!(events.event().data["name"], "team/two");
}

/// A client that returns after more events than are kept learns how many it missed.
#[test]
fn the_slow_are_told_how_much_they_lost() {
    let server = Server::start(&[]);
    let mut events = server.events(&["/events"]);
    server.curl(&["-X", "POST", "/locks/build?client=a"]).is(200);
    let first = events.event();
    drop(events);
    // More than the 8,192 events that are kept, on one connection.
    let mut command = vec!["-X".to_owned(), "POST".to_owned()];
    let url = format!("{}/locks/build?client=a&reentrant=1&ttl=[1000-9999]s", server.url);
    command.extend(["-s".to_owned(), "-o".to_owned(), "/dev/null".to_owned(), url]);
    let status = std::process::Command::new("curl").args(&command).status().expect("curl");
    assert!(status.success());
    let header = format!("Last-Event-ID: {}", first.id);
    let mut events = server.events(&["-H", &header, "/events"]);
    let lost = events.event();
    assert_eq!(lost.kind, "lost");
    assert_eq!(lost.data["count"], 9_000 - 8_192);
    assert_eq!(events.event().kind, "renewed");
}
