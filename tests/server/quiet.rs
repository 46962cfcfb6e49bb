//! Connections that only keep a session alive are served by a thread that takes breaks. Nobody
//! may notice: whatever else they ask is answered as on any other, and they end like any other.

use crate::harness::{LATCHFS, Server, eventually};
use crate::tls::Certs;
use latchfs::time::{Span, boot_now};
use serde_json::Value;
use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

/// Signs of life that come this seldom are those of a session that lasts.
const SELDOM: Span = Span::from_millis(1_100);

trait Stream: Read + Write {}
impl<S: Read + Write> Stream for S {}

/// A client on a connection of its own, which stays.
struct Client {
    stream: BufReader<Box<dyn Stream>>,
    session: String,
}

impl Client {
    fn new(stream: impl Stream + 'static) -> Self {
        let mut client = Self { stream: BufReader::new(Box::new(stream)), session: String::new() };
        client.open();
        client
    }

    fn of(server: &Server) -> Self {
        Self::new(connect(server))
    }

    #[track_caller]
    fn open(&mut self) {
        let (code, opened) = self.ask("POST", "/sessions?client=a&ttl=30s");
        assert_eq!(code, 201, "{opened}");
        self.session = opened["session"].to_string();
    }

    fn say(&mut self, method: &str, path: &str) {
        let request = format!("{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n");
        self.stream.get_mut().write_all(request.as_bytes()).expect("it reads");
    }

    #[track_caller]
    fn hear(&mut self) -> (u16, Value) {
        let (mut line, mut length) = (String::new(), 0);
        self.stream.read_line(&mut line).expect("an answer");
        let code = line.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a code");
        while line != "\r\n" {
            line.clear();
            self.stream.read_line(&mut line).expect("a head");
            if let Some(value) = line.strip_prefix("content-length: ") {
                length = value.trim().parse().expect("a length");
            }
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).expect("a body");
        (code, serde_json::from_slice(&body).unwrap_or_default())
    }

    #[track_caller]
    fn ask(&mut self, method: &str, path: &str) -> (u16, Value) {
        self.say(method, path);
        self.hear()
    }

    #[track_caller]
    fn sign_of_life(&mut self) {
        let path = format!("/sessions/{}/keepalive", self.session);
        let (code, kept) = self.ask("POST", &path);
        assert_eq!((code, &kept["session"].to_string()), (200, &self.session), "{kept}");
    }

    /// Does nothing but keep its session alive, until it is known for that.
    #[track_caller]
    fn calm_down(&mut self, quiet: impl Fn() -> u64) {
        eventually("a quiet connection", || {
            pass(SELDOM);
            self.sign_of_life();
            (quiet() == 1).then_some(())
        });
    }

    /// Waits until the other side ends the connection.
    fn end(&mut self) {
        let mut rest = Vec::new();
        self.stream.read_to_end(&mut rest).expect("it ends in order");
        assert_eq!(rest, b"");
    }
}

fn connect(server: &Server) -> TcpStream {
    let address = server.url.split("://").nth(1).expect("a URL");
    let stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(90))).expect("not zero");
    stream
}

/// Lets time pass: how seldom something is asked is what this is about.
#[track_caller]
fn pass(span: Span) {
    let begun = boot_now();
    eventually("time", || (boot_now().since(begun) >= span).then_some(()));
}

/// How many connections are quiet.
#[track_caller]
fn quiet(server: &Server, options: &[&str]) -> u64 {
    let page = server.curl(&[options, &["/metrics"]].concat()).body;
    let line = page.lines().find_map(|line| line.strip_prefix("latchfs_http_quiet "));
    line.and_then(|count| count.parse().ok()).expect("a number")
}

