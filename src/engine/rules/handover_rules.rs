//! Remembers and forgets names, and sets handovers.

use crate::state::{Engine, EngineState};
use crate::values::command::{Acquire, Answer, Forget, LeaseKey, Outcome};
use crate::values::details::REMEMBERED_MAX;
use crate::values::event::{Event, EventKind};
use crate::values::handover::NameMemory;
use crate::values::handover::{Handover, HandoverEnd, LastHandover, Previous, RememberedName};
use crate::values::lease::{Lease, Phase, Token};
use crate::values::lock::Lock;
use crate::values::name::{ClientId, LockName};
use crate::values::refusal::{Limit, Reason, Refusal, Way};
use std::sync::Arc;

impl Engine {
    /// Forgets a name. The lock must be free: the tenure that holds it may count on being
    /// remembered, and on the order of its handovers.
    pub(crate) fn forget(&mut self, ask: &Forget, events: &mut Vec<Event>) -> Answer {
        if let Some(lock) = self.locks.get(&ask.name) {
            if lock.leases().is_empty() {
                self.may_grant(&ask.name)?;
            }
            let foremost = self.state.foremost(lock);
            let way = match self.state.ends(foremost.life).phase(self.state.clock) {
                _ if foremost.acquired_at > self.state.clock => {
                    Way::StealGrace { until: foremost.acquired_at }
                }
                Phase::Held => Way::Held,
                Phase::Grace | Phase::Free => Way::Grace,
            };
            let conflict = self.state.conflict(&ask.name, lock, foremost, way);
            return Err(self.state.refuse(Reason::Conflict(conflict)));
        }
        let Some(memory) = self.state.remembered.0.remove(&ask.name) else {
            return Ok(Outcome::Forgotten);
        };
        self.state.usage.forget_name(&memory.owner);
        let token = memory.previous.last.as_ref().map_or(Token(0), |last| last.token);
        self.state.emit(events, EventKind::Annotated { name: ask.name.clone(), token });
        Ok(Outcome::Forgotten)
    }

    /// Returns what is remembered of the name of a lock; `None` if the name is not remembered.
    pub fn previous(&self, name: &LockName) -> Option<&Arc<Previous>> {
        self.state.remembered.get(name)
    }

    /// Returns the number of remembered names.
    pub fn remembered(&self) -> usize {
        self.state.remembered.len()
    }

    /// Returns the names whose last handover is remembered, for the engine that replaces this one
    /// when all replicas are lost. Each handover was written down by a tenure; how that tenure
    /// ended is then unknown.
    pub fn remembered_names(&self) -> Vec<RememberedName> {
        let unknown = |last: &LastHandover| LastHandover {
            at: None,
            end: HandoverEnd::Unknown,
            ..last.clone()
        };
        let names = self.state.remembered.iter();
        names
            .map(|(name, owner, previous)| RememberedName {
                name: name.clone(),
                owner: owner.clone(),
                previous: Previous { seq: previous.seq, last: previous.last.as_ref().map(unknown) },
            })
            .collect()
    }

    /// Records that nobody knows how the tenures ended that have set the handovers: the records of
    /// later handovers may be lost. A tenure that still runs may set another one. The end of that
    /// one is known.
    pub fn forget_ends(&mut self) {
        for memory in self.state.remembered.0.values_mut() {
            if let Some(last) = &mut Arc::make_mut(&mut memory.previous).last {
                last.end = HandoverEnd::Unknown;
            }
        }
    }

    /// Remembers a name of the engine that this one replaces, unless this engine remembers it
    /// already, or remembers [`REMEMBERED_MAX`] names.
    pub fn take_over(&mut self, known: RememberedName) {
        let RememberedName { name, owner, previous } = known;
        if self.remembered() < REMEMBERED_MAX && self.previous(&name).is_none() {
            self.state.insert_memory(name, owner, previous);
        }
    }
}

