//! Tests of crashes and damage: from which logs a node recovers, and which logs it refuses. Tests
//! of restore: a new cluster replaces a lost one, of which a backup has preserved the limits and
//! the numbers of tokens. No test sleeps: each waits for an answer.

use super::{DataError, InheritedState, Origin, RaftNode};
use crate::engine::codec::state_codec;
use crate::engine::codec::state_codec::FORMAT_VERSION;
use crate::engine::{
    Acquire, Answer, ClientId, Command, Engine, Grace, HoldOff, HoldOffCause, LeaseKey, LeaseTerms,
    LockName, Op, OpenSession, Outcome, Patch, Phase, Release, Rules, Steal, StealReason, Ttl,
};
use crate::raft::node::bootstrap::restore;
use crate::raft::node::start;
use crate::raft::node_environment::ClusterVersion;
use crate::raft::store::data_dir::{Data, FatalError, first};
use crate::raft::store::log::LogStore;
use crate::raft::store::snapshot;
use crate::raft::store::snapshot::{
    ClusterId, Commands, Entry, LogId, Meta, Proposal, Snapshot, TypeConfig, Vote,
};
use crate::raft::write::state_machine::StateMachine;
use crate::service::audit::audit_log::Audit;
use crate::service::{BackendStatus, LockService, Retry, Unavailable};
use crate::time::{Span, Time};
use futures_util::FutureExt as _;
use openraft::storage::{RaftLogReader, RaftLogStorage, RaftSnapshotBuilder, RaftStateMachine};
use openraft::testing::log::{StoreBuilder, Suite};
use openraft::vote::leader_id_adv::LeaderId;
use openraft::{EntryPayload, StorageError};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};

/// The random commands of the model check of the engine.
#[path = "../../tests/model/draw.rs"]
mod draw;

/// Draws a run of random commands, with their times and the limits of its engine.
fn random_commands(seed: u64, count: usize) -> (Rules, Vec<(Time, Command)>) {
    let mut draw = draw::Draw::new(seed);
    let rules = draw.rules();
    let mut engine = Engine::new(rules);
    let commands = (0..count).map(|_| {
        let (at, command) = draw.next(&engine);
        let answer = engine.apply(at, &command, &mut Vec::new());
        draw.learn(&command, &answer);
        (at, command)
    });
    (rules, commands.collect())
}

/// A temporary directory for one test, deleted on drop.
struct ClusterScratch(PathBuf);

impl ClusterScratch {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("latchfs-cluster-{}-{count}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).expect("the temporary directory can be written");
        Self(path)
    }

    fn data(&self) -> PathBuf {
        self.0.join("data")
    }

    /// Copies the data directory, as a crash at this moment would leave it.
    fn copy(&self) -> Self {
        let copy = Self::new();
        copy_tree(&self.data(), &copy.data());
        copy
    }

    /// Returns the files of the log, in order.
    fn log_files(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.data().join("log")).expect("it is there");
        let mut files: Vec<_> = entries.map(|entry| entry.expect("readable").path()).collect();
        files.retain(|path| path.extension().is_some_and(|end| end == "wal"));
        files.sort();
        files
    }

    fn open(&self) -> Result<RaftNode, DataError> {
        RaftNode::open(&self.data())
    }

    /// Returns the message of the error with which the data directory does not open.
    #[track_caller]
    fn refusal(&self) -> String {
        self.open().err().expect("it must not open").to_string()
    }
}

/// Returns the files of a data directory and their bytes, but for the lock.
fn files_below(data: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let files = [data.to_path_buf(), data.join("log")].into_iter().flat_map(|dir| {
        let entries = fs::read_dir(dir).expect("it is there");
        entries.map(|entry| entry.expect("readable").path()).filter(|path| path.is_file())
    });
    let files = files.filter(|path| !path.ends_with("lock"));
    files.map(|path| (path.clone(), fs::read(&path).expect("readable"))).collect()
}

fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir(to).expect("it is new");
    for entry in fs::read_dir(from).expect("it is there") {
        let path = entry.expect("readable").path();
        let goal = to.join(path.file_name().expect("it has a name"));
        if path.is_dir() {
            copy_tree(&path, &goal);
        } else {
            fs::copy(&path, goal).expect("it can be copied");
        }
    }
}

impl Drop for ClusterScratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn name(text: &str) -> LockName {
    LockName::parse(text).expect("valid")
}

fn client(text: &str) -> ClientId {
    ClientId::parse(text).expect("valid")
}

