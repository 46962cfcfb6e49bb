//! HTTP/2 connections written frame by frame, to test the limits on misbehaving clients.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;
use testing::{Scratch, Server, run_latchfs};

/// The number of concurrent streams that the server announces.
const STREAMS_MAX: usize = 256;

/// Time limit: only a test that hangs takes so long, because a connection without requests ends
/// after 40 s.
const LIMIT: Duration = Duration::from_secs(90);

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;

const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

/// The error code `REFUSED_STREAM`: the request was not processed and may be retried.
const REFUSED_STREAM: [u8; 4] = [0, 0, 0, 7];
/// The identifier of the setting `SETTINGS_MAX_CONCURRENT_STREAMS`.
const MAX_CONCURRENT_STREAMS: [u8; 2] = [0, 3];

/// An HTTP/2 frame.
#[derive(Debug)]
struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Vec<u8>,
}

/// An HTTP/2 connection on which the test sends and receives single frames.
struct Raw(TcpStream);

impl Raw {
    /// Opens a connection, and sends the HTTP/2 preface and empty settings.
    #[track_caller]
    fn open(server: &Server) -> Self {
        let address = server.url.strip_prefix("http://").expect("no TLS");
        let mut stream = TcpStream::connect(address).expect("it listens");
        stream.set_read_timeout(Some(LIMIT)).expect("not zero");
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").expect("it reads");
        let mut raw = Self(stream);
        raw.say(SETTINGS, 0, 0, &[]);
        raw
    }

    fn say(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
        let mut frame = length[1..].to_vec();
        frame.extend([kind, flags]);
        frame.extend(stream.to_be_bytes());
        frame.extend(payload);
        self.0.write_all(&frame).expect("it reads");
    }

    /// Reads the next frame; returns `None` if the server has closed the connection.
    #[track_caller]
    fn next_frame(&mut self) -> Option<Frame> {
        let mut head = [0; 9];
        match self.0.read_exact(&mut head) {
            Ok(()) => {}
            Err(error) => match error.kind() {
                ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset => return None,
                _ => panic!("the server neither speaks nor ends: {error}"),
            },
        }
        let number = |bytes: &[u8]| bytes.iter().fold(0, |sum, byte| sum << 8 | u32::from(*byte));
        let mut payload = vec![0; number(&head[..3]) as usize];
        self.0.read_exact(&mut payload).expect("all of a frame");
        let [kind, flags] = [head[3], head[4]];
        Some(Frame { kind, flags, stream: number(&head[5..]), payload })
    }

    /// Reads frames up to the next one of the given kind, and answers pings meanwhile.
    #[track_caller]
    fn until(&mut self, kind: u8) -> Option<Frame> {
        loop {
            let frame = self.next_frame()?;
            if frame.kind == PING && frame.flags & ACK == 0 {
                self.say(PING, ACK, 0, &frame.payload);
            }
            if frame.kind == kind {
                return Some(frame);
            }
        }
    }
}

/// Returns the header block of a POST request, with entries of HPACK's static table and literal
/// values.
fn post(path: &str) -> Vec<u8> {
    let mut block = vec![0x83, 0x86];
    for (name, value) in [(0x04, path), (0x01, "localhost")] {
        block.extend([name, u8::try_from(value.len()).expect("short")]);
        block.extend(value.as_bytes());
    }
    block
}

/// Streams beyond the limit are refused. Those within it continue, and a stream that ends makes
/// room for another.
#[test]
fn streams_of_one_connection_are_limited() {
    let server = Server::start(&[]);
    server.curl(&["-X", "POST", "/locks/a?client=holder&ttl=1h"]).is(200);
    let mut raw = Raw::open(&server);
    let settings = raw.until(SETTINGS).expect("it begins").payload;
    let said = settings.chunks_exact(6).find(|one| one[..2] == MAX_CONCURRENT_STREAMS);
    let max = u32::try_from(STREAMS_MAX).expect("small");
    assert_eq!(said.map(|one| &one[2..]), Some(&max.to_be_bytes()[..]));
    let waits = |raw: &mut Raw, number: usize| {
        let stream = u32::try_from(number * 2 + 1).expect("small");
        let head = post(&format!("/locks/a?client=c{number}&wait=1h"));
        raw.say(HEADERS, END_STREAM | END_HEADERS, stream, &head);
        stream
    };
    let first = waits(&mut raw, 0);
    for number in 1..STREAMS_MAX {
        waits(&mut raw, number);
    }
    server.in_line("a", STREAMS_MAX);
    for number in STREAMS_MAX..STREAMS_MAX + 3 {
        let stream = waits(&mut raw, number);
        let refused = raw.until(RST_STREAM).expect("the connection goes on");
        assert_eq!((refused.stream, &refused.payload[..]), (stream, &REFUSED_STREAM[..]));
    }
    server.in_line("a", STREAMS_MAX);
    raw.say(RST_STREAM, 0, first, &[0, 0, 0, 8]);
    server.in_line("a", STREAMS_MAX - 1);
    waits(&mut raw, STREAMS_MAX + 3);
    server.in_line("a", STREAMS_MAX);
}

