//! Tests of upgrade and restore: data of an older latchfs opens, with its locks and tokens; and a
//! new cluster replaces a lost one, of which a backup has preserved the limits and the numbers of
//! tokens.

use super::restore;
use super::snapshot;
use super::{DataError, Heritage, Origin, RaftNode};
use crate::engine::lease_terms::{GRACE_DEFAULT, TTL_DEFAULT};
use crate::engine::{
    Acquire, Answer, ClientId, Command, Digest, Engine, Forget, HoldOff, HoldOffCause,
    IdempotencyKey, LeaseKey, LeaseTerms, LockName, Op, Outcome, Ownership, Phase, Release,
    RequestId, Rules,
};
use crate::service::batch_messages::{BatchItem, ItemReply, RequestBatch, Submission, decode_told};
use crate::service::batch_server::{BatchServer, Limits};
use crate::service::{BackendStatus, LockService, Locks, Retry};
use crate::time::{Span, Time};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// A temporary directory for one test, deleted on drop.
struct UpgradeScratch(PathBuf);

impl UpgradeScratch {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("latchfs-upgrade-{}-{count}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).expect("the temporary directory can be written");
        Self(path)
    }
}

impl Drop for UpgradeScratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn lock(text: &str) -> LockName {
    LockName::parse(text).expect("valid")
}

fn acquire(node: &RaftNode, of: &str) -> Answer {
    let (send, answer) = mpsc::channel();
    let client = ClientId::parse("new").expect("valid");
    let term = LeaseTerms::Own(TTL_DEFAULT, GRACE_DEFAULT);
    let hold = Ownership::Exclusive(None);
    let ask = Acquire { hold, ..Acquire::new(lock(of), client, term) };
    node.submit(Op::Acquire(ask).into(), Retry::Never, Box::new(move |got| drop(send.send(got))));
    answer.recv().expect("answered").expect("decided")
}

fn token(answer: Answer) -> u64 {
    match answer {
        Ok(Outcome::Granted(tenure)) => tenure.token.as_u64(),
        other => panic!("not granted: {other:?}"),
    }
}

/// Returns the holders of a lock of the fixture, and their tokens.
fn holders(engine: &Engine, of: &str) -> Vec<(String, u64)> {
    let view = engine.view(&lock(of), engine.clock());
    assert_eq!(view.phase(), Phase::Held, "{of}");
    let holder = |holder: &crate::engine::Holder| {
        (holder.lease.holder.to_string(), holder.lease.token.as_u64())
    };
    view.holders.iter().map(holder).collect()
}

fn as_the_fixture_was_made(engine: &Engine) {
    let one = |client: &str, token| vec![(client.to_owned(), token)];
    assert_eq!(holders(engine, "forever"), one("ann", 1));
    let note = engine.view(&lock("forever"), engine.clock());
    let note = note.holders[0].lease.details.note().map(ToString::to_string);
    assert_eq!(note.as_deref(), Some("a word"));
    assert_eq!(holders(engine, "team/shared"), [("ann".to_owned(), 2), ("bob".to_owned(), 3)]);
    assert_eq!(engine.sessions(), 1);
}

/// `tests/fixtures/data-1` was written by version 0.1.0, before clusters of several nodes existed.
#[test]
fn a_directory_of_the_first_version_opens() {
    let scratch = UpgradeScratch::new();
    let data = scratch.0.join("data");
    fs::create_dir_all(data.join("log")).expect("it is new");
    let from = fixture("data-1");
    fs::copy(from.join("node"), data.join("node")).expect("it is there");
    for entry in fs::read_dir(from.join("log")).expect("it is there") {
        let path = entry.expect("readable").path();
        let goal = data.join("log").join(path.file_name().expect("it has a name"));
        fs::copy(&path, goal).expect("it is there");
    }
    let node = RaftNode::open(&data).expect("it opens");
    node.inspect(as_the_fixture_was_made);
    node.inspect(|engine| assert_eq!(holders(engine, "last"), [("dan".to_owned(), 6)]));
    assert_eq!(token(acquire(&node, "next")), 7, "tokens go on");
    assert_ne!(node.engine_id(), 0);
}

