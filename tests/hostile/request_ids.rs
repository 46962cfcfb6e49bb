//! Idempotency keys: a caller guesses the key of another caller, or reuses its own key for another
//! request.

use crate::patience::prompt;
use latchfs::engine::values::lease::{GRACE_DEFAULT, TTL_DEFAULT};
use latchfs::engine::{
    Acquire, ClientId, EndSession, LeaseKey, LeaseTerms, LockName, Op, OpenSession, Outcome,
    Release, SessionEnd, Token,
};
use latchfs::service::batch::batch_messages::{
    BatchItem, BatchNumbers, ItemReply, RequestBatch, Submission, SubmissionKey, decode_response,
    encode_batch,
};
use serde_json::json;
use sha2::{Digest as _, Sha256};
use std::fs;
use std::path::Path;
use std::process::Command;
use testing::{LineConnection, Reply, Scratch, Server, eventually, run_latchfs};

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

[[token]]
name = "admin"
secret = "the secret of the administrator"
clients = ["*"]
"#;

pub(crate) const VICTIM: &str = "Authorization: Bearer the secret of the victim";
const RIVAL: &str = "Authorization: Bearer the secret of its rival";
pub(crate) const ADMIN: &str = "Authorization: Bearer the secret of the administrator";
pub(crate) const EVE: &str = "Authorization: Bearer the secret of the attacker";

pub(crate) fn start(scratch: &Scratch) -> Server {
    let tokens = scratch.secret_file("tokens.toml", TOKENS);
    Server::listen(&["--memory", "--grant-at-once", "--tokens", &tokens])
}

/// Sends a request of the victim with an idempotency key. The request must be answered within a
/// second.
#[track_caller]
fn victim(server: &Server, method: &str, key: &str, path: &str) -> Reply {
    prompt(&format!("{method} {path}"), || {
        server.curl(&["-H", VICTIM, "-H", key, "-X", method, path])
    })
}

/// Sends a batch of commands with the attacker's credentials; returns the replies to the commands.
fn eve_asks(server: &Server, scratch: &Path, asks: Vec<BatchItem>) -> Vec<ItemReply> {
    batch_of(server, scratch, EVE, asks)
}

/// Sends a batch of commands with the given credentials; returns the replies to the commands.
fn batch_of(server: &Server, scratch: &Path, by: &str, asks: Vec<BatchItem>) -> Vec<ItemReply> {
    send(server, scratch, by, &RequestBatch::new(0, asks))
}

/// Sends an encoded batch of commands with the credentials of `who`; returns the replies to the
/// commands.
fn send(server: &Server, scratch: &Path, who: &str, batch: &RequestBatch) -> Vec<ItemReply> {
    let (sent, replies) = (scratch.join("batch"), scratch.join("replies"));
    fs::write(&sent, encode_batch(batch)).expect("it is ours");
    let mut curl = Command::new("curl");
    curl.args(["-sS", "--fail-with-body", "--max-time", "10", "-H", who, "--data-binary"]);
    curl.arg(format!("@{}", sent.display())).arg("-o").arg(&replies);
    let done = curl.arg(format!("{}/door/v1/ask", server.url)).status().expect("curl is there");
    let bytes = fs::read(&replies).unwrap_or_default();
    assert!(done.success(), "{}", String::from_utf8_lossy(&bytes));
    decode_response(&bytes).expect("an answer to a batch").replies
}

fn name(text: &str) -> LockName {
    LockName::parse(text).expect("a name")
}

fn client(text: &str) -> ClientId {
    ClientId::parse(text).expect("a client")
}

pub(crate) fn keyed(key: &str, op: Op) -> BatchItem {
    BatchItem::Submit(Submission { key: Some(key.into()), op })
}

fn acquire(lock: &str, who: &str) -> Op {
    Op::Acquire(Acquire::new(name(lock), client(who), LeaseTerms::Own(TTL_DEFAULT, GRACE_DEFAULT)))
}

fn release(lock: &str, who: &str) -> Op {
    let key = LeaseKey { name: name(lock), client: client(who), token: None };
    Op::Release(Release::of(key))
}

/// Returns the key under which an earlier version of the server kept the answer to an API request,
/// before keys were scoped to callers: anybody could compute it from the victim's next request.
fn digest(method: &str, path: &str, key: &str) -> String {
    format!("{:x}", Sha256::digest(format!("{method}\0{path}\0{key}\0")))
}