fn acquire_for(lock: &str, who: &str, secs: u64) -> Command {
    let ttl = Ttl::new(Span::from_secs(secs)).expect("valid");
    let term = LeaseTerms::Own(ttl, Grace::NONE);
    Op::Acquire(Acquire::new(name(lock), client(who), term)).into()
}

fn acquire(lock: &str, who: &str) -> Command {
    acquire_for(lock, who, 3_600)
}

fn release(lock: &str, who: &str) -> Command {
    let key = LeaseKey { name: name(lock), client: client(who), token: None };
    Op::Release(Release::of(key)).into()
}

fn submit(node: &RaftNode, command: Command) -> Result<Answer, Unavailable> {
    node.submit(command, Retry::Never).wait()
}

/// Acquires a lock, and returns its token.
#[track_caller]
fn granted(node: &RaftNode, lock: &str, who: &str) -> u64 {
    match submit(node, acquire(lock, who)).expect("the node is well") {
        Ok(Outcome::Granted(tenure)) => tenure.token.as_u64(),
        other => panic!("not granted: {other:?}"),
    }
}

fn bytes(node: &RaftNode) -> Vec<u8> {
    node.inspect(|engine| state_codec::encode_engine(FORMAT_VERSION, engine))
}

/// Returns the holder of a lock and its token.
fn holder(node: &RaftNode, lock: &str) -> Option<(String, u64)> {
    let view = node.view(&name(lock), Retry::Never).wait().expect("the node is well");
    let lease = &view.view.holders.first()?.lease;
    Some((lease.holder.to_string(), lease.token.as_u64()))
}

// ---- openraft's tests of the storage traits -------------------------------------------------

struct TestBuilder;

impl StoreBuilder<TypeConfig, LogStore, StateMachine, ClusterScratch> for TestBuilder {
    async fn build(
        &self,
    ) -> Result<(ClusterScratch, LogStore, StateMachine), StorageError<TypeConfig>> {
        let scratch = ClusterScratch::new();
        let fatal_error = FatalError::default();
        let log = LogStore::open(&scratch.0, &fatal_error).expect("an empty directory");
        let path = scratch.0.join("snapshot");
        let machine =
            StateMachine::new(&path, None, Audit::off(), &fatal_error, ClusterVersion::default());
        Ok((scratch, log, machine))
    }
}

/// Runs openraft's own tests of a log and a state machine.
#[test]
fn the_log_keeps_what_openraft_asks_of_it() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let suite = Suite::<TypeConfig, LogStore, StateMachine, TestBuilder, ClusterScratch>::test_all(
        TestBuilder,
    );
    runtime.expect("threads can be made").block_on(suite).expect("all of openraft's cases pass");
}

/// A replica that is restored from a snapshot at any entry ends in the same state, byte by byte.
#[test]
fn a_snapshot_at_any_entry_goes_on_alike() {
    const COMMANDS: usize = 600;
    const COMMANDS_AN_ENTRY: usize = 3;
    let (rules, commands) = random_commands(11, COMMANDS);
    let begin = Proposal::Begin(ClusterId(7), rules);
    // All commands of an entry are applied at the time of the entry: here the time of its first
    // command.
    let rest = commands.chunks(COMMANDS_AN_ENTRY).map(|part| {
        let commands = part.iter().map(|(_, command)| command.clone()).collect();
        Proposal::Commands(Arc::new(Commands { now: part[0].0, commands }))
    });
    let leader_id = LeaderId { term: 1, node_id: 1 };
    let entry = |(index, proposal)| Entry {
        log_id: LogId { leader_id, index },
        payload: EntryPayload::Normal(proposal),
    };
    let entries: Vec<Entry> = (0..).zip(std::iter::once(begin).chain(rest)).map(entry).collect();
    let scratch = ClusterScratch::new();
    let path = scratch.0.join("snapshot");
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("one thread");
    let open = || {
        let known = snapshot::load(&path).expect("whole");
        StateMachine::new(
            &path,
            known,
            Audit::off(),
            &FatalError::default(),
            ClusterVersion::default(),
        )
    };
    let state = |machine: &StateMachine| {
        let core = machine.replica.state();
        (
            core.meta(),
            core.cluster,
            state_codec::encode_engine(state_codec::known_version(), &core.engine),
        )
    };
    let mut straight = open();
    for entry in entries {
        // The replica `restarted` is opened from the latest snapshot before every entry.
        let restarted = open();
        assert_eq!(state(&restarted), state(&straight));
        let answers = [&straight, &restarted].map(|machine| machine.replica.apply(entry.clone()));
        assert_eq!(answers[0], answers[1], "{}", entry.log_id);
        assert_eq!(state(&restarted), state(&straight), "{}", entry.log_id);
        runtime.block_on(async {
            let mut builder = straight.get_snapshot_builder().await;
            builder.build_snapshot().await.expect("there is room");
        });
    }
    assert_eq!(straight.applied().map(|id| id.index), Some((COMMANDS / COMMANDS_AN_ENTRY) as u64));
}

