//! Directed tests of single rules of the engine. The test scripts are in tests/stories, the model
//! in tests/model.

use super::*;
use crate::time::{Span, Time, thread_work};

/// An engine, a clock that only the test moves, and the events of the last command.
pub(super) struct Lab {
    pub(super) engine: Engine,
    pub(super) now: Time,
    pub(super) events: Vec<Event>,
}

pub(super) fn name(text: &str) -> LockName {
    LockName::parse(text).expect("valid")
}

pub(super) fn client(text: &str) -> ClientId {
    ClientId::parse(text).expect("valid")
}

pub(super) fn own(secs: u64, grace: u64) -> LeaseTerms {
    let ttl = Ttl::new(Span::from_secs(secs)).expect("valid");
    LeaseTerms::Own(ttl, Grace::new(Span::from_secs(grace)).expect("valid"))
}

pub(super) fn acquire(lock: &str, who: &str) -> Acquire {
    Acquire::new(name(lock), client(who), own(30, 5))
}

pub(super) fn key(lock: &str, who: &str, token: Option<Token>) -> LeaseKey {
    LeaseKey { name: name(lock), client: client(who), token }
}

impl Lab {
    pub(super) fn new() -> Self {
        Self { engine: Engine::default(), now: Time::ZERO, events: Vec::new() }
    }

    pub(super) fn at(&mut self, secs: u64) -> &mut Self {
        self.now = Time::from_secs(secs);
        self
    }

    pub(super) fn does(&mut self, op: Op) -> Answer {
        self.does_command(&op.into())
    }

    pub(super) fn does_command(&mut self, command: &Command) -> Answer {
        self.events.clear();
        let answer = self.engine.apply(self.now, command, &mut self.events);
        self.engine.check();
        let bytes =
            codec::state_codec::encode_engine(codec::state_codec::known_version(), &self.engine);
        let decoded =
            codec::state_codec::decode_engine(codec::state_codec::known_version(), &bytes)
                .expect("what was written can be read");
        assert_eq!(decoded, self.engine, "a snapshot is the whole state");
        answer
    }

    pub(super) fn granted(&mut self, ask: Acquire) -> Token {
        match self.does(Op::Acquire(ask)) {
            Ok(Outcome::Granted(tenure) | Outcome::Renewed(tenure)) => tenure.token,
            other => panic!("not granted: {other:?}"),
        }
    }

    pub(super) fn refused(&mut self, op: Op) -> RefusalKind {
        self.does(op).expect_err("it must be refused").kind()
    }

    pub(super) fn session(&mut self, who: &str) -> SessionId {
        let LeaseTerms::Own(ttl, grace) = own(10, 5) else { unreachable!() };
        match self.does(Op::OpenSession(OpenSession { client: client(who), ttl: Some(ttl), grace }))
        {
            Ok(Outcome::SessionOpened(id)) => id,
            other => panic!("not opened: {other:?}"),
        }
    }

    pub(super) fn holder(&self, lock: &str) -> String {
        let view = self.engine.view(&name(lock), self.now);
        view.holder().map_or_else(String::new, |holder| holder.lease.holder.to_string())
    }
}

pub(super) fn shared(ask: Acquire) -> Acquire {
    Acquire { mode: Mode::Shared, ..ask }
}

pub(super) fn waiting(ask: Acquire) -> Op {
    Op::Acquire(Acquire { line: QueuePolicy::Join(None), ..ask })
}

pub(super) fn opened(ask: Acquire, session: SessionId, number: u64) -> Acquire {
    let hold = Ownership::OpenFile(OpenId { session, number });
    Acquire { hold, term: LeaseTerms::Session(session), ..ask }
}

#[test]
fn grace_is_for_the_holder_and_keeps_the_token() {
    let mut lab = Lab::new();
    let token = lab.at(0).granted(acquire("build", "a"));
    assert_eq!(lab.at(30).refused(Op::Acquire(acquire("build", "b"))), RefusalKind::LockConflict);
    assert_eq!(lab.at(34).granted(acquire("build", "a")), token);
    assert!(lab.at(69).granted(acquire("build", "b")) > token, "34 + 30 + 5 = 69: free again");
}

#[test]
fn a_release_without_the_current_token_frees_nothing() {
    let mut lab = Lab::new();
    let old = lab.at(0).granted(acquire("build", "a"));
    let new = lab.at(40).granted(acquire("build", "a"));
    assert_ne!(old, new);
    let stale = Op::Release(Release::of(key("build", "a", Some(old))));
    assert_eq!(lab.refused(stale), RefusalKind::FencingMismatch);
    assert_eq!(lab.holder("build"), "a");
    let other = Op::Release(Release::of(key("build", "b", None)));
    assert_eq!(lab.refused(other), RefusalKind::LockNotHeld);
    lab.does(Op::Release(Release::of(key("build", "a", Some(new))))).expect("released");
    let gone = Op::Release(Release::of(key("build", "a", Some(new))));
    assert_eq!(lab.refused(gone), RefusalKind::LockExpired);
}