/// The attacker stores answers under keys that the victim will use. No answer says that the victim
/// holds a lock of its rival, or that it has released a lock that it still holds.
#[test]
fn planted_answers_reach_no_other_caller() {
    let scratch = Scratch::new();
    let server = start(&scratch);
    let rivals = server.curl(&["-H", RIVAL, "-X", "POST", "/locks/prod/db"]).is(200);
    let planted = digest("POST", "/locks/prod/db", "deploy-1");
    let keys = ["deploy-1", "http:ci", "ci", "http:ci/deploy-1", &planted];
    for (number, key) in (1..).zip(keys) {
        let lock = format!("sandbox/{number}");
        let asks = vec![keyed(key, acquire(&lock, "eve"))];
        let replies = eve_asks(&server, scratch.path(), asks);
        assert!(
            matches!(&replies[..], [ItemReply::Answered(Ok(_))]),
            "its own locks it may: {replies:?}"
        );
    }
    let planted = digest("DELETE", "/locks/prod/db", "undeploy-1");
    for (number, key) in (1..).zip(["undeploy-1", &planted]) {
        let asks = vec![keyed(key, release(&format!("sandbox/{number}"), "eve"))];
        let replies = eve_asks(&server, scratch.path(), asks);
        assert!(
            matches!(&replies[..], [ItemReply::Answered(Ok(_))]),
            "its own locks it may: {replies:?}"
        );
    }

    let key = "Idempotency-Key: deploy-1";
    let refused = victim(&server, "POST", key, "/locks/prod/db").is(409);
    assert_eq!(refused["token"], rivals["token"]);
    server.curl(&["-H", RIVAL, "-X", "DELETE", "/locks/prod/db"]).is(200);
    let granted = victim(&server, "POST", "Idempotency-Key: deploy-2", "/locks/prod/db").is(200);
    assert!(granted["token"].as_u64() > rivals["token"].as_u64(), "{granted}");
    victim(&server, "DELETE", "Idempotency-Key: undeploy-1", "/locks/prod/db").is(200);
    let status = server.curl(&["-H", RIVAL, "/locks/prod/db"]).is(200);
    assert_eq!(status["phase"], "free", "its release was requested, and done");
}

/// The attacker can't obtain the victim's answers by the victim's keys, neither through the batch
/// endpoint nor over HTTP.
#[test]
fn keys_of_others_reveal_no_answers() {
    let scratch = Scratch::new();
    let server = start(&scratch);
    let key = "Idempotency-Key: deploy-1";
    let victims = victim(&server, "POST", key, "/locks/prod/db").is(200);
    let stored = digest("POST", "/locks/prod/db", "deploy-1");
    let asks = vec![keyed(&stored, acquire("sandbox/y", "eve"))];
    let replies = eve_asks(&server, scratch.path(), asks);
    let [ItemReply::Answered(Ok(Outcome::Granted(eves)))] = &replies[..] else {
        panic!("its own locks it may: {replies:?}");
    };
    assert_ne!(victims["token"], eves.token.as_u64(), "she got the victim's answer");
    let status = server.curl(&["-H", EVE, "/locks/sandbox/y"]).is(200);
    assert_eq!(status["holder"], "eve");
    let asks = vec![
        keyed("deploy-1", acquire("prod/db", "ci")),
        keyed("deploy-1", acquire("prod/db", "eve")),
        keyed("deploy-1", acquire("sandbox/x", "ci")),
    ];
    let replies = eve_asks(&server, scratch.path(), asks);
    assert!(
        replies.iter().all(|replies| matches!(replies, ItemReply::Unavailable(_))),
        "{replies:?}"
    );
    let eve = server.curl(&["-H", EVE, "-H", key, "-X", "POST", "/locks/prod/db?client=ci"]);
    eve.is(403);
    let own = server.curl(&["-H", EVE, "-H", key, "-X", "POST", "/locks/sandbox/x"]);
    assert_eq!(own.is(200)["holder"], "eve");
    assert_eq!(own.header("Idempotent-Replayed"), None);
    let repeated = victim(&server, "POST", key, "/locks/prod/db");
    assert_eq!(repeated.header("Idempotent-Replayed"), Some("true"));
    assert_eq!(repeated.is(200)["holder"], "ci");
}