/// A snapshot of the state at entry `index`, large enough that writing it takes a moment.
fn snapshot_at(index: u64) -> Snapshot {
    let (rules, commands) = random_commands(11, 600);
    let mut engine = Engine::new(rules);
    for (at, command) in &commands {
        let _ = engine.apply(*at, command, &mut Vec::new());
    }
    let bytes = snapshot::to_bytes(FORMAT_VERSION, Some(ClusterId(7)), &engine);
    Snapshot { meta: snapshot_meta(index), snapshot: bytes }
}

fn snapshot_meta(index: u64) -> Meta {
    let leader_id = LeaderId { term: 1, node_id: 1 };
    Meta { last_log_id: Some(LogId { leader_id, index }), ..Meta::default() }
}

/// Returns the index of the last entry in a snapshot file.
fn entry_of(path: &Path) -> u64 {
    let found = snapshot::read(path).expect("it is whole").expect("it is there");
    found.meta.last_log_id.expect("it has an entry").index
}

/// A node may be building a snapshot when the leader sends it a newer one.
#[test]
fn a_snapshot_that_was_built_late_does_not_replace_a_newer_one() {
    let scratch = ClusterScratch::new();
    let path = scratch.0.join("snapshot");
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("one thread");
    let mut machine = StateMachine::new(
        &path,
        None,
        Audit::off(),
        &FatalError::default(),
        ClusterVersion::default(),
    );
    let (older, newer) = (snapshot_at(10), snapshot_at(20));
    runtime.block_on(async {
        machine.install_snapshot(&older.meta, older.snapshot).await.expect("there is room");
        let mut late = machine.get_snapshot_builder().await;
        machine.install_snapshot(&newer.meta, newer.snapshot).await.expect("there is room");
        late.build_snapshot().await.expect("there is room");
    });
    assert_eq!(entry_of(&path), 20);
    assert_eq!(machine.applied().map(|id| id.index), Some(20));
}

/// Two threads build and install a snapshot at the same time: neither fails, and the newer snapshot
/// stays.
#[test]
fn snapshots_that_are_built_and_installed_at_once_do_not_collide() {
    const ROUNDS: u64 = 60;
    let scratch = ClusterScratch::new();
    let path = scratch.0.join("snapshot");
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("one thread");
    let mut machine = StateMachine::new(
        &path,
        None,
        Audit::off(),
        &FatalError::default(),
        ClusterVersion::default(),
    );
    let template = snapshot_at(0);
    let at = |index| Snapshot { meta: snapshot_meta(index), ..template.clone() };
    for round in 1..=ROUNDS {
        let (older, newer) = (at(2 * round), at(2 * round + 1));
        runtime.block_on(async {
            machine.install_snapshot(&older.meta, older.snapshot).await.expect("there is room");
            let mut builder = machine.get_snapshot_builder().await;
            let install = machine.install_snapshot(&newer.meta, newer.snapshot);
            let (built, installed) = tokio::join!(builder.build_snapshot(), install);
            built.expect("the file of the other one is another file");
            installed.expect("the file of the other one is another file");
        });
        assert_eq!(entry_of(&path), 2 * round + 1);
    }
}

// ---- starts and restarts of a node ----------------------------------------------------------

/// A node that was killed after it had voted and before it had an entry starts again; a node whose
/// log is missing does not.
#[test]
fn a_log_with_a_vote_alone_is_not_damaged() {
    let scratch = ClusterScratch::new();
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("one thread");
    let other = || Ok((ClusterId(7), 5));
    let mut data = Data::open(&scratch.data(), other).expect("a new directory");
    data.has_begun().expect("there is room");
    let log = data.log();
    drop(data);
    assert!(scratch.refusal().contains("is damaged"), "nothing says what it promised");
    let mut log = LogStore::open(&log, &FatalError::default()).expect("it is sound");
    runtime.block_on(log.save_vote(&Vote::new(3, 2))).expect("there is room");
    drop(log);
    // Without peer options the node still refuses to start, but the error about `--peer-listen`
    // shows that its log was accepted.
    let said = scratch.refusal();
    assert!(!said.contains("damaged") && said.contains("--peer-listen"), "{said}");
}