#[test]
fn writers_do_not_starve() {
    let mut lab = Lab::new();
    lab.granted(shared(acquire("db", "r1")));
    lab.granted(shared(acquire("db", "r2")));
    assert!(matches!(
        lab.does(waiting(acquire("db", "w"))),
        Ok(Outcome::Waiting { before: 0, .. })
    ));
    assert_eq!(lab.refused(Op::Acquire(shared(acquire("db", "r3")))), RefusalKind::LockConflict);
    lab.does(waiting(shared(acquire("db", "r3")))).expect("waits");
    lab.does(Op::Release(Release::of(key("db", "r1", None)))).expect("released");
    assert_eq!(lab.holder("db"), "r2");
    lab.does(Op::Release(Release::of(key("db", "r2", None)))).expect("released");
    assert_eq!(lab.holder("db"), "w");
    lab.does(Op::Release(Release::of(key("db", "w", None)))).expect("released");
    assert_eq!(lab.holder("db"), "r3");
}

#[test]
fn an_upgrade_mints_a_token_and_a_downgrade_keeps_it() {
    let mut lab = Lab::new();
    let shared_by = lab.granted(shared(acquire("db", "a")));
    let token = lab.granted(acquire("db", "a"));
    assert!(token > shared_by, "another sharer may have shown a later one than {shared_by}");
    lab.does(waiting(shared(acquire("db", "b")))).expect("waits");
    assert_eq!(lab.granted(shared(acquire("db", "a"))), token);
    assert_eq!(lab.engine.view(&name("db"), lab.now).holders.len(), 2, "b was let in");
    assert_eq!(lab.refused(Op::Acquire(acquire("db", "a"))), RefusalKind::LockConflict);
}

#[test]
fn one_keep_alive_renews_all_and_expiry_puts_all_in_grace() {
    let mut lab = Lab::new();
    let session = lab.session("a");
    for lock in ["x", "y", "z"] {
        lab.granted(Acquire { term: LeaseTerms::Session(session), ..acquire(lock, "a") });
    }
    lab.at(9).does(Op::KeepAlive(session)).expect("alive");
    lab.at(18);
    assert_eq!(lab.engine.view(&name("y"), lab.now).phase(), Phase::Held);
    lab.at(19).does(Op::Settle).expect("settled");
    for lock in ["x", "y", "z"] {
        assert_eq!(lab.engine.view(&name(lock), lab.now).phase(), Phase::Grace);
    }
    assert_eq!(lab.refused(Op::KeepAlive(session)), RefusalKind::LockExpired);
    lab.at(24).does(Op::Settle).expect("settled");
    assert_eq!(lab.engine.locks(), 0);
}

#[test]
fn a_waiter_whose_session_ended_in_the_same_step_is_not_served() {
    let mut lab = Lab::new();
    lab.granted(acquire("build", "a"));
    let dead = lab.at(26).session("b");
    lab.does(waiting(opened(acquire("build", "b"), dead, 1))).expect("waits");
    lab.does(waiting(acquire("build", "c"))).expect("waits");
    // The lease on `build` expired at t=35s and the session of client `b` at t=36s. The engine
    // learns of both only in the call at t=50s.
    lab.at(50).does(Op::Settle).expect("settled");
    assert_eq!(lab.holder("build"), "c");
}

#[test]
fn ending_a_session_serves_no_waiter_of_that_session() {
    let mut lab = Lab::new();
    let session = lab.session("a");
    lab.granted(opened(acquire("x", "a"), session, 1));
    lab.does(waiting(opened(acquire("x", "a"), session, 2))).expect("waits");
    lab.does(waiting(acquire("x", "b"))).expect("waits");
    lab.does(Op::EndSession(EndSession { session, end: SessionEnd::Closed })).expect("ended");
    assert_eq!(lab.holder("x"), "b");
}

#[test]
fn open_files_of_one_client_exclude_each_other() {
    let mut lab = Lab::new();
    let session = lab.session("a");
    let token = lab.granted(acquire("x", "a"));
    assert_eq!(lab.granted(opened(acquire("x", "a"), session, 1)), token, "loose: taken over");
    let second = Op::Acquire(opened(acquire("x", "a"), session, 2));
    assert_eq!(lab.refused(second.clone()), RefusalKind::LockConflict);
    let firm = Acquire { hold: Ownership::Exclusive(None), ..acquire("y", "a") };
    lab.granted(firm.clone());
    assert_eq!(
        lab.refused(Op::Acquire(firm)),
        RefusalKind::LockConflict,
        "exclusive forms exclude"
    );
    assert_eq!(
        lab.refused(Op::Acquire(opened(acquire("y", "a"), session, 3))),
        RefusalKind::LockConflict
    );
    let maker = Ownership::Exclusive(Some(OpenId { session, number: 4 }));
    let made = lab.granted(Acquire { hold: maker, ..acquire("z", "a") });
    assert_eq!(
        lab.granted(opened(acquire("z", "a"), session, 4)),
        made,
        "by the file that made it"
    );
}

