//! Takes a lock with a remembered name away from a holder that may not be reachable (rule 9): the
//! new lease begins when the holder has acknowledged that by a release, or when its lease has
//! expired. Until then the holder may go on.

use super::command::{Answer, LeaseKey, Outcome};
use super::event::{Event, EventKind};
use super::handover::HandoverEnd;
use super::lease::Lifetime;
use super::lock::Lock;
use super::name::LockName;
use super::remembered_names::StolenTenure;
use super::state::{Engine, EngineState};
use crate::time::Time;

impl EngineState {
    /// Returns until when the holders of a lock with a remembered name may go on, if they hear of
    /// nothing. A lease without an end does not count: it belongs to the process of this engine.
    pub(super) fn may_go_on_until(&self, name: &LockName, lock: &Lock) -> Time {
        if self.remembered.get(name).is_none() {
            return Time::ZERO;
        }
        let until = lock.leases().iter().map(|lease| match lease.acquired_at {
            begins if begins > self.clock => begins,
            _ => self.ends(lease.life).expires_at,
        });
        until.filter(|until| *until < Time::NEVER).max().unwrap_or(Time::ZERO)
    }

    /// Returns the tenure whose release shows that nobody goes on, if a lock is taken away now.
    /// Several holders of a shared lock are waited for.
    pub(super) fn last_tenure(&self, name: &LockName, lock: &Lock) -> Option<StolenTenure> {
        match lock.leases() {
            [own] if own.acquired_at <= self.clock => {
                Some(StolenTenure { client: own.holder.clone(), token: own.token })
            }
            [_] => self.remembered.0.get(name)?.stolen.clone(),
            _ => None,
        }
    }

    /// Records that the lock of a tenure was taken away, after the grant that followed.
    pub(super) fn note_stolen(&mut self, name: &LockName, stolen: Option<StolenTenure>) {
        if let Some(memory) = self.remembered.0.get_mut(name) {
            memory.stolen = stolen;
        }
    }

    /// Records that nobody knows how the last tenures of a name have ended.
    pub(super) fn forget_end(&mut self, name: &LockName) {
        if let Some(last) = self.remembered.last_mut(name) {
            last.end = HandoverEnd::Unknown;
        }
    }
}

impl Engine {
    /// Begins the lease of the client that has taken a lock away, if `key` names the tenure that
    /// had it before. `None` if it does not.
    pub(super) fn acknowledge(
        &mut self,
        key: &LeaseKey,
        events: &mut Vec<Event>,
    ) -> Option<Answer> {
        let memory = self.books.remembered.0.get_mut(&key.name)?;
        let is_it =
            |stolen: &&StolenTenure| Some(stolen.token) == key.token && stolen.client == key.client;
        memory.stolen.as_ref().filter(is_it)?;
        let now = self.books.clock;
        let lock = self.locks.get_mut(&key.name)?;
        let lease = lock.leases_mut().iter_mut().find(|lease| lease.acquired_at > now)?;
        memory.stolen = None;
        self.books.unbook(&key.name, lease);
        // The new holder may count on its lease for as long as it was told. A lease that it has
        // released already ends with its begin.
        let is_released = self.books.ends(lease.life).grace_until == lease.acquired_at;
        if let (true, Lifetime::Own { expires_at, .. }) = (is_released, &mut lease.life) {
            *expires_at = now;
        }
        (lease.acquired_at, lease.renewed_at) = (now, now);
        self.books.book(&key.name, lease);
        let (name, token) = (key.name.clone(), lease.token);
        self.books.tell(events, EventKind::Annotated { name, token });
        self.settle(now, events);
        Some(Ok(Outcome::Released))
    }
}
