//! Request ids: a caller who guesses another's Idempotency-Key, and one who repeats its own for
//! another request.

use crate::server_harness::{Reply, Scratch, Server};
use latchfs::engine::lease_terms::{GRACE_DEFAULT, TTL_DEFAULT};
use latchfs::engine::{
    Acquire, ClientId, LeaseKey, LeaseTerms, LockName, Mode, Op, OpenSession, Outcome, Ownership,
    Patch, QueuePolicy, Release,
};
use latchfs::service::batch_messages::{
    BatchItem, ItemReply, RequestBatch, Submission, decode_told, encode_batch,
};
use latchfs::time::{Span, boot_now};
use serde_json::json;
use sha2::{Digest as _, Sha256};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

const TOKENS: &str = r#"
[[token]]
name = "ci"
secret = "the secret of the victim"
clients = ["ci"]
locks = ["prod/"]

[[token]]
name = "ops"
secret = "the secret of its rival"
clients = ["ops"]
locks = ["prod/"]

[[token]]
name = "eve"
secret = "the secret of the attacker"
clients = ["eve"]
locks = ["sandbox/"]
"#;

const VICTIM: &str = "Authorization: Bearer the secret of the victim";
const RIVAL: &str = "Authorization: Bearer the secret of its rival";
const EVE: &str = "Authorization: Bearer the secret of the attacker";

/// A right answer comes within this, whatever an attacker does.
const PROMPT: Span = Span::from_secs(1);

fn start(scratch: &Scratch) -> Server {
    let path = scratch.path().join("tokens.toml");
    fs::write(&path, TOKENS).expect("a fresh directory");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("it is ours");
    Server::listen(&["--state", "none", "--grant-at-once", "--tokens", &path.display().to_string()])
}

/// A keyed request of the victim, which must be answered at once.
#[track_caller]
fn victim(server: &Server, method: &str, key: &str, path: &str) -> Reply {
    let asked = boot_now();
    let reply = server.curl(&["-H", VICTIM, "-H", key, "-X", method, path]);
    let took = boot_now().since(asked);
    assert!(took < PROMPT, "{method} {path} took {took}");
    reply
}

/// What the attacker is told by the batch endpoint.
fn eve_asks(server: &Server, scratch: &Path, number: u64, asks: Vec<BatchItem>) -> Vec<ItemReply> {
    let batch = RequestBatch { engine: 0, from: 7, number, session: None, asks };
    send(server, scratch, EVE, &batch)
}

/// Sends a batch with these credentials.
fn send(server: &Server, scratch: &Path, who: &str, batch: &RequestBatch) -> Vec<ItemReply> {
    let (sent, told) = (scratch.join("batch"), scratch.join("told"));
    fs::write(&sent, encode_batch(batch)).expect("it is ours");
    let mut curl = Command::new("curl");
    curl.args(["-sS", "--fail-with-body", "--max-time", "10", "-H", who, "--data-binary"]);
    curl.arg(format!("@{}", sent.display())).arg("-o").arg(&told);
    let done = curl.arg(format!("{}/door/v1/ask", server.url)).status().expect("curl is there");
    let bytes = fs::read(&told).unwrap_or_default();
    assert!(done.success(), "{}", String::from_utf8_lossy(&bytes));
    decode_told(&bytes).expect("an answer to a batch").replies
}

fn name(text: &str) -> LockName {
    LockName::parse(text).expect("a name")
}

fn client(text: &str) -> ClientId {
    ClientId::parse(text).expect("a client")
}

fn keyed(key: &str, op: Op) -> BatchItem {
    BatchItem::Submit(Submission { key: Some(key.into()), op })
}

fn acquire(lock: &str, who: &str) -> Op {
    Op::Acquire(Acquire {
        name: name(lock),
        client: client(who),
        mode: Mode::Exclusive,
        hold: Ownership::Client,
        term: LeaseTerms::Own(TTL_DEFAULT, GRACE_DEFAULT),
        line: QueuePolicy::Skip,
        patch: Patch::default(),
    })
}