#[test]
fn what_was_granted_outlives_the_node() {
    let scratch = ClusterScratch::new();
    let node = scratch.open().expect("a new node");
    let first = granted(&node, "a", "ann");
    assert_eq!(granted(&node, "b", "bob"), first + 1);
    assert_eq!(submit(&node, release("a", "ann")), Ok(Ok(Outcome::Released)));
    assert!(matches!(submit(&node, acquire("b", "ann")), Ok(Err(_))), "it is held");
    let before = bytes(&node);
    // The directory as `kill -9` leaves it, and as a clean shutdown leaves it.
    let killed = scratch.copy();
    node.close();
    assert_eq!(submit(&node, acquire("c", "ann")), Err(Unavailable::Closing));
    drop(node);
    for scratch in [&killed, &scratch] {
        let node = scratch.open().expect("nothing is wrong with it");
        assert_eq!(holder(&node, "a"), None);
        assert_eq!(holder(&node, "b"), Some(("bob".to_owned(), first + 1)));
        assert_eq!(bytes(&node), before);
        assert_eq!(granted(&node, "a", "cy"), first + 2);
    }
}

/// A lease has as much time left after a restart as before: engine time stops meanwhile.
#[test]
fn while_a_node_is_off_no_lease_grows_older() {
    let scratch = ClusterScratch::new();
    let node = scratch.open().expect("a new node");
    granted(&node, "a", "ann");
    let (clock, now) = (node.inspect(Engine::clock), node.now());
    node.close();
    drop(node);
    let node = scratch.open().expect("nothing is wrong with it");
    assert_eq!(node.inspect(Engine::clock), clock);
    assert!(node.now() >= clock && node.now().since(now) < Span::from_secs(60));
}

#[test]
fn a_deadline_passes_without_anybody_asking() {
    let scratch = ClusterScratch::new();
    let node = Arc::new(scratch.open().expect("a new node"));
    let locks = Arc::clone(&node) as Arc<dyn LockService>;
    let mut watch = locks.subscribe(None);
    let (send, woken) = mpsc::channel();
    watch.wake_by(Arc::new(move || send.send(()).expect("somebody waits")));
    submit(&node, acquire_for("a", "ann", 1)).expect("well").expect("free");
    // The lease causes three events: granted, expired, and ended, the last two at the same time
    // since it has no grace. So the watcher is woken twice.
    woken.recv().expect("it was granted");
    woken.recv().expect("it has ended");
    assert_eq!(holder(&node, "a"), None);
    assert_eq!(node.inspect(Engine::locks), 0);
}

#[test]
fn sessions_of_a_dead_process_end() {
    let scratch = ClusterScratch::new();
    let node = scratch.open().expect("a new node");
    let open = OpenSession { client: client("ann"), ttl: None, grace: Grace::NONE };
    let Ok(Ok(Outcome::SessionOpened(session))) = submit(&node, Op::OpenSession(open).into())
    else {
        panic!("not opened");
    };
    let mut command = acquire("a", "ann");
    if let Op::Acquire(ask) = &mut command.op {
        ask.term = LeaseTerms::Session(session);
    }
    submit(&node, command).expect("well").expect("free");
    let killed = scratch.copy();
    let node = killed.open().expect("nothing is wrong with it");
    assert_eq!(node.inspect(Engine::sessions), 0);
    assert_eq!(holder(&node, "a"), None);
}

#[test]
fn idle_node_writes_nothing() {
    let scratch = ClusterScratch::new();
    let node = scratch.open().expect("a new node");
    let size =
        || scratch.log_files().iter().map(|file| fs::metadata(file).map_or(0, |m| m.len())).sum();
    let before: u64 = size();
    for _ in 0..100 {
        assert_eq!(holder(&node, "a"), None);
    }
    assert_eq!(size(), before);
    granted(&node, "a", "ann");
    assert!(size() > before);
}

/// A request acts when it is made, although nobody awaits its answer: the next read sees it.
#[test]
fn calls_that_nobody_polls_are_carried_out_in_their_order() {
    let scratch = ClusterScratch::new();
    let node = scratch.open().expect("a new node");
    for retry in [Retry::Never, Retry::UntilAnswered] {
        for _ in 0..100 {
            node.submit(acquire("a", "ann"), retry).detach();
            assert!(holder(&node, "a").is_some());
            node.submit(release("a", "ann"), retry).detach();
            assert_eq!(holder(&node, "a"), None);
        }
    }
}

