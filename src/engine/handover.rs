//! Handovers: what the engine remembers of the name of a lock beyond the tenure.
//!
//! An acquire asks that the name be remembered. From then on the engine counts the grants of the
//! name, and keeps the last handover that a tenure has set, with the client and the token of that
//! tenure and how it ended. A tenure that sets no handover leaves all of that as it was. Only an
//! administrator makes the engine forget a name.
//!
//! A lock whose name is not remembered costs nothing: the table is looked up only while it has
//! entries.

use super::codec::Malformed;
use super::command::{Acquire, Answer, Forget, LeaseKey, Outcome};
use super::encoding::{Codec, Decoder, require};
use super::event::{Event, EventKind, TenureEnd};
use super::lease::{Lease, Phase, Token};
use super::limits::REMEMBERED_MAX;
use super::lock::Lock;
use super::name::{ClientId, LockName};
use super::refusal::{Limit, Reason, Refusal, Way};
use super::state::{Engine, EngineState};
use crate::time::Time;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A text that a holder leaves with the name of its lock, for the tenures after its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handover {
    /// The text. No rule of the engine reads it.
    pub text: Arc<str>,
    /// The number of the handover within its tenure. It must be above that of the last one, so that
    /// a copy of an earlier request that the network delivers late changes nothing.
    pub counter: u64,
}

/// What the engine remembers of the name of a lock.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Previous {
    /// The number of grants of the name since it is remembered, the current one included.
    pub seq: u64,
    /// The last tenure that has set a handover, which may be the current one. `None` until a tenure
    /// sets one.
    pub last: Option<LastHandover>,
}

/// The last handover of a name, and the tenure that has set it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastHandover {
    /// The fencing token of the tenure.
    pub token: Token,
    /// The client that held the lock under that token.
    pub client: ClientId,
    /// When the handover was set. `None` if an engine before this one has set it, whose times this
    /// engine cannot compare with its own.
    pub at: Option<Time>,
    /// How the tenure ended.
    pub end: HandoverEnd,
    /// The handover.
    pub handover: Handover,
}

/// How the tenure ended that has set the last handover of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandoverEnd {
    /// The tenure still runs.
    Open,
    /// The holder released the lock, or moved its lease to another name or token.
    Released,
    /// The lease was not renewed in time, or its session was not kept alive in time.
    Expired,
    /// The lock was taken from its holder by a steal or a reset.
    Stolen,
    /// The session of the lease was ended.
    Session,
    /// The engine was restored from a backup: the tenure may have set other handovers since that
    /// backup, and later tenures may have set some.
    Unknown,
}

impl HandoverEnd {
    /// Returns the name of the end as a lock's status shows it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Released => "released",
            Self::Expired => "expired",
            Self::Stolen => "stolen",
            Self::Session => "session",
            Self::Unknown => "unknown",
        }
    }
}

impl From<&TenureEnd> for HandoverEnd {
    fn from(end: &TenureEnd) -> Self {
        match end {
            TenureEnd::Released | TenureEnd::Moved { .. } | TenureEnd::Replaced => Self::Released,
            TenureEnd::Lapsed => Self::Expired,
            TenureEnd::Stolen { .. } => Self::Stolen,
        }
    }
}

/// A remembered name, as a restored engine takes it over from a backup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RememberedName {
    /// The name of the lock.
    pub name: LockName,
    /// The client that has asked for the name to be remembered, to which the name is charged.
    pub owner: ClientId,
    /// What is remembered of the name.
    pub previous: Previous,
}

/// All remembered names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct RememberedNames(BTreeMap<LockName, Memory>);

/// What is remembered of one name.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Memory {
    owner: ClientId,
    /// Shared with the answers that carry it.
    previous: Arc<Previous>,
}

impl RememberedNames {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns what is remembered of the name of a lock.
    pub(super) fn get(&self, name: &LockName) -> Option<&Arc<Previous>> {
        self.0.get(name).map(|memory| &memory.previous)
    }

    /// Returns all names with the client to which each is charged, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&LockName, &ClientId, &Previous)> {
        self.0.iter().map(|(name, memory)| (name, &memory.owner, &*memory.previous))
    }

    /// Returns the last handover of a name, to be changed.
    fn last_mut(&mut self, name: &LockName) -> Option<&mut LastHandover> {
        let previous = &mut self.0.get_mut(name)?.previous;
        previous.last.as_ref()?;
        Arc::make_mut(previous).last.as_mut()
    }

    /// Records how the tenure with this token ended, if it has set the last handover of the name
    /// and its end is not known yet.
    fn end(&mut self, name: &LockName, token: Token, end: HandoverEnd) {
        let is_of_tenure =
            |last: &LastHandover| last.token == token && last.end == HandoverEnd::Open;
        if !self.get(name).and_then(|seen| seen.last.as_ref()).is_some_and(is_of_tenure) {
            return;
        }
        if let Some(last) = self.last_mut(name) {
            last.end = end;
        }
    }

    /// Counts the grants and records the ends of tenures that an event reports.
    pub(super) fn learn(&mut self, what: &EventKind) {
        match what {
            EventKind::Granted { name, .. } => {
                if let Some(memory) = self.0.get_mut(name) {
                    Arc::make_mut(&mut memory.previous).seq += 1;
                }
            }
            EventKind::Ended { name, token, end, .. } => self.end(name, *token, end.into()),
            _ => {}
        }
    }
}

