//! Several servers for one client: the first may be dead, or frozen; one of another engine is not
//! taken for ours.

use crate::harness::{Server, latchfs};
use std::net::TcpListener;

fn dead() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    format!("http://{}", listener.local_addr().expect("bound"))
}

fn acquire(servers: &str, name: &str) -> (Option<i32>, String) {
    latchfs(&["acquire", name, "--server", servers, "--client", "a"])
}

#[test]
fn the_first_is_dead() {
    let server = Server::start(&[]);
    let servers = format!("{},{}", dead(), server.url);
    let (code, said) = acquire(&servers, "build");
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(server.curl(&["/locks/build"]).is(200)["holder"], "a");
}

#[test]
fn the_first_is_frozen() {
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
fn nobody_is_there() {
    let servers = format!("{},{}", dead(), dead());
    let (code, said) = acquire(&servers, "build");
    assert_eq!(code, Some(69), "{said}");
    let (code, said) = acquire("http://a,nonsense", "build");
    assert_eq!(code, Some(64), "{said}");
}

/// `run` holds a lock on the first. When that dies, the second, which knows nothing of the lock,
/// must not be asked in its place: the command ends, and nothing is held there.
#[test]
fn another_engine_is_no_replacement() {
    let (first, second) = (Server::start(&[]), Server::start(&[]));
    let servers = format!("{},{}", first.url, second.url);
    let script = format!("kill -9 {}; sleep 600", first.pid());
    let (code, said) = latchfs(&[
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