fn release(lock: &str, who: &str) -> Op {
    let key = LeaseKey { name: name(lock), client: client(who), token: None };
    Op::Release(Release::of(key))
}

/// The key under which a server kept a request of the API, before keys belonged to callers: anybody
/// could compute it from what the victim was going to send.
fn digest(method: &str, path: &str, key: &str) -> String {
    format!("{:x}", Sha256::digest(format!("{method}\0{path}\0{key}\0")))
}

/// The attacker plants answers under keys that the victim will use. Neither is the victim told
/// that it holds what its rival holds, nor that it has released what it goes on to hold.
#[test]
fn planted_answers_reach_nobody() {
    let scratch = Scratch::new();
    let server = start(&scratch);
    let rivals = server.curl(&["-H", RIVAL, "-X", "POST", "/locks/prod/db"]).is(200);
    let planted = digest("POST", "/locks/prod/db", "deploy-1");
    let keys = ["deploy-1", "http:ci", "ci", "http:ci/deploy-1", &planted];
    for (number, key) in (1..).zip(keys) {
        let lock = format!("sandbox/{number}");
        let asks = vec![keyed(key, acquire(&lock, "eve"))];
        let told = eve_asks(&server, scratch.path(), number, asks);
        assert!(
            matches!(&told[..], [ItemReply::Answered(Ok(_))]),
            "its own locks it may: {told:?}"
        );
    }
    let planted = digest("DELETE", "/locks/prod/db", "undeploy-1");
    for (number, key) in (1..).zip(["undeploy-1", &planted]) {
        let asks = vec![keyed(key, release(&format!("sandbox/{number}"), "eve"))];
        let told = eve_asks(&server, scratch.path(), 10 + number, asks);
        assert!(
            matches!(&told[..], [ItemReply::Answered(Ok(_))]),
            "its own locks it may: {told:?}"
        );
    }

    let key = "Idempotency-Key: deploy-1";
    let refused = victim(&server, "POST", key, "/locks/prod/db").is(409);
    assert_eq!(refused["token"], rivals["token"]);
    server.curl(&["-H", RIVAL, "-X", "DELETE", "/locks/prod/db"]).is(200);
    let granted = victim(&server, "POST", key, "/locks/prod/db").is(200);
    assert!(granted["token"].as_u64() > rivals["token"].as_u64(), "{granted}");
    victim(&server, "DELETE", "Idempotency-Key: undeploy-1", "/locks/prod/db").is(200);
    let status = server.curl(&["-H", RIVAL, "/locks/prod/db"]).is(200);
    assert_eq!(status["phase"], "free", "it was told to be released, and is");
}

/// The attacker reads nothing by the keys of the victim, by the batch endpoint or by HTTP.
#[test]
fn the_answers_of_others_are_not_told() {
    let scratch = Scratch::new();
    let server = start(&scratch);
    let key = "Idempotency-Key: deploy-1";
    let victims = victim(&server, "POST", key, "/locks/prod/db").is(200);
    let stored = digest("POST", "/locks/prod/db", "deploy-1");
    let asks = vec![keyed(&stored, acquire("sandbox/y", "eve"))];
    let told = eve_asks(&server, scratch.path(), 1, asks);
    let [ItemReply::Answered(Ok(Outcome::Granted(eves)))] = &told[..] else {
        panic!("its own locks it may: {told:?}");
    };
    assert_ne!(victims["token"], eves.token.as_u64(), "she was told the victim's answer");
    let status = server.curl(&["-H", EVE, "/locks/sandbox/y"]).is(200);
    assert_eq!(status["holder"], "eve");
    let asks = vec![
        keyed("deploy-1", acquire("prod/db", "ci")),
        keyed("deploy-1", acquire("prod/db", "eve")),
        keyed("deploy-1", acquire("sandbox/x", "ci")),
    ];
    let told = eve_asks(&server, scratch.path(), 2, asks);
    assert!(told.iter().all(|told| matches!(told, ItemReply::Unavailable(_))), "{told:?}");
    let eve = server.curl(&["-H", EVE, "-H", key, "-X", "POST", "/locks/prod/db?client=ci"]);
    eve.is(403);
    let own = server.curl(&["-H", EVE, "-H", key, "-X", "POST", "/locks/sandbox/x"]);
    assert_eq!(own.is(200)["holder"], "eve");
    assert_eq!(own.header("Idempotent-Replayed"), None);
    let again = victim(&server, "POST", key, "/locks/prod/db");
    assert_eq!(again.header("Idempotent-Replayed"), Some("true"));
    assert_eq!(again.is(200)["holder"], "ci");
}

