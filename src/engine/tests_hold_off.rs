//! The hold-off beside leases that exist: an engine begins with it in practice, and then has none.

use super::tests::{Lab, acquire, client, name, shared, waiting};
use super::{
    Acquire, EndHoldOff, EventKind, Firm, IfExists, LeaseKey, Mode, Move, Op, Outcome, Patch,
    Phase, Reason, RefusalKind, Release, Renew, StealReason,
};
use crate::codec::state_codec;
use crate::time::Time;
use crate::values::hold_off::{HoldOff, HoldOffCause};

/// Returns an engine in which `a` holds `x` alone and shares `y`, and which grants nothing until
/// 60 s.
fn held_off() -> Lab {
    let mut lab = Lab::new();
    lab.granted(acquire("x", "a"));
    lab.granted(shared(acquire("y", "a")));
    let hold_off = HoldOff { until: Time::from_secs(60), cause: HoldOffCause::Recovered };
    lab.engine.begin_hold_off(hold_off);
    lab.engine.check();
    lab
}

fn key(of: &str) -> LeaseKey {
    LeaseKey { name: name(of), client: client("a"), token: None }
}

#[test]
fn leases_that_exist_are_renewed_and_released_during_a_hold_off() {
    let mut lab = held_off();
    let (firm, patch) = (Firm::Keep, Patch::default());
    let renew = Renew { key: key("x"), term: None, firm, patch, acquires: false };
    lab.at(1).does(Op::Renew(renew)).expect("renewed");
    let repeated = lab.does(Op::Acquire(acquire("x", "a")));
    assert!(matches!(repeated, Ok(Outcome::Renewed(_))), "{repeated:?}");
    lab.does(waiting(acquire("x", "b"))).expect("waits");
    lab.does(Op::Release(Release::of(key("x")))).expect("released");
    let view = lab.engine.view(&name("x"), lab.now);
    assert_eq!((view.phase(), view.holders.len(), view.waiters.len()), (Phase::Free, 0, 1));
    assert_eq!(view.hold_off.map(|it| it.until), Some(Time::from_secs(60)));
}

#[test]
fn nothing_begins_a_tenure_during_a_hold_off() {
    let mut lab = held_off();
    let upgrade = Op::Acquire(Acquire { mode: Mode::Exclusive, ..acquire("y", "a") });
    let moved = Op::Move(Move { from: key("x"), to: name("z"), over: IfExists::Refuse });
    for op in
        [upgrade, moved, Op::Acquire(shared(acquire("y", "b"))), Op::Acquire(acquire("z", "b"))]
    {
        let refusal = lab.does(op.clone()).expect_err("too early");
        assert_eq!(refusal.kind(), RefusalKind::LockConflict);
        let Reason::HoldOff { hold_off, .. } = *refusal.reason else { panic!("{op:?}: {refusal}") };
        assert_eq!(hold_off.until, Time::from_secs(60));
        let said = refusal.to_string();
        assert!(said.contains("nothing is granted for 1m more, because the cluster"), "{said}");
    }
    lab.does(waiting(shared(acquire("y", "b")))).expect("waits");
    assert_eq!(lab.engine.view(&name("y"), lab.now).holders.len(), 1);
    lab.at(60).does(Op::Settle).expect("settled");
    assert_eq!(lab.holder("y"), "b", "the lease of a is over");
}

/// A directory shows what is held, not what is waited for.
#[test]
fn a_lock_without_a_holder_is_no_entry_of_a_directory() {
    let mut lab = held_off();
    lab.does(waiting(acquire("w", "b"))).expect("waits");
    lab.does(waiting(acquire("d/w", "b"))).expect("waits");
    let names = |of: &str| {
        let parent = (!of.is_empty()).then(|| name(of));
        let (children, _) = lab.engine.children(parent.as_ref(), None, 10);
        children.into_iter().map(|child| child.name.to_string()).collect::<Vec<_>>()
    };
    assert_eq!((names(""), names("d")), (vec!["x".to_owned(), "y".to_owned()], vec![]));
}

#[test]
fn an_administrator_ends_a_hold_off_once() {
    let mut lab = held_off();
    lab.does(waiting(acquire("z", "b"))).expect("waits");
    let bytes = state_codec::encode_engine(state_codec::known_version(), &lab.engine);
    let copy = state_codec::decode_engine(state_codec::known_version(), &bytes).expect("written");
    assert_eq!(copy, lab.engine);
    let reason = StealReason::parse("none is left").expect("a reason");
    let op = Op::EndHoldOff(EndHoldOff { by: client("root"), reason });
    assert_eq!(lab.does(op.clone()), Ok(Outcome::HoldOffEnded));
    assert_eq!(lab.engine.hold_off(), None);
    let [ended, granted] = &lab.events[..] else { panic!("{:?}", lab.events) };
    assert!(matches!(ended.what, EventKind::HoldOffEnded { by: Some(_) }), "{ended:?}");
    assert!(matches!(granted.what, EventKind::Granted { .. }), "{granted:?}");
    assert_eq!(lab.does(op), Ok(Outcome::HoldOffEnded));
    assert_eq!(lab.events, []);
}
