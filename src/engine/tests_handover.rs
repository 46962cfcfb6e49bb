//! Tests of handovers: what the engine remembers of a name beyond the tenure.

use super::state::{Engine, Rules};
use super::tests::{Lab, acquire, client, key, name};
use crate::time::Time;
use crate::values::command::{Acquire, Annotate, Answer, Forget, Op, Outcome, Release};
use crate::values::details::Patch;
use crate::values::details::{HANDOVER_BYTES_MAX, REMEMBERED_MAX};
use crate::values::handover::{Handover, HandoverEnd, LastHandover, Previous};
use crate::values::lease::{LeaseTerms, SessionId, Token};
use crate::values::refusal::{Limit, Reason, RefusalKind};

fn remembering(lock: &str, who: &str) -> Acquire {
    Acquire { remember: true, ..acquire(lock, who) }
}

fn handover(text: &str, counter: u64) -> Handover {
    Handover { text: text.into(), counter }
}

fn annotate(lab: &mut Lab, who: &str, token: Token, text: &str, counter: u64) -> Answer {
    let (key, handover) = (key("x", who, Some(token)), Some(handover(text, counter)));
    lab.does(Op::Annotate(Annotate { key, patch: Patch::default(), handover }))
}

fn last(lab: &Lab) -> LastHandover {
    let previous = lab.engine.previous(&name("x")).expect("it is remembered");
    previous.last.clone().expect("there is a handover")
}

#[test]
fn a_restored_engine_knows_handovers_and_not_how_their_tenures_ended() {
    let mut lab = Lab::new();
    let token = lab.at(1).granted(remembering("x", "a"));
    annotate(&mut lab, "a", token, "clean", 1).expect("it may");
    lab.does(Op::Release(Release::of(key("x", "a", None)))).expect("it is held");
    lab.granted(remembering("y", "b"));
    assert_eq!(last(&lab).end, HandoverEnd::Released);
    let baseline = lab.engine.baseline(1_790_000_000, None).expect("there are tokens");
    let mut restored = Engine::from_baseline(&baseline);
    for known in lab.engine.remembered_names() {
        restored.take_over(known);
    }
    let mut lab = Lab { engine: restored, ..Lab::new() };
    let unknown = LastHandover {
        token,
        client: client("a"),
        at: None,
        end: HandoverEnd::Unknown,
        handover: handover("clean", 1),
    };
    assert_eq!(lab.engine.remembered(), 2);
    let Ok(Outcome::Granted(tenure)) = lab.does(Op::Acquire(acquire("x", "c"))) else {
        panic!("it is free");
    };
    let previous = Previous { seq: 2, last: Some(unknown.clone()) };
    assert_eq!(tenure.previous.as_deref(), Some(&previous));
    // A tenure that sets no handover leaves the last one as it was.
    lab.does(Op::Release(Release::of(key("x", "c", None)))).expect("it is held");
    assert_eq!(last(&lab), unknown);
    let token = lab.granted(acquire("x", "c"));
    annotate(&mut lab, "c", token, "dirty", 0).expect("another tenure counts anew");
    assert_eq!(last(&lab).end, HandoverEnd::Open);
    assert_eq!(lab.engine.usage_of("a").remembered, 1, "the owner is taken over too");
}

/// The end of a session counts as the end of its tenures, and not the releases that it causes.
#[test]
fn a_tenure_that_ends_with_its_session_says_so() {
    let mut lab = Lab::new();
    let session: SessionId = lab.session("a");
    let acquire = remembering("x", "a");
    let token = lab.granted(Acquire { term: LeaseTerms::Session(session), ..acquire });
    annotate(&mut lab, "a", token, "dirty", 1).expect("it may");
    let end = crate::values::command::EndSession {
        session,
        end: crate::values::event::SessionEnd::Closed,
    };
    lab.does(Op::EndSession(end)).expect("it is open");
    assert_eq!(last(&lab).end, HandoverEnd::Session);
}

#[test]
fn remembered_names_are_limited() {
    let mut engine = Engine::new(Rules::default());
    let mut apply = |op: Op| engine.apply(Time::ZERO, &op.into(), &mut Vec::new());
    for number in 0..REMEMBERED_MAX {
        let lock = number.to_string();
        apply(Op::Acquire(remembering(&lock, "a"))).expect("there is room");
        apply(Op::Release(Release::of(key(&lock, "a", None)))).expect("it is held");
    }
    let refusal = apply(Op::Acquire(remembering("x", "a"))).expect_err("there is no room");
    assert_eq!(*refusal.reason, Reason::Limit(Limit::Remembered(REMEMBERED_MAX)));
    assert_eq!(refusal.kind(), RefusalKind::Limit);
    apply(Op::Acquire(remembering("7", "a"))).expect("it is remembered already");
    apply(Op::Acquire(acquire("x", "a"))).expect("it is free, and is not remembered");
    apply(Op::Forget(Forget { name: name("8"), by: client("root") })).expect("it is free");
    apply(Op::Acquire(remembering("x", "a"))).expect("there is room again");
    assert_eq!(REMEMBERED_MAX, 65_536);
    engine.check();
}

#[test]
fn a_handover_has_a_longest_length() {
    let mut lab = Lab::new();
    let token = lab.granted(remembering("x", "a"));
    let long = "h".repeat(HANDOVER_BYTES_MAX + 1);
    let refusal = annotate(&mut lab, "a", token, &long, 1).expect_err("it is too long");
    assert_eq!(refusal.to_string(), "a handover has at most 256 bytes; shorten it");
    annotate(&mut lab, "a", token, &long[1..], 1).expect("it fits");
}