/// Of many concurrent requests each gets its own answer, and few syncs are enough for all.
#[test]
fn concurrent_requests_share_entries() {
    const EACH: usize = 200;
    let scratch = ClusterScratch::new();
    let node = scratch.open().expect("a new node");
    let calls: Vec<_> = (0..EACH)
        .map(|number| node.submit(acquire(&format!("lock{number}"), "ann"), Retry::Never))
        .collect();
    let tokens: Vec<_> = calls
        .into_iter()
        .map(|call| match call.wait() {
            Ok(Ok(Outcome::Granted(tenure))) => tenure.token.as_u64(),
            other => panic!("not granted: {other:?}"),
        })
        .collect();
    assert!(tokens.is_sorted(), "first come, first served");
    let count =
        |name| node.counts().into_iter().find(|count| count.name == name).expect("counted").value;
    assert_eq!(count("latchfs_log_commands_total"), EACH as u64);
    assert!(
        count("latchfs_log_entries_total") < EACH as u64 / 2,
        "{}",
        count("latchfs_log_entries_total")
    );
}

/// A long log is purged after a snapshot, without an effect on the state.
#[test]
fn a_long_log_is_forgotten_up_to_a_snapshot() {
    let scratch = ClusterScratch::new();
    let node = scratch.open().expect("a new node");
    let kept = granted(&node, "kept", "ann");
    // Each request makes an entry of its own: more entries than trigger a snapshot.
    let enough = start::ENTRIES_A_SNAPSHOT + 100;
    for _ in 0..enough / 2 {
        for command in [acquire("a", "bob"), release("a", "bob")] {
            submit(&node, command).expect("well").expect("free, or held by bob");
        }
    }
    let before = bytes(&node);
    node.close();
    drop(node);
    assert!(scratch.data().join("snapshot").exists());
    let node = scratch.open().expect("nothing is wrong with it");
    assert_eq!(bytes(&node), before);
    assert_eq!(holder(&node, "kept"), Some(("ann".to_owned(), kept)));
    drop(node);
    // The purged entries are in the snapshot alone, so a damaged snapshot is refused.
    let kept = fs::read(scratch.data().join("snapshot")).expect("it is there");
    for at in [0, 8, 12, 20, kept.len() / 2, kept.len() - 1] {
        let mut changed = kept.clone();
        changed[at] ^= 0x40;
        fs::write(scratch.data().join("snapshot"), &changed).expect("there is room");
        assert!(scratch.refusal().contains("snapshot"), "byte {at}: {}", scratch.refusal());
    }
}

// ---- torn writes and damaged files ----------------------------------------------------------

/// Returns the data directory of a node with this many grants, as a crash leaves it.
fn crashed(grants: u64) -> ClusterScratch {
    let scratch = ClusterScratch::new();
    let node = scratch.open().expect("a new node");
    let first = node.inspect(Engine::next_token);
    for number in 0..grants {
        assert_eq!(granted(&node, &format!("lock{number}"), "ann"), first + number);
    }
    let copy = scratch.copy();
    drop(node);
    copy
}

/// Returns the path and the content of the newest file of the log.
fn last_file(scratch: &ClusterScratch) -> (PathBuf, Vec<u8>) {
    let path = scratch.log_files().pop().expect("there is one");
    let bytes = fs::read(&path).expect("readable");
    (path, bytes)
}

/// Returns how many of the grants of [`crashed`] are present, and checks that none is missing
/// before the last.
fn grants(node: &RaftNode) -> u64 {
    let (next, count) = node.inspect(|engine| (engine.next_token(), engine.locks() as u64));
    for number in 0..count {
        let held = holder(node, &format!("lock{number}"));
        assert_eq!(held, Some(("ann".to_owned(), next - count + number)));
    }
    count
}

