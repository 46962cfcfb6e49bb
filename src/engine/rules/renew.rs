//! Renews (rule 2), annotates and releases (rule 3) leases. Only the holder can, and only if the
//! token that it names is still current.
//!
//! Moves a lease to another name, and steals a lock (rule 9).
//!
//! Takes a lock with a remembered name away from a holder that may not be reachable (rule 9): the
//! new lease begins when the holder has acknowledged that by a release, or when its lease has
//! expired. Until then the holder may go on.

use crate::state::{Engine, EngineState};
use crate::time::Time;
use crate::values::command::{
    Annotate, Answer, Firm, IfExists, LeaseKey, Move, Outcome, Release, Renew, Steal, Tenure,
};
use crate::values::details::{Details, Patch};
use crate::values::event::{Event, EventKind, TenureEnd};
use crate::values::handover::{HandoverEnd, StolenTenure};
use crate::values::lease::{
    Grace, Lease, LeaseTerms, Lifetime, Mode, OpenId, Ownership, Phase, Token, Ttl,
};
use crate::values::lock::Lock;
use crate::values::name::LockName;
use crate::values::refusal::{Conflict, Limit, Reason, Refusal, Way};
use std::sync::Arc;

impl Engine {
    pub(crate) fn renew(&mut self, ask: &Renew, events: &mut Vec<Event>) -> Answer {
        let lease = self.meant(&ask.key)?;
        let (token, hold, life) = (lease.token, lease.hold, lease.life);
        self.is_usable(&ask.key.name, lease)?;
        self.state.patch_fits(&ask.key, &ask.patch, lease)?;
        if let Some(term) = ask.term {
            // The check requires that the session that is to keep the lease alive is open. The
            // session of the open file that owns the lease may have ended while the lease is still
            // in grace.
            self.state.require_open_sessions(Ownership::Client, term)?;
        }
        let name = &ask.key.name;
        let lock = self.locks.get_mut(name).expect("the lease meant has its lock");
        let lease = lock.lease_mut(token).expect("the lease meant is there");
        let now = self.state.clock;
        lease.life = match ask.term {
            // A lease that an open file owns lasts as long as the file is open: a ttl does not
            // shorten it.
            Some(term) if !self.state.is_open(hold) => term.begin(now),
            _ => renewed_lifetime(life, now),
        };
        if ask.firm == Firm::Make && hold == Ownership::Client {
            lease.hold = Ownership::Exclusive(None);
        }
        lease.renewed_at = now;
        if ask.acquires {
            lease.acquisition = lease.acquisition.saturating_add(1);
        }
        ask.patch.apply(&mut lease.details);
        self.state.update_lease_registration(name, lease, life);
        let tenure = Tenure::of(lease);
        let (name, holder) = (name.clone(), lease.holder.clone());
        self.state.emit(events, EventKind::Renewed { name, holder, token });
        Ok(Outcome::Renewed(tenure))
    }

    pub(crate) fn annotate(&mut self, ask: &Annotate, events: &mut Vec<Event>) -> Answer {
        let lease = self.meant(&ask.key)?;
        let token = lease.token;
        self.state.patch_fits(&ask.key, &ask.patch, lease)?;
        if let Some(lock) = self.locks.get(&ask.key.name) {
            self.state.may_hand_over(ask.handover.as_ref(), &ask.key, lock, lease)?;
        }
        let name = &ask.key.name;
        let lock = self.locks.get_mut(name).expect("the lease meant has its lock");
        let lease = lock.lease_mut(token).expect("the lease meant is there");
        ask.patch.apply(&mut lease.details);
        self.state.hand_over(ask.handover.as_ref(), name, lease);
        self.state.emit(events, EventKind::Annotated { name: name.clone(), token });
        Ok(Outcome::Annotated)
    }