/// The attacker sends a batch of commands in the name of the victim's session, which acknowledges
/// all request numbers. If the server accepted it, it would refuse later requests of the session as
/// late copies.
#[test]
fn request_numbers_of_another_session_owner_are_not_used_up() {
    let scratch = Scratch::new();
    let server = start(&scratch);
    let numbered = |number, answered_below, session, op: Op| {
        let key = Some(SubmissionKey::Number(number));
        let asks = vec![BatchItem::Submit(Submission { key, op })];
        let numbers = Some(BatchNumbers { session, answered_below });
        RequestBatch { numbers, ..RequestBatch::new(0, asks) }
    };
    let victims = |number, session, op: Op| {
        let batch = numbered(number, number, session, op);
        send(&server, scratch.path(), VICTIM, &batch)
    };
    let unnumbered = |op: Op| {
        let batch = RequestBatch::new(0, vec![BatchItem::Submit(op.into())]);
        send(&server, scratch.path(), VICTIM, &batch)
    };
    let open = OpenSession { client: client("ci"), ttl: Some(TTL_DEFAULT), grace: GRACE_DEFAULT };
    let opened = unnumbered(Op::OpenSession(open));
    let [ItemReply::Answered(Ok(Outcome::SessionOpened(session)))] = opened[..] else {
        panic!("a session of its own: {opened:?}");
    };
    let batch = numbered(u64::MAX, u64::MAX, session, acquire("sandbox/x", "eve"));
    let replies = send(&server, scratch.path(), EVE, &batch);
    assert!(matches!(&replies[..], [ItemReply::Answered(Ok(_))]), "what it may: {replies:?}");
    let replies = victims(2, session, acquire("prod/db", "ci"));
    assert!(matches!(&replies[..], [ItemReply::Answered(Ok(Outcome::Granted(_)))]), "{replies:?}");
    // Only the victim itself can use up the request numbers of its session: it sends the highest
    // number, and a later request with a lower one is refused.
    victims(u64::MAX, session, acquire("prod/y", "ci"));
    let replies = victims(u64::MAX - 1, session, acquire("prod/z", "ci"));
    let [ItemReply::Answered(Err(refusal))] = &replies[..] else { panic!("{replies:?}") };
    assert!(refusal.to_string().contains("came late"), "{refusal}");
    // Once the session is over, a delayed batch is not carried out without its numbers.
    let end = EndSession { session, end: SessionEnd::Closed };
    unnumbered(Op::EndSession(end));
    let replies = victims(4, session, acquire("prod/z", "ci"));
    let [ItemReply::Answered(Err(refusal))] = &replies[..] else { panic!("{replies:?}") };
    assert!(refusal.to_string().contains("is over"), "{refusal}");
}