#[test]
fn a_write_that_was_broken_off_is_cut_off() {
    let scratch = crashed(5);
    let (path, whole) = last_file(&scratch);
    let mut seen = 5;
    for length in (whole.len() - 200..=whole.len()).rev() {
        let copy = scratch.copy();
        let file = fs::OpenOptions::new().write(true).open(last_file(&copy).0).expect("writable");
        file.set_len(length as u64).expect("shorter");
        let node = copy.open().unwrap_or_else(|error| panic!("cut at {length}: {error}"));
        let found = grants(&node);
        assert!(found <= seen && found >= 3, "{found} grants at {length}");
        seen = found;
        // The tokens of grants that were not acknowledged may be given again; acknowledged grants
        // are present.
        let last = holder(&node, &format!("lock{}", found - 1)).expect("it is held").1;
        assert_eq!(granted(&node, "new", "bob"), last + 1);
    }
    assert!(seen < 5, "some of it was cut off");
    // After a crash, the log file may end with zeros: a file system may have made the file longer
    // before it has written to it.
    let copy = scratch.copy();
    let longer = [whole, vec![0; 3_000]].concat();
    fs::write(copy.data().join("log").join(path.file_name().expect("a name")), longer)
        .expect("room");
    assert_eq!(grants(&copy.open().expect("zeros are no damage")), 5);
}

/// A log with any byte changed refuses to open, or opens without a loss.
#[test]
fn a_changed_log_does_not_open() {
    let scratch = crashed(3);
    let (path, whole) = last_file(&scratch);
    let mut opened = vec![];
    for (at, byte) in whole.iter().enumerate() {
        for bit in [0x01, 0x80] {
            let copy = scratch.copy();
            let file = copy.data().join("log").join(path.file_name().expect("a name"));
            let file = fs::OpenOptions::new().write(true).open(file).expect("writable");
            file.write_all_at(&[byte ^ bit], at as u64).expect("in place");
            let log = LogStore::open(&copy.data().join("log"), &FatalError::default());
            match log {
                Err(DataError::Damaged { .. } | DataError::OtherVersion { .. }) => {}
                Err(other) => panic!("byte {at}: {other}"),
                Ok(_) => opened.push(at),
            }
        }
    }
    for at in &opened {
        let copy = scratch.copy();
        let file = copy.data().join("log").join(path.file_name().expect("a name"));
        let file = fs::OpenOptions::new().write(true).open(file).expect("writable");
        file.write_all_at(&[whole[*at] ^ 0x80], *at as u64).expect("in place");
        match copy.open() {
            Ok(node) => assert_eq!(grants(&node), 3, "byte {at} of {}", whole.len()),
            Err(error) => assert!(matches!(error, DataError::Damaged { .. }), "byte {at}: {error}"),
        }
    }
    let sentence = {
        let middle = whole.len() / 2;
        let file = fs::OpenOptions::new().write(true).open(&path).expect("writable");
        file.write_all_at(&[whole[middle] ^ 1], middle as u64).expect("in place");
        scratch.refusal()
    };
    assert!(sentence.contains("is damaged"), "{sentence}");
    assert!(sentence.contains("put back a backup of the whole directory"), "{sentence}");
}

/// A vote at the end of the log whose record type is changed to that of an entry is damage. Without
/// the checksum of the length of an entry it would look like a torn write.
#[test]
fn a_record_in_disguise_is_no_end() {
    const VOTE_BYTES: u64 = 4 + 3 * 8 + 8;
    let scratch = ClusterScratch::new();
    let open = || LogStore::open(&scratch.0, &FatalError::default());
    let vote = Vote { leader_id: LeaderId { term: 7, node_id: 1 }, committed: false };
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("one thread");
    runtime.block_on(open().expect("empty").save_vote(&vote)).expect("there is room");
    let mut log = open().expect("whole");
    assert_eq!(runtime.block_on(log.read_vote()).expect("whole"), Some(vote));
    drop(log);
    let entries = fs::read_dir(&scratch.0).expect("it is there");
    let mut files = entries.map(|entry| entry.expect("readable").path());
    let file = files.find(|path| path.extension().is_some_and(|end| end == "wal"));
    let file = fs::OpenOptions::new().write(true).open(file.expect("it is there")).expect("ours");
    let record = file.metadata().expect("it is there").len() - VOTE_BYTES;
    file.write_all_at(&[0, 0, 0, 1], record).expect("in place");
    let refusal = open().err().expect("the vote must not be forgotten").to_string();
    assert!(refusal.contains("is damaged"), "{refusal}");
}

#[test]
fn missing_file_is_refused() {
    let scratch = crashed(2);
    let lost = |name: &str| {
        let copy = scratch.copy();
        let path = copy.data().join(name);
        if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }
            .expect("it was there");
        copy.refusal()
    };
    assert!(lost("log").contains("log is missing"), "{}", lost("log"));
    assert!(lost("node").contains("node is missing"), "{}", lost("node"));
    let copy = scratch.copy();
    for file in copy.log_files() {
        fs::remove_file(file).expect("it was there");
    }
    assert!(copy.refusal().contains("the log is empty"), "{}", copy.refusal());
}