#[test]
fn a_stolen_lock_is_unusable_for_the_steal_grace() {
    let mut lab = Lab::new();
    let old = lab.granted(acquire("build", "a"));
    let steal = stolen("build", "root", own(30, 5));
    let Ok(Outcome::Stolen(tenure)) = lab.at(10).does(steal) else { panic!("not stolen") };
    assert!(tenure.token > old);
    assert_eq!(tenure.acquired_at, Time::from_secs(11));
    for who in ["root", "a", "b"] {
        assert_eq!(lab.refused(Op::Acquire(acquire("build", who))), RefusalKind::LockConflict);
    }
    assert_eq!(lab.at(11).granted(acquire("build", "root")), tenure.token);
    let late = Op::Release(Release::of(key("build", "a", Some(old))));
    assert_eq!(lab.refused(late), RefusalKind::FencingMismatch);
    assert!(StealReason::parse("  ").is_none());
}

fn stolen(lock: &str, by: &str, term: LeaseTerms) -> Op {
    let reason = StealReason::parse("laptop is gone").expect("a reason");
    let patch = Patch::default();
    let (name, client, only) = (name(lock), client(by), None);
    Op::Steal(Steal { name, only, client, reason, term, patch, at_once: false })
}

#[test]
fn releasing_a_stolen_lock_does_not_shorten_the_steal_grace() {
    let by_release = |_| Op::Release(Release::of(key("build", "root", None)));
    let by_end = |session| Op::EndSession(EndSession { session, end: SessionEnd::Closed });
    let ways: [fn(SessionId) -> Op; 2] = [by_release, by_end];
    for way in ways {
        let mut lab = Lab::new();
        let session = lab.session("root");
        lab.granted(acquire("build", "a"));
        lab.does(waiting(acquire("build", "b"))).expect("waits");
        lab.does(stolen("build", "root", LeaseTerms::Session(session))).expect("stolen");
        lab.does(way(session)).expect("given back");
        assert_eq!(lab.holder("build"), "root", "a has not had its second to stop");
        lab.at(1).does(Op::Settle).expect("settled");
        assert_eq!(lab.holder("build"), "b");
        let released =
            |event: &Event| matches!(event.what, EventKind::Ended { end: TenureEnd::Released, .. });
        assert!(lab.events.iter().any(released), "{:?}", lab.events);
    }
}

#[test]
fn session_expiry_after_a_steal_does_not_shorten_the_steal_grace() {
    let mut lab = Lab::new();
    let (ttl, grace) = (Ttl::new(Span::from_secs(1)).expect("valid"), Grace::NONE);
    let session = OpenSession { client: client("root"), ttl: Some(ttl), grace };
    let Ok(Outcome::SessionOpened(id)) = lab.does(Op::OpenSession(session)) else { panic!() };
    lab.granted(acquire("build", "a"));
    lab.does(waiting(acquire("build", "b"))).expect("waits");
    lab.now = Time::from_nanos(500_000_000);
    lab.does(stolen("build", "root", LeaseTerms::Session(id))).expect("stolen");
    lab.at(1).does(Op::Settle).expect("settled");
    assert_eq!((lab.engine.sessions(), lab.holder("build")), (0, "root".to_owned()));
    lab.at(2).does(Op::Settle).expect("settled");
    assert_eq!(lab.holder("build"), "b");
}

#[test]
fn an_open_files_mode_is_changed_by_that_file_only() {
    let mut lab = Lab::new();
    let session = lab.session("a");
    lab.granted(opened(acquire("db", "a"), session, 1));
    lab.does(waiting(shared(acquire("db", "b")))).expect("waits");
    let downgrade = Op::Acquire(shared(acquire("db", "a")));
    assert_eq!(
        lab.refused(downgrade),
        RefusalKind::LockConflict,
        "flock -x was promised to be alone"
    );
    lab.granted(shared(opened(acquire("db", "a"), session, 1)));
    assert_eq!(lab.engine.view(&name("db"), lab.now).holders.len(), 2);
}

#[test]
fn a_repeated_wait_is_granted_the_mode_requested_last() {
    let mut lab = Lab::new();
    lab.granted(acquire("db", "a"));
    let Ok(Outcome::Waiting { ticket, .. }) = lab.does(waiting(shared(acquire("db", "b")))) else {
        panic!()
    };
    let line = QueuePolicy::Join(Some(Span::from_secs(3)));
    let repeated = lab.does(Op::Acquire(Acquire { line, ..acquire("db", "b") }));
    assert_eq!(repeated, Ok(Outcome::Waiting { ticket, before: 0 }));
    lab.does(Op::Release(Release::of(key("db", "a", None)))).expect("released");
    assert_eq!(lab.engine.view(&name("db"), lab.now).mode, Mode::Exclusive);

    lab.granted(shared(acquire("web", "a")));
    lab.does(waiting(acquire("web", "b"))).expect("waits");
    lab.does(waiting(shared(acquire("web", "c")))).expect("waits");
    let Ok(Outcome::Granted(tenure)) = lab.does(waiting(shared(acquire("web", "b")))) else {
        panic!()
    };
    let view = lab.engine.view(&name("web"), lab.now);
    assert_eq!(view.holders.len(), 3);
    let own = view.held_by(&client("b")).map(|holder| holder.lease.token);
    assert_eq!(own, Some(tenure.token), "c was let in behind b, under a later token");

    let hurried = QueuePolicy::Join(Some(Span::ZERO));
    let hurried = Op::Acquire(Acquire { line: hurried, ..acquire("db", "c") });
    assert_eq!(lab.refused(hurried), RefusalKind::LockConflict, "who waits no time does not wait");
}

