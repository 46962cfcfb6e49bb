//! Seed 002, "Locking & Consistency Spec (v6.3)": lock files that are made exclusively, with
//! leases, fencing tokens, steals and classes of errors.

mod laptops;
mod sentences;
mod view_records;

use latchfs::engine::RefusalKind;
use serde_json::Value;
use std::fs::{self, OpenOptions};
use std::io;
use testing::{Mount, Scratch, Server, Setup, eventually};

fn post(server: &Server, path: &str) -> Value {
    server.curl(&["-X", "POST", path]).is(200)
}

fn token(status: &Value) -> u64 {
    status["token"].as_u64().expect("a token")
}

// "create lock file atomically using `O_CREAT|O_EXCL`"
// "if `open()` returns `EEXIST`, read existing lock and evaluate expiry"
// "Lock record schema (MUST)": `worktree_id`, `holder_id` (`host:user:pid:start_time`),
// `created_at`, `last_renewed_at`, `lease_duration_ms`, `lease_expires_at`, `fencing_token`
#[test]
fn a_lock_file_is_made_exclusively() {
    let server = Server::start(&[]);
    let one = Setup::of(&server, "laptop1").start();
    let other = Setup::of(&server, "laptop2").start();
    let make = |mount: &Mount| {
        let path = mount.dir().join("main");
        OpenOptions::new().write(true).create_new(true).open(path)
    };
    let file = make(&one).expect("it is free");
    let refused = make(&other).expect_err("it is held");
    assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
    let record: Value = serde_json::from_slice(
        &fs::read(other.dir().join("main")).expect("the record can be read"),
    )
    .expect("JSON");
    assert_eq!(record["name"], "main");
    let holder_id = record["holder_id"].as_str().expect("an id");
    // The login session and the boot follow.
    assert!(holder_id.split(':').count() >= 4, "{holder_id}");
    for field in ["acquired_at", "renewed_at", "token", "holder"] {
        assert!(!record[field].is_null(), "{field}: {record}");
    }
    drop(file);
    post(&server, "/locks/leased?client=a&ttl=30s");
    let leased = server.curl(&["/locks/leased"]).is(200);
    assert_eq!(leased["ttl_ms"], 30_000, "{leased}");
    assert!(leased["expires_at"].is_string(), "{leased}");
}

// "after successful create, fsync lock file and parent directory"
#[test]
fn a_granted_lock_survives_a_crash() {
    let scratch = Scratch::new();
    let server = Server::of(&scratch);
    let granted = post(&server, "/locks/main?client=a&ttl=1h");
    server.signal(libc::SIGKILL);
    drop(server);
    let repeated = Server::of(&scratch).curl(&["/locks/main"]).is(200);
    assert_eq!((&repeated["holder"], token(&repeated)), (&"a".into(), token(&granted)));
}

// "only holder with matching `holder_nonce` and `session_id` may renew"
// "renewal extends lease by `lease_duration_ms`"
// "only holder with matching nonce/session can release"
// "non-holder release fails with `E_LOCK_NOT_HELD`"
//
// The token of the tenure is the nonce of its holder.
#[test]
fn only_the_holder_renews_and_releases() {
    let server = Server::start(&[]);
    let held = post(&server, "/locks/main?client=a&ttl=30s");
    let number = token(&held);
    let refused = server.curl(&["-X", "DELETE", "/locks/main?client=b"]).is(403);
    assert_eq!(refused["kind"], "E_LOCK_NOT_HELD");
    let foreign = format!("/locks/main?client=b&token={number}");
    let refused = server.curl(&["-X", "POST", &foreign]);
    assert_ne!(refused.code, 200, "{refused:?}");
    let own = format!("/locks/main?client=a&token={number}&ttl=1h");
    assert_eq!(token(&post(&server, &own)), number);
    let left = server.curl(&["/locks/main"]).is(200)["expires_in_ms"].as_u64();
    assert!(left.is_some_and(|left| left > 3_500_000), "{left:?}");
}

// "if active non-expired lock exists, return `E_LOCK_CONFLICT`"
// "if expired plus skew+grace, steal flow applies and increments fencing token"
// "stale token fails with `E_FENCING_MISMATCH`"
#[test]
fn an_expired_lock_is_taken_under_a_higher_token() {
    let server = Server::start(&[]);
    let mut events = server.events(&["/events"]);
    let first = post(&server, "/locks/main?client=a&ttl=1s&grace=1s");
    let refused = server.curl(&["-X", "POST", "/locks/main?client=b"]).is(409);
    assert_eq!(refused["kind"], "E_LOCK_CONFLICT");
    events.until("expired");
    let refused = server.curl(&["-X", "POST", "/locks/main?client=b"]).is(409);
    assert_eq!(refused["reason"], "grace");
    events.until("lapsed");
    let second = post(&server, "/locks/main?client=b&ttl=1h");
    assert!(token(&second) > token(&first), "{first} {second}");
    let late = format!("/locks/main?client=a&token={}", token(&first));
    let refused = server.curl(&["-X", "DELETE", &late]).is(412);
    assert_eq!(refused["kind"], "E_FENCING_MISMATCH");
    let check = |number: u64| post(&server, &format!("/check?name=main&token={number}"));
    assert_eq!(check(token(&first))["current"], false);
    assert_eq!(check(token(&second))["current"], true);
}

// "new holder increments fencing token and `acquire_seq`", "audit event is mandatory"
// "if renewal commit fails, holder must stop writes immediately"
#[test]
fn a_steal_is_audited() {
    let scratch = Scratch::new();
    let data = scratch.path().join("data");
    let server = Server::of_data(&data);
    let first = post(&server, "/locks/main?client=a&ttl=1h");
    let stolen = post(&server, "/locks/main/steal?client=b&reason=laptop-is-gone");
    assert!(token(&stolen) > token(&first), "{first} {stolen}");
    let late = format!("/locks/main?client=a&token={}", token(&first));
    assert_ne!(server.curl(&["-X", "POST", &late]).code, 200, "its lease is over");
    let entry = eventually("the audit event", || {
        let log = fs::read_to_string(data.join("audit.log")).ok()?;
        log.lines().find(|line| line.contains("laptop-is-gone")).map(str::to_owned)
    });
    let entry: Value = serde_json::from_str(&entry).expect("JSON");
    assert_eq!(entry["name"], "main", "{entry}");
}

// "`E_LOCK_CONFLICT`, `E_LOCK_EXPIRED`, `E_LOCK_NOT_HELD`, `E_FENCING_MISMATCH`,
// `E_CLOCK_SKEW_EXCEEDED`, `E_CONSISTENCY_UNAVAILABLE`"
#[test]
fn error_classes_have_their_names() {
    let names = RefusalKind::ALL.map(RefusalKind::as_str);
    for name in [
        "E_LOCK_CONFLICT",
        "E_LOCK_EXPIRED",
        "E_LOCK_NOT_HELD",
        "E_FENCING_MISMATCH",
        "E_CLOCK_SKEW_EXCEEDED",
        "E_CONSISTENCY_UNAVAILABLE",
    ] {
        assert!(names.contains(&name), "{name}");
    }
}
