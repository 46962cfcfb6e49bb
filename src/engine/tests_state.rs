//! Directed tests of the engine's state as a whole: counts, limits, tokens, queries, and the time
//! after a start in which the engine grants no lock.

use super::deadlines::Due;
use super::idempotency::IdempotencyRecord;
use super::lease::TOKEN_MAX;
use super::lease_terms::TTL_DEFAULT;
use super::tests::{Lab, ask, client, key, name, shared, waiting};
use super::tokens::TokenAllocator;
use super::*;
use crate::time::{Span, Time};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

#[test]
fn the_engine_counts_all_that_it_remembers() {
    let mut lab = Lab::new();
    lab.at(7).granted(ask("a", "x"));
    lab.granted(ask("b", "x"));
    for who in ["p", "q", "r"] {
        lab.does(waiting(ask("a", who))).expect("waits");
    }
    for who in ["x", "y", "z", "x"] {
        lab.session(who);
    }
    let id = RequestId { caller: "c".into(), key: "k".into() };
    let request = Some(IdempotencyKey { id, digest: Digest(1) });
    lab.does_command(&Command { request, ..Op::Settle.into() }).expect("settled");
    let engine = &lab.engine;
    assert_eq!(engine.clock(), Time::from_secs(7));
    assert_eq!((engine.locks(), engine.waiters(), engine.sessions()), (2, 3, 4));
    assert_eq!(engine.size(), 2 + 3 + 4 + 1);
    assert_eq!(engine.next_token(), 1 + 2 + 4, "tokens and sessions have one counter");
}

#[test]
fn the_tokens_that_a_command_may_use_are_known() {
    let mut lab = Lab::new();
    for lock in ["a", "b", "c"] {
        lab.granted(ask(lock, "x"));
    }
    for who in ["y", "z"] {
        lab.does(waiting(ask("a", who))).expect("waits");
    }
    assert_eq!(lab.engine.tokens_wanted(&Op::Settle), 2, "one for each waiter");
    assert_eq!(lab.engine.tokens_wanted(&Op::Acquire(ask("d", "x"))), 3);
    assert_eq!(lab.engine.tokens_wanted(&reset_all()), 2 + 3 + 1);
}

fn reset_all() -> Op {
    let reason = StealReason::parse("they have left").expect("a reason");
    Op::Reset(Reset::new(ResetScope::AllBut(vec![]), client("root"), reason))
}

#[test]
fn limits_are_those_that_were_set() {
    let rules = Rules { locks_max: 1, ..Rules::default() };
    let mut lab = Lab { engine: Engine::new(rules), ..Lab::new() };
    assert_eq!(lab.engine.rules(), rules);
    lab.granted(ask("a", "x"));
    assert_eq!(lab.refused(Op::Acquire(ask("b", "x"))), RefusalKind::Limit);
    let more = Rules { locks_max: 2, ..rules };
    lab.engine.set_rules(more);
    assert_eq!(lab.engine.rules(), more);
    lab.granted(ask("b", "x"));
}

#[test]
fn the_last_tokens_are_given_out_and_no_more() {
    assert_eq!(TOKEN_MAX, 9_007_199_254_740_991, "2^53 - 1, which JSON readers keep exact");
    let mut lab = Lab::new();
    lab.engine.raise_tokens(TOKEN_MAX - 1);
    lab.engine.raise_tokens(5);
    assert_eq!(lab.engine.next_token(), TOKEN_MAX - 1, "tokens never go back");
    assert_eq!(lab.granted(ask("a", "x")).as_u64(), TOKEN_MAX - 1);
    assert_eq!(lab.refused(Op::Acquire(ask("b", "x"))), RefusalKind::Limit);

    // A command is refused if too few tokens remain: one is kept for each waiter, which may be
    // granted the lock.
    let mut lab = Lab::new();
    lab.engine.raise_tokens(TOKEN_MAX - 3);
    lab.granted(ask("a", "x"));
    lab.does(waiting(ask("a", "y"))).expect("waits");
    lab.granted(ask("b", "x"));
    assert_eq!(lab.refused(Op::Acquire(ask("c", "x"))), RefusalKind::Limit);
}

