//! Whether the server lives, what it says to what it does not know, and its end.

use crate::harness::Server;

#[test]
fn it_lives_and_is_ready() {
    let server = Server::start(&[]);
    assert_eq!(server.curl(&["/healthz"]).is(200)["status"], "alive");
    assert_eq!(server.curl(&["/readyz"]).is(200)["status"], "ready");
    assert_eq!(server.curl(&["--http2-prior-knowledge", "/readyz"]).is(200)["status"], "ready");
}

#[test]
fn what_is_not_there_is_told_as_a_problem() {
    let server = Server::start(&[]);
    let reply = server.curl(&["/nothing"]);
    assert_eq!(reply.is(404)["status"], 404);
    assert_eq!(reply.header("content-type"), Some("application/problem+json"));
    let reply = server.curl(&["-X", "DELETE", "/healthz"]);
    assert_eq!(reply.is(405)["title"], "Method Not Allowed");
    assert_eq!(reply.header("allow"), Some("GET"));
}

#[test]
fn a_signal_ends_it_in_order() {
    let mut server = Server::start(&[]);
    server.curl(&["/healthz"]).is(200);
    server.signal(libc::SIGTERM);
    assert_eq!(server.wait(), Some(0));
}
