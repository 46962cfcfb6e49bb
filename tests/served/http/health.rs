//! Health checks, responses to unknown paths and methods, and a clean exit.

use testing::Server;

#[test]
fn running_server_is_alive_and_ready() {
    let server = Server::start(&[]);
    assert_eq!(server.curl(&["/healthz"]).is(200)["status"], "alive");
    assert_eq!(server.curl(&["/readyz"]).is(200)["status"], "ready");
    assert_eq!(server.curl(&["--http2-prior-knowledge", "/readyz"]).is(200)["status"], "ready");
}

#[test]
fn unknown_path_or_method_is_a_problem() {
    let server = Server::start(&[]);
    let reply = server.curl(&["/nothing"]);
    assert_eq!(reply.is(404)["status"], 404);
    assert_eq!(reply.header("content-type"), Some("application/problem+json"));
    let reply = server.curl(&["-X", "DELETE", "/healthz"]);
    assert_eq!(reply.is(405)["title"], "Method Not Allowed");
    assert_eq!(reply.header("allow"), Some("GET"));
}

#[test]
fn sigterm_ends_the_server_cleanly() {
    let mut server = Server::start(&[]);
    server.curl(&["/healthz"]).is(200);
    server.signal(libc::SIGTERM);
    assert_eq!(server.wait(), Some(0));
}