/// A request body that does not arrive within 10 s is answered with 408.
#[test]
fn slow_body_times_out() {
    let server = Server::start(&[]);
    let mut raw = Raw::open(&server);
    raw.say(HEADERS, END_HEADERS, 1, &post("/locks/a?client=x"));
    raw.say(DATA, 0, 1, b"{");
    let answer = raw.until(DATA).expect("it answers");
    let body = String::from_utf8_lossy(&answer.payload).into_owned();
    assert!(body.contains("\"status\":408"), "{body}");
    assert_eq!(server.curl(&["/locks/a"]).is(200)["phase"], "free");
}

/// A request head that never ends, a connection without requests, and a TLS connection without a
/// preface: the server closes all of them.
#[test]
fn connection_without_requests_is_closed() {
    let server = Server::start(&[]);
    let mut slow = Raw::open(&server);
    slow.say(HEADERS, END_STREAM, 1, &post("/healthz"));
    // This client answers pings, so that only the lack of requests shows that its connection is
    // idle.
    let mut idle = Raw::open(&server);
    let begun = tls_that_never_begins();
    assert!(idle.until(GOAWAY).is_some(), "it gets a GOAWAY");
    assert!(idle.until(GOAWAY).is_some() && idle.until(GOAWAY).is_none(), "and then it ends");
    while slow.next_frame().is_some() {}
    begun.ended();
}

/// A connection with an open request is not idle, however long the request takes.
#[test]
fn connection_with_a_waiting_request_stays_open() {
    let server = Server::start(&[]);
    server.curl(&["-X", "POST", "/locks/a?client=holder&ttl=1h"]).is(200);
    let two = "--http2-prior-knowledge";
    let waiting = server.open(&[two, "-X", "POST", "/locks/a?client=x&wait=1h"]);
    let mut listening = server.events(&[two, "/events"]);
    let mut idle = Raw::open(&server);
    while idle.until(GOAWAY).is_some() {}
    // The connection without requests has been closed by now. The two with open requests, one that
    // waits for a lock and one that reads events, must still work.
    server.in_line("a", 1);
    server.curl(&["-X", "DELETE", "/locks/a?client=holder"]).is(200);
    let granted = waiting.reply();
    assert!(granted.is_http_2(), "{granted:?}");
    assert_eq!(granted.is(200)["holder"], "x");
    assert_eq!(listening.until("granted").data["holder"], "x");
}

/// A client that negotiates HTTP/2 by TLS, and then sends nothing.
struct Silent {
    client: std::process::Child,
    _server: Server,
    _scratch: Scratch,
}

fn tls_that_never_begins() -> Silent {
    let scratch = Scratch::new();
    let dir = scratch.path().join("certs").display().to_string();
    for what in [&["ca"][..], &["server", "127.0.0.1"]] {
        assert_eq!(run_latchfs(&[&["cert", "--dir", &dir], what].concat()).0, Some(0));
    }
    let (cert, key) = (format!("{dir}/server.pem"), format!("{dir}/server.key"));
    let server = Server::start(&["--tls-cert", &cert, "--tls-key", &key]);
    let port = server.url.rsplit(':').next().expect("a port").to_owned();
    let program = "
import socket, ssl, sys
context = ssl.create_default_context(cafile=sys.argv[2])
context.set_alpn_protocols(['h2'])
plain = socket.create_connection(('127.0.0.1', int(sys.argv[1])))
with context.wrap_socket(plain, server_hostname='127.0.0.1') as s:
    assert s.selected_alpn_protocol() == 'h2'
    s.settimeout(float(sys.argv[3]))
    try:
        while s.recv(4096):
            pass
    except (ConnectionError, ssl.SSLEOFError):
        pass
";
    let (ca, limit) = (format!("{dir}/ca.pem"), LIMIT.as_secs().to_string());
    let mut python = Command::new("python3");
    let client = python.args(["-c", program, &port, &ca, &limit]).spawn().expect("python3");
    Silent { client, _server: server, _scratch: scratch }
}

impl Silent {
    /// Checks that the server has closed the connection of this client.
    #[track_caller]
    fn ended(mut self) {
        assert!(self.client.wait().expect("it is our child").success(), "it was not ended");
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        // If the test has passed, the client process has already exited, and the kill has no
        // effect.
        let _ = self.client.kill();
        let _ = self.client.wait();
    }
}
