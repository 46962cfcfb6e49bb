//! Limits on HTTP/1.1 clients that send too much, or too slowly.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use testing::Server;

#[test]
fn long_body_is_refused() {
    let server = Server::start(&[]);
    let body = format!("{{\"note\":\"{}\"}}", "x".repeat(100_000));
    let json = "content-type: application/json";
    let refused = server.curl(&["-H", json, "-d", &body, "/locks/a?client=x"]).is(413);
    assert_eq!(refused["status"], 413);
    let note = format!("{{\"note\":\"{}\"}}", "x".repeat(1_025));
    server.curl(&["-H", json, "-d", &note, "/locks/a?client=x"]).is(400);
}

#[test]
fn long_heads_are_refused() {
    let server = Server::start(&[]);
    let long = format!("x-long: {}", "x".repeat(20_000));
    assert_eq!(server.curl(&["-H", &long, "/healthz"]).code, 431);
    let mut many = Vec::new();
    for number in 0..100 {
        many.extend(["-H".to_owned(), format!("x-{number}: y")]);
    }
    let mut arguments: Vec<&str> = many.iter().map(String::as_str).collect();
    arguments.push("/healthz");
    assert_eq!(server.curl(&arguments).code, 431);
}

/// A request body that does not arrive within 10 s is answered with 408.
#[test]
fn slow_body_times_out() {
    let server = Server::start(&[]);
    let address = server.url.strip_prefix("http://").expect("no TLS");
    let mut stream = TcpStream::connect(address).expect("it listens");
    let head =
        b"POST /locks/a?client=x HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{";
    stream.write_all(head).expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers, and closes");
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
}

/// A connection ends if a request head does not arrive within 30 s. The client gets a 408 if a part
/// of the head has arrived.
#[test]
fn slow_request_head_times_out() {
    let server = Server::start(&[]);
    let address = server.url.strip_prefix("http://").expect("no TLS");
    let mut silent = TcpStream::connect(address).expect("it listens");
    let mut slow = TcpStream::connect(address).expect("it listens");
    slow.write_all(b"GET /healthz HTTP/1.1\r\nhost:").expect("it reads");
    let mut answer = String::new();
    slow.read_to_string(&mut answer).expect("it answers, and closes");
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    assert_eq!(silent.read_to_string(&mut answer).expect("it closes"), 0);
}

#[test]
fn lists_and_durations_beyond_a_limit_are_refused() {
    let server = Server::start(&[]);
    let json = "content-type: application/json";
    let check = |count: usize| {
        let checks = vec![r#"{"name":"a","token":1}"#; count].join(",");
        let body = format!(r#"{{"checks":[{checks}]}}"#);
        server.curl(&["-H", json, "-d", &body, "/check"])
    };
    assert_eq!(check(1_000).is(200)["checks"].as_array().map(Vec::len), Some(1_000));
    let why = check(1_001).is(400);
    assert!(why["detail"].as_str().is_some_and(|why| why.contains("1000 at most")), "{why}");
    for (option, longest, longer) in
        [("wait", "24h", "86401s"), ("ttl", "24h", "86401s"), ("grace", "24h", "86401s")]
    {
        let post = |value: &str| {
            server.curl(&["-X", "POST", &format!("/locks/{option}?client=x&{option}={value}")])
        };
        post(longer).is(400);
        post(longest).is(200);
    }
}