/// All that a connection can ask, each for the first time after it was quiet.
fn goes_and_comes(server: &Server, client: &mut Client, options: &[&str]) {
    let quiet = || quiet(server, options);
    assert_eq!(quiet(), 0);
    client.calm_down(quiet);
    // It is served as before, and stays.
    pass(SELDOM);
    client.sign_of_life();
    assert_eq!(quiet(), 1);
    // Something else.
    let path = format!("/locks/build?client=a&session={}", client.session);
    let (code, held) = client.ask("POST", &path);
    assert_eq!((code, held["holder"].as_str()), (200, Some("a")), "{held}");
    assert_eq!(quiet(), 0);
    client.calm_down(quiet);
    assert_eq!(client.ask("GET", "/nothing/here").0, 404);
    // That is answered where it is, and then it goes.
    eventually("a connection that is back", || (quiet() == 0).then_some(()));
    // A place in line, which takes its time; whoever comes with it has it.
    let held = server.curl(&[options, &["-X", "POST", "/locks/other?client=b"]].concat());
    held.is(200);
    client.calm_down(quiet);
    client.say("POST", "/locks/other?client=a&wait=60s");
    eventually("a waiter", || {
        let status = server.curl(&[options, &["/locks/other"]].concat()).json();
        (status["waiters"].as_array().map(Vec::len) == Some(1)).then_some(())
    });
    assert_eq!(quiet(), 0);
    server.curl(&[options, &["-X", "DELETE", "/locks/other?client=b"]].concat()).is(200);
    let (code, held) = client.hear();
    assert_eq!((code, held["holder"].as_str()), (200, Some("a")), "{held}");
    client.calm_down(quiet);
}

#[test]
fn a_connection_goes_and_comes() {
    let server = Server::start(&[]);
    let mut client = Client::of(&server);
    goes_and_comes(&server, &mut client, &[]);
    // A request that comes in parts, and one behind another.
    client.stream.get_mut().write_all(b"GET /locks/bu").expect("it reads");
    pass(Span::from_millis(50));
    client.stream.get_mut().write_all(b"ild HTTP/1.1\r\nhost: x\r\n\r\n").expect("it reads");
    assert_eq!(client.hear().1["holder"], "a");
    client.calm_down(|| quiet(&server, &[]));
    let path = format!("/sessions/{}/keepalive", client.session);
    for (method, path) in [("POST", path.as_str()), ("GET", "/locks/build"), ("POST", &path)] {
        client.say(method, path);
    }
    assert_eq!(client.hear().1["session"].to_string(), client.session);
    assert_eq!(client.hear().1["holder"], "a");
    assert_eq!(client.hear().1["session"].to_string(), client.session);
    client.calm_down(|| quiet(&server, &[]));
    drop(client);
    eventually("its end", || (quiet(&server, &[]) == 0).then_some(()));
}

#[test]
fn a_connection_by_tls_goes_and_comes() {
    let certs = Certs::make();
    let (server, ca) = (certs.serve(&[]), certs.path("ca.pem"));
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(&ca).expect("a file") {
        roots.add(certificate.expect("a certificate")).expect("a good one");
    }
    let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let name = ServerName::try_from("localhost").expect("a name");
    let tls = ClientConnection::new(Arc::new(config), name).expect("a good configuration");
    let mut client = Client::new(StreamOwned::new(tls, connect(&server)));
    goes_and_comes(&server, &mut client, &["--cacert", &ca]);
}

/// The programs of latchfs keep their sessions alive by connections of their own.
#[test]
fn a_session_of_a_program_is_quiet() {
    let server = Server::start(&[]);
    let mut command = Command::new(LATCHFS);
    command.args(["run", "build", "--server", &server.url, "--ttl", "6s", "--", "cat"]);
    let mut child = command.stdin(Stdio::piped()).spawn().expect("the program is there");
    eventually("a quiet connection", || {
        pass(SELDOM);
        (quiet(&server, &[]) == 1).then_some(())
    });
    assert_eq!(server.curl(&["/locks/build"]).is(200)["phase"], "held");
    drop(child.stdin.take());
    assert!(child.wait().expect("our child").success());
    assert_eq!(server.curl(&["/locks/build"]).is(200)["phase"], "free");
}

/// A client that sends nothing for 30 s is disconnected, whichever thread serves it.
#[test]
fn a_quiet_connection_that_falls_silent_ends() {
    let server = Server::start(&[]);
    let mut client = Client::of(&server);
    client.calm_down(|| quiet(&server, &[]));
    client.end();
    eventually("its end", || (quiet(&server, &[]) == 0).then_some(()));
}

#[test]
fn a_quiet_connection_does_not_hold_up_the_end() {
    let mut server = Server::start(&[]);
    let mut client = Client::of(&server);
    client.calm_down(|| quiet(&server, &[]));
    server.signal(libc::SIGTERM);
    client.end();
    assert_eq!(server.wait(), Some(0));
}

/// Somebody waits for each answer before it asks for the next: there is no break for it.
#[test]
fn who_asks_often_is_not_quiet() {
    let server = Server::start(&[]);
    let mut client = Client::of(&server);
    for _ in 0..1_000 {
        client.sign_of_life();
    }
    assert_eq!(quiet(&server, &[]), 0);
}