#[test]
fn a_lease_outlives_the_session_through_which_it_was_made() {
    let mut lab = Lab::new();
    let old = lab.session("a");
    let maker = Ownership::Exclusive(Some(OpenId { session: old, number: 1 }));
    let made = lab.granted(Acquire { hold: maker, ..acquire("x", "a") });
    let file = lab.granted(opened(acquire("y", "a"), old, 2));
    let touched = lab.granted(opened(acquire("z", "a"), old, 3));
    lab.at(10).does(Op::Settle).expect("the session expires");
    let new = lab.session("a");
    let renew = |lock, token, term| {
        let (key, firm) = (key(lock, "a", Some(token)), Firm::Keep);
        Op::Renew(Renew { key, term: Some(term), firm, patch: Patch::default(), acquires: false })
    };
    lab.does(renew("x", made, own(60, 5))).expect("renewed, as its holder may");
    lab.does(renew("y", file, LeaseTerms::Session(new))).expect("taken back within grace");
    assert_eq!(lab.granted(acquire("z", "a")), touched, "rule 1: in grace by X, same token");
    lab.at(19).does(Op::KeepAlive(new)).expect("alive");
    lab.at(28).does(Op::Settle).expect("settled");
    for lock in ["x", "y", "z"] {
        assert_eq!(lab.engine.view(&name(lock), lab.now).phase(), Phase::Held, "{lock}");
    }
}

#[test]
fn limits_hold_for_moves_and_for_the_queue() {
    let rules = Rules { locks_max: 2, holders_max: 2, ..Rules::default() };
    let mut lab = Lab { engine: Engine::new(rules), ..Lab::new() };
    for lock in ["a", "b"] {
        lab.granted(acquire(lock, "x"));
        for who in ["r1", "r2", "r3"] {
            lab.does(waiting(shared(acquire(lock, who)))).expect("waits");
        }
    }
    let (from, to, over) = (key("a", "x", None), name("c"), IfExists::Replace);
    assert_eq!(lab.refused(Op::Move(Move { from, to, over })), RefusalKind::Limit);
    lab.does(Op::Release(Release::of(key("a", "x", None)))).expect("released");
    let view = lab.engine.view(&name("a"), lab.now);
    assert_eq!((view.holders.len(), view.waiters.len()), (2, 1));
    lab.does(Op::Release(Release::of(key("a", "r1", None)))).expect("released");
    assert_eq!(lab.engine.view(&name("a"), lab.now).waiters.len(), 0, "room for r3");
}

#[test]
fn a_move_leaves_the_queue_behind() {
    let mut lab = Lab::new();
    let token = lab.granted(acquire("a", "x"));
    lab.does(waiting(acquire("a", "y"))).expect("waits");
    let to = name("b");
    let from = key("a", "x", None);
    let over = IfExists::Replace;
    let moved = lab.does(Op::Move(Move { from, to, over }));
    let Ok(Outcome::Moved(tenure)) = moved else { panic!("not moved: {moved:?}") };
    assert!(tenure.token > token);
    assert_eq!((lab.holder("a"), lab.holder("b")), ("y".to_owned(), "x".to_owned()));
    lab.granted(acquire("c", "z"));
    let from = key("b", "x", None);
    let blocked = Op::Move(Move { from, to: name("c"), over });
    assert_eq!(lab.refused(blocked), RefusalKind::LockConflict);
}

#[test]
fn a_repeated_request_has_one_effect() {
    let mut lab = Lab::new();
    let keyed_acquire = keyed("http:ann", 1, Op::Acquire(acquire("build", "a")));
    let first = lab.does_command(&keyed_acquire).expect("granted");
    lab.does(Op::Release(Release::of(key("build", "a", None)))).expect("released");
    lab.granted(acquire("build", "b"));
    let tenure = first.tenure().expect("a tenure");
    let replay = Replay { at: Time::ZERO, ends: Some(lab.engine.state.ends(tenure.life)), first };
    assert_eq!(lab.at(1).does_command(&keyed_acquire), Ok(Outcome::Replayed(Box::new(replay))));
    assert_eq!(lab.holder("build"), "b", "the repeat has not taken it again");
    lab.does(Op::Release(Release::of(key("build", "b", None)))).expect("released");
    lab.at(601).does_command(&keyed_acquire).expect("forgotten by then, and granted anew");
    assert_eq!(lab.engine.locks(), 1);
}

/// Returns a command with the idempotency key `one`.
fn keyed(caller: &str, digest: u128, op: Op) -> Command {
    let id = RequestId { caller: caller.into(), key: "one".into() };
    Command { request: Some(IdempotencyKey { id, digest: Digest(digest) }), ..op.into() }
}