#[test]
fn a_snapshot_of_the_first_version_opens() {
    let found = snapshot::read(&fixture("data-1-snapshot")).expect("it opens").expect("is there");
    let known = snapshot::unpack(&found).expect("it is understood");
    as_the_fixture_was_made(&known.engine);
    assert!(known.engine.next_token() >= 6 && known.cluster.is_some());
}

#[test]
fn a_restored_node_grants_nothing_before_its_time_and_no_token_twice() {
    let scratch = UpgradeScratch::new();
    let (old, new) = (scratch.0.join("old"), scratch.0.join("new"));
    let node = RaftNode::open(&old).expect("it is new");
    let last = token(acquire(&node, "build"));
    let heritage = |node: &RaftNode, hold_off| {
        node.inspect(|engine| Heritage::of(engine, 1_790_000_000, hold_off))
            .expect("there are tokens")
    };
    let hold_off = HoldOff { until: Time::from_secs(60), cause: HoldOffCause::Restored };
    let (slow, at_once) = (heritage(&node, Some(hold_off)), heritage(&node, None));
    let id = node.engine_id();
    node.close();
    restore(&new, slow, Origin::Backup).expect("there is room");
    // The hold-off, the time at the start of a restored cluster in which no lock is granted,
    // continues after a restart: the time while the node is off does not count.
    for _ in 0..2 {
        let node = RaftNode::open(&new).expect("it has begun");
        assert_ne!(node.engine_id(), id, "another cluster");
        assert_eq!(node.about().locks, 0);
        let refusal = acquire(&node, "build").expect_err("too early");
        assert!(refusal.to_string().contains("nothing is granted for"), "{refusal}");
    }
    let second = scratch.0.join("second");
    fs::create_dir(&second).expect("it is new");
    restore(&second, at_once, Origin::Backup).expect("an empty directory will do");
    let node = RaftNode::open(&second).expect("it has begun");
    assert!(token(acquire(&node, "build")) > last + (1 << 39));
}

#[test]
fn nothing_is_restored_over_something() {
    let scratch = UpgradeScratch::new();
    let data = scratch.0.join("data");
    RaftNode::open(&data).expect("it is new").close();
    let heritage = Heritage::of(&Engine::default(), 0, None).expect("there are tokens");
    let refused = restore(&data, heritage.clone(), Origin::Backup).expect_err("there is a node");
    assert!(matches!(refused, DataError::NotEmpty(_)), "{refused}");
    RaftNode::open(&data).expect("it is as it was");
    let file = scratch.0.join("file");
    fs::write(&file, "x").expect("it is new");
    assert!(restore(&file, heritage, Origin::Backup).is_err());
    let left: Vec<_> = fs::read_dir(&scratch.0).expect("it is there").collect();
    assert_eq!(left.len(), 2, "nothing is left beside: {left:?}");
}