#[test]
fn a_directory_belongs_to_one_cluster() {
    let (one, two) = (crashed(1), crashed(1));
    fs::copy(two.data().join("node"), one.data().join("node")).expect("both are there");
    assert!(one.refusal().contains("names cluster"), "{}", one.refusal());
}

#[test]
fn another_version_is_refused_and_nothing_is_changed() {
    let scratch = crashed(1);
    let refused = |data: &ClusterScratch, file: &str, found: u8| {
        let before = files_below(&data.data());
        let said = data.refusal();
        let path = data.data().join(file).display().to_string();
        let both = format!("version {found}, and this latchfs knows version {FORMAT_VERSION}");
        assert!(said.starts_with(&path) && said.contains(&both), "{said}");
        assert_eq!(files_below(&data.data()), before);
    };
    let node = scratch.data().join("node");
    let text = fs::read_to_string(&node).expect("text");
    for found in [0, FORMAT_VERSION + 1] {
        fs::write(&node, text.replace("data 1", &format!("data {found}"))).expect("room");
        refused(&scratch, "node", found);
        fs::write(&node, &text).expect("room");
        // An undamaged entry of another version, with valid checksums, is refused.
        let other = scratch.copy();
        let log = LogStore::open(&other.data().join("log"), &FatalError::default());
        log.expect("whole").append_of_version(found);
        refused(&other, "log", found);
        // A snapshot file of another version is refused, and so is one whose state is of another
        // version.
        let other = scratch.copy();
        let mut snapshot = Snapshot { meta: Meta::default(), snapshot: [found, 0].into() };
        fs::write(other.data().join("snapshot"), snapshot::to_file(&snapshot)).expect("room");
        refused(&other, "snapshot", found);
        snapshot.snapshot = snapshot::to_bytes(FORMAT_VERSION, None, &Engine::default());
        let mut bytes = snapshot::to_file(&snapshot);
        bytes[8] = found;
        fs::write(other.data().join("snapshot"), bytes).expect("room");
        refused(&other, "snapshot", found);
    }
}

#[test]
fn a_foreign_file_is_refused() {
    let scratch = crashed(1);
    let node = scratch.data().join("node");
    let text = fs::read_to_string(&node).expect("text");
    fs::write(&node, text.replace("node 1", "node 2")).expect("room");
    assert!(scratch.refusal().contains("is damaged"), "{}", scratch.refusal());
    let state = ClusterScratch::new();
    fs::create_dir(state.data()).expect("new");
    fs::write(state.data().join("tokens"), "").expect("room");
    assert!(state.refusal().contains("--state DIR"), "{}", state.refusal());
    let file = ClusterScratch::new();
    fs::write(file.data(), "").expect("room");
    assert!(file.refusal().contains("is not a directory"), "{}", file.refusal());
}

/// A first start that was interrupted before the node had promised anything can be repeated.
#[test]
fn interrupted_first_start_can_be_repeated() {
    let scratch = crashed(0);
    let node = scratch.data().join("node");
    fs::remove_dir_all(scratch.data().join("log")).expect("it is there");
    fs::remove_file(&node).expect("it is there");
    // In the first iteration only the file `node` exists, in the second the log directory exists as
    // well.
    for _ in 0..2 {
        let data = Data::open(&scratch.data(), || Ok(first())).expect("new");
        assert_eq!(data.identity.stage, crate::raft::store::data_dir::NodeStage::New);
    }
    let wall_secs = granted(&scratch.open().expect("new"), "a", "ann") >> 20;
    assert!(wall_secs > 1_700_000_000, "tokens begin at the wall clock: {wall_secs}");
}

#[test]
fn phases_are_seen_as_time_passes() {
    let scratch = ClusterScratch::new();
    let node = scratch.open().expect("a new node");
    granted(&node, "a", "ann");
    let seen = node.view(&name("a"), Retry::Never).now_or_never();
    let view = seen.expect("nothing is due").expect("the node is well").view;
    assert_eq!(view.phase(), Phase::Held);
    assert!(view.at >= Time::ZERO);
}