/// Rule 10: a request id is scoped to its caller, and matches only the same request.
#[test]
fn a_known_key_answers_only_its_caller_and_its_request() {
    let mut lab = Lab::new();
    lab.granted(acquire("prod/db", "b"));
    lab.does_command(&keyed("batch:eve", 1, Op::Acquire(acquire("sandbox/x", "a"))))
        .expect("granted");
    let victims = Op::Acquire(acquire("prod/db", "a"));
    for caller in ["http:ann", "batch:ann", "http:eve"] {
        let refusal = lab.does_command(&keyed(caller, 2, victims.clone())).expect_err("b has it");
        assert_eq!(refusal.kind(), RefusalKind::LockConflict, "{caller}");
    }
    let refusal = lab.does_command(&keyed("batch:eve", 2, victims)).expect_err("another request");
    assert_eq!(refusal.kind(), RefusalKind::Invalid);
    assert!(refusal.to_string().contains("request key 'one' was used before"), "{refusal}");
}

#[test]
fn leaving_the_queue_serves_the_waiters_behind() {
    let mut lab = Lab::new();
    lab.granted(shared(acquire("db", "a")));
    let Ok(Outcome::Waiting { ticket, .. }) = lab.does(waiting(acquire("db", "w"))) else {
        panic!()
    };
    lab.does(waiting(shared(acquire("db", "b")))).expect("waits");
    let leave = Leave { name: name("db"), ticket, why: LeaveReason::Gone };
    lab.does(Op::Leave(leave.clone())).expect("left");
    assert_eq!(lab.engine.view(&name("db"), lab.now).holders.len(), 2);
    assert_eq!(lab.refused(Op::Leave(leave)), RefusalKind::LockExpired);
}

#[test]
fn a_timeout_ends_a_wait() {
    let mut lab = Lab::new();
    lab.granted(acquire("build", "a"));
    let line = QueuePolicy::Join(Some(Span::from_secs(3)));
    lab.does(Op::Acquire(Acquire { line, ..acquire("build", "b") })).expect("waits");
    assert_eq!(lab.engine.next_deadline(), Some(Time::from_secs(3)));
    lab.at(3).does(Op::Settle).expect("settled");
    let why = LeaveReason::TimedOut;
    assert!(
        matches!(&lab.events[..], [Event { what: EventKind::Left { why: w, .. }, .. }] if *w == why)
    );
    assert_eq!(lab.engine.waiters(), 0);
}

#[test]
fn directories_list_each_child_once() {
    let mut lab = Lab::new();
    for lock in ["a", "a!b", "a/x", "a/y/z", "a0", "b/c", "b/d", "c"] {
        lab.granted(acquire(lock, "me"));
    }
    for limit in 1..9 {
        let (mut names, mut cursor) = (Vec::new(), None);
        for pages in 1.. {
            assert!(pages < 10, "the pages end");
            let (page, next) = lab.engine.children(None, cursor.as_deref(), limit);
            names.extend(page.iter().map(|c| (c.name.to_string(), c.lock.is_some())));
            cursor = next;
            if cursor.is_none() {
                break;
            }
        }
        let names: Vec<_> = names.iter().map(|(name, lock)| (name.as_str(), *lock)).collect();
        let want = [("a", true), ("a!b", true), ("a0", true), ("b", false), ("c", true)];
        assert_eq!(names, want, "limit {limit}");
    }
    let (below, _) = lab.engine.children(Some(&name("a")), None, 9);
    assert_eq!(below.iter().map(|c| c.name.as_str()).collect::<Vec<_>>(), ["a/x", "a/y"]);
}

#[test]
fn damaged_bytes_are_refused_and_do_not_panic() {
    let mut lab = Lab::new();
    let session = lab.session("a");
    lab.granted(opened(acquire("x", "a"), session, 1));
    lab.does(waiting(acquire("x", "b"))).expect("waits");
    let bytes = codec::state_codec::encode_engine(codec::state_codec::known_version(), &lab.engine);
    for place in 0..bytes.len() {
        let _ =
            codec::state_codec::decode_engine(codec::state_codec::known_version(), &bytes[..place])
                .map(|_| panic!("cut at {place}"));
        for bit in 0..8 {
            let mut damaged = bytes.clone();
            damaged[place] ^= 1 << bit;
            let _ =
                codec::state_codec::decode_engine(codec::state_codec::known_version(), &damaged);
        }
    }
}

#[test]
fn a_client_whose_session_expired_may_come_back() {
    let mut lab = Lab::new();
    let grace = Grace::new(Span::from_secs(5)).expect("valid");
    let open = OpenSession { client: client("a"), ttl: None, grace };
    let Ok(Outcome::SessionOpened(session)) = lab.does(Op::OpenSession(open)) else { panic!() };
    let bound = Acquire { term: LeaseTerms::Session(session), ..acquire("x", "a") };
    let token = lab.granted(bound.clone());
    lab.granted(opened(acquire("y", "a"), session, 1));
    assert_eq!(lab.engine.next_deadline(), None, "it lasts until it is ended");
    assert_eq!(lab.engine.unending_sessions(), [session]);
    let end = EndSession { session, end: SessionEnd::Expired };
    lab.at(100_000).does(Op::EndSession(end)).expect("ended");
    assert_eq!(lab.refused(Op::Acquire(acquire("x", "b"))), RefusalKind::LockConflict);
    assert_eq!(lab.at(100_004).granted(acquire("x", "a")), token);
    lab.at(100_005).does(Op::Settle).expect("settled");
    assert_eq!((lab.holder("x"), lab.holder("y")), ("a".to_owned(), String::new()));
}

