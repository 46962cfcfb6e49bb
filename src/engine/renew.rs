//! Renews (rule 2), annotates and releases (rule 3) leases. Only the holder can, and only if the
//! token that it names is still current.

use super::command::{Annotate, Answer, Firm, LeaseKey, Outcome, Release, Renew, Tenure};
use super::details::Patch;
use super::event::{Event, EventKind, TenureEnd};
use super::lease::{Lease, LeaseTerms, Lifetime, OpenId, Ownership, Token};
use super::lease_terms::{Grace, Ttl};
use super::lock::Lock;
use super::name::LockName;
use super::refusal::{Reason, Refusal, Way};
use super::state::{Engine, EngineState};
use crate::time::Time;

impl Engine {
    pub(super) fn renew(&mut self, ask: &Renew, events: &mut Vec<Event>) -> Answer {
        let lease = self.meant(&ask.key)?;
        let (token, hold, life) = (lease.token, lease.hold, lease.life);
        self.is_usable(&ask.key.name, lease)?;
        self.books.patch_fits(&ask.key, &ask.patch, lease)?;
        if let Some(term) = ask.term {
            // The check requires that the session that is to keep the lease alive is open. The
            // session of the open file that owns the lease may have ended while the lease is still
            // in grace.
            self.books.may_lean_on(Ownership::Client, term)?;
        }
        let name = &ask.key.name;
        let lock = self.locks.get_mut(name).expect("the lease meant has its lock");
        let lease = lock.lease_mut(token).expect("the lease meant is there");
        let now = self.books.clock;
        lease.life = match ask.term {
            // A lease that an open file owns lasts as long as the file is open: a ttl does not
            // shorten it.
            Some(term) if !self.books.is_open(hold) => term.begin(now),
            _ => again(life, now),
        };
        if ask.firm == Firm::Make && hold == Ownership::Client {
            lease.hold = Ownership::Exclusive(None);
        }
        lease.renewed_at = now;
        if ask.acquires {
            lease.acquisition = lease.acquisition.saturating_add(1);
        }
        ask.patch.apply(&mut lease.details);
        self.books.rebook(name, lease, life);
        let tenure = Tenure::of(lease);
        let (name, holder) = (name.clone(), lease.holder.clone());
        self.books.tell(events, EventKind::Renewed { name, holder, token });
        Ok(Outcome::Renewed(tenure))
    }

    pub(super) fn annotate(&mut self, ask: &Annotate, events: &mut Vec<Event>) -> Answer {
        let lease = self.meant(&ask.key)?;
        let token = lease.token;
        self.books.patch_fits(&ask.key, &ask.patch, lease)?;
        if let Some(lock) = self.locks.get(&ask.key.name) {
            self.books.may_hand_over(ask.handover.as_ref(), &ask.key, (lock, lease))?;
        }
        let name = &ask.key.name;
        let lock = self.locks.get_mut(name).expect("the lease meant has its lock");
        let lease = lock.lease_mut(token).expect("the lease meant is there");
        ask.patch.apply(&mut lease.details);
        self.books.hand_over(ask.handover.as_ref(), name, lease);
        self.books.tell(events, EventKind::Annotated { name: name.clone(), token });
        Ok(Outcome::Annotated)
    }

    pub(super) fn release(&mut self, ask: &Release, events: &mut Vec<Event>) -> Answer {
        self.books.tokens_left()?;
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
        let token = self.books.meant_by_release(key, ask.acquisition, leases)?;
        let mut place = place.expect("the lease meant has its lock");
        let lock = place.lock_mut();
        if let Some(handover) = &ask.handover {
            let lease = lock.leases().iter().find(|lease| lease.token == token);
            let lease = lease.expect("the lease meant is there");
            // The token is that of the request, also if the request names the lease by its file.
            let named = LeaseKey { name: name.clone(), ..ask.key.clone() };
            self.books.may_hand_over(Some(handover), &named, (lock, lease))?;
            self.books.hand_over(Some(handover), name, lease);
        }
        let lease = lock.lease_mut(token).expect("the lease meant is there");
        let ttl = self.books.ends(lease.life).ttl;
        self.books.unbook(name, lease);
        self.books.give_back(lock, name, token, ttl, events);
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
        if let Some(session) = self.books.sessions.get(&open.session) {
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
        Err(self.books.refuse(match known.token {
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
    pub(super) fn give_back(
        &mut self,
        name: &LockName,
        token: Token,
        ttl: Ttl,
        events: &mut Vec<Event>,
    ) {
        let lock = self.locks.get_mut(name).expect("a tenure that ends has its lock");
        self.books.give_back(lock, name, token, ttl, events);
    }

    /// Ends the lease with this token for the reason `end`, without serving the next waiter.
    pub(super) fn end_tenure(
        &mut self,
        key: &LeaseKey,
        token: Token,
        end: TenureEnd,
        events: &mut Vec<Event>,
    ) {
        let lock = self.locks.get_mut(&key.name).expect("a tenure that ends has its lock");
        let lease = lock.lease_mut(token).expect("a tenure that ends is there");
        self.books.unbook(&key.name, lease);
        self.books.finish(lock, &key.name, token, end, events);
    }

    /// Refuses the use of a stolen lock, even to the client that stole it, until the steal grace
    /// ends.
    pub(super) fn is_usable(&self, name: &LockName, lease: &Lease) -> Result<(), Refusal> {
        if lease.acquired_at <= self.books.clock {
            return Ok(());
        }
        let Some(lock) = self.locks.get(name) else { return Ok(()) };
        let way = Way::StealGrace { until: lease.acquired_at };
        let conflict = self.books.conflict(name, lock, lease, way);
        Err(self.books.refuse(Reason::Conflict(conflict)))
    }

    /// Returns the lease that a [`LeaseKey`] denotes: the one with the token in the key, or else
    /// the one of the client in the key.
    ///
    /// If several open files of one client share a lock, a lease that belongs to no open file comes
    /// first: it is the only one that a client without a file can refer to.
    pub(super) fn meant(&self, key: &LeaseKey) -> Result<&Lease, Refusal> {
        let leases = self.locks.get(&key.name).map_or(&[][..], |lock| lock.leases());
        self.books.meant(key, leases)
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
pub(super) fn again(life: Lifetime, now: Time) -> Lifetime {
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
    pub(super) fn is_open(&self, hold: Ownership) -> bool {
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
        self.book(name, lease);
    }

    fn patch_fits(&self, key: &LeaseKey, patch: &Patch, lease: &Lease) -> Result<(), Refusal> {
        if patch.fits(&lease.details) {
            Ok(())
        } else {
            Err(self.refuse(Reason::TextTooLong(key.name.clone())))
        }
    }
}
