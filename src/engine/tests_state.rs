//! Directed tests of the engine's state as a whole: counts, limits, tokens, queries, and the time
//! after a start in which the engine grants no lock.
//!
//! Directed tests of queries: locks above a name, sessions and their leases, pages of names.
//!
//! Directed tests of values: names, lengths, details, outcomes, and the sentences of errors.

use super::tests::{Lab, acquire, client, key, name, own, shared, waiting};
use super::*;
use crate::time::{Span, Time, Wall};
use crate::values::deadlines::Due;
use crate::values::details::{CALLER_BYTES_MAX, REQUEST_KEY_BYTES_MAX, SPARED_MAX};
use crate::values::idempotency::IdempotencyRecord;
use crate::values::lease::{TOKEN_MAX, TTL_DEFAULT, TokenAllocator};
use crate::values::lock::Lock;
use crate::values::name::{CLIENT_BYTES_MAX, NAME_BYTES_MAX, PART_BYTES_MAX};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

#[test]
fn the_engine_counts_all_that_it_remembers() {
    let mut lab = Lab::new();
    lab.at(7).granted(acquire("a", "x"));
    lab.granted(acquire("b", "x"));
    for who in ["p", "q", "r"] {
        lab.does(waiting(acquire("a", who))).expect("waits");
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

/// A planted bug of the simulator breaks nothing but what it is about.
#[test]
fn forgotten_answers_leave_a_sound_state() {
    let mut lab = Lab::new();
    lab.granted(acquire("a", "x"));
    lab.does_command(&keyed(1, 1, Op::Settle)).expect("settled");
    lab.does_command(&keyed(1, 2, waiting(acquire("a", "y")))).expect("waits");
    let mut engine = lab.engine.clone();
    assert_eq!((engine.request_ids(), engine.waiters()), (2, 1));
    engine.forget_replies();
    engine.check();
    assert_eq!((engine.request_ids(), engine.waiters()), (0, 1));
}

#[test]
fn the_tokens_that_a_command_may_use_are_known() {
    let mut lab = Lab::new();
    for lock in ["a", "b", "c"] {
        lab.granted(acquire(lock, "x"));
    }
    for who in ["y", "z"] {
        lab.does(waiting(acquire("a", who))).expect("waits");
    }
    assert_eq!(lab.engine.tokens_wanted(&Op::Settle), 2, "one for each waiter");
    assert_eq!(lab.engine.tokens_wanted(&Op::Acquire(acquire("d", "x"))), 3);
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
    lab.granted(acquire("a", "x"));
    assert_eq!(lab.refused(Op::Acquire(acquire("b", "x"))), RefusalKind::Limit);
    let more = Rules { locks_max: 2, ..rules };
    lab.engine.set_rules(more);
    assert_eq!(lab.engine.rules(), more);
    lab.granted(acquire("b", "x"));
}

#[test]
fn the_last_tokens_are_given_out_and_no_more() {
    assert_eq!(TOKEN_MAX, 9_007_199_254_740_991, "2^53 - 1, which JSON readers keep exact");
    let mut lab = Lab::new();
    lab.engine.raise_tokens(TOKEN_MAX - 1);
    lab.engine.raise_tokens(5);
    assert_eq!(lab.engine.next_token(), TOKEN_MAX - 1, "tokens never go back");
    assert_eq!(lab.granted(acquire("a", "x")).as_u64(), TOKEN_MAX - 1);
    assert_eq!(lab.refused(Op::Acquire(acquire("b", "x"))), RefusalKind::Limit);

    // A command is refused if too few tokens remain: one is kept for each waiter, which may be
    // granted the lock.
    let mut lab = Lab::new();
    lab.engine.raise_tokens(TOKEN_MAX - 3);
    lab.granted(acquire("a", "x"));
    lab.does(waiting(acquire("a", "y"))).expect("waits");
    lab.granted(acquire("b", "x"));
    assert_eq!(lab.refused(Op::Acquire(acquire("c", "x"))), RefusalKind::Limit);
}

/// A reset needs one token for each lock that it takes, to keep the lock unusable.
#[test]
fn a_reset_needs_a_token_for_each_lock() {
    for (left, enough) in [(2, false), (3, true)] {
        let mut lab = Lab::new();
        lab.granted(acquire("a", "x"));
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
    Lab { engine: Engine::from_baseline(&baseline), ..Lab::new() }
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
    let (line, asked) = (QueuePolicy::Join(None), acquire("x", "a"));
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
    let token = lab.granted(shared(acquire("x", "a")));
    lab.granted(shared(acquire("x", "b")));
    assert_eq!(lab.engine.lease(&name("x")).map(|lease| lease.token), Some(token));
    lab.does(Op::Release(Release::of(key("x", "a", None)))).expect("released");
    let holder = lab.engine.lease(&name("x")).map(|lease| lease.holder.to_string());
    assert_eq!(holder, Some("b".to_owned()));
}

/// The message of `Engine::check` about a broken invariant, and a function that breaks the
/// invariant.
type Breakage = (&'static str, fn(&mut Engine));

const BREAKAGES: &[Breakage] = &[
    ("tokens are minted", |engine| engine.state.mint = TokenAllocator::at(1)),
    ("waiters are counted", |engine| engine.state.waiting += 1),
    ("what ends by itself is on the agenda", |engine| {
        engine.state.agenda.add(Time::from_secs(99), Due::Session(SessionId::named(99)));
    }),
    ("what is due has happened", |engine| {
        let (id, session) = engine.state.sessions.iter().next().expect("it is open");
        engine.state.agenda.remove(session.expires_at(), Due::Session(*id));
        engine.state.agenda.add(engine.state.clock, Due::Session(*id));
    }),
    ("no lease outlives its grace", |engine| {
        let lease = &mut engine.locks.get_mut(&name("s")).expect("it is held").leases_mut()[0];
        lease.life = Lifetime::Own { ttl: TTL_DEFAULT, grace: Grace::NONE, expires_at: Time::ZERO };
        let session = engine.state.sessions.values_mut().next().expect("it is open");
        session.leases.clear();
        let due = Due::Lease(Token::named(99), name("s"));
        engine.state.agenda.add(Time::from_secs(99), due);
    }),
    ("places are given out once", |engine| engine.state.next_ticket = 1),
    ("a session's lease is there and hangs on it", |engine| {
        let session = engine.state.sessions.values_mut().next().expect("it is open");
        session.leases.insert((name("x"), Token::named(1)));
    }),
    ("a session's waiter is in line", |engine| {
        let session = engine.state.sessions.values_mut().next().expect("it is open");
        session.waiters.insert((name("x"), Ticket::named(99)));
    }),
    ("a request that waits has its place", |engine| {
        let (ticket, before) = (Ticket::named(99), 0);
        let first = Outcome::Waiting { ticket, before };
        let replay = Replay { at: Time::ZERO, first, ends: None };
        let kept = IdempotencyRecord { until: Time::NEVER, digest: Digest(1), replay };
        let id = RequestId { caller: "c".into(), key: "k".into() };
        engine.state.replies.by_id.insert(id.into(), kept);
    }),
    ("the shares of the callers are counted", |engine| {
        let first = Outcome::Settled;
        let replay = Replay { at: Time::ZERO, first, ends: None };
        let kept = IdempotencyRecord { until: Time::from_secs(9), digest: Digest(1), replay };
        let id = Arc::new(RequestId { caller: "c".into(), key: "k".into() });
        engine.state.agenda.add(kept.until, Due::Reply(Arc::clone(&id)));
        engine.state.replies.by_id.insert(id, kept);
    }),
    ("locks are limited", |engine| engine.state.rules.locks_max = 1),
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
        lab.granted(Acquire { term: LeaseTerms::Session(session), ..acquire("s", "s") });
        lab.granted(acquire("x", "a"));
        lab.does(waiting(acquire("x", "b"))).expect("waits");
        lab.granted(shared(acquire("y", "a")));
        lab.granted(shared(acquire("y", "b")));
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

fn in_session(ask: Acquire, session: SessionId) -> Acquire {
    Acquire { term: LeaseTerms::Session(session), ..ask }
}

#[test]
fn holders_above_are_those_of_the_nearest_held_lock() {
    let mut lab = Lab::new();
    lab.granted(acquire("a", "top"));
    lab.granted(shared(acquire("a/b/c", "x")));
    lab.does(waiting(acquire("a/b/c", "y"))).expect("waits");
    lab.granted(acquire("z", "x"));
    let above = |text| {
        let leases = lab.engine.holders_above(&name(text));
        leases.iter().map(|lease| lease.holder.to_string()).collect::<Vec<_>>().join(" ")
    };
    assert_eq!((above("a"), above("z")), (String::new(), String::new()));
    assert_eq!((above("a/b"), above("a/b/c")), ("top".into(), "top".into()));
    assert_eq!((above("a/b/c/d"), above("a/x/y")), ("x".into(), "top".into()));
    let involved = |text, who| lab.engine.involves(&name(text), &client(who));
    assert!(involved("a/b/c", "x") && involved("a/b/c", "y") && involved("z", "x"));
    assert!(!involved("a/b/c", "top") && !involved("z", "y") && !involved("never", "x"));
}

#[test]
fn a_lease_is_renewed_with_its_session() {
    let mut lab = Lab::new();
    let session = lab.session("a");
    lab.at(1).granted(in_session(acquire("x", "a"), session));
    let renewed_at = |lab: &Lab| {
        let view = lab.engine.view(&name("x"), lab.now);
        view.holder().expect("it is held").lease.renewed_at
    };
    assert_eq!(renewed_at(&lab), Time::from_secs(1));
    lab.at(5).does(Op::KeepAlive(session)).expect("alive");
    assert_eq!(renewed_at(&lab), Time::from_secs(5));
}

#[test]
fn a_session_lists_its_leases_in_pages() {
    let mut lab = Lab::new();
    let session = lab.session("a");
    let mut tokens = vec![];
    for lock in ["c", "a", "b"] {
        tokens.push((name(lock), lab.granted(in_session(acquire(lock, "a"), session))));
    }
    tokens.sort();
    lab.granted(acquire("d", "b"));
    lab.does(Op::Acquire(Acquire {
        line: QueuePolicy::Join(None),
        ..in_session(acquire("d", "a"), session)
    }))
    .expect("waits");
    let view = lab.engine.session(session, 2).expect("it is open");
    assert_eq!((view.client.as_str(), view.held, view.waiting), ("a", 3, 1));
    assert_eq!(view.leases, tokens[..2]);
    assert_eq!(view.ends.expires_at, Time::from_secs(10));
    let leases_of =
        |after: Option<&str>, limit| lab.engine.leases_of(session, after.map(name).as_ref(), limit);
    assert_eq!(leases_of(None, 2), tokens[..2]);
    assert_eq!(leases_of(Some("a"), 9), tokens[1..]);
    assert_eq!(leases_of(Some("c"), 9), []);
    let unknown = SessionId::named(99);
    assert_eq!(lab.engine.session(unknown, 9), None);
    assert_eq!(lab.engine.leases_of(unknown, None, 9), []);
}

#[test]
fn pages_have_the_size_that_was_asked_for() {
    let mut lab = Lab::new();
    for lock in ["a", "b/c", "b/d", "e"] {
        lab.granted(acquire(lock, "x"));
    }
    let names =
        |page: &[Child]| page.iter().map(|child| child.name.to_string()).collect::<Vec<_>>();
    let (page, cursor) = lab.engine.children(None, None, 2);
    assert_eq!(names(&page), ["a", "b"]);
    let (page, cursor) = lab.engine.children(None, cursor.as_deref(), 2);
    assert_eq!((names(&page), cursor), (vec!["e".to_owned()], None));
    let listed = |after: Option<&str>, limit| {
        let after = after.map(name);
        let views = lab.engine.list("b/", after.as_ref(), limit, lab.now);
        views.map(|view| view.name.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(listed(None, 9), ["b/c", "b/d"]);
    assert_eq!(listed(None, 1), ["b/c"]);
    assert_eq!(listed(Some("b/c"), 9), ["b/d"]);
    assert_eq!(listed(Some("a"), 9), ["b/c", "b/d"], "a cursor before the prefix");
    lab.does(Op::Release(Release::of(key("b/c", "x", None)))).expect("released");
    assert!(lab.engine.view(&name("b"), lab.now).has_below);
    lab.does(Op::Release(Release::of(key("b/d", "x", None)))).expect("released");
    assert!(!lab.engine.view(&name("b"), lab.now).has_below);
}

#[test]
fn names_have_bounds() {
    let part = "y".repeat(127) + "/";
    let longest = part.repeat(8);
    let longest = longest[..NAME_BYTES_MAX - 1].to_owned() + "z";
    assert_eq!(LockName::parse_bytes(longest.as_bytes()), LockName::parse(&longest));
    assert!(LockName::parse(&longest).is_ok());
    let garbage = vec![0xff; NAME_BYTES_MAX + 1];
    assert_eq!(LockName::parse_bytes(&garbage), Err(NameError::TooLong), "before it is no UTF-8");
    let part = |length: usize| LockName::parse(&(" ".to_owned() + &"x".repeat(length - 1)));
    assert!(part(PART_BYTES_MAX).is_ok());
    assert_eq!(part(PART_BYTES_MAX + 1), Err(NameError::TooLong));
    assert!(ClientId::parse(&"c".repeat(CLIENT_BYTES_MAX)).is_ok());
    assert_eq!(ClientId::parse(&"c".repeat(CLIENT_BYTES_MAX + 1)), Err(NameError::TooLong));
    assert!(name("a/b").has_parts() && !name("ab").has_parts());
}

/// A name that looks like another one deceives its reader. Names that were made before such names
/// were refused are still decoded.
#[test]
fn names_have_no_invisible_or_reordering_characters() {
    for c in ['\u{200b}', '\u{200f}', '\u{202e}', '\u{2066}', '\u{2060}', '\u{feff}', '\u{61c}'] {
        let text = format!("pro{c}d");
        assert_eq!(LockName::parse(&text), Err(NameError::Invisible), "{c:?}");
        assert_eq!(LockName::parse_bytes(text.as_bytes()), Err(NameError::Invisible), "{c:?}");
        assert_eq!(ClientId::parse(&text), Err(NameError::Invisible), "{c:?}");
        assert!(LockName::parse_stored(&text).is_ok_and(|name| name.is_deceptive()), "{c:?}");
    }
    for text in ["d\u{e9}j\u{e0}", "\u{65e5}\u{672c}", "\u{5e9}\u{5dc}\u{5d5}\u{5dd}"] {
        assert!(LockName::parse(text).is_ok() && ClientId::parse(text).is_ok(), "{text}");
    }
}

#[test]
fn the_names_above_a_name_are_found() {
    let above = |text| name(text).parents().map(|name| name.to_string()).collect::<Vec<_>>();
    assert_eq!(above("a/b/c"), ["a/b", "a"]);
    assert!(above("a").is_empty());
}

#[test]
fn a_host_includes_its_users() {
    let is_of = |one, host| client(one).is_of_host(&client(host));
    assert!(is_of("laptop1", "laptop1") && is_of("laptop1:alice", "laptop1"));
    assert!(!is_of("laptop10", "laptop1") && !is_of("laptop1", "laptop1:alice"));
}

#[test]
fn errors_say_what_is_wrong() {
    for (error, words) in [
        (NameError::Empty, "at least one byte"),
        (NameError::TooLong, "at most 255 bytes in each part and 1024 in all"),
        (NameError::NotUtf8, "UTF-8"),
        (NameError::Control, "control characters"),
        (NameError::Dots, "not '.' or '..'"),
        (NameError::Reserved, "begin with .latchfs"),
    ] {
        assert!(error.to_string().contains(words), "{error}");
    }
    for (error, words) in [
        (TermError::NotADuration, "30s, 1m30s or 1.5h"),
        (TermError::TooShort, "at least 1s"),
        (TermError::TooLong, "at most 24h"),
    ] {
        assert!(error.to_string().contains(words), "{error}");
    }
    assert!(codec::state_codec::Malformed.to_string().contains("damaged"));
    assert_eq!(format!("{:?}", name("build")), r#"LockName("build")"#);
}

#[test]
fn a_program_may_choose_the_permissions_of_a_lock() {
    let usual = |file_type| FileAttrs::permissions(file_type, 0o600);
    assert_eq!(usual(FileType::File), 0o644, "0o600 was not chosen");
    assert_eq!(usual(FileType::Directory), 0o755);
    assert_eq!(usual(FileType::Symlink), 0o777);
    let chosen = FileAttrs::MODE_CHOSEN | 0o4750;
    assert_eq!(FileAttrs::permissions(FileType::Directory, chosen), 0o4750);
    assert_eq!(FileAttrs::permissions(FileType::File, FileAttrs::MODE_CHOSEN), 0);
}

#[test]
fn details_keep_the_file_attributes() {
    let times = Some((Wall { secs: 1, nanos: 2 }, Wall { secs: 3, nanos: 4 }));
    let (file_type, reads) = (FileType::Symlink, ReadMode::Text);
    let dated = FileAttrs { file_type, reads, mode: 0o600, uid: 7, gid: 8, times };
    let plain = FileAttrs { times: None, ..dated };
    let details = Details::default().with_attrs(dated);
    assert_eq!(details.attrs(), dated);
    let noted = details.with_note(Some("busy".into())).with_attrs(plain);
    assert_eq!(noted.attrs(), plain);
    assert_eq!(noted.with_note(None), Details::default().with_attrs(plain), "as if never noted");
}

#[test]
fn a_lease_is_free_from_the_end_of_its_grace() {
    let LeaseTerms::Own(ttl, grace) = own(30, 5) else { unreachable!("as made above") };
    let (expires_at, grace_until) = (Time::from_secs(30), Time::from_secs(35));
    let ends = Ends { expires_at, grace_until, ttl, grace };
    let tick = Span::from_nanos(1);
    assert_eq!(ends.phase(expires_at - tick), Phase::Held);
    assert_eq!(ends.phase(expires_at), Phase::Grace);
    assert_eq!(ends.phase(grace_until - tick), Phase::Grace);
    assert_eq!(ends.phase(grace_until), Phase::Free);
    assert_eq!(ends.left(Time::from_secs(10)), Span::from_secs(20));
}

#[test]
fn commands_that_only_end_holds_are_known() {
    let release = Op::Release(Release::of(key("x", "a", None)));
    let (why, ticket) = (LeaveReason::Asked, Ticket::named(1));
    let leave = Op::Leave(Leave { name: name("x"), ticket, why });
    let (session, end) = (SessionId::named(1), SessionEnd::Closed);
    let end = Op::EndSession(EndSession { session, end });
    for op in [Op::Settle, release, leave, end] {
        assert!(op.only_ends(), "{op:?}");
    }
    for op in [Op::Acquire(acquire("x", "a")), Op::KeepAlive(session)] {
        assert!(!op.only_ends(), "{op:?}");
    }
}

fn keyed(caller: usize, key: usize, op: Op) -> Command {
    let (caller, key) = ("c".repeat(caller).into(), "k".repeat(key).as_str().into());
    let id = RequestId { caller, key };
    Command { request: Some(IdempotencyKey { id, digest: Digest(1) }), ..op.into() }
}

#[test]
fn an_answer_says_whether_the_state_has_changed() {
    let mut lab = Lab::new();
    let refusal = lab.does(Op::KeepAlive(SessionId::named(1)));
    let (plain, remembered) = (Command::from(Op::Settle), keyed(1, 1, Op::Settle));
    assert!(!plain.changes_state(&refusal) && !remembered.changes_state(&refusal));
    assert!(!plain.changes_state(&Ok(Outcome::Settled)));
    assert!(remembered.changes_state(&Ok(Outcome::Settled)), "its answer is remembered");
    assert!(plain.changes_state(&Ok(Outcome::Released)));
}

/// A field of a command may have its maximum length but not more, and the refusal names the
/// maximum.
#[test]
fn commands_have_bounds() {
    let reset = |spared| {
        let reason = StealReason::parse("they have left").expect("a reason");
        let whose = ResetScope::AllBut(vec![client("a"); spared]);
        Op::Reset(Reset::new(whose, client("root"), reason))
    };
    let noted = |bytes: usize| {
        let patch = Patch { note: Some("n".repeat(bytes).into()), ..Patch::default() };
        Op::Annotate(Annotate { key: key("x", "a", None), patch, handover: None })
    };
    let named = |bytes: usize| {
        let patch = Patch { holder_id: Some("i".repeat(bytes).into()), ..Patch::default() };
        Op::Annotate(Annotate { key: key("x", "a", None), patch, handover: None })
    };
    let mut lab = Lab::new();
    lab.granted(acquire("x", "a"));
    for (fits, exceeds, words) in [
        (
            keyed(1, REQUEST_KEY_BYTES_MAX, Op::Settle),
            keyed(1, REQUEST_KEY_BYTES_MAX + 1, Op::Settle),
            "a request key has 1 to 72 bytes",
        ),
        (
            keyed(CALLER_BYTES_MAX, 2, Op::Settle),
            keyed(CALLER_BYTES_MAX + 1, 2, Op::Settle),
            "these credentials has more than 287 bytes",
        ),
        (noted(1_024).into(), noted(1_025).into(), "a note has at most 1024 bytes"),
        (named(512).into(), named(513).into(), "a holder id has at most 512 bytes"),
        (reset(SPARED_MAX).into(), reset(SPARED_MAX + 1).into(), "at most 16384 clients"),
    ] {
        let said = lab.does_command(&exceeds).expect_err("it is too long").to_string();
        assert!(said.contains(words), "{said}");
        lab.does_command(&fits).expect("it fits");
    }
}

#[test]
fn a_conflict_with_the_own_lease_in_grace_says_how_to_take_it_back() {
    let mut lab = Lab::new();
    lab.granted(Acquire { hold: Ownership::Exclusive(None), ..acquire("x", "a") });
    let repeated = Op::Acquire(Acquire { hold: Ownership::Exclusive(None), ..acquire("x", "a") });
    let held = lab.at(29).does(repeated.clone()).expect_err("it is held").to_string();
    assert!(held.contains("for 1s more") && held.contains("another program"), "{held}");
    let said = lab.at(30).does(repeated).expect_err("in grace").to_string();
    assert!(said.contains("may take its lease back for 5s more"), "{said}");
}

#[test]
fn a_lock_evicts_the_lease_that_is_named() {
    let mut lab = Lab::new();
    let token = lab.granted(acquire("x", "a"));
    let lease = lab.engine.lease(&name("x")).cloned().expect("it is held");
    let mut lock = Lock::default();
    assert!(lock.is_idle());
    lock.admit(Mode::Exclusive, lease.clone());
    assert!(!lock.is_idle());
    assert_eq!(lock.evict(Token::named(token.as_u64() + 1)), None);
    assert_eq!(lock.evict(token), Some(lease));
}

/// Equal client and holder ids of decoded commands share one allocation.
#[test]
fn an_interner_stores_each_id_once() {
    let patch = || Patch { holder_id: Some("host:a:7:70".into()), ..Patch::default() };
    let mut known = Interner::default();
    let mut shared = |lock: &str| {
        let mut command = Op::Acquire(Acquire { patch: patch(), ..acquire(lock, "a") }).into();
        known.share(&mut command);
        let Op::Acquire(ask) = command.op else { unreachable!("as made above") };
        (ask.client, ask.patch.holder_id.expect("as made above"))
    };
    let (first, second) = (shared("x"), shared("y"));
    assert_eq!(first.0.as_str().as_ptr(), second.0.as_str().as_ptr());
    assert_eq!(first.1.as_ptr(), second.1.as_ptr());

    let mut lab = Lab::new();
    for lock in ["x", "y"] {
        lab.granted(Acquire { patch: patch(), ..acquire(lock, "a") });
    }
    let bytes = codec::state_codec::encode_engine(codec::state_codec::known_version(), &lab.engine);
    let read = codec::state_codec::decode_engine(codec::state_codec::known_version(), &bytes)
        .expect("just written");
    let [x, y] = ["x", "y"].map(|lock| read.lease(&name(lock)).cloned().expect("it is held"));
    assert_eq!(x.holder.as_str().as_ptr(), y.holder.as_str().as_ptr());
    let id = |lease: &Lease| lease.details.holder_id().expect("as acquired").as_ptr();
    assert_eq!(id(&x), id(&y));
}

#[test]
fn a_view_distinguishes_holders_from_waiters() {
    let mut lab = Lab::new();
    lab.granted(shared(acquire("x", "a")));
    lab.granted(shared(acquire("x", "b")));
    lab.does(waiting(acquire("x", "c"))).expect("waits");
    let view = lab.engine.view(&name("x"), lab.now);
    let held_by = |who| view.held_by(&client(who)).map(|holder| holder.lease.holder.to_string());
    assert_eq!(held_by("a"), Some("a".to_owned()));
    assert_eq!(held_by("b"), Some("b".to_owned()));
    assert_eq!(held_by("c"), None);
    let involved = ["a", "b", "c", "d"].map(|who| view.involves(&client(who)));
    assert_eq!(involved, [true, true, true, false]);
}