/// The attacker names the session of the victim, to use up the numbers of its requests.
#[test]
fn the_numbers_of_anothers_requests_are_not_used_up() {
    let scratch = Scratch::new();
    let server = start(&scratch);
    let victims = |number, session, op: Op| {
        let asks = vec![BatchItem::Submit(op.into())];
        // Another sender each time: the server itself knows the batches of one.
        let batch = RequestBatch { engine: 0, from: number, number, session, asks };
        send(&server, scratch.path(), VICTIM, &batch)
    };
    let open = OpenSession { client: client("ci"), ttl: Some(TTL_DEFAULT), grace: GRACE_DEFAULT };
    let opened = victims(1, None, Op::OpenSession(open));
    let [ItemReply::Answered(Ok(Outcome::SessionOpened(session)))] = opened[..] else {
        panic!("a session of its own: {opened:?}");
    };
    let asks = vec![BatchItem::Submit(acquire("sandbox/x", "eve").into())];
    let (number, session) = (u64::MAX, Some(session));
    let batch = RequestBatch { engine: 0, from: 7, number, session, asks };
    let told = send(&server, scratch.path(), EVE, &batch);
    assert!(matches!(&told[..], [ItemReply::Answered(Ok(_))]), "what it may: {told:?}");
    let told = victims(2, session, acquire("prod/db", "ci"));
    assert!(matches!(&told[..], [ItemReply::Answered(Ok(Outcome::Granted(_)))]), "{told:?}");
    // The victim itself uses them up.
    victims(u64::MAX, session, acquire("prod/y", "ci"));
    let told = victims(u64::MAX - 1, session, acquire("prod/z", "ci"));
    let [ItemReply::Answered(Err(refusal))] = &told[..] else { panic!("{told:?}") };
    assert!(refusal.to_string().contains("came late"), "{refusal}");
}

/// A key belongs to the whole request: by another one it is refused, and nothing is done.
#[test]
fn a_key_of_another_request_is_refused() {
    let scratch = Scratch::new();
    let server = start(&scratch);
    let key = "Idempotency-Key: deploy-1";
    victim(&server, "POST", key, "/locks/prod/db?ttl=60s").is(200);
    for (method, path) in [
        ("POST", "/locks/prod/db?ttl=61s"),
        ("POST", "/locks/prod/db?ttl=60s&note=x"),
        ("PUT", "/locks/prod/db?ttl=60s"),
        ("PATCH", "/locks/prod/db?ttl=60s"),
        ("POST", "/locks/prod/other?ttl=60s"),
        ("DELETE", "/locks/prod/db"),
        ("POST", "/sessions"),
    ] {
        let refused = victim(&server, method, key, path);
        assert_eq!(refused.is(422)["kind"], "E_INVALID", "{method} {path}");
        assert!(refused.body.contains("used before for another request"), "{refused:?}");
    }
    let status = server.curl(&["-H", VICTIM, "/locks/prod/db"]).is(200);
    assert_eq!((&status["phase"], &status["ttl_ms"]), (&json!("held"), &json!(60_000)));
    assert_eq!(server.curl(&["-H", VICTIM, "/locks/prod/other"]).is(200)["phase"], "free");
}
