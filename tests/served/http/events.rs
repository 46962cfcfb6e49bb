//! The event stream: its events, resumption, prefixes, and lost events of slow readers.

use serde_json::json;
use testing::Server;

#[test]
fn grant_and_release_are_streamed() {
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
fn stream_resumes_after_the_last_event_seen() {
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
    // `Last-Event-ID: 0.0-99` is an id that this run of the server has not issued. The stream then
    // begins with a `lost` event and the oldest event that the server keeps.
    let mut events = server.events(&["-H", "Last-Event-ID: 0.0-99", "/events"]);
    assert_eq!(events.event().kind, "lost");
    assert_eq!(events.event().data["name"], "one");
}

#[test]
fn stream_is_limited_to_a_prefix() {
    let server = Server::start(&[]);
    let mut events = server.events(&["/events?prefix=team/"]);
    for name in ["other", "team/one", "teams", "team/two"] {
        server.curl(&["-X", "POST", &format!("/locks/{name}?client=a")]).is(200);
    }
    assert_eq!(events.event().data["name"], "team/one");
    assert_eq!(events.event().data["name"], "team/two");
}

/// A client that resumes the event stream after more events than the server keeps learns how many
/// it has missed.
#[test]
fn slow_reader_learns_how_many_events_it_lost() {
    let server = Server::start(&[]);
    let mut events = server.events(&["/events"]);
    server.curl(&["-X", "POST", "/locks/build?client=a"]).is(200);
    let first = events.event();
    drop(events);
    // One client causes more than the 8,192 events that the server keeps.
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
