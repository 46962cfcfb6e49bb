//! A hostile web page in the browser of a user who may use the server.

use latchfs::time::{Span, boot_now};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use testing::{Scratch, Server, latchfs, run};

/// The time within which the victim must get its answer during the attack.
const PROMPT: Span = Span::from_secs(1);

/// The server refuses changes by web pages of other sites: the browser reports the relation of the
/// page's site in the `Sec-Fetch-Site` header, which no page can set.
#[test]
fn cross_site_requests_change_nothing() {
    let server = Server::start(&[]);
    server.curl(&["-X", "POST", "/locks/build?client=victim"]).is(200);
    for site in ["cross-site", "same-site"] {
        let header = format!("Sec-Fetch-Site: {site}");
        for (method, path) in [
            ("POST", "/lock?client=x"),
            ("POST", "/locks/other?client=x"),
            ("POST", "/locks/build/steal?client=x"),
            ("DELETE", "/locks/build?client=victim"),
            ("POST", "/sessions?client=x"),
        ] {
            let denied = server.curl(&["-X", method, "-H", &header, path]).is(403);
            assert_eq!(denied["kind"], "E_DENIED", "{method} {path}");
        }
        // A page of another site may link to the server's status page: a GET of the page succeeds.
        assert_eq!(server.curl(&["-H", &header, "/"]).code, 200);
        let asked = boot_now();
        let seen = server.curl(&["/locks/build"]).is(200);
        assert_eq!(seen["holder"], "victim");
        assert_eq!(server.curl(&["/locks/other"]).is(200)["phase"], "free");
        assert!(boot_now().since(asked) < PROMPT, "the victim waits");
    }
    server.curl(&["-X", "POST", "-H", "Sec-Fetch-Site: same-origin", "/lock?client=x"]).is(200);
}

/// A page whose own name resolves to the address of the server (DNS rebinding) sends requests with
/// that name as their host, which an earlier version answered; and a page of another site names
/// itself as the origin, also of a request that only reads.
#[test]
fn foreign_hosts_and_origins_are_refused() {
    let server = Server::start(&["--name", "box.lan"]);
    server.curl(&["-X", "POST", "/locks/build?client=victim"]).is(200);
    for host in ["evil.example", "localhost.evil.example", "evil.example:8080"] {
        let host = format!("Host: {host}");
        for http in ["--http1.1", "--http2-prior-knowledge"] {
            let denied = server.curl(&[http, "-H", &host, "/locks/build"]).is(403);
            assert_eq!(denied["kind"], "E_DENIED", "{host} {http}");
            let stolen = "/locks/build/steal?client=x&reason=y";
            server.curl(&[http, "-H", &host, "-X", "POST", stolen]).is(403);
        }
    }
    for origin in ["http://evil.example", "null"] {
        let origin = format!("Origin: {origin}");
        server.curl(&["-H", &origin, "/locks/build"]).is(403);
        server.curl(&["-H", &origin, "-X", "DELETE", "/locks/build?client=victim"]).is(403);
    }
    let own = std::fs::read_to_string("/proc/sys/kernel/hostname").expect("there is one");
    let local = format!("{}.local:8080", own.trim());
    for host in
        [own.trim(), &local, "box.lan", "BOX.lan:1", "localhost:1", "192.0.2.1", "[2001:db8::1]:1"]
    {
        let host = format!("Host: {host}");
        assert_eq!(server.curl(&["-H", &host, "/locks/build"]).is(200)["holder"], "victim");
    }
    // A picture of a page can't be a backup, which would cost the server much.
    let picture = |path: &str| server.curl(&["-H", "Sec-Fetch-Site: cross-site", path]);
    picture("/backup").is(403);
    picture("/locks/build").is(200);
    let own = format!("Origin: {}", server.url);
    server.curl(&["-H", &own, "-X", "DELETE", "/locks/build?client=victim"]).is(200);
}

/// The names in the certificate of a server are its own.
#[test]
fn names_in_the_certificate_are_own_hosts() {
    let scratch = Scratch::new();
    let certs = scratch.join("certs").display().to_string();
    for words in [&["ca"][..], &["server", "box.lan", "localhost"]] {
        run(latchfs().args(["cert", "--dir", &certs]).args(words)).ok();
    }
    let (cert, key) = (format!("{certs}/server.pem"), format!("{certs}/server.key"));
    let server = Server::start(&["--tls-cert", &cert, "--tls-key", &key]);
    for (host, code) in [("box.lan", 200), ("box.lan:1", 200), ("evil.example", 403)] {
        let header = format!("Host: {host}");
        let reply = server.curl(&["-k", "--http1.1", "-H", &header, "/locks/x"]);
        assert_eq!(reply.code, code, "{host}");
    }
}

/// A proxy may check the first of two Host headers, and the server the second one.
#[test]
fn a_request_with_two_hosts_is_refused() {
    let server = Server::start(&[]);
    let address = server.url.trim_start_matches("http://");
    let mut stream = TcpStream::connect(address).expect("it listens");
    let request = "GET /locks HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\
                   Connection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer, and the end of the connection");
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    assert!(answer.contains("more than one Host header"), "{answer}");
}