impl Engine {
    /// Forgets a name. The lock must be free: the tenure that holds it may count on being
    /// remembered, and on the order of its handovers.
    pub(super) fn forget(&mut self, ask: &Forget, events: &mut Vec<Event>) -> Answer {
        if let Some(lock) = self.locks.get(&ask.name) {
            let foremost = self.books.foremost(lock);
            let way = match self.books.ends(foremost.life).phase(self.books.clock) {
                _ if foremost.acquired_at > self.books.clock => {
                    Way::StealGrace { until: foremost.acquired_at }
                }
                Phase::Held => Way::Held,
                Phase::Grace | Phase::Free => Way::Grace,
            };
            let conflict = self.books.conflict(&ask.name, lock, foremost, way);
            return Err(self.books.refuse(Reason::Conflict(conflict)));
        }
        let Some(memory) = self.books.remembered.0.remove(&ask.name) else {
            return Ok(Outcome::Forgotten);
        };
        self.books.usage.forget_name(&memory.owner);
        let token = memory.previous.last.as_ref().map_or(Token(0), |last| last.token);
        self.books.tell(events, EventKind::Annotated { name: ask.name.clone(), token });
        Ok(Outcome::Forgotten)
    }

    /// Returns what is remembered of the name of a lock; `None` if the name is not remembered.
    pub fn previous(&self, name: &LockName) -> Option<&Arc<Previous>> {
        self.books.remembered.get(name)
    }

    /// Returns the number of remembered names.
    pub fn remembered(&self) -> usize {
        self.books.remembered.len()
    }

    /// Returns the remembered names, as an engine takes them over that replaces this one after the
    /// loss of all replicas. How the tenures ended that have set the handovers is then unknown.
    pub fn remembered_names(&self) -> Vec<RememberedName> {
        let unknown = |last: &LastHandover| LastHandover {
            at: None,
            end: HandoverEnd::Unknown,
            ..last.clone()
        };
        let names = self.books.remembered.iter();
        names
            .map(|(name, owner, previous)| RememberedName {
                name: name.clone(),
                owner: owner.clone(),
                previous: Previous { seq: previous.seq, last: previous.last.as_ref().map(unknown) },
            })
            .collect()
    }

    /// Remembers a name of the engine that this one replaces, unless this engine remembers it
    /// already, or remembers [`REMEMBERED_MAX`] names.
    pub fn take_over(&mut self, known: RememberedName) {
        let RememberedName { name, owner, previous } = known;
        if self.remembered() < REMEMBERED_MAX && self.previous(&name).is_none() {
            self.books.insert_memory(name, owner, previous);
        }
    }
}

impl EngineState {
    /// Returns what is remembered of the name of a lock, for an answer.
    pub(super) fn previous(&self, name: &LockName) -> Option<Arc<Previous>> {
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

    fn insert_memory(&mut self, name: LockName, owner: ClientId, previous: Previous) {
        self.usage.learn_name(&owner);
        self.remembered.0.insert(name, Memory { owner, previous: Arc::new(previous) });
    }

    /// Refuses a handover that the tenure of `lease` may not set now. `key` is the key that the
    /// request names.
    pub(super) fn may_hand_over(
        &self,
        handover: Option<&Handover>,
        key: &LeaseKey,
        (lock, lease): (&Lock, &Lease),
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
    pub(super) fn hand_over(
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

    /// Decodes the remembered names of an engine.
    pub(super) fn take_names(&mut self, from: &mut Decoder<'_>) -> Result<(), Malformed> {
        let count = from.take_length::<RememberedName>()?;
        require(count <= REMEMBERED_MAX)?;
        for _ in 0..count {
            let RememberedName { name, owner, previous } = Codec::take(from)?;
            let last = self.remembered.0.last_key_value();
            require(last.is_none_or(|(last, _)| *last < name))?;
            let is_issued = |last: &LastHandover| last.token.as_u64() < self.mint.upcoming();
            require(previous.last.as_ref().is_none_or(is_issued))?;
            self.insert_memory(name, owner, previous);
        }
        Ok(())
    }
}

impl RememberedNames {
    /// Encodes all names, as [`EngineState::take_names`] decodes them.
    pub(super) fn put(&self, out: &mut Vec<u8>) {
        self.len().put(out);
        for (name, owner, previous) in self.iter() {
            name.put(out);
            owner.put(out);
            previous.put(out);
        }
    }
}