/// A restart replays the entries of the log, and writes only the audit records that a crash has
/// kept from the disk.
#[test]
fn a_restart_writes_the_missing_audit_records_only() {
    let scratch = ClusterScratch::new();
    let node = scratch.open().expect("new");
    for (number, lock) in ["a", "b", "c"].into_iter().enumerate() {
        granted(&node, lock, "ann");
        let reason = StealReason::parse(&format!("reason {number}")).expect("a reason");
        let term = LeaseTerms::Own(Ttl::new(Span::from_secs(3_600)).expect("valid"), Grace::NONE);
        let (name, client, patch) = (name(lock), client("root"), Patch::default());
        let stolen = submit(
            &node,
            Op::Steal(Steal { name, only: None, client, reason, term, patch, at_once: false })
                .into(),
        );
        assert!(matches!(stolen, Ok(Ok(Outcome::Stolen(_)))), "{stolen:?}");
    }
    let path = scratch.data().join("audit.log");
    let read = || fs::read_to_string(&path).expect("it is there");
    let whole = read();
    assert_eq!(whole.lines().count(), 3, "{whole}");
    drop(node);
    drop(scratch.open().expect("whole"));
    assert_eq!(read(), whole, "nothing is missing");
    // Everything but the times, which are known only roughly after a crash, and the chain, which
    // depends on them and shows that lines were lost.
    let facts = |text: &str| -> Vec<serde_json::Value> {
        let fact = |line| {
            let mut record: serde_json::Value = serde_json::from_str(line).expect("JSON");
            for field in ["timestamp", "event_id", "prev_hash", "record_hash"] {
                assert!(record.as_object_mut().expect("an object").remove(field).is_some());
            }
            record
        };
        text.lines().map(fact).collect()
    };
    for kept in [whole.len() - 5, whole.lines().next().map_or(0, str::len) + 1 + 9] {
        fs::write(&path, &whole[..kept]).expect("it is ours");
        drop(scratch.open().expect("whole"));
        assert_eq!(facts(&read()), facts(&whole), "cut after {kept} bytes");
    }
    // A file that was moved away is begun anew.
    fs::remove_file(&path).expect("it is ours");
    drop(scratch.open().expect("whole"));
    assert_eq!(read(), "");
}

// ---- restore: a new cluster replaces a lost one ---------------------------------------------

#[test]
fn a_restored_node_grants_nothing_before_its_time_and_no_token_twice() {
    let scratch = ClusterScratch::new();
    let (old, new) = (scratch.0.join("old"), scratch.0.join("new"));
    let node = RaftNode::open(&old).expect("it is new");
    let last = granted(&node, "build", "new");
    let inherited = |node: &RaftNode, hold_off| {
        node.inspect(|engine| InheritedState::of(engine, 1_790_000_000, hold_off))
            .expect("there are tokens")
    };
    let hold_off = HoldOff { until: Time::from_secs(60), cause: HoldOffCause::Restored };
    let (slow, at_once) = (inherited(&node, Some(hold_off)), inherited(&node, None));
    let id = node.engine_id();
    node.close();
    restore(&new, slow, Origin::Backup).expect("there is room");
    // The hold-off, the time at the start of a restored cluster in which no lock is granted,
    // continues after a restart: the time while the node is off does not count.
    for _ in 0..2 {
        let node = RaftNode::open(&new).expect("it has begun");
        assert_ne!(node.engine_id(), id, "another cluster");
        assert_eq!(node.about().locks, 0);
        let answer = submit(&node, acquire("build", "new")).expect("the node is well");
        let refusal = answer.expect_err("too early");
        assert!(refusal.to_string().contains("nothing is granted for"), "{refusal}");
    }
    let second = scratch.0.join("second");
    fs::create_dir(&second).expect("it is new");
    restore(&second, at_once, Origin::Backup).expect("an empty directory will do");
    let node = RaftNode::open(&second).expect("it has begun");
    assert!(granted(&node, "build", "new") > last + (1 << 39));
}

#[test]
fn nothing_is_restored_over_something() {
    let scratch = ClusterScratch::new();
    let data = scratch.0.join("data");
    RaftNode::open(&data).expect("it is new").close();
    let inherited = InheritedState::of(&Engine::default(), 0, None).expect("there are tokens");
    let refused = restore(&data, inherited.clone(), Origin::Backup).expect_err("there is a node");
    assert!(matches!(refused, DataError::NotEmpty(_)), "{refused}");
    RaftNode::open(&data).expect("it is as it was");
    let file = scratch.0.join("file");
    fs::write(&file, "x").expect("it is new");
    assert!(restore(&file, inherited, Origin::Backup).is_err());
    let left: Vec<_> = fs::read_dir(&scratch.0).expect("it is there").collect();
    assert_eq!(left.len(), 2, "nothing is left beside: {left:?}");
}
