//! Tests of the local backend on the real clock and real files. No test sleeps: each waits for the
//! event that it expects.

use super::local::Local;
use super::*;
use crate::engine::values::lease;
use crate::engine::{
    Acquire, Annotate, Answer, ClientId, Command, Digest, EventKind, Grace, Handover, HandoverEnd,
    IdempotencyKey, LeaseKey, LeaseTerms, LockName, LockView, Op, OpenSession, Outcome, Ownership,
    Patch, Phase, QueuePolicy, Release, RequestId, Reset, ResetScope, Rules, Steal, StealReason,
    Tenure, Ttl,
};
use crate::storage::tests::restart_machine;
use crate::time::{Span, Time};
use common::task::spawn;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};

/// A directory that is removed at the end of the test.
struct ServiceScratch(PathBuf);

impl ServiceScratch {
    fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("latchfs-{}-{test}", std::process::id()));
        std::fs::remove_dir_all(&path).ok();
        std::fs::create_dir_all(&path).expect("temporary directories can be made");
        Self(path)
    }

    fn state(&self) -> PathBuf {
        self.0.join("state")
    }
}

impl Drop for ServiceScratch {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

fn open(path: &Path) -> (Arc<Local>, Arc<dyn LockService>) {
    let local = Arc::new(Local::open(path, Rules::default()).expect("it opens"));
    let backend: Arc<dyn LockService> = Arc::<Local>::clone(&local);
    (local, backend)
}

fn name(text: &str) -> LockName {
    LockName::parse(text).expect("valid")
}

fn client(text: &str) -> ClientId {
    ClientId::parse(text).expect("valid")
}

fn acquire(lock: &str, who: &str, ttl: Span, grace: Span) -> Acquire {
    let term = LeaseTerms::Own(Ttl::new(ttl).expect("valid"), Grace::new(grace).expect("valid"));
    let (hold, line, patch) = (Ownership::Client, QueuePolicy::Skip, Patch::default());
    Acquire { hold, line, patch, ..Acquire::new(name(lock), client(who), term) }
}

fn long(lock: &str, who: &str) -> Acquire {
    acquire(lock, who, lease::TTL_DEFAULT.span(), lease::GRACE_DEFAULT.span())
}

fn does(locks: &Arc<dyn LockService>, command: impl Into<Command>) -> Result<Answer, Unavailable> {
    locks.submit(command.into(), Retry::Never).wait()
}

fn granted(locks: &Arc<dyn LockService>, ask: Acquire) -> Tenure {
    match does(locks, Op::Acquire(ask)) {
        Ok(Ok(Outcome::Granted(tenure) | Outcome::Renewed(tenure))) => tenure,
        other => panic!("not granted: {other:?}"),
    }
}

fn release(locks: &Arc<dyn LockService>, lock: &str, who: &str) {
    let key = LeaseKey { name: name(lock), client: client(who), token: None };
    does(locks, Op::Release(Release::of(key))).expect("available").expect("released");
}

fn view(locks: &Arc<dyn LockService>, lock: &str) -> LockView {
    locks.view(&name(lock), Retry::Never).wait().expect("available").view
}

#[test]
fn a_restart_after_a_kill_restores_the_leases() {
    let scratch = ServiceScratch::new("killed");
    let (first, locks) = open(&scratch.state());
    let before = granted(&locks, long("build", "a"));
    granted(&locks, long("gone", "a"));
    release(&locks, "gone", "a");
    let left_before = view(&locks, "build").holder().expect("held").ends;
    drop((first, locks)); // No `close`: the state is that after a kill.

    let (_second, locks) = open(&scratch.state());
    let after = view(&locks, "build");
    let holder = after.holder().expect("still held");
    assert_eq!(holder.lease.token, before.token);
    assert_eq!(holder.ends, left_before, "neither more time nor less");
    assert_eq!(after.phase(), Phase::Held);
    assert_eq!(view(&locks, "gone").phase(), Phase::Free);
    let next = granted(&locks, long("other", "a"));
    assert!(next.token.as_u64() > before.token.as_u64() + 1, "the unused block is skipped");
}

/// A power failure may take the last records of the journal, and with them later handovers. A
/// handover that is not the last one must not pass for it: a guard would take an old `clean` for
/// the state of a folder that was changed since.
#[test]
fn nobody_knows_after_a_power_failure_how_a_tenure_ended() {
    let scratch = ServiceScratch::new("power-failure");
    let ends = |locks: &Arc<dyn LockService>, lock: &str| {
        let previous = view(locks, lock).previous.expect("it is remembered");
        previous.last.as_ref().map(|last| last.end)
    };
    let hand_over = |locks: &Arc<dyn LockService>, lock: &str, token, counter| {
        let key = LeaseKey { name: name(lock), client: client("a"), token: Some(token) };
        let handover = Some(Handover { text: "clean".into(), counter });
        let annotate = Annotate { key, patch: Patch::default(), handover };
        does(locks, Op::Annotate(annotate)).expect("available").expect("it is held");
    };
    let (first, locks) = open(&scratch.state());
    let remembering = |lock: &str| Acquire { remember: true, ..long(lock, "a") };
    let over = granted(&locks, remembering("over")).token;
    hand_over(&locks, "over", over, 1);
    release(&locks, "over", "a");
    let held = granted(&locks, remembering("held")).token;
    hand_over(&locks, "held", held, 1);
    drop((first, locks));

    let (second, locks) = open(&scratch.state());
    let both = [ends(&locks, "over"), ends(&locks, "held")];
    assert_eq!(both, [Some(HandoverEnd::Released), Some(HandoverEnd::Open)], "only a kill");
    drop((second, locks));

    restart_machine(&scratch.state());
    for start in ["the first start", "another start"] {
        let (local, locks) = open(&scratch.state());
        let both = [ends(&locks, "over"), ends(&locks, "held")];
        assert_eq!(both, [Some(HandoverEnd::Unknown); 2], "{start}");
        drop((local, locks));
    }
    let (local, locks) = open(&scratch.state());
    release(&locks, "held", "a");
    assert_eq!(ends(&locks, "held"), Some(HandoverEnd::Unknown), "the tenure may have set another");
    let next = granted(&locks, long("over", "a")).token;
    hand_over(&locks, "over", next, 1);
    local.close().expect("closed");
    drop((local, locks));
    restart_machine(&scratch.state());
    let (_local, locks) = open(&scratch.state());
    assert_eq!(ends(&locks, "over"), Some(HandoverEnd::Open), "a clean end loses nothing");
}

#[test]
fn tokens_rise_through_kills_and_clean_ends() {
    let scratch = ServiceScratch::new("tokens");
    let mut last = 0;
    for round in 0..6 {
        let (local, locks) = open(&scratch.state());
        for _ in 0..3 {
            let token = granted(&locks, long("x", "a")).token.as_u64();
            assert!(token > last, "round {round}");
            last = token;
            release(&locks, "x", "a");
        }
        if round % 2 == 0 {
            local.close().expect("closed");
        }
    }
}

#[test]
fn a_clean_shutdown_loses_no_tokens() {
    let scratch = ServiceScratch::new("clean");
    let (local, locks) = open(&scratch.state());
    let before = granted(&locks, long("x", "a")).token.as_u64();
    local.close().expect("closed");
    let late = does(&locks, Op::Acquire(long("y", "a")));
    assert_eq!(late, Err(Unavailable::Closing), "nothing is granted that nobody would remember");
    drop((local, locks));
    let (_local, locks) = open(&scratch.state());
    assert_eq!(granted(&locks, long("y", "a")).token.as_u64(), before + 1);
    assert_eq!(view(&locks, "x").phase(), Phase::Held);
}

#[test]
fn the_timer_serves_the_next_waiter() {
    let local = Arc::new(Local::in_memory(Rules::default()).expect("it starts"));
    let locks: Arc<dyn LockService> = local;
    let short = acquire("x", "a", Span::from_secs(1), Span::ZERO);
    let mut watch = locks.subscribe(None);
    let (send, receive) = mpsc::channel();
    watch.wake_by(Arc::new(move || {
        send.send(()).ok();
    }));
    let begun = locks.now();
    granted(&locks, short);
    let line = QueuePolicy::Join(None);
    does(&locks, Op::Acquire(Acquire { line, ..long("x", "b") })).expect("there").expect("waits");
    let mut seen = Vec::new();
    while !seen.iter().any(|what| matches!(what, EventKind::Granted { waited: Some(_), .. })) {
        receive.recv_timeout(std::time::Duration::from_secs(20)).expect("b is served");
        seen.extend(watch.take(100).events.into_iter().map(|(_, event)| event.what));
    }
    assert!(locks.now().since(begun) >= Span::from_secs(1), "not before a's lease was over");
    assert_eq!(view(&locks, "x").holder().expect("held").lease.holder, client("b"));
}

#[test]
fn a_long_journal_is_compacted_while_commands_continue() {
    let scratch = ServiceScratch::new("cut-back");
    let (local, locks) = open(&scratch.state());
    granted(&locks, long("kept", "a"));
    let note: Arc<str> = "n".repeat(1_000).into();
    let patch = Patch { note: Some(note), ..Patch::default() };
    let mut last = 0;
    // Writes about 20 MB of journal, enough that two new journals are begun.
    for round in 0..20_000 {
        let lock = format!("lock-{}", round % 50);
        let ask = Acquire { patch: patch.clone(), ..long(&lock, "a") };
        last = granted(&locks, ask).token.as_u64();
    }
    let before = (0..50).map(|n| view(&locks, &format!("lock-{n}")).holders).collect::<Vec<_>>();
    drop((local, locks));
    let (_local, locks) = open(&scratch.state());
    let after = (0..50).map(|n| view(&locks, &format!("lock-{n}")).holders).collect::<Vec<_>>();
    assert_eq!(before, after);
    assert!(granted(&locks, long("new", "a")).token.as_u64() > last);
    let bytes: u64 = std::fs::read_dir(scratch.state())
        .expect("it is there")
        .map(|entry| entry.and_then(|e| e.metadata()).map_or(0, |m| m.len()))
        .sum();
    assert!(bytes < 60 << 20, "{bytes} bytes: the journal is cut back");
}

#[test]
fn a_repeat_is_known_after_a_restart() {
    let scratch = ServiceScratch::new("repeat");
    let (local, locks) = open(&scratch.state());
    let id = RequestId { caller: "http:a".into(), key: "once".into() };
    let request = Some(IdempotencyKey { id, digest: Digest(1) });
    let command = Command { request, ..Op::Acquire(long("x", "a")).into() };
    let first = does(&locks, command.clone()).expect("available");
    release(&locks, "x", "a");
    drop((local, locks));
    let (_local, locks) = open(&scratch.state());
    let repeated = does(&locks, command).expect("available").expect("replayed");
    assert!(matches!(repeated, Outcome::Replayed(_)), "{repeated:?}");
    assert_eq!(Ok(repeated.first()), first);
    assert_eq!(view(&locks, "x").phase(), Phase::Free);
}

#[test]
fn a_steal_is_in_the_audit_log() {
    let scratch = ServiceScratch::new("audit");
    let (_local, locks) = open(&scratch.state());
    granted(&locks, long("x", "a"));
    let reason = StealReason::parse("the laptop fell into the lake").expect("a reason");
    let Acquire { term, patch, .. } = long("x", "root");
    let steal = Steal {
        name: name("x"),
        only: None,
        client: client("root"),
        reason,
        term,
        patch,
        at_once: false,
    };
    does(&locks, Op::Steal(steal)).expect("available").expect("stolen");
    let entry = std::fs::read_to_string(scratch.state().join("audit.log")).expect("written");
    let entry: serde_json::Value = serde_json::from_str(&entry).expect("one JSON line");
    assert_eq!(entry["from"], "a");
    assert_eq!(entry["actor"], "root");
    assert_eq!(entry["reason"], "the laptop fell into the lake");
}

#[test]
fn a_reset_has_a_record_for_each_lock_before_it_is_answered() {
    let scratch = ServiceScratch::new("reset");
    let (_local, locks) = open(&scratch.state());
    for number in 0..1_000 {
        granted(&locks, long(&format!("n{number}"), "gone"));
    }
    let reason = StealReason::parse("it left").expect("a reason");
    let reset = Reset::new(ResetScope::Of(client("gone")), client("root"), reason);
    does(&locks, Op::Reset(reset)).expect("available").expect("reset");
    let log = std::fs::read_to_string(scratch.state().join("audit.log")).expect("written");
    assert_eq!(log.lines().count(), 1_000);
}

#[test]
fn answers_are_delivered_with_no_mutex_held() {
    let locks: Arc<dyn LockService> =
        Arc::new(Local::in_memory(Rules::default()).expect("it starts"));
    let inner = locks.clone();
    // What waits for the first answer submits a second request. If it ran while the backend's mutex
    // is held, the second request would deadlock.
    for retry in [Retry::Never, Retry::UntilAnswered] {
        let (inner, first) =
            (inner.clone(), locks.submit(Op::Acquire(long("x", "a")).into(), retry));
        spawn(async move {
            drop(first.await.expect("available"));
            let second = inner.submit(Op::Acquire(long("y", "a")).into(), retry).await;
            drop(second.expect("available"));
        });
        assert_eq!(view(&locks, "y").phase(), Phase::Held);
        release(&locks, "y", "a");
    }
}

#[test]
fn leases_of_the_killed_process_are_in_grace() {
    let scratch = ServiceScratch::new("bound");
    let (local, locks) = open(&scratch.state());
    let open_session = OpenSession { client: client("a"), ttl: None, grace: lease::GRACE_DEFAULT };
    let Ok(Ok(Outcome::SessionOpened(session))) = does(&locks, Op::OpenSession(open_session))
    else {
        panic!("not opened")
    };
    let bound = granted(&locks, Acquire { term: LeaseTerms::Session(session), ..long("x", "a") });
    assert_eq!(view(&locks, "x").holder().expect("held").ends.expires_at, Time::NEVER);
    drop((local, locks));
    let (_local, locks) = open(&scratch.state());
    assert_eq!(view(&locks, "x").phase(), Phase::Grace);
    assert_eq!(granted(&locks, long("x", "a")).token, bound.token);
}

/// A waker makes requests, which cause events, which wake it again. If each wake-up called the
/// waker from within the previous call, the stack would overflow.
#[test]
fn wakers_that_make_events_do_not_nest() {
    const EVENTS: u64 = 100_000;
    let locks: Arc<dyn LockService> =
        Arc::new(Local::in_memory(Rules::default()).expect("it starts"));
    let (send, ended) = mpsc::channel();
    let watch = Arc::new(parking_lot::Mutex::new(locks.subscribe(None)));
    let (watching, asking) = (Arc::downgrade(&watch), locks.clone());
    let seen = AtomicU64::new(0);
    watch.lock().wake_by(Arc::new(move || {
        let Some(watch) = watching.upgrade() else { return };
        let events = watch.lock().take(usize::MAX).events;
        for _ in events {
            match seen.fetch_add(1, Ordering::Relaxed) {
                0..EVENTS => drop(granted(&asking, long("a", "b"))),
                EVENTS => send.send(()).expect("the test waits"),
                _ => {}
            }
        }
    }));
    granted(&locks, long("a", "b"));
    ended.recv().expect("the last event comes");
}