/// The engine does not rely on the front ends: it refuses a command with an oversized field, and
/// changes nothing.
#[test]
fn parts_of_a_command_have_limits() {
    let mut lab = Lab::new();
    lab.granted(acquire("x", "a"));
    let long = |bytes| Some("x".repeat(bytes).into());
    let noted = |bytes| Patch { note: long(bytes), ..Patch::default() };
    let by = |bytes| Patch { holder_id: long(bytes), ..Patch::default() };
    for (fits, patch) in [(true, noted(1_024)), (false, noted(1_025)), (false, by(513))] {
        let key = key("x", "a", None);
        let annotate =
            Op::Annotate(Annotate { key: key.clone(), patch: patch.clone(), handover: None });
        assert_eq!(lab.does(annotate).is_ok(), fits);
        let renew =
            Renew { key, term: None, firm: Firm::Keep, patch: patch.clone(), acquires: false };
        assert_eq!(lab.does(Op::Renew(renew)).is_ok(), fits);
        for asked in [acquire("y", "a"), waiting_for("x", "b")] {
            let refusal = lab.does(Op::Acquire(Acquire { patch: patch.clone(), ..asked })).err();
            assert_eq!(
                refusal.map(|refusal| refusal.kind()),
                (!fits).then_some(RefusalKind::Invalid)
            );
        }
        lab.engine.check();
    }
    for key in ["", &"k".repeat(73)] {
        let id = RequestId { caller: "http:a".into(), key: key.into() };
        let request = Some(IdempotencyKey { id, digest: Digest(1) });
        let refusal = lab.does_command(&Command { request, ..Op::Settle.into() });
        assert_eq!(refusal.expect_err("no such key").kind(), RefusalKind::Invalid);
    }
    assert_eq!(lab.engine.state.replies.len(), 0);
}

fn waiting_for(lock: &str, who: &str) -> Acquire {
    Acquire { line: QueuePolicy::Join(None), ..acquire(lock, who) }
}

/// A request with a number is carried out once. Its number is part of the encoded command, and of
/// the encoded state, also if the request was refused.
#[test]
fn a_copy_of_a_numbered_request_is_refused() {
    let mut lab = Lab::new();
    let LeaseTerms::Own(ttl, grace) = own(30, 5) else { unreachable!("as made above") };
    let open = OpenSession { client: client("a"), ttl: Some(ttl), grace };
    let Ok(Outcome::SessionOpened(session)) = lab.does(Op::OpenSession(open)) else {
        panic!("there is room");
    };
    let before =
        codec::state_codec::encode_engine(codec::state_codec::known_version(), &lab.engine);
    let numbered = |number, answered_below, op: Op| {
        let key = RequestKey::Number(RequestNumber { session, number });
        let id = RequestId { caller: "batch:a".into(), key };
        let request = Some(IdempotencyKey { id, digest: Digest(1) });
        Command { answered_below, ..Command::from(op).with_request(request) }
    };
    let keeps = |number, answered_below| numbered(number, answered_below, Op::KeepAlive(session));
    let release = |number| {
        let key = LeaseKey { name: name("x"), client: client("a"), token: None };
        numbered(number, 0, Op::Release(Release::of(key)))
    };
    let late = |answer: Answer| match answer {
        Err(refusal) => *refusal.reason == Reason::LateCopy(session),
        Ok(_) => false,
    };
    lab.does_command(&release(5)).expect_err("nothing is held");
    assert!(late(lab.does_command(&release(5))), "a copy of a refused request");
    assert_ne!(
        codec::state_codec::encode_engine(codec::state_codec::known_version(), &lab.engine),
        before
    );
    lab.does_command(&keeps(4, 0)).expect("an earlier one that has not arrived before");
    let again = lab.does_command(&keeps(4, 0));
    assert!(matches!(again, Ok(Outcome::Replayed(_))), "{again:?}");
    lab.does_command(&keeps(6, 5)).expect("the next one");
    assert!(late(lab.does_command(&keeps(4, 0))), "its answer is acknowledged");
    assert!(late(lab.does_command(&keeps(3, 0))), "it is not wanted any more");
    let last = UNANSWERED_MAX + 6;
    let reason = lab.does_command(&keeps(last, 6)).expect_err("too many").reason;
    assert_eq!(*reason, Reason::Limit(Limit::Unanswered(UNANSWERED_MAX as usize)));
    lab.does_command(&keeps(last, 7)).expect("the last one of as many as may have no answer");
    lab.does_command(&keeps(last - 1, 7)).expect("another one");
    lab.engine.forget_replies();
    assert!(late(lab.does_command(&keeps(last, 7))), "a forgotten answer");
    let far = last + 10 * UNANSWERED_MAX;
    lab.does_command(&keeps(far, far)).expect("far above");
    lab.does_command(&keeps(far + UNANSWERED_MAX - 1, far)).expect("its place was freed");
    let mut bytes = Vec::new();
    codec::state_codec::encode_command(Time::ZERO, &keeps(6, 5), &mut bytes);
    assert_eq!(
        codec::state_codec::decode_command(codec::state_codec::known_version(), &bytes),
        Ok((Time::ZERO, keeps(6, 5)))
    );
    let version = codec::state_codec::known_version();
    let state = codec::state_codec::encode_engine(version, &lab.engine);
    assert_eq!(codec::state_codec::decode_engine(version, &state), Ok(lab.engine));
}