/// A reset needs one token for each lock that it takes, to keep the lock unusable.
#[test]
fn a_reset_needs_a_token_for_each_lock() {
    for (left, enough) in [(2, false), (3, true)] {
        let mut lab = Lab::new();
        lab.granted(ask("a", "x"));
        lab.engine.raise_tokens(TOKEN_MAX + 1 - left);
        let answer = lab.does(reset_all());
        assert_eq!(answer.is_ok(), enough, "{left} left: {answer:?}");
    }
}

/// Returns an engine that grants no lock for a minute, as after a start without the leases of its
/// predecessor.
fn held_off() -> Lab {
    let (rules, until) = (Rules::default(), Time::from_secs(60));
    let hold_off = Some(HoldOff { until, cause: HoldOffCause::Restored });
    let baseline = Baseline { rules, tokens_from: 1, tickets_from: 1, hold_off };
    Lab { engine: Engine::inheriting(&baseline), ..Lab::new() }
}

#[test]
fn a_hold_off_is_over_at_its_end() {
    let until = Time::from_secs(60);
    let mut lab = held_off();
    assert_eq!(lab.engine.hold_off().map(|it| it.until), Some(until));
    lab.now = until - Span::from_nanos(1);
    lab.does(Op::Settle).expect("settled");
    assert_eq!(lab.engine.hold_off().map(|it| it.until), Some(until));
    lab.at(60).does(Op::Settle).expect("settled");
    assert_eq!(lab.engine.hold_off(), None);
}

/// While the engine grants no lock after a start without state, a queued request waits until its
/// own timeout, and a refused request changes nothing.
#[test]
fn requests_that_wait_for_the_hold_off_have_limits() {
    let mut lab = held_off();
    let text = Some(TextPatch::Set(vec![b'x'; 4_097].into()));
    let patch = Patch { text, ..Patch::default() };
    let (line, asked) = (QueuePolicy::Join(None), ask("x", "a"));
    let long = Op::Acquire(Acquire { line, patch, ..asked.clone() });
    assert_eq!(lab.refused(long), RefusalKind::Invalid);
    assert_eq!((lab.engine.locks(), lab.events.len()), (0, 0));

    let line = QueuePolicy::Join(Some(Span::from_secs(3)));
    lab.at(10).does(Op::Acquire(Acquire { line, ..asked })).expect("waits");
    assert_eq!(lab.engine.next_deadline(), Some(Time::from_secs(13)));
    lab.at(12).does(Op::Settle).expect("settled");
    assert_eq!(lab.engine.waiters(), 1);
    lab.at(13).does(Op::Settle).expect("settled");
    assert_eq!(lab.engine.waiters(), 0);
}

#[test]
fn the_first_lease_of_a_lock_is_found() {
    let mut lab = Lab::new();
    assert_eq!(lab.engine.lease(&name("x")), None);
    let token = lab.granted(shared(ask("x", "a")));
    lab.granted(shared(ask("x", "b")));
    assert_eq!(lab.engine.lease(&name("x")).map(|lease| lease.token), Some(token));
    lab.does(Op::Release(Release::of(key("x", "a", None)))).expect("released");
    let holder = lab.engine.lease(&name("x")).map(|lease| lease.holder.to_string());
    assert_eq!(holder, Some("b".to_owned()));
}

