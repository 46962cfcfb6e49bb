//! Begins and ends the hold-off (rule 13), in which the engine grants no lock.
//!
//! A request that waits is queued meanwhile, so that a lock may have waiters and no lease. At the
//! end of the hold-off, each queue is served. A lease that exists is renewed and released as at any
//! other time.

use crate::rules::acquire::ConflictCheck;
use crate::state::{Engine, EngineState};
use crate::time::Span;
use crate::values::command::{Acquire, Answer, EndHoldOff, Outcome, QueuePolicy};
use crate::values::deadlines::Due;
use crate::values::event::{Event, EventKind};
use crate::values::hold_off::HoldOff;
use crate::values::name::LockName;
use crate::values::refusal::{Limit, Reason, Refusal};

impl Engine {
    /// Grants no lock until the end of `hold_off`.
    pub fn begin_hold_off(&mut self, hold_off: HoldOff) {
        self.state.cancel_hold_off();
        if hold_off.until > self.state.clock {
            self.state.agenda.add(hold_off.until, Due::HoldOff);
            self.state.hold_off = Some(hold_off);
        }
    }

    /// Returns until when the engine grants no lock, and why; `None` if it grants locks.
    pub const fn hold_off(&self) -> Option<HoldOff> {
        self.state.hold_off
    }

    /// Ends the hold-off before its time.
    pub(super) fn end_hold_off(&mut self, ask: &EndHoldOff, events: &mut Vec<Event>) -> Answer {
        self.state.tokens_left()?;
        if self.state.cancel_hold_off().is_some() {
            self.grant_again(Some(ask), events);
        }
        Ok(Outcome::HoldOffEnded)
    }

    /// Serves each queue, in the order of the names, after the hold-off has ended: at the command
    /// `by`, or at its time.
    pub(crate) fn grant_again(&mut self, by: Option<&EndHoldOff>, events: &mut Vec<Event>) {
        self.state.emit(events, EventKind::HoldOffEnded { by: by.cloned() });
        let waited_for = self.locks.iter().filter(|(_, lock)| !lock.line.is_empty());
        let names: Vec<LockName> = waited_for.map(|(name, _)| name.clone()).collect();
        for name in &names {
            self.serve(name, events);
        }
    }

    /// Answers a request that would begin a tenure during the hold-off: queues it, or refuses it.
    /// Returns `None` if there is no hold-off, or if the request would begin no tenure.
    pub(crate) fn put_off(&mut self, ask: &Acquire, events: &mut Vec<Event>) -> Option<Answer> {
        let hold_off = self.state.hold_off?;
        let held = self.locks.get(&ask.name).filter(|lock| !lock.leases().is_empty());
        match held.map(|lock| (self.state.stance(lock, ask), lock.mode())) {
            Some((ConflictCheck::Conflict(..), _)) => None,
            Some((check @ ConflictCheck::Own(_), mode)) => {
                // A request for the other mode of its own lease would wait for that lease.
                check
                    .begins_tenure(mode, ask.mode)
                    .then(|| Err(self.not_before(&ask.name, hold_off)))
            }
            Some((ConflictCheck::Beside, _)) | None => {
                Some(self.wait_for_grants(ask, hold_off, events))
            }
        }
    }

    fn wait_for_grants(
        &mut self,
        ask: &Acquire,
        hold_off: HoldOff,
        events: &mut Vec<Event>,
    ) -> Answer {
        let patience = match ask.line {
            QueuePolicy::Join(patience) if patience != Some(Span::ZERO) => patience,
            QueuePolicy::Join(_) | QueuePolicy::Skip => {
                return Err(self.not_before(&ask.name, hold_off));
            }
        };
        if self.locks.get(&ask.name).is_none() {
            let (held, max) = (self.locks.len(), self.state.rules.locks_max);
            self.state.limit(held, max, Limit::Locks)?;
        }
        let until = patience.map(|span| self.state.clock + span);
        self.join(ask, until, events)
    }

    /// Refuses a request that would begin a tenure of the lock `name` during the hold-off.
    pub(crate) fn may_grant(&self, name: &LockName) -> Result<(), Refusal> {
        self.state.hold_off.map_or(Ok(()), |hold_off| Err(self.not_before(name, hold_off)))
    }

    fn not_before(&self, name: &LockName, hold_off: HoldOff) -> Refusal {
        let waiting = self.locks.get(name).map_or(0, |lock| lock.line.len());
        self.state.refuse(Reason::HoldOff { name: name.clone(), hold_off, waiting })
    }
}

impl EngineState {
    /// Ends the hold-off without serving a queue. Returns it, if there was one.
    fn cancel_hold_off(&mut self) -> Option<HoldOff> {
        let hold_off = self.hold_off.take()?;
        self.agenda.remove(hold_off.until, Due::HoldOff);
        Some(hold_off)
    }
}

/// The hold-off beside leases that exist: an engine begins with it in practice, and then has none.
#[cfg(test)]
mod tests {
    use crate::codec::state_codec;
    use crate::tests::{Lab, acquire, client, name, shared, waiting};
    use crate::time::Time;
    use crate::values::hold_off::{HoldOff, HoldOffCause};
    use crate::{
        Acquire, EndHoldOff, EventKind, Firm, IfExists, LeaseKey, Mode, Move, Op, Outcome, Patch,
        Phase, Reason, RefusalKind, Release, Renew, StealReason,
    };

    /// Returns an engine in which `a` holds `x` alone and shares `y`, and which grants nothing
    /// until 60 s.
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
            let Reason::HoldOff { hold_off, .. } = *refusal.reason else {
                panic!("{op:?}: {refusal}")
            };
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
        let copy =
            state_codec::decode_engine(state_codec::known_version(), &bytes).expect("written");
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
}