/// A key is bound to the whole request: a different request with the same key is refused and has no
/// effect.
#[test]
fn a_key_reused_for_another_request_is_refused() {
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

/// Returns the token in the reply to one item of a batch.
fn token_of(replies: &ItemReply) -> Option<Token> {
    let ItemReply::Answered(Ok(outcome)) = replies else { return None };
    outcome.clone().first().tenure().map(|tenure| tenure.token)
}

/// One credential uses one key at several front ends of one server: each front end has its own
/// namespace of keys. The line protocol has no keys, and is not affected by answers of other front
/// ends.
#[test]
fn keys_of_one_front_end_are_unknown_to_another() {
    let scratch = Scratch::new();
    let tokens = scratch.secret_file("tokens.toml", TOKENS);
    let options = ["--memory", "--grant-at-once", "--line-listen", "127.0.0.1:0"];
    let mut server = Server::listen(&[&options[..], &["--tokens", &tokens]].concat());
    let said = server.says();
    let line =
        said.strip_prefix("latchfs: line protocol listening on ").expect("an address").trim_end();
    let key = "Idempotency-Key: deploy-1";
    let batch = |part| {
        let mut replies = batch_of(&server, scratch.path(), VICTIM, vec![part]);
        replies.pop().expect("an answer")
    };
    let over_http = victim(&server, "POST", key, "/locks/prod/db").is(200);
    // A batch whose key an HTTP request has used is executed, because batches and HTTP requests
    // have separate namespaces of keys.
    let replies = batch(keyed("deploy-1", acquire("prod/other", "ci")));
    let ItemReply::Answered(Ok(Outcome::Granted(granted))) = &replies else {
        panic!("{replies:?}")
    };
    assert_ne!(over_http["token"], granted.token.as_u64());
    assert_eq!(victim(&server, "GET", key, "/locks/prod/other").is(200)["phase"], "held");
    // A batch that is repeated gets the first answer to the batch, and an HTTP request that is
    // repeated gets the first response to the HTTP request.
    let replies = batch(keyed("deploy-1", acquire("prod/other", "ci")));
    assert_eq!(token_of(&replies), Some(granted.token));
    let repeated = victim(&server, "POST", key, "/locks/prod/db");
    assert_eq!(repeated.header("Idempotent-Replayed"), Some("true"));
    assert_eq!(repeated.is(200)["token"], over_http["token"]);
    // The batch endpoint and the HTTP API refuse a different request with a used key, with the
    // error kind `E_INVALID`.
    for op in [release("prod/other", "ci"), acquire("prod/third", "ci")] {
        let replies = batch(keyed("deploy-1", op));
        let ItemReply::Answered(Err(refusal)) = &replies else { panic!("{replies:?}") };
        assert_eq!(refusal.kind().as_str(), "E_INVALID");
    }
    let refused = victim(&server, "DELETE", key, "/locks/prod/db").is(422);
    assert_eq!(refused["kind"], "E_INVALID");
    let mut talk = LineConnection::to(line);
    assert_eq!(talk.request("AUTH,the secret of the victim"), "SUCCESS");
    assert_eq!(talk.request("LOCK,prod/db,ci"), "FAIL", "it is held, whoever got that answer");
    assert_eq!(talk.request("UNLOCK,prod/db,ci"), "SUCCESS");
    assert_eq!(talk.request("UNLOCK,prod/db,ci"), "FAIL");
    assert_eq!(talk.request("OWN,prod/third,ci"), "NONE");
}

/// One credential uses one key at two nodes of a cluster. An identical request gets the first
/// answer at any node, and a different one is refused. Batches have a separate namespace of keys,
/// which all nodes share as well. A forwarded request keeps the caller that the first node has
/// authenticated.
#[test]
fn keys_are_shared_by_nodes_but_not_by_front_ends() {
    let scratch = Scratch::new();
    let tokens = scratch.secret_file("tokens.toml", TOKENS);
    let path = |name: &str| scratch.path().join(name).display().to_string();
    assert_eq!(run_latchfs(&["cert", "secret", "--dir", &path("certs")]).0, Some(0));
    drop(Server::listen(&["--data", &path("first")]));
    let secret = path("certs/peers.pem");
    let node = |data: &str, more: &[&str]| {
        let own = ["--data", data, "--tokens", &tokens, "--peer-listen", "127.0.0.1:0"];
        Server::listen(&[&own[..], &["--peer-secret-file", &secret], more].concat())
    };
    let leader = node(&path("first"), &[]);
    let seed = eventually("the first node says where it is", || {
        let cluster = leader.curl(&["-H", ADMIN, "/cluster"]).is(200);
        let address = cluster["nodes"][0]["address"].as_str()?;
        (!address.is_empty()).then(|| address.to_owned())
    });
    let follower = node(&path("second"), &["--seed", &seed]);
    let key = "Idempotency-Key: deploy-1";
    let path = "/locks/prod/db?ttl=60s";
    let first = eventually("the follower has a leader", || {
        let reply = follower.curl(&["-H", VICTIM, "-H", key, "-X", "POST", path]);
        (reply.code == 200).then(|| reply.json())
    });
    for server in [&leader, &follower] {
        let repeated = victim(server, "POST", key, path);
        assert_eq!(repeated.header("Idempotent-Replayed"), Some("true"));
        assert_eq!(repeated.is(200)["token"], first["token"]);
        for (method, other) in [("POST", "/locks/prod/db?ttl=61s"), ("DELETE", "/locks/prod/db")] {
            assert_eq!(victim(server, method, key, other).is(422)["kind"], "E_INVALID");
        }
    }
    let part = || vec![keyed("deploy-1", acquire("prod/other", "ci"))];
    let replies = batch_of(&follower, scratch.path(), VICTIM, part());
    let [ItemReply::Answered(Ok(Outcome::Granted(granted)))] = &replies[..] else {
        panic!("{replies:?}");
    };
    let replies = batch_of(&leader, scratch.path(), VICTIM, part());
    assert_eq!(token_of(&replies[0]), Some(granted.token), "{replies:?}");
    // The client `RIVAL` sends the same key with other credentials. Both nodes treat it as another
    // key, and refuse the rival's request because the lock is held.
    for server in [&leader, &follower] {
        let refused = server.curl(&["-H", RIVAL, "-H", key, "-X", "POST", "/locks/prod/db"]);
        assert_eq!(refused.is(409)["holder"], "ci");
    }
    let status = follower.curl(&["-H", RIVAL, "/locks/prod/db"]).is(200);
    assert_eq!((&status["holder"], &status["token"]), (&json!("ci"), &first["token"]));
}