/// An open file takes over an exclusive lease of its client whose token it names: the lease keeps
/// its token and its details. An acquire that does not name the token is refused at once.
#[test]
fn an_open_file_takes_over_the_lease_that_it_names() {
    let mut lab = Lab::new();
    let LeaseTerms::Own(ttl, grace) = own(30, 5) else { unreachable!("as made above") };
    let open = OpenSession { client: client("a"), ttl: Some(ttl), grace };
    let Ok(Outcome::SessionOpened(session)) = lab.does(Op::OpenSession(open)) else {
        panic!("there is room");
    };
    let text = Some(TextPatch::Set(b"text".as_slice().into()));
    let patch = Patch { text, note: Some("note".into()), ..Patch::default() };
    let hold = Ownership::Exclusive(None);
    let token = lab.granted(Acquire { hold, patch, ..acquire("x", "a") });
    let line = QueuePolicy::Join(None);
    assert!(matches!(
        lab.does(Op::Acquire(Acquire { line, ..acquire("x", "b") })),
        Ok(Outcome::Waiting { .. })
    ));
    let file = Acquire { line, ..opened(acquire("x", "a"), session, 7) };
    let wrong = [Token::named(token.as_u64() + 1), Token::named(session.as_u64())];
    let mut others = Vec::from(wrong.map(|wrong| (Some(wrong), "a")));
    others.extend([(None, "a"), (Some(token), "b")]);
    for (takes_over, who) in others {
        let ask =
            Acquire { takes_over, client: client(who), line: QueuePolicy::Skip, ..file.clone() };
        lab.does(Op::Acquire(ask)).expect_err("it is not the lease of the file");
    }
    let takeover = Op::Acquire(Acquire { takes_over: Some(token), ..file.clone() });
    let without = Op::Acquire(Acquire { line: QueuePolicy::Skip, ..file.clone() });
    lab.does(without).expect_err("the lease is in the way");
    let Ok(Outcome::Renewed(tenure)) = lab.does(takeover) else { panic!("it is its own lease") };
    assert_eq!((tenure.token, tenure.life), (token, Lifetime::Session(session)));
    let view = lab.engine.view(&name("x"), lab.now);
    let lease = &view.holders[0].lease;
    assert_eq!(lease.hold, Ownership::OpenFile(OpenId { session, number: 7 }));
    assert_eq!(lease.details.note().map(|note| &**note), Some("note"));
    assert_eq!((lease.details.text(), view.waiters.len()), (b"text".as_slice(), 1));
}

/// A release that names an open file ends the file's lease under whatever name `mv` has given it.
#[test]
fn release_by_open_file_follows_a_move() {
    let mut lab = Lab::new();
    let LeaseTerms::Own(ttl, grace) = own(30, 5) else { unreachable!("as made above") };
    let open = OpenSession { client: client("a"), ttl: Some(ttl), grace };
    let Ok(Outcome::SessionOpened(session)) = lab.does(Op::OpenSession(open)) else {
        panic!("there is room");
    };
    let open = OpenId { session, number: 7 };
    let hold = Ownership::OpenFile(open);
    let locked =
        lab.granted(Acquire { hold, term: LeaseTerms::Session(session), ..acquire("x", "a") });
    let (from, to) = (key("x", "a", Some(locked)), name("y"));
    lab.does(Op::Move(Move { from: from.clone(), to, over: IfExists::Refuse })).expect("y is free");
    let release = Op::Release(Release::of_open_file(open, from.clone()));
    // After the move, a release can't find the lease by its old name and token.
    lab.does(Op::Release(Release::of(from))).expect_err("it was moved");
    lab.does(release.clone()).expect("released under its new name");
    assert_eq!(lab.engine.locks(), 0);
    lab.does(release).expect_err("it was released");
}