    pub(crate) fn release(&mut self, ask: &Release, events: &mut Vec<Event>) -> Answer {
        self.state.tokens_left()?;
        if ask.acknowledges
            && ask.handover.is_none()
            && let Some(answer) = self.acknowledge(&ask.key, events)
        {
            return answer;
        }
        let of_open_file =
            ask.open.map(|open| self.key_of_open_file(open, &ask.key)).transpose()?;
        let key = of_open_file.as_ref().unwrap_or(&ask.key);
        let name = &key.name;
        let place = self.locks.taken(name);
        let leases = place.as_ref().map_or(&[][..], |place| place.lock().leases());
        let token = self.state.meant_by_release(key, ask.acquisition, leases)?;
        let mut place = place.expect("the lease meant has its lock");
        let lock = place.lock_mut();
        if let Some(handover) = &ask.handover {
            let lease = lock.leases().iter().find(|lease| lease.token == token);
            let lease = lease.expect("the lease meant is there");
            // The token is that of the request, also if the request names the lease by its file.
            let named = LeaseKey { name: name.clone(), ..ask.key.clone() };
            self.state.may_hand_over(Some(handover), &named, lock, lease)?;
            self.state.hand_over(Some(handover), name, lease);
        }
        let lease = lock.lease_mut(token).expect("the lease meant is there");
        let ttl = self.state.ends(lease.life).ttl;
        self.state.unregister_lease(name, lease);
        self.state.give_back(lock, name, token, ttl, events);
        if lock.is_idle() {
            place.remove();
        } else {
            self.serve(name, events);
        }
        Ok(Outcome::Released)
    }

    /// Returns the present name and token of the lease that an open file owns. `known` is the key
    /// under which the holder last knew the lease; its client must hold the lease.
    fn key_of_open_file(&self, open: OpenId, known: &LeaseKey) -> Result<LeaseKey, Refusal> {
        let client = known.client.clone();
        if let Some(session) = self.state.sessions.get(&open.session) {
            if let Some((name, token)) = session.held_by(open.number, known.token) {
                return Ok(LeaseKey { name: name.clone(), client, token: Some(token) });
            }
        } else {
            // The session is over, but the lease that the open file held under it may still be in
            // its grace.
            let leases = self.locks.get(&known.name).map_or(&[][..], |lock| lock.leases());
            let hold = Ownership::OpenFile(open);
            if let Some(lease) = leases.iter().find(|lease| lease.hold == hold) {
                let token = Some(lease.token);
                return Ok(LeaseKey { name: known.name.clone(), client, token });
            }
        }
        // If the lock and token in `known` denote a lease, that lease does not belong to the open
        // file.
        let holder = Some(self.meant(known)?.holder.clone());
        let name = known.name.clone();
        Err(self.state.refuse(match known.token {
            Some(token) => Reason::Expired { name, token },
            None => Reason::NotHeld { name, client, holder },
        }))
    }

    /// Ends a lease that its holder releases, without serving the next waiter. The lease must no
    /// longer be registered with its deadline or its session.
    ///
    /// Rule 9: a stolen lock stays unusable for the steal grace, even if the new holder releases it
    /// at once. The lease of the new holder then stays until the time when it would have begun, and
    /// ends.
    pub(crate) fn give_back(
        &mut self,
        name: &LockName,
        token: Token,
        ttl: Ttl,
        events: &mut Vec<Event>,
    ) {
        let lock = self.locks.get_mut(name).expect("a tenure that ends has its lock");
        self.state.give_back(lock, name, token, ttl, events);
    }

    /// Ends the lease with this token for the reason `end`, without serving the next waiter.
    pub(crate) fn end_tenure(
        &mut self,
        key: &LeaseKey,
        token: Token,
        end: TenureEnd,
        events: &mut Vec<Event>,
    ) {
        let lock = self.locks.get_mut(&key.name).expect("a tenure that ends has its lock");
        let lease = lock.lease_mut(token).expect("a tenure that ends is there");
        self.state.unregister_lease(&key.name, lease);
        self.state.finish(lock, &key.name, token, end, events);
    }

    /// Refuses the use of a stolen lock, even to the client that stole it, until the steal grace
    /// ends.
    pub(crate) fn is_usable(&self, name: &LockName, lease: &Lease) -> Result<(), Refusal> {
        if lease.acquired_at <= self.state.clock {
            return Ok(());
        }
        let Some(lock) = self.locks.get(name) else { return Ok(()) };
        let way = Way::StealGrace { until: lease.acquired_at };
        let conflict = self.state.conflict(name, lock, lease, way);
        Err(self.state.refuse(Reason::Conflict(conflict)))
    }

