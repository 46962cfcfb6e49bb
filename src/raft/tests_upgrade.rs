//! Tests of restore: a new cluster replaces a lost one, of which a backup has preserved the limits
//! and the numbers of tokens.

use super::{DataError, InheritedState, Origin, RaftNode};
use crate::engine::values::lease::{GRACE_DEFAULT, TTL_DEFAULT};
use crate::engine::{
    Acquire, Answer, ClientId, Engine, HoldOff, HoldOffCause, LeaseTerms, LockName, Op, Outcome,
    Ownership,
};
use crate::service::{BackendStatus, LockService, Retry};
use crate::time::Time;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;

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

#[test]
fn a_restored_node_grants_nothing_before_its_time_and_no_token_twice() {
    let scratch = UpgradeScratch::new();
    let (old, new) = (scratch.0.join("old"), scratch.0.join("new"));
    let node = RaftNode::open(&old).expect("it is new");
    let last = token(acquire(&node, "build"));
    let inherited = |node: &RaftNode, hold_off| {
        node.inspect(|engine| InheritedState::of(engine, 1_790_000_000, hold_off))
            .expect("there are tokens")
    };
    let hold_off = HoldOff { until: Time::from_secs(60), cause: HoldOffCause::Restored };
    let (slow, at_once) = (inherited(&node, Some(hold_off)), inherited(&node, None));
    let id = node.engine_id();
    node.close();
    crate::raft::node::bootstrap::restore(&new, slow, Origin::Backup).expect("there is room");
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
    crate::raft::node::bootstrap::restore(&second, at_once, Origin::Backup)
        .expect("an empty directory will do");
    let node = RaftNode::open(&second).expect("it has begun");
    assert!(token(acquire(&node, "build")) > last + (1 << 39));
}

#[test]
fn nothing_is_restored_over_something() {
    let scratch = UpgradeScratch::new();
    let data = scratch.0.join("data");
    RaftNode::open(&data).expect("it is new").close();
    let inherited = InheritedState::of(&Engine::default(), 0, None).expect("there are tokens");
    let refused = crate::raft::node::bootstrap::restore(&data, inherited.clone(), Origin::Backup)
        .expect_err("there is a node");
    assert!(matches!(refused, DataError::NotEmpty(_)), "{refused}");
    RaftNode::open(&data).expect("it is as it was");
    let file = scratch.0.join("file");
    fs::write(&file, "x").expect("it is new");
    assert!(crate::raft::node::bootstrap::restore(&file, inherited, Origin::Backup).is_err());
    let left: Vec<_> = fs::read_dir(&scratch.0).expect("it is there").collect();
    assert_eq!(left.len(), 2, "nothing is left beside: {left:?}");
}