/// A reset may have parts: ranges of names, and then the rest, whose answer includes what the parts
/// have ended and is the one that is remembered.
#[test]
fn a_reset_may_have_parts() {
    let mut lab = Lab::new();
    for lock in ["a", "b", "c", "d", "e"] {
        lab.granted(acquire(lock, "gone"));
    }
    lab.granted(acquire("bb", "stays"));
    lab.does(Op::Acquire(waiting_for("bb", "gone"))).expect("it waits");
    let whose = ResetScope::Of(client("gone"));
    let parts = lab.engine.reset_parts(&whose, 2);
    let names = |first, last| ResetPart::Names(name(first), name(last));
    assert_eq!(parts, [names("a", "b"), names("bb", "c"), names("d", "e")]);
    assert_eq!(lab.engine.reset_parts(&whose, 6), [], "one command is enough");
    let reason = StealReason::parse("it left").expect("a reason");
    let all = Reset::new(whose, client("root"), reason);
    let part = |part| keyed("http:root", 7, Op::Reset(Reset { part, ..all.clone() }));
    let rest = |holds, waits| part(ResetPart::Rest { holds, waits });
    let ended = |holds, waits| Ok(Outcome::ResetPart { holds, waits });
    assert_eq!(lab.does_command(&part(names("e", "a"))), ended(0, 0), "no name is between them");
    assert_eq!(lab.does_command(&part(names("a", "b"))), ended(2, 0));
    assert_eq!(lab.does_command(&part(names("a", "b"))), ended(0, 0), "they are unusable now");
    assert_eq!(lab.does_command(&part(names("bb", "c"))), ended(1, 1));
    assert_eq!(lab.engine.view(&name("d"), lab.now).holders[0].lease.holder, client("gone"));
    assert_eq!(lab.does_command(&rest(3, 1)), Ok(Outcome::Reset { holds: 5, waits: 1 }));
    for late in [part(names("a", "e")), rest(0, 0)] {
        let Ok(Outcome::Replayed(first)) = lab.does_command(&late) else { panic!("it was done") };
        assert_eq!(first.first, Outcome::Reset { holds: 5, waits: 1 });
    }
    assert_eq!(lab.engine.view(&name("bb"), lab.now).holders[0].lease.holder, client("stays"));
}

/// A reset of many locks, and the end of their steal grace, are each one step of the engine: they
/// take milliseconds of CPU time for 10,000 locks, also in a debug build.
#[test]
fn a_reset_of_many_locks_is_fast() {
    let (mut engine, mut events) = (Engine::default(), Vec::new());
    let many = 100_000;
    for number in 0..many {
        let acquire = Op::Acquire(acquire(&format!("n{number}"), "gone")).into();
        engine.apply(Time::ZERO, &acquire, &mut events).expect("free");
    }
    let (whose, by) = (ResetScope::AllBut(vec![]), client("root"));
    let reason = StealReason::parse("it left").expect("a reason");
    let began = thread_work();
    let reset =
        engine.apply(Time::ZERO, &Op::Reset(Reset::new(whose, by, reason)).into(), &mut events);
    let reset_took = thread_work().saturating_sub(began);
    assert_eq!(reset, Ok(Outcome::Reset { holds: many, waits: 0 }));
    let began = thread_work();
    engine.apply(Time::from_secs(2), &Op::Settle.into(), &mut events).expect("settled");
    let settled_took = thread_work().saturating_sub(began);
    assert_eq!(engine.locks(), 0);
    println!("{many} locks: reset {reset_took:?}, the end of their grace {settled_took:?}");
    assert!(reset_took.as_secs() < 2 && settled_took.as_secs() < 2, "{reset_took:?}");
}

#[test]
fn a_grant_is_found_by_its_request() {
    let mut lab = Lab::new();
    let with_key = |key: &str, op: Acquire| {
        let id = RequestId { caller: "http:a".into(), key: key.into() };
        Command {
            request: Some(IdempotencyKey { id, digest: Digest(1) }),
            ..Op::Acquire(op).into()
        }
    };
    let key_of = |lab: &Lab, token| lab.engine.request_of(token).map(|id| id.key.to_string());
    let Ok(Outcome::Granted(first)) = lab.does_command(&with_key("one", acquire("x", "a"))) else {
        panic!("it is free");
    };
    let waits = lab.does_command(&with_key("two", waiting_for("x", "b")));
    assert!(matches!(waits, Ok(Outcome::Waiting { .. })), "{waits:?}");
    let Ok(Outcome::Granted(other)) = lab.does(Op::Acquire(acquire("y", "a"))) else {
        panic!("it is free");
    };
    assert_eq!(key_of(&lab, first.token).as_deref(), Some("one"));
    assert_eq!(key_of(&lab, other.token), None, "it had no id");
    let key = LeaseKey { name: name("x"), client: client("a"), token: None };
    lab.does(Op::Release(Release::of(key))).expect("it is held");
    let second = lab.engine.view(&name("x"), lab.now).holders[0].lease.token;
    assert_eq!(key_of(&lab, second).as_deref(), Some("two"));
    let bytes = codec::state_codec::encode_engine(codec::state_codec::known_version(), &lab.engine);
    let copy = codec::state_codec::decode_engine(codec::state_codec::known_version(), &bytes)
        .expect("as written");
    assert_eq!(copy, lab.engine, "the ids of grants follow from the remembered answers");
    lab.engine.forget_replies();
    assert_eq!(key_of(&lab, second), None);
}