    /// Returns the lease that a [`LeaseKey`] denotes: the one with the token in the key, or else
    /// the one of the client in the key.
    ///
    /// If several open files of one client share a lock, a lease that belongs to no open file comes
    /// first: it is the only one that a client without a file can refer to.
    pub(crate) fn meant(&self, key: &LeaseKey) -> Result<&Lease, Refusal> {
        let leases = self.locks.get(&key.name).map_or(&[][..], |lock| lock.leases());
        self.state.meant(key, leases)
    }
}

impl EngineState {
    /// Returns the lease among `leases`, all of one lock, that a [`LeaseKey`] denotes.
    fn meant<'a>(&self, key: &LeaseKey, leases: &'a [Lease]) -> Result<&'a Lease, Refusal> {
        let LeaseKey { name, client, token } = key;
        let own = || leases.iter().filter(|lease| lease.holder == *client);
        let refuse = |reason| Err(self.refuse(reason));
        let Some(named) = *token else {
            // A lease that has begun takes precedence over one that begins later: the latter may be
            // a placeholder that a reset left, which belongs to no client.
            let begun = || own().filter(|lease| lease.acquired_at <= self.clock);
            let is_loose = |lease: &&Lease| !matches!(lease.hold, Ownership::OpenFile(_));
            let usable = begun().find(is_loose).or_else(|| begun().next());
            if let Some(lease) = usable.or_else(|| own().find(is_loose)).or_else(|| own().next()) {
                return Ok(lease);
            }
            let holder = leases.first().map(|lease| lease.holder.clone());
            return refuse(Reason::NotHeld { name: name.clone(), client: client.clone(), holder });
        };
        if let Some(lease) = own().find(|lease| lease.token == named) {
            return Ok(lease);
        }
        match own().next().or(leases.first()) {
            None => refuse(Reason::Expired { name: name.clone(), token: named }),
            Some(lease) if lease.token == named => {
                let (holder, client) = (Some(lease.holder.clone()), client.clone());
                refuse(Reason::NotHeld { name: name.clone(), client, holder })
            }
            Some(lease) => {
                let current = lease.token;
                refuse(Reason::StaleToken { name: name.clone(), named, current })
            }
        }
    }

    fn meant_by_release(
        &self,
        key: &LeaseKey,
        acquisition: Option<u32>,
        leases: &[Lease],
    ) -> Result<Token, Refusal> {
        let lease = self.meant(key, leases)?;
        if acquisition.is_some_and(|named| named < lease.acquisition) {
            let (name, token, current) = (key.name.clone(), lease.token, lease.acquisition);
            return Err(self.refuse(Reason::AcquiredAgain { name, token, current }));
        }
        Ok(lease.token)
    }
}

/// Returns the lifetime of a lease after a renewal at `now`. A lease that is bound to a session is
/// renewed only by a keep-alive of the session, so its lifetime is unchanged.
pub(crate) fn renewed_lifetime(life: Lifetime, now: Time) -> Lifetime {
    match life {
        Lifetime::Own { ttl, grace, .. } => LeaseTerms::Own(ttl, grace).begin(now),
        Lifetime::Session(id) => Lifetime::Session(id),
    }
}

impl EngineState {
    /// Whether the lease belongs to an open file that may still be open, as far as the engine
    /// knows.
    ///
    /// A session that has ended tells nothing about its open files; the lease is then like any
    /// other.
    pub(crate) fn is_open(&self, hold: Ownership) -> bool {
        matches!(hold, Ownership::OpenFile(open) if self.sessions.contains_key(&open.session))
    }

    fn give_back(
        &mut self,
        lock: &mut Lock,
        name: &LockName,
        token: Token,
        ttl: Ttl,
        events: &mut Vec<Event>,
    ) {
        let lease = lock.lease_mut(token).expect("a tenure that ends is there");
        if lease.acquired_at <= self.clock {
            return self.finish(lock, name, token, TenureEnd::Released, events);
        }
        lease.life = Lifetime::Own { ttl, grace: Grace::NONE, expires_at: lease.acquired_at };
        self.register_lease(name, lease);
    }

    fn patch_fits(&self, key: &LeaseKey, patch: &Patch, lease: &Lease) -> Result<(), Refusal> {
        if patch.fits(&lease.details) {
            Ok(())
        } else {
            Err(self.refuse(Reason::TextTooLong(key.name.clone())))
        }
    }
}

