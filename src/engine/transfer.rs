//! Moves a lease to another name, and steals a lock (rule 9).

use super::command::{Answer, IfExists, LeaseKey, Move, Outcome, Steal, Tenure};
use super::details::Details;
use super::event::{Event, EventKind, TenureEnd};
use super::lease::{Lease, LeaseTerms, Lifetime, Mode, Ownership, Phase, Token};
use super::lock::Lock;
use super::name::LockName;
use super::refusal::{Conflict, Limit, Reason, Refusal, Way};
use super::state::{Engine, EngineState};
use crate::time::Time;
use std::sync::Arc;

impl Engine {
    /// Moves a lease to another name, under a new token. The next waiter for the old name gets the
    /// lock of that name.
    pub(super) fn transfer(&mut self, ask: &Move, events: &mut Vec<Event>) -> Answer {
        self.books.tokens_left()?;
        let lease = self.meant(&ask.from)?;
        self.is_usable(&ask.from.name, lease)?;
        if ask.from.name == ask.to {
            return Err(self.books.refuse(Reason::SameName(ask.to.clone())));
        }
        self.may_grant(&ask.to)?;
        let replaced = self.replaceable(ask)?;
        self.has_room(ask)?;
        let mode = self.locks.get(&ask.from.name).map_or(Mode::Exclusive, |lock| lock.mode());
        let moved = lease.clone();
        let end = TenureEnd::Moved { to: ask.to.clone() };
        self.end_tenure(&ask.from, moved.token, end, events);
        if let Some(token) = replaced {
            let key = LeaseKey { name: ask.to.clone(), ..ask.from.clone() };
            self.end_tenure(&key, token, TenureEnd::Replaced, events);
        }
        let tenure = self.install(&ask.to, moved, mode, events);
        // The queue of the old name is served only after the lease was moved, so that the moved
        // lease gets its token before the waiters do.
        self.serve(&ask.from.name, events);
        // The moved lease may be shared and may have replaced an exclusive one. Then waiters for a
        // shared lock under the new name can be served.
        self.serve(&ask.to, events);
        Ok(Outcome::Moved(tenure))
    }

    /// Refuses a move to a free name if it needs room for one more lock, because the old name stays
    /// in use.
    fn has_room(&self, ask: &Move) -> Result<(), Refusal> {
        let stays = |lock: &Lock| lock.leases().len() > 1 || !lock.line.is_empty();
        let old_stays = self.locks.get(&ask.from.name).is_some_and(|lock| stays(lock));
        if !old_stays || self.locks.contains_key(&ask.to) {
            return Ok(());
        }
        self.books.limit(self.locks.len(), self.books.rules.locks_max, Limit::Locks)
    }

    /// Returns the token of the client's own lease under the new name, which the move replaces, or
    /// `None` if the new name is free. Refuses if the move may not replace the lock under the new
    /// name.
    fn replaceable(&self, ask: &Move) -> Result<Option<Token>, Refusal> {
        let Some(lock) = self.locks.get(&ask.to) else { return Ok(None) };
        let foremost = self.books.foremost(lock);
        let refuse = |way| {
            let conflict = self.books.conflict(&ask.to, lock, foremost, way);
            Err(self.books.refuse(Reason::Conflict(conflict)))
        };
        if foremost.acquired_at > self.books.clock {
            return refuse(Way::StealGrace { until: foremost.acquired_at });
        }
        if foremost.holder == ask.from.client {
            return match (lock.leases(), ask.over) {
                ([own], IfExists::Replace) if !matches!(own.hold, Ownership::OpenFile(_)) => {
                    Ok(Some(own.token))
                }
                _ => refuse(Way::Own),
            };
        }
        match self.books.ends(foremost.life).phase(self.books.clock) {
            Phase::Held => refuse(Way::Held),
            Phase::Grace | Phase::Free => refuse(Way::Grace),
        }
    }

