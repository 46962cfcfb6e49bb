//! The hold-off: after a start without state, the server grants nothing until all leases of the
//! previous run have expired. It says so everywhere, and an administrator can end it.

use latchfs::time::{Span, boot_now};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use testing::{Scratch, Server, run_latchfs};

const NONE: [&str; 7] = ["--memory", "--max-ttl", "2s", "--ttl", "2s", "--grace", "1s"];
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
        let mut server = Server::listen(&["--memory", "--grant-at-once"]);
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
        (&["--grant-at-once"][..], "are for --memory"),
        (&["--data", "kept", "--max-ttl", "5m"], "are for --memory"),
        (&["--data", "kept", "--memory"], "cannot be used with"),
        (&["--memory", "--peer-listen", "127.0.0.1:0"], "leave out --memory, or --peer-listen"),
        (&["--memory", "--grant-at-once", "--max-ttl", "5m"], "cannot be used with"),
        (&["--memory", "--max-ttl", "5s"], "--ttl 30s is longer than --max-ttl 5s"),
    ] {
        let (code, said) = run_latchfs(&[&["serve", "--listen", "127.0.0.1:0"], args].concat());
        assert_eq!(code, Some(64), "{args:?}: {said}");
        assert!(said.contains(why), "{args:?}: {said}");
    }
}

/// Options of a server that grants nothing for an hour.
const SHUT: [&str; 3] = ["--memory", "--max-ttl", "1h"];

/// During a hold-off each view says that nothing is granted, until when and why; and no client of
/// another name holds a lock.
#[test]
fn a_hold_off_is_said_everywhere() {
    let server = Server::listen(&SHUT);
    let (_, nothing_listed) = run_latchfs(&["ls", "--server", &server.url]);
    let waits = server.open(&["-X", "POST", "/locks/build?client=b&wait=1h"]);
    server.in_line("build", 1);

    let problem = server.curl(&["/readyz"]).is(503);
    let reason = (&problem["reason"], &problem["because"]);
    assert_eq!(reason, (&json!("hold_off"), &json!("no_state")), "{problem}");
    let until = problem["until"].as_str().expect("a time").to_owned();
    let said = format!(
        "nothing is granted before {until}, because this server began without the leases of its \
         last run"
    );
    assert!(problem["detail"].as_str().is_some_and(|it| it.starts_with(&said)), "{problem}");
    assert!(nothing_listed.contains("\nnothing is granted before"), "{nothing_listed}");
    assert_eq!(server.curl(&["/healthz"]).code, 200, "it lives");

    let refused = server.curl(&["-X", "POST", "/locks/other?client=c"]).is(409);
    assert_eq!((&refused["because"], &refused["holder"]), (&json!("no_state"), &Value::Null));
    assert!(refused["until"].is_string() && refused["retry_after_ms"].is_u64(), "{refused}");
    let status = server.curl(&["/locks/build"]).is(200);
    let phase = (&status["phase"], &status["holder"], &status["hold_off"]["because"]);
    assert_eq!(phase, (&json!("free"), &json!(""), &json!("no_state")), "{status}");

    let metrics = server.curl(&["/metrics"]).body;
    let left = metrics.lines().find_map(|line| line.strip_prefix("latchfs_hold_off_seconds "));
    let left: f64 = left.and_then(|left| left.parse().ok()).expect("a number");
    assert!((3_500.0..=3_605.0).contains(&left), "{left}");
    assert!(metrics.contains("latchfs_locks_by_phase{phase=\"held\"} 0"), "{metrics}");

    let url = ["--server", &server.url];
    for (command, says) in [
        (&["ls"][..], &said[..]),
        (&["status", "build"], &said),
        (&["who", "build"], &said),
        (&["acquire", "other"], "nothing is granted for"),
        (&["acquire", "other"], "latchfs cluster grant-now --reason WHY"),
        (&["doctor"], &said),
    ] {
        let (_, said) = run_latchfs(&[command, &url].concat());
        assert!(said.contains(says), "{command:?}: {said}");
        assert!(!said.contains("held by"), "{command:?}: {said}");
    }
    let line = format!("nothing is granted yet until={until} cause=no_state");
    assert!(server.log().contains(&line), "{}", server.log());
    waits.cut();
}

/// An administrator ends the hold-off of a running server, with a reason that is logged. Then the
/// waiters are served, and all is as usual.
#[test]
fn an_administrator_ends_a_hold_off() {
    let server = Server::listen(&SHUT);
    let mut events = server.events(&["/events"]);
    let waits = server.open(&["-X", "POST", "/locks/build?client=b&wait=1h"]);
    server.in_line("build", 1);
    let no_reason = server.curl(&["-X", "POST", "/grant-now?client=root"]).is(400);
    assert!(no_reason["detail"].as_str().is_some_and(|it| it.contains("reason")), "{no_reason}");
    let grant_now = ["cluster", "grant-now", "--server", &server.url, "--client", "root"];
    for _ in 0..2 {
        let (code, said) =
            run_latchfs(&[&grant_now[..], &["--reason", "all clients are off"]].concat());
        assert_eq!((code, said.as_str()), (Some(0), "locks are granted\n"));
    }
    let granted = waits.reply().is(200);
    assert_eq!((&granted["holder"], &granted["phase"]), (&json!("b"), &json!("held")));
    let ended = events.until("hold_off_ended");
    let by = (&ended.data["by"], &ended.data["reason"]);
    assert_eq!(by, (&json!("root"), &json!("all clients are off")), "{}", ended.data);
    assert_eq!(events.until("granted").data["holder"], "b");
    server.curl(&["/readyz"]).is(200);
    server.curl(&["-X", "POST", "/locks/other?client=c"]).is(200);
    assert_eq!(server.curl(&["/locks/build"]).is(200)["hold_off"], Value::Null);
    assert!(server.curl(&["/metrics"]).body.contains("\nlatchfs_hold_off_seconds 0"));
    let log = server.log();
    assert!(log.contains("locks are granted by=root reason=\"all clients are off\""), "{log}");
    assert!(log.contains("\"operation\":\"end a hold-off\""), "the act itself: {log}");
}

/// A server says once when the time is over.
#[test]
fn the_end_of_a_hold_off_is_logged() {
    let server = Server::listen(&NONE);
    let waits = server.open(&["-X", "POST", "/locks/build?client=b&wait=20s"]);
    waits.reply().is(200);
    let log = server.log();
    assert_eq!(log.matches("locks are granted reason=\"its time is over\"").count(), 1, "{log}");
    server.curl(&["/readyz"]).is(200);
}

#[test]
fn a_hold_off_is_ended_only_with_the_right_to_steal() {
    let scratch = Scratch::new();
    let path = scratch.path().join("tokens.toml");
    let entry = |name: &str, more: &str| {
        format!(
            "[[token]]\nname = '{name}'\nsecret = 'the secret of {name}'\nclients = ['*']\n{more}\n"
        )
    };
    let part = "steal = true\nlocks = ['a']";
    let text =
        entry("plain", "cluster = true") + &entry("part", part) + &entry("admin", "steal = true");
    fs::write(&path, text).expect("a fresh directory");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("it is ours");
    let server = Server::listen(&[&SHUT[..], &["--tokens", &path.display().to_string()]].concat());
    for (who, code) in [("plain", 403), ("part", 403), ("admin", 200)] {
        let bearer = format!("Authorization: Bearer the secret of {who}");
        server.curl(&["-H", &bearer, "-X", "POST", "/grant-now?client=x&reason=why"]).is(code);
        assert_eq!(server.curl(&["/readyz"]).code == 200, code == 200, "{who}");
    }
}