impl Engine {
    /// Moves a lease to another name, under a new token. The next waiter for the old name gets the
    /// lock of that name.
    pub(crate) fn transfer(&mut self, ask: &Move, events: &mut Vec<Event>) -> Answer {
        self.state.tokens_left()?;
        let lease = self.meant(&ask.from)?;
        self.is_usable(&ask.from.name, lease)?;
        if ask.from.name == ask.to {
            return Err(self.state.refuse(Reason::SameName(ask.to.clone())));
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
        self.state.limit(self.locks.len(), self.state.rules.locks_max, Limit::Locks)
    }

    /// Returns the token of the client's own lease under the new name, which the move replaces, or
    /// `None` if the new name is free. Refuses if the move may not replace the lock under the new
    /// name.
    fn replaceable(&self, ask: &Move) -> Result<Option<Token>, Refusal> {
        let Some(lock) = self.locks.get(&ask.to) else { return Ok(None) };
        let foremost = self.state.foremost(lock);
        let refuse = |way| {
            let conflict = self.state.conflict(&ask.to, lock, foremost, way);
            Err(self.state.refuse(Reason::Conflict(conflict)))
        };
        if foremost.acquired_at > self.state.clock {
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
        match self.state.ends(foremost.life).phase(self.state.clock) {
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
        let now = self.state.clock;
        lease.token = self.state.mint.token();
        if let Lifetime::Own { ttl, grace, .. } = lease.life {
            lease.life = LeaseTerms::Own(ttl, grace).begin(now);
        }
        (lease.acquired_at, lease.renewed_at) = (now, now);
        lease.seat = mode.seats().map(|_| 0);
        self.state.register_lease(name, &lease);
        let granted = EventKind::Granted {
            name: name.clone(),
            holder: lease.holder.clone(),
            token: lease.token,
            mode,
            hold: lease.hold,
            waited: None,
        };
        self.state.emit(events, granted);
        let tenure = self.state.tenure(name, &lease);
        self.locks.get_or_new(name).admit(mode, lease);
        tenure
    }

    /// Takes a lock from its holders. The lease of the new holder begins after the steal grace, so
    /// that the old holders can stop; until then the lock is unusable for all clients. If its name
    /// is remembered, the old holders may not hear of it: it begins when they have acknowledged the
    /// steal, or when their leases have expired.
    pub(crate) fn steal(&mut self, ask: &Steal, events: &mut Vec<Event>) -> Answer {
        self.state.tokens_left()?;
        self.may_grant(&ask.name)?;
        self.state.require_open_sessions(Ownership::Exclusive(None), ask.term)?;
        if !ask.patch.fits(&Details::default()) {
            return Err(self.state.refuse(Reason::TextTooLong(ask.name.clone())));
        }
        let now = self.state.clock;
        let robbed = self.robbed(ask)?;
        let tokens: Vec<_> = robbed.iter().map(|lease| lease.token).collect();
        // Nobody may take the seat of a tenure that was stolen before its holder has stopped.
        let (mode, seat) = match (ask.only, robbed) {
            (Some(_), [lease]) => (self.locks[&ask.name].mode(), lease.seat),
            _ => (Mode::Exclusive, None),
        };
        if tokens.is_empty() {
            let (held, max) = (self.locks.len(), self.state.rules.locks_max);
            self.state.limit(held, max, Limit::Locks)?;
        }
        let lock = self.locks.get(&ask.name).filter(|_| !ask.at_once);
        let last = lock.and_then(|lock| self.state.last_tenure(&ask.name, lock));
        let others_until =
            lock.map_or(Time::ZERO, |lock| self.state.may_continue_until(&ask.name, lock));
        let key = LeaseKey { name: ask.name.clone(), client: ask.client.clone(), token: None };
        for token in &tokens {
            let end = TenureEnd::Stolen { by: ask.client.clone(), reason: ask.reason.clone() };
            self.end_tenure(&key, *token, end, events);
        }
        if ask.at_once {
            self.state.forget_end(&ask.name);
        }
        let begins = if tokens.is_empty() { now } else { now + self.state.rules.steal_grace };
        let begins = begins.max(others_until);
        let mut details = Arc::default();
        ask.patch.apply(&mut details);
        let lease = Lease {
            holder: ask.client.clone(),
            token: self.state.mint.token(),
            hold: Ownership::Exclusive(None),
            life: ask.term.begin(begins),
            acquired_at: begins,
            renewed_at: begins,
            acquisition: 0,
            seat,
            details,
        };
        self.state.register_lease(&ask.name, &lease);
        let (name, holder) = (ask.name.clone(), ask.client.clone());
        let (token, hold) = (lease.token, lease.hold);
        let granted = EventKind::Granted { name, holder, token, mode, hold, waited: None };
        self.state.emit(events, granted);
        self.state.note_stolen(&ask.name, last);
        let tenure = self.state.tenure(&ask.name, &lease);
        self.locks.get_or_new(&ask.name).admit(mode, lease);
        Ok(Outcome::Stolen(tenure))
    }

    /// Returns the leases that a steal ends: all of the lock, or the one that it names.
    fn robbed(&self, ask: &Steal) -> Result<&[Lease], Refusal> {
        let leases = self.locks.get(&ask.name).map_or(&[][..], |lock| lock.leases());
        let Some(token) = ask.only else { return Ok(leases) };
        if let Some(place) = leases.iter().position(|lease| lease.token == token) {
            return Ok(&leases[place..=place]);
        }
        let (name, current) = (ask.name.clone(), leases.last().map(|lease| lease.token));
        Err(self.state.refuse(Reason::NothingToSteal { name, named: token, current }))
    }
}

impl EngineState {
    /// Returns the conflict with `lease`, for a refusal.
    pub(crate) fn conflict(
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

impl EngineState {
    /// Returns until when the holders of a lock with a remembered name may go on, if they hear of
    /// nothing. A lease without an end does not count: it belongs to the process of this engine.
    pub(super) fn may_continue_until(&self, name: &LockName, lock: &Lock) -> Time {
        if self.remembered.get(name).is_none() {
            return Time::ZERO;
        }
        let until = lock.leases().iter().map(|lease| match lease.acquired_at {
            begins if begins > self.clock => begins,
            _ => self.ends(lease.life).expires_at,
        });
        until.filter(|until| *until < Time::NEVER).max().unwrap_or(Time::ZERO)
    }

    /// Returns the tenure whose release would show that its holder has stopped, if the lock is
    /// taken away now. `None` if a shared lock has several holders.
    pub(crate) fn last_tenure(&self, name: &LockName, lock: &Lock) -> Option<StolenTenure> {
        match lock.leases() {
            [own] if own.acquired_at <= self.clock => {
                Some(StolenTenure { client: own.holder.clone(), token: own.token })
            }
            [_] => self.remembered.0.get(name)?.stolen.clone(),
            _ => None,
        }
    }

    /// Records that the lock of a tenure was taken away, after the grant that followed.
    pub(crate) fn note_stolen(&mut self, name: &LockName, stolen: Option<StolenTenure>) {
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
    pub(crate) fn acknowledge(
        &mut self,
        key: &LeaseKey,
        events: &mut Vec<Event>,
    ) -> Option<Answer> {
        let memory = self.state.remembered.0.get_mut(&key.name)?;
        let is_it =
            |stolen: &&StolenTenure| Some(stolen.token) == key.token && stolen.client == key.client;
        memory.stolen.as_ref().filter(is_it)?;
        let now = self.state.clock;
        let lock = self.locks.get_mut(&key.name)?;
        let lease = lock.leases_mut().iter_mut().find(|lease| lease.acquired_at > now)?;
        memory.stolen = None;
        self.state.unregister_lease(&key.name, lease);
        // The new holder may count on its lease for as long as its grant says. A lease that it has
        // released already ends with its begin.
        let is_released = self.state.ends(lease.life).grace_until == lease.acquired_at;
        if let (true, Lifetime::Own { expires_at, .. }) = (is_released, &mut lease.life) {
            *expires_at = now;
        }
        (lease.acquired_at, lease.renewed_at) = (now, now);
        self.state.register_lease(&key.name, lease);
        let (name, token) = (key.name.clone(), lease.token);
        self.state.emit(events, EventKind::Annotated { name, token });
        self.settle(now, events);
        Some(Ok(Outcome::Released))
    }
}
