//! A client that is given several server URLs: it fails over from a dead or hanging server, but
//! never to a server with other locks.

use std::net::TcpListener;
use testing::{Server, run_latchfs};

fn dead() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    format!("http://{}", listener.local_addr().expect("bound"))
}

fn acquire(servers: &str, name: &str) -> (Option<i32>, String) {
    run_latchfs(&["acquire", name, "--server", servers, "--client", "a"])
}

#[test]
fn client_fails_over_from_a_dead_server() {
    let server = Server::start(&[]);
    let servers = format!("{},{}", dead(), server.url);
    let (code, said) = acquire(&servers, "build");
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(server.curl(&["/locks/build"]).is(200)["holder"], "a");
}

#[test]
fn client_fails_over_from_a_hanging_server() {
    let (frozen, server) = (Server::start(&[]), Server::start(&[]));
    frozen.signal(libc::SIGSTOP);
    let servers = format!("{},{}", frozen.url, server.url);
    let (code, said) = acquire(&servers, "build");
    frozen.signal(libc::SIGCONT);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(server.curl(&["/locks/build"]).is(200)["holder"], "a");
    assert_eq!(frozen.curl(&["/locks/build"]).is(200)["phase"], "free", "it was asked nothing");
}

#[test]
fn no_server_is_reachable() {
    let servers = format!("{},{}", dead(), dead());
    let (code, said) = acquire(&servers, "build");
    assert_eq!(code, Some(69), "{said}");
    let (code, said) = acquire("http://a,nonsense", "build");
    assert_eq!(code, Some(64), "{said}");
}

/// `run` holds a lock on the first server, which dies. The client must not fail over to the second
/// server, which knows nothing of the lock: the command ends, and the second server grants nothing.
#[test]
fn client_does_not_fail_over_to_another_engine() {
    let (first, second) = (Server::start(&[]), Server::start(&[]));
    let servers = format!("{},{}", first.url, second.url);
    let script = format!("kill -9 {}; sleep 600", first.pid());
    let (code, said) = run_latchfs(&[
        "run", "build", "--server", &servers, "--client", "a", "--ttl", "2s", "--", "sh", "-c",
        &script,
    ]);
    assert_eq!(code, Some(76), "{said}");
    assert_eq!(second.curl(&["/locks/build"]).is(200)["phase"], "free");
    assert_eq!(
        second.curl(&["/metrics"]).body.lines().find(|line| line.starts_with("latchfs_sessions ")),
        Some("latchfs_sessions 0")
    );
}
