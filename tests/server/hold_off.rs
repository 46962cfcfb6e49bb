//! `--state none`: after a restart the server grants nothing until all leases of the previous run
//! have expired, and no token is issued twice.

use crate::harness::{Server, latchfs};
use latchfs::time::{Span, boot_now};
use serde_json::{Value, json};

const NONE: [&str; 8] = ["--state", "none", "--max-ttl", "2s", "--ttl", "2s", "--grace", "1s"];
/// The time after a restart in which the server grants no locks, because leases of its previous run
/// may not be over: the maximum ttl plus the grace period.
const HOLD_OFF: Span = Span::from_secs(3);

fn token(granted: &Value) -> u64 {
    granted["token"].as_u64().expect("a token")
}

fn kill(server: &mut Server) {
    server.signal(libc::SIGKILL);
    assert_eq!(server.wait(), None);
}

#[test]
fn lease_from_before_a_restart_expires_before_the_next_grant() {
    let mut server = Server::listen(&NONE);
    let first = server.curl(&["-X", "POST", "/locks/build?client=a&wait=20s"]).is(200);
    kill(&mut server);
    let restarted = boot_now();
    let server = Server::listen(&NONE);
    let refused = server.curl(&["-X", "POST", "/locks/build?client=b"]).is(409);
    assert_eq!(refused["reason"], "hold_off", "{refused}");
    let detail = refused["detail"].as_str().unwrap_or_default();
    assert!(detail.contains("nothing is granted for") && detail.contains("wait"), "{detail}");
    assert!(refused["retry_after_ms"].as_u64().is_some_and(|ms| ms <= 3_000), "{refused}");
    // A client that waits in the queue is granted the lock when the time in which the restarted
    // server grants nothing is over.
    let second = server.curl(&["-X", "POST", "/locks/build?client=b&wait=20s"]).is(200);
    let waited = boot_now().since(restarted);
    assert!(waited >= HOLD_OFF, "granted after {waited}");
    assert_eq!(second["holder"], "b");
    assert!(token(&second) > token(&first), "{first} {second}");
    // After its next start the server will grant nothing for the maximum ttl plus the grace period.
    // So it refuses a lease that could last longer than that.
    let long = server.curl(&["-X", "POST", "/locks/long?client=b&ttl=2s&grace=2s"]).is(400);
    assert!(long["detail"].as_str().is_some_and(|why| why.contains("--max-ttl")), "{long}");
    let session = server.curl(&["-X", "POST", "/sessions?client=b&ttl=10m"]).is(400);
    assert_eq!(session["kind"], "E_INVALID", "{session}");
}

#[test]
fn grant_at_once_skips_the_hold_off() {
    let mut tokens = vec![];
    for _ in 0..3 {
        let mut server = Server::listen(&["--state", "none", "--grant-at-once"]);
        let granted = server.curl(&["-X", "POST", "/locks/build?client=a&ttl=24h"]).is(200);
        assert_eq!(granted["phase"], json!("held"));
        tokens.push(token(&granted));
        kill(&mut server);
    }
    assert!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
    assert!(tokens[0] > 1_700_000_000 << 20 && tokens[2] < 1 << 53, "{tokens:?}");
}

#[test]
fn options_that_contradict_each_other_are_refused() {
    for (args, why) in [
        (&["--state", "kept", "--grant-at-once"][..], "are for --state none"),
        (&["--data", "kept", "--max-ttl", "5m"], "are for --state none"),
        (&["--state", "none", "--grant-at-once", "--max-ttl", "5m"], "cannot be used with"),
        (&["--state", "none", "--max-ttl", "5s"], "--ttl 30s is longer than --max-ttl 5s"),
    ] {
        let (code, said) = latchfs(&[&["serve", "--listen", "127.0.0.1:0"], args].concat());
        assert_eq!(code, Some(64), "{args:?}: {said}");
        assert!(said.contains(why), "{args:?}: {said}");
    }
}