impl EngineState {
    /// Returns what is remembered of the name of a lock, for an answer.
    pub(crate) fn previous(&self, name: &LockName) -> Option<Arc<Previous>> {
        self.remembered.get(name).map(Arc::clone)
    }

    /// Refuses an acquire of a name that is to be remembered while there is no room for it.
    pub(super) fn may_remember(&self, ask: &Acquire) -> Result<(), Refusal> {
        if !ask.remember || self.remembered.get(&ask.name).is_some() {
            return Ok(());
        }
        self.limit(self.remembered.len(), REMEMBERED_MAX, Limit::Remembered)
    }

    /// Remembers the name of a lock from now on, if the acquire asks for it.
    pub(super) fn remember_name(&mut self, ask: &Acquire) {
        if ask.remember && self.remembered.get(&ask.name).is_none() {
            self.insert_memory(ask.name.clone(), ask.client.clone(), Previous::default());
        }
    }

    pub(crate) fn insert_memory(&mut self, name: LockName, owner: ClientId, previous: Previous) {
        self.usage.learn_name(&owner);
        let (previous, stolen) = (Arc::new(previous), None);
        self.remembered.0.insert(name, NameMemory { owner, previous, stolen });
    }

    /// Refuses a handover that the tenure of `lease` may not set now. `key` is the key that the
    /// request names.
    pub(super) fn may_hand_over(
        &self,
        handover: Option<&Handover>,
        key: &LeaseKey,
        lock: &Lock,
        lease: &Lease,
    ) -> Result<(), Refusal> {
        let Some(handover) = handover else { return Ok(()) };
        let name = key.name.clone();
        if lease.acquired_at > self.clock {
            let way = Way::StealGrace { until: lease.acquired_at };
            let conflict = self.conflict(&name, lock, lease, way);
            return Err(self.refuse(Reason::Conflict(conflict)));
        }
        let Some(previous) = self.remembered.get(&key.name) else {
            return Err(self.refuse(Reason::NotRemembered(name)));
        };
        if lock.mode().seats().is_some() {
            return Err(self.refuse(Reason::SeatsAndHandovers(name)));
        }
        // Without a token, a late copy of a request could set a handover of the client's next
        // tenure, of which the counter knows nothing.
        match key.token {
            None => return Err(self.refuse(Reason::HandoverNeedsToken(name))),
            Some(named) if named != lease.token => {
                let current = lease.token;
                return Err(self.refuse(Reason::StaleToken { name, named, current }));
            }
            Some(_) => {}
        }
        let of_tenure = previous.last.as_ref().filter(|last| last.token == lease.token);
        match of_tenure.map(|last| last.handover.counter) {
            Some(current) if handover.counter <= current => {
                let named = handover.counter;
                Err(self.refuse(Reason::OldHandover { name, named, current }))
            }
            _ => Ok(()),
        }
    }

    /// Sets the handover of a name, for the tenure of `lease`.
    pub(crate) fn hand_over(
        &mut self,
        handover: Option<&Handover>,
        name: &LockName,
        lease: &Lease,
    ) {
        let Some(handover) = handover else { return };
        let memory = self.remembered.0.get_mut(name).expect("a handover follows may_hand_over()");
        Arc::make_mut(&mut memory.previous).last = Some(LastHandover {
            token: lease.token,
            client: lease.holder.clone(),
            at: Some(self.clock),
            end: HandoverEnd::Open,
            handover: handover.clone(),
        });
    }

    /// Records that the session of a tenure was ended, before the lease is released for it.
    pub(super) fn end_by_session(&mut self, name: &LockName, token: Token) {
        if !self.remembered.is_empty() {
            self.remembered.end(name, token, HandoverEnd::Session);
        }
    }
}

/// Tests of handovers: what the engine remembers of a name beyond the tenure.
#[cfg(test)]
mod tests {
    use crate::state::{Engine, Rules};
    use crate::tests::{Lab, acquire, client, key, name};
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
}
