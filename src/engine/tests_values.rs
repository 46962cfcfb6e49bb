//! Directed tests of values: names, lengths, details, outcomes, and the sentences of errors.

use super::limits::{CALLER_BYTES_MAX, REQUEST_KEY_BYTES_MAX, SPARED_MAX};
use super::lock::Lock;
use super::name::{CLIENT_BYTES_MAX, NAME_BYTES_MAX, PART_BYTES_MAX};
use super::tests::{Lab, ask, client, key, name, own, shared, waiting};
use super::*;
use crate::time::{Span, Time, Wall};

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
    assert!(codec::Malformed.to_string().contains("damaged"));
    assert_eq!(format!("{:?}", name("build")), r#"LockName("build")"#);
}

#[test]
fn a_program_may_choose_the_permissions_of_a_lock() {
    let usual = |face| FileAttrs::permissions(face, 0o600);
    assert_eq!(usual(FileType::File), 0o644, "0o600 was not chosen");
    assert_eq!(usual(FileType::Directory), 0o755);
    assert_eq!(usual(FileType::Symlink), 0o777);
    let chosen = FileAttrs::MODE_CHOSEN | 0o4750;
    assert_eq!(FileAttrs::permissions(FileType::Directory, chosen), 0o4750);
    assert_eq!(FileAttrs::permissions(FileType::File, FileAttrs::MODE_CHOSEN), 0);
}

#[test]
fn details_keep_the_looks_of_a_file() {
    let times = Some((Wall { secs: 1, nanos: 2 }, Wall { secs: 3, nanos: 4 }));
    let (face, reads) = (FileType::Symlink, ReadMode::Text);
    let dated = FileAttrs { face, reads, mode: 0o600, uid: 7, gid: 8, times };
    let plain = FileAttrs { times: None, ..dated };
    let details = Details::default().with_looks(dated);
    assert_eq!(details.looks(), dated);
    let noted = details.with_note(Some("busy".into())).with_looks(plain);
    assert_eq!(noted.looks(), plain);
    assert_eq!(noted.with_note(None), Details::default().with_looks(plain), "as if never noted");
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
    for op in [Op::Acquire(ask("x", "a")), Op::KeepAlive(session)] {
        assert!(!op.only_ends(), "{op:?}");
    }
}

fn keyed(caller: usize, key: usize, op: Op) -> Command {
    let (caller, key) = ("c".repeat(caller).into(), "k".repeat(key).into());
    let id = RequestId { caller, key };
    Command { request: Some(IdempotencyKey { id, digest: Digest(1) }), ..op.into() }
}

#[test]
fn an_answer_tells_whether_the_state_has_changed() {
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
    let acknowledging = |bytes: usize| {
        let keys = AcknowledgedKeys { from: "a".into(), below: "k".repeat(bytes).into() };
        Command { acknowledged: Some(keys), ..keyed(2, 2, Op::Settle) }
    };
    let mut lab = Lab::new();
    lab.granted(ask("x", "a"));
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
        (
            acknowledging(REQUEST_KEY_BYTES_MAX),
            acknowledging(REQUEST_KEY_BYTES_MAX + 1),
            "a request key has 1 to 72 bytes",
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
    lab.granted(Acquire { hold: Ownership::Exclusive(None), ..ask("x", "a") });
    let again = Op::Acquire(Acquire { hold: Ownership::Exclusive(None), ..ask("x", "a") });
    let held = lab.at(29).does(again.clone()).expect_err("it is held").to_string();
    assert!(held.contains("for 1s more") && held.contains("another program"), "{held}");
    let said = lab.at(30).does(again).expect_err("in grace").to_string();
    assert!(said.contains("may take its lease back for 5s more"), "{said}");
}

#[test]
fn a_lock_evicts_the_lease_that_is_named() {
    let mut lab = Lab::new();
    let token = lab.granted(ask("x", "a"));
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
        let mut command = Op::Acquire(Acquire { patch: patch(), ..ask(lock, "a") }).into();
        known.share(&mut command);
        let Op::Acquire(ask) = command.op else { unreachable!("as made above") };
        (ask.client, ask.patch.holder_id.expect("as made above"))
    };
    let (first, second) = (shared("x"), shared("y"));
    assert_eq!(first.0.as_str().as_ptr(), second.0.as_str().as_ptr());
    assert_eq!(first.1.as_ptr(), second.1.as_ptr());

    let mut lab = Lab::new();
    for lock in ["x", "y"] {
        lab.granted(Acquire { patch: patch(), ..ask(lock, "a") });
    }
    let bytes = codec::encode_engine(codec::known_version(), &lab.engine);
    let read = codec::decode_engine(codec::known_version(), &bytes).expect("just written");
    let [x, y] = ["x", "y"].map(|lock| read.lease(&name(lock)).cloned().expect("it is held"));
    assert_eq!(x.holder.as_str().as_ptr(), y.holder.as_str().as_ptr());
    let id = |lease: &Lease| lease.details.holder_id().expect("as acquired").as_ptr();
    assert_eq!(id(&x), id(&y));
}

#[test]
fn a_view_tells_the_holders_from_the_waiters() {
    let mut lab = Lab::new();
    lab.granted(shared(ask("x", "a")));
    lab.granted(shared(ask("x", "b")));
    lab.does(waiting(ask("x", "c"))).expect("waits");
    let view = lab.engine.view(&name("x"), lab.now);
    let held_by = |who| view.held_by(&client(who)).map(|holder| holder.lease.holder.to_string());
    assert_eq!(held_by("a"), Some("a".to_owned()));
    assert_eq!(held_by("b"), Some("b".to_owned()));
    assert_eq!(held_by("c"), None);
    let involved = ["a", "b", "c", "d"].map(|who| view.involves(&client(who)));
    assert_eq!(involved, [true, true, true, false]);
}