    /// Inserts `lease` as a lease on another lock, under a new token: the client's possession of
    /// that lock begins now.
    fn install(
        &mut self,
        name: &LockName,
        mut lease: Lease,
        mode: Mode,
        events: &mut Vec<Event>,
    ) -> Tenure {
        let now = self.books.clock;
        lease.token = self.books.mint.token();
        if let Lifetime::Own { ttl, grace, .. } = lease.life {
            lease.life = LeaseTerms::Own(ttl, grace).begin(now);
        }
        (lease.acquired_at, lease.renewed_at) = (now, now);
        self.books.book(name, &lease);
        let granted = EventKind::Granted {
            name: name.clone(),
            holder: lease.holder.clone(),
            token: lease.token,
            mode,
            hold: lease.hold,
            waited: None,
        };
        self.books.tell(events, granted);
        let tenure = self.books.tenure(name, &lease);
        self.locks.get_or_new(name).admit(mode, lease);
        tenure
    }

    /// Takes a lock from its holders. The lease of the new holder begins after the steal grace, so
    /// that the old holders can stop; until then the lock is unusable for all clients. If its name
    /// is remembered, the old holders may not hear of it: it begins when they have acknowledged the
    /// steal, or when their leases have expired.
    pub(super) fn steal(&mut self, ask: &Steal, events: &mut Vec<Event>) -> Answer {
        self.books.tokens_left()?;
        self.may_grant(&ask.name)?;
        self.books.may_lean_on(Ownership::Exclusive(None), ask.term)?;
        if !ask.patch.fits(&Details::default()) {
            return Err(self.books.refuse(Reason::TextTooLong(ask.name.clone())));
        }
        let now = self.books.clock;
        let robbed = self.locks.get(&ask.name).map_or(&[][..], |lock| lock.leases());
        let tokens: Vec<_> = robbed.iter().map(|lease| lease.token).collect();
        if tokens.is_empty() {
            let (held, max) = (self.locks.len(), self.books.rules.locks_max);
            self.books.limit(held, max, Limit::Locks)?;
        }
        let lock = self.locks.get(&ask.name).filter(|_| !ask.at_once);
        let last = lock.and_then(|lock| self.books.last_tenure(&ask.name, lock));
        let others_until =
            lock.map_or(Time::ZERO, |lock| self.books.may_go_on_until(&ask.name, lock));
        let key = LeaseKey { name: ask.name.clone(), client: ask.client.clone(), token: None };
        for token in &tokens {
            let end = TenureEnd::Stolen { by: ask.client.clone(), reason: ask.reason.clone() };
            self.end_tenure(&key, *token, end, events);
        }
        if ask.at_once {
            self.books.forget_end(&ask.name);
        }
        let begins = if tokens.is_empty() { now } else { now + self.books.rules.steal_grace };
        let begins = begins.max(others_until);
        let mut details = Arc::default();
        ask.patch.apply(&mut details);
        let lease = Lease {
            holder: ask.client.clone(),
            token: self.books.mint.token(),
            hold: Ownership::Exclusive(None),
            life: ask.term.begin(begins),
            acquired_at: begins,
            renewed_at: begins,
            acquisition: 0,
            details,
        };
        self.books.book(&ask.name, &lease);
        let (name, holder) = (ask.name.clone(), ask.client.clone());
        let (token, mode, hold) = (lease.token, Mode::Exclusive, lease.hold);
        let granted = EventKind::Granted { name, holder, token, mode, hold, waited: None };
        self.books.tell(events, granted);
        self.books.note_stolen(&ask.name, last);
        let tenure = self.books.tenure(&ask.name, &lease);
        self.locks.get_or_new(&ask.name).admit(mode, lease);
        Ok(Outcome::Stolen(tenure))
    }
}

impl EngineState {
    /// Returns the conflict with `lease`, for a refusal.
    pub(super) fn conflict(
        &self,
        name: &LockName,
        lock: &Lock,
        lease: &Lease,
        way: Way,
    ) -> Conflict {
        Conflict {
            name: name.clone(),
            holder: lease.holder.clone(),
            token: lease.token,
            mode: lock.mode(),
            ends: self.ends(lease.life),
            way,
            waiting: lock.line.len(),
            previous: self.previous(name),
        }
    }
}
