//! Invalid requests are answered with an error, and never crash the server.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use testing::Server;

/// Sends raw bytes to the server, and returns its response.
fn raw(server: &Server, bytes: &[u8], close: bool) -> String {
    let address = server.url.strip_prefix("http://").expect("no TLS");
    let mut stream = TcpStream::connect(address).expect("it listens");
    // The error is ignored: the write fails if the server has already closed the connection, and
    // the response can still be read.
    let _ = stream.write_all(bytes);
    if close {
        let _ = stream.shutdown(std::net::Shutdown::Write);
    }
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn garbage_is_refused() {
    let server = Server::start(&[]);
    for garbage in [
        &b"\0\xff\xfe garbage\r\n\r\n"[..],
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\ngarbage that is no frame",
        b"POST /lock?client=a HTTP/1.1\r\nhost: localhost\r\ncontent-length: x\r\n\r\n",
        b"POST /lock?client=a HTTP/1.1\r\nhost: [::1]\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"",
    ] {
        let answer = raw(&server, garbage, true);
        assert!(!answer.starts_with("HTTP/1.1 2") && !answer.starts_with("HTTP/1.1 5"), "{answer}");
    }
    server.curl(&["/healthz"]).is(200);
}

#[test]
fn odd_requests_get_fitting_status_codes() {
    let server = Server::start(&[]);
    let status = |line: &str| {
        let request = format!("{line} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        raw(&server, request.as_bytes(), false).chars().skip(9).take(3).collect::<String>()
    };
    assert_eq!(status("GET /lock?%FF=%00"), "400");
    assert_eq!(status("BREW /lock"), "405");
    assert_eq!(status("GET /locks/"), "404");
    assert_eq!(status("GET *"), "404");
    assert_eq!(status("HEAD /lock"), "200");
    let deep = format!("{}{}", "[".repeat(2_000), "]".repeat(2_000));
    let json = "content-type: application/json";
    server.curl(&["-H", json, "-d", &deep, "/check"]).is(400);
}