/// The answer to a request with an id tells of a remembered name for as long as the id is known,
/// also after the name was forgotten. Until then, and until a snapshot without it has replaced the
/// last one, the version before can't read the files, and the node says so.
#[test]
fn a_state_is_readable_by_an_older_version_once_its_answers_are_forgotten() {
    let scratch = UpgradeScratch::new();
    let data = scratch.0.join("data");
    fs::create_dir(&data).expect("it is new");
    let rules = Rules { requests_kept: Span::from_secs(3), ..Rules::default() };
    let baseline = Heritage::of(&Engine::new(rules), 0, None).expect("there are tokens");
    restore(&data, baseline, Origin::Backup).expect("an empty directory will do");
    let does = |node: &RaftNode, op: Op, key: Option<&str>| {
        let id = key.map(|key| RequestId { caller: "a".into(), key: key.into() });
        let request = id.map(|id| IdempotencyKey { id, digest: Digest(0) });
        let (send, answer) = mpsc::channel();
        let command = Command::from(op).with_request(request);
        node.submit(command, Retry::Never, Box::new(move |got| drop(send.send(got))));
        answer.recv().expect("answered").expect("decided").expect("not refused")
    };
    let format = |node: &RaftNode| node.cluster_admin().expect("it is a node").outlook().log_format;
    let client = ClientId::parse("new").expect("valid");
    let node = RaftNode::open(&data).expect("it has begun");
    let term = LeaseTerms::Own(TTL_DEFAULT, GRACE_DEFAULT);
    let acquire = Acquire::new(lock("folder"), client.clone(), term);
    does(&node, Op::Acquire(Acquire { remember: true, ..acquire.clone() }), Some("one"));
    let key = LeaseKey { name: lock("folder"), client: client.clone(), token: None };
    let release = || Op::Release(Release::of(key.clone()));
    does(&node, release(), None);
    does(&node, Op::Forget(Forget { name: lock("folder"), by: client }), None);
    node.close();

    let node = RaftNode::open_with(&data, None, 6).expect("it goes on");
    assert_eq!((node.inspect(Engine::remembered), format(&node)), (0, 7), "an answer has it");
    let is_readable = (0..5_000).any(|_| {
        // The file of the log that has the last command of the newer format ends.
        does(&node, Op::Acquire(acquire.clone()), None);
        does(&node, release(), None);
        std::thread::sleep(Duration::from_millis(5));
        format(&node) < 7
    });
    assert!(is_readable, "the node never becomes readable");
    node.close();
    let file = snapshot::read(&data.join("snapshot")).expect("sound").expect("it is there");
    assert!(snapshot::format_of(&file) < 7);
}

/// While a member of the cluster is of the version before, a full table of request ids refuses new
/// ids, as that version does; the batch server carries the requests out without them. When all
/// members are of this version, a new id takes the place of an old one.
#[test]
fn an_older_member_and_a_full_table_of_ids() {
    let scratch = UpgradeScratch::new();
    let data = scratch.0.join("data");
    fs::create_dir(&data).expect("it is new");
    let full = Rules { requests_max: 1, ..Rules::default() };
    let baseline = Heritage::of(&Engine::new(full), 0, None).expect("there are tokens");
    restore(&data, baseline, Origin::Backup).expect("an empty directory will do");
    let known = |format_max, keys: [&'static str; 3]| {
        let node = Arc::new(RaftNode::open_with(&data, None, format_max).expect("it has begun"));
        let server = BatchServer::new(Locks::new(Arc::<RaftNode>::clone(&node)));
        let settle =
            |key: &str| BatchItem::Submit(Submission { key: Some(key.into()), op: Op::Settle });
        let asks = keys.map(settle).to_vec();
        let batch =
            RequestBatch { engine: 0, from: 1, number: 0, session: None, acknowledged: None, asks };
        let (send, told) = mpsc::channel();
        let then = move |told| drop(send.send(told));
        server.ask(&"batch:a".into(), batch, Limits::new(), |_, _| (), then);
        let told = told.recv().expect("answered").expect("carried out");
        let replies = decode_told(&told).expect("as it was encoded").replies;
        let done = ItemReply::Answered(Ok(Outcome::Settled));
        assert!(replies.iter().all(|reply| *reply == done), "{replies:?}");
        node.close();
        let id = |key: &str| RequestId { caller: "batch:a".into(), key: key.into() };
        let known = |key: &&str| node.inspect(|engine| engine.remembers(&id(key)));
        keys.into_iter().find(known)
    };
    assert_eq!(known(5, ["one", "two", "three"]), Some("one"));
    assert_eq!(known(6, ["four", "five", "six"]), Some("six"));
}