/// The message of `Engine::check` about a broken invariant, and a function that breaks the
/// invariant.
type Breakage = (&'static str, fn(&mut Engine));

const BREAKAGES: &[Breakage] = &[
    ("tokens are minted", |engine| engine.books.mint = TokenAllocator::at(1)),
    ("waiters are counted", |engine| engine.books.waiting += 1),
    ("what ends by itself is on the agenda", |engine| {
        engine.books.agenda.add(Time::from_secs(99), Due::Session(SessionId::named(99)));
    }),
    ("what is due has happened", |engine| {
        let (id, session) = engine.books.sessions.iter().next().expect("it is open");
        engine.books.agenda.remove(session.expires_at(), Due::Session(*id));
        engine.books.agenda.add(engine.books.clock, Due::Session(*id));
    }),
    ("no lease outlives its grace", |engine| {
        let lease = &mut engine.locks.get_mut(&name("s")).expect("it is held").leases_mut()[0];
        lease.life = Lifetime::Own { ttl: TTL_DEFAULT, grace: Grace::NONE, expires_at: Time::ZERO };
        let session = engine.books.sessions.values_mut().next().expect("it is open");
        session.leases.clear();
        let due = Due::Lease(Token::named(99), name("s"));
        engine.books.agenda.add(Time::from_secs(99), due);
    }),
    ("places are given out once", |engine| engine.books.next_ticket = 1),
    ("a session's lease is there and hangs on it", |engine| {
        let session = engine.books.sessions.values_mut().next().expect("it is open");
        session.leases.insert((name("x"), Token::named(1)));
    }),
    ("a session's waiter is in line", |engine| {
        let session = engine.books.sessions.values_mut().next().expect("it is open");
        session.waiters.insert((name("x"), Ticket::named(99)));
    }),
    ("a request that waits has its place", |engine| {
        let (ticket, ahead) = (Ticket::named(99), 0);
        let first = Outcome::Waiting { ticket, ahead };
        let replay = Replay { at: Time::ZERO, first, ends: None };
        let kept = IdempotencyRecord { until: Time::NEVER, digest: Digest(1), replay };
        let id = RequestId { caller: "c".into(), key: "k".into() };
        engine.books.replies.by_id.insert(id.into(), kept);
    }),
    ("the shares of the callers are counted", |engine| {
        let first = Outcome::Settled;
        let replay = Replay { at: Time::ZERO, first, ends: None };
        let kept = IdempotencyRecord { until: Time::from_secs(9), digest: Digest(1), replay };
        let id = Arc::new(RequestId { caller: "c".into(), key: "k".into() });
        engine.books.agenda.add(kept.until, Due::Reply(Arc::clone(&id)));
        engine.books.replies.by_id.insert(id, kept);
    }),
    ("locks are limited", |engine| engine.books.rules.locks_max = 1),
    ("a free lock is not stored", |engine| {
        engine.locks.get_or_new(&name("free"));
    }),
    ("sharers stand in the order of their tokens", |engine| {
        engine.locks.get_mut(&name("y")).expect("it is held").leases_mut().reverse();
    }),
    ("sharers stand in the order of their tokens", |engine| {
        let leases = engine.locks.get_mut(&name("y")).expect("it is held").leases_mut();
        leases[1].token = leases[0].token;
    }),
    ("no two leases have one token", |engine| {
        let token = engine.lease(&name("y")).expect("it is held").token;
        engine.locks.get_mut(&name("x")).expect("it is held").leases_mut()[0].token = token;
    }),
];

/// `Engine::check` finds each broken invariant.
#[test]
fn broken_invariants_are_found() {
    for (broken, make) in BREAKAGES {
        let mut lab = Lab::new();
        let session = lab.session("s");
        lab.granted(Acquire { term: LeaseTerms::Session(session), ..ask("s", "s") });
        lab.granted(ask("x", "a"));
        lab.does(waiting(ask("x", "b"))).expect("waits");
        lab.granted(shared(ask("y", "a")));
        lab.granted(shared(ask("y", "b")));
        let mut engine = lab.engine;
        engine.check();
        make(&mut engine);
        let found = catch_unwind(AssertUnwindSafe(|| engine.check()));
        let panic = found.expect_err(broken);
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
        let text = text.unwrap_or_default();
        assert!(text.contains(broken), "{broken} was found as: {text}");
    }
}
