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

    /// Returns the remembered names, as an engine takes them over that replaces this one after the
    /// loss of all replicas. How the tenures ended that have set the handovers is then unknown.
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
