//! Acquires locks: grants and renews leases (rule 1), queues requests (rule 5) and shares locks
//! (rule 6).
//!
//! Decides whether a request conflicts with the leases of a lock. Commands and read-only checks
//! ([`LockView::in_the_way`]) use the same code.

use super::renew::renewed_lifetime;
use crate::state::{Engine, EngineState};
use crate::time::{Span, Time};
use crate::values::command::{Acquire, Answer, Leave, Outcome, QueuePolicy, Tenure};
use crate::values::deadlines::Due;
use crate::values::details::{Details, Patch};
use crate::values::event::{Event, EventKind, LeaveReason, LockView, Obstacle, TenureEnd};
use crate::values::lease::{
    Ends, Lease, LeaseTerms, Lifetime, Mode, Ownership, Phase, Ticket, Token,
};
use crate::values::lock::{
    LeaseRequest, Lock, LockEntry, QueuedWaiter, Tenancy, admits, has_seat, own_among, sessions_of,
};
use crate::values::name::{ClientId, LockName};
use crate::values::refusal::{Limit, Reason, Refusal, Way};
use std::sync::{Arc, LazyLock};

/// Empty lease details, shared by all leases without a note, a text or other details, so that such
/// a lease needs no memory for them.
static NOTHING_SAID: LazyLock<Arc<Details>> = LazyLock::new(Arc::default);

impl Engine {
    pub(crate) fn acquire(&mut self, ask: &Acquire, events: &mut Vec<Event>) -> Answer {
        self.state.require_open_sessions(ask.hold, ask.term)?;
        self.state.tokens_left()?;
        self.state.may_remember(ask)?;
        self.may_seat(ask)?;
        if let Some(answer) = self.put_off(ask, events) {
            return answer;
        }
        let (held, max) = (self.locks.len(), self.state.rules.locks_max);
        let lock = match self.locks.slot(&ask.name) {
            LockEntry::Taken(lock) => lock,
            LockEntry::Free(free) => {
                self.state.limit(held, max, Limit::Locks)?;
                self.state.fits(&ask.name, ask, &NOTHING_SAID)?;
                self.state.remember_name(ask);
                let mut lock = Box::default();
                let entrant = Entrant::at_once(ask);
                let tenure = self.state.grant(&mut lock, &ask.name, entrant, events);
                free.put(lock);
                return Ok(Outcome::Granted(tenure));
            }
        };
        match self.state.stance(lock, ask) {
            ConflictCheck::Own(lease) => {
                let token = lease.token;
                self.continue_tenure(ask, token, events)
            }
            ConflictCheck::Beside => {
                let (sharing, max) = (lock.leases().len(), self.state.rules.holders_max);
                self.state.limit(sharing, max, Limit::Holders)?;
                self.state.fits(&ask.name, ask, &NOTHING_SAID)?;
                self.state.remember_name(ask);
                Ok(Outcome::Granted(self.grant(ask, events)))
            }
            ConflictCheck::Conflict(lease, way) => {
                if let QueuePolicy::Join(patience) = ask.line
                    // A request with a wait timeout of zero is refused instead of queued.
                    && patience != Some(Span::ZERO)
                    // A request that would renew or take over a lease of its own client, but
                    // conflicts all the same (such as a change to exclusive while the lock has
                    // other sharers), is refused instead of queued: it would wait for that lease to
                    // end.
                    && lock.own(ask.into()).is_none()
                {
                    let until = patience.map(|span| self.state.clock + span);
                    return self.join(ask, until, events);
                }
                let conflict = self.state.conflict(&ask.name, lock, lease, way);
                Err(self.state.refuse(Reason::Conflict(conflict)))
            }
        }
    }

    /// Refuses a request for a seat of a lock that has another number of seats, for those who hold
    /// it or wait for it, and one of a name with handovers: only a single holder can hand over.
    fn may_seat(&self, ask: &Acquire) -> Result<(), Refusal> {
        let Mode::Seats(seats) = ask.mode else { return Ok(()) };
        if ask.remember || self.state.remembered.get(&ask.name).is_some() {
            return Err(self.state.refuse(Reason::SeatsAndHandovers(ask.name.clone())));
        }
        let Some(lock) = self.locks.get(&ask.name) else { return Ok(()) };
        let waiting = lock.line.values().map(|waiter| waiter.mode);
        let has = std::iter::once(lock.mode()).chain(waiting).find_map(Mode::seats);
        match has {
            Some(has) if has != seats.get() => {
                let name = ask.name.clone();
                Err(self.state.refuse(Reason::OtherSeats { name, named: seats.get(), has }))
            }
            _ => Ok(()),
        }
    }

    /// Adds the client of the request to the holders of a shared lock, or of one with seats.
    fn grant(&mut self, ask: &Acquire, events: &mut Vec<Event>) -> Tenure {
        let lock = self.locks.get_or_new(&ask.name);
        self.state.grant(lock, &ask.name, Entrant::at_once(ask), events)
    }

    /// Renews a lease, hands it to an open file, or changes its mode. A change from shared to
    /// exclusive gives the lease a new fencing token: a protected resource may already have seen a
    /// higher token from another sharer.
    fn continue_tenure(&mut self, ask: &Acquire, token: Token, events: &mut Vec<Event>) -> Answer {
        let lock = self.locks.get_mut(&ask.name).expect("a lock that has a lease is there");
        let mode_changes = lock.mode() != ask.mode;
        let upgrades = mode_changes && ask.mode == Mode::Exclusive;
        let lease = lock.lease_mut(token).expect("the stance names a lease that is there");
        self.state.fits(&ask.name, ask, &lease.details)?;
        self.state.remember_name(ask);
        let now = self.state.clock;
        self.state.unregister_lease(&ask.name, lease);
        match (lease.hold, ask.hold) {
            (_, Ownership::OpenFile(_)) => {
                lease.hold = ask.hold;
                lease.life = ask.term.begin(now);
            }
            // A lease that an open file owns keeps its own ttl or session when another program of
            // the client acquires the same lock: the lease must last as long as the file is open.
            (hold, _) if self.state.is_open(hold) => lease.life = renewed_lifetime(lease.life, now),
            _ => lease.life = reacquired_lifetime(lease.life, ask.term, now),
        }
        lease.renewed_at = now;
        lease.acquisition = lease.acquisition.saturating_add(1);
        if mode_changes {
            lease.seat = ask.mode.seats().map(|_| 0);
        }
        match ask.hold {
            // An open file that takes over a lease keeps the file attributes that the creator of
            // the lock set.
            Ownership::OpenFile(_) => {
                Patch { attrs: None, ..ask.patch.clone() }.apply(&mut lease.details);
            }
            Ownership::Client | Ownership::Exclusive(_) => ask.patch.apply(&mut lease.details),
        }
        if upgrades {
            self.state.begin_anew(&ask.name, lease, events);
        }
        self.state.register_lease(&ask.name, lease);
        let (tenure, token) = (self.state.tenure(&ask.name, lease), lease.token);
        if mode_changes {
            lock.change_mode(token, ask.mode);
        }
        if !upgrades {
            let (name, holder) = (ask.name.clone(), ask.client.clone());
            self.state.emit(events, EventKind::Renewed { name, holder, token });
        }
        if mode_changes {
            self.serve(&ask.name, events);
        }
        Ok(Outcome::Renewed(tenure))
    }

    /// Adds the request to the end of the queue. A waiting open file, or a client that waits as
    /// [`Ownership::Client`], keeps its place, and the new request replaces the old one. Another
    /// program of the client ([`Ownership::Exclusive`] without an open file) gets a place of its
    /// own: two programs that shared a place would both take the same grant as theirs.
    pub(crate) fn join(
        &mut self,
        ask: &Acquire,
        until: Option<Time>,
        events: &mut Vec<Event>,
    ) -> Answer {
        self.state.fits(&ask.name, ask, &NOTHING_SAID)?;
        let own_place = ask.hold == Ownership::Exclusive(None);
        let same = |waiter: &QueuedWaiter| waiter.client == ask.client && waiter.hold == ask.hold;
        let lock = self.locks.get(&ask.name);
        let mut line = lock.into_iter().flat_map(|lock| lock.line.iter());
        let place = line.find(|(_, waiter)| !own_place && same(waiter));
        if let Some((ticket, _)) = place {
            let ticket = *ticket;
            self.state.remember_name(ask);
            return Ok(self.ask_again(ask, ticket, until, events));
        }
        let (before, max) = (lock.map_or(0, |lock| lock.line.len()), self.state.rules.waiters_max);
        self.state.limit(before, max, Limit::Waiters)?;
        self.state.remember_name(ask);
        let lock = self.locks.get_or_new(&ask.name);
        let ticket = Ticket(self.state.next_ticket);
        self.state.next_ticket += 1;
        let waiter = QueuedWaiter::new(ask, self.state.clock, until);
        self.state.register_waiter(&ask.name, ticket, &waiter);
        lock.line.insert(ticket, waiter);
        let (name, client) = (ask.name.clone(), ask.client.clone());
        self.state.emit(events, EventKind::Joined { name, client, ticket });
        Ok(Outcome::Waiting { ticket, before })
    }

    /// Replaces the request of a waiter and keeps its place. The queue is served at once, since the
    /// new mode may be available, and the waiter must not be granted less than it requested last.
    fn ask_again(
        &mut self,
        ask: &Acquire,
        ticket: Ticket,
        until: Option<Time>,
        events: &mut Vec<Event>,
    ) -> Outcome {
        let lock = self.locks.get_mut(&ask.name).expect("a lock that is waited for is held");
        let before = lock.line.remove(ticket).expect("a repeated request is in the queue");
        self.state.unregister_waiter(&ask.name, ticket, &before);
        let waiter = QueuedWaiter::new(ask, before.since, until);
        self.state.register_waiter(&ask.name, ticket, &waiter);
        lock.line.insert(ticket, waiter);
        self.serve(&ask.name, events);
        let lock = self.locks.get(&ask.name).expect("a lock that is waited for is held");
        if let Some(before) = lock.line.keys().position(|place| *place == ticket) {
            return Outcome::Waiting { ticket, before };
        }
        let served = |lease: &&Lease| lease.holder == ask.client && lease.hold == ask.hold;
        let lease = lock.leases().iter().rev().find(served);
        let lease = lease.expect("a waiter that has left was served");
        Outcome::Granted(self.state.tenure(&ask.name, lease))
    }

    /// Sets the deadline of a waiter; `None` means that it waits without one.
    pub(crate) fn wait_until(&mut self, name: &LockName, ticket: Ticket, until: Option<Time>) {
        let Some(lock) = self.locks.get_mut(name) else { return };
        let Some(mut waiter) = lock.line.remove(ticket) else { return };
        self.state.unregister_waiter(name, ticket, &waiter);
        waiter.until = until;
        self.state.register_waiter(name, ticket, &waiter);
        lock.line.insert(ticket, waiter);
    }

    /// Removes a waiter from the queue, then serves the waiters behind it.
    pub(crate) fn leave(&mut self, ask: &Leave, events: &mut Vec<Event>) -> Answer {
        self.state.tokens_left()?;
        if !self.unqueue(&ask.name, ask.ticket, ask.why, events) {
            return Err(self.state.refuse(Reason::NotInLine(ask.name.clone())));
        }
        self.serve(&ask.name, events);
        Ok(Outcome::Left)
    }

    /// Removes a waiter from its queue without serving the next one. Returns whether it was queued.
    pub(crate) fn unqueue(
        &mut self,
        name: &LockName,
        ticket: Ticket,
        why: LeaveReason,
        events: &mut Vec<Event>,
    ) -> bool {
        let waiter = self.locks.get_mut(name).and_then(|lock| lock.line.remove(ticket));
        let Some(waiter) = waiter else { return false };
        self.state.unregister_waiter(name, ticket, &waiter);
        self.state.wait_is_over(ticket, &Outcome::Left);
        let (name, client) = (name.clone(), waiter.client);
        self.state.emit(events, EventKind::Left { name, client, ticket, why });
        true
    }

    /// Grants the lock to waiters from the head of the queue on, as long as the lock can admit the
    /// next one; to none during the hold-off. Removes a lock that has neither leases nor waiters.
    pub(crate) fn serve(&mut self, name: &LockName, events: &mut Vec<Event>) {
        let Some(lock) = self.locks.get_mut(name) else { return };
        while let Some((ticket, mode)) = next_in_line(lock) {
            if self.state.hold_off.is_some() || !lock.admits(mode) || self.state.is_full(lock) {
                break;
            }
            let waiter = lock.line.remove(ticket).expect("the next waiter is in the queue");
            self.state.unregister_waiter(name, ticket, &waiter);
            if self.state.is_alive(&waiter) {
                let entrant = Entrant::from_line(ticket, &waiter);
                let tenure = self.state.grant(lock, name, entrant, events);
                self.state.wait_is_over(ticket, &Outcome::Granted(tenure));
            } else {
                self.state.wait_is_over(ticket, &Outcome::Left);
                let (name, client) = (name.clone(), waiter.client);
                let why = if waiter.until.is_some_and(|until| until <= self.state.clock) {
                    LeaveReason::TimedOut
                } else {
                    LeaveReason::SessionOver
                };
                self.state.emit(events, EventKind::Left { name, client, ticket, why });
            }
        }
        if matches!(lock.tenancy, Tenancy::Nobody) && self.state.hold_off.is_none() {
            assert!(lock.line.is_empty(), "a free lock serves its line");
        }
        if lock.is_idle() {
            self.locks.remove(name);
        }
    }
}

/// A request that is about to be granted: a waiter from the queue, or a request that did not have
/// to wait.
#[derive(Clone, Copy)]
struct Entrant<'a> {
    client: &'a ClientId,
    hold: Ownership,
    mode: Mode,
    term: LeaseTerms,
    patch: &'a Patch,
    waited: Option<(Ticket, Time)>,
}

impl<'a> Entrant<'a> {
    const fn at_once(ask: &'a Acquire) -> Self {
        let Acquire { client, hold, mode, term, patch, .. } = ask;
        Self { client, hold: *hold, mode: *mode, term: *term, patch, waited: None }
    }

    const fn from_line(ticket: Ticket, waiter: &'a QueuedWaiter) -> Self {
        let QueuedWaiter { client, hold, mode, term, patch, since, until: _ } = waiter;
        let place = Some((ticket, *since));
        Self { client, hold: *hold, mode: *mode, term: *term, patch, waited: place }
    }
}

/// Returns the ticket (the queue number) of the next waiter to serve, and the mode that it
/// requests.
fn next_in_line(lock: &Lock) -> Option<(Ticket, Mode)> {
    lock.line.first_key_value().map(|(ticket, waiter)| (*ticket, waiter.mode))
}

/// Returns the lifetime of a lease after its client acquired it again. A lease bound to a session
/// stays bound, unless the request names another session.
fn reacquired_lifetime(life: Lifetime, term: LeaseTerms, now: Time) -> Lifetime {
    match (life, term) {
        (Lifetime::Session(id), LeaseTerms::Own(..)) => Lifetime::Session(id),
        (_, term) => term.begin(now),
    }
}

impl EngineState {
    /// Refuses a request that depends on a session which is not open.
    pub(super) fn require_open_sessions(
        &self,
        hold: Ownership,
        term: LeaseTerms,
    ) -> Result<(), Refusal> {
        match sessions_of(hold, term).find(|id| !self.sessions.contains_key(id)) {
            Some(id) => Err(self.refuse(Reason::NoSession(id))),
            None => Ok(()),
        }
    }

    fn fits(&self, name: &LockName, ask: &Acquire, before: &Details) -> Result<(), Refusal> {
        if ask.patch.fits(before) {
            Ok(())
        } else {
            Err(self.refuse(Reason::TextTooLong(name.clone())))
        }
    }

    pub(super) fn stance<'a>(&self, lock: &'a Lock, ask: &Acquire) -> ConflictCheck<'a> {
        let leases = lock.leases().iter().map(|lease| (lease, self.ends(lease.life)));
        let (mode, has_line) = (lock.mode(), !lock.line.is_empty());
        Facts { leases, mode, has_line, now: self.clock }.stance(ask.into())
    }

    /// Whether a lock that may have several holders has the maximum number of this server.
    pub(crate) fn is_full(&self, lock: &Lock) -> bool {
        let full = lock.leases().len() >= self.rules.holders_max;
        lock.mode() != Mode::Exclusive && full
    }

    /// Returns the lease whose grace ends last, and which therefore blocks other clients longest.
    pub(crate) fn foremost<'a>(&self, lock: &'a Lock) -> &'a Lease {
        let ends = |lease: &&Lease| self.ends(lease.life).grace_until;
        let foremost = lock.leases().iter().max_by_key(ends);
        foremost.expect("a lock that is stored is held")
    }

    /// Grants a new lease to a request that conflicts with no other lease.
    fn grant(
        &mut self,
        lock: &mut Lock,
        name: &LockName,
        who: Entrant<'_>,
        events: &mut Vec<Event>,
    ) -> Tenure {
        let now = self.clock;
        let mut details = Arc::clone(&NOTHING_SAID);
        who.patch.apply(&mut details);
        let lease = Lease {
            holder: who.client.clone(),
            token: self.mint.token(),
            hold: who.hold,
            life: who.term.begin(now),
            acquired_at: now,
            renewed_at: now,
            acquisition: 0,
            seat: lock.free_seat(who.mode),
            details,
        };
        self.register_lease(name, &lease);
        let waited = who.waited.map(|(ticket, since)| (ticket, now.since(since)));
        let (holder, token, hold) = (who.client.clone(), lease.token, who.hold);
        let granted =
            EventKind::Granted { name: name.clone(), holder, token, mode: who.mode, hold, waited };
        self.emit(events, granted);
        let tenure = self.tenure(name, &lease);
        lock.admit(who.mode, lease);
        tenure
    }

    /// Changes a shared lease to exclusive, under a new fencing token: the possession under the old
    /// token ends, and one under the new token begins.
    fn begin_anew(&mut self, name: &LockName, lease: &mut Lease, events: &mut Vec<Event>) {
        let now = self.clock;
        let (name, holder) = (name.clone(), lease.holder.clone());
        let ended = EventKind::Ended {
            name: name.clone(),
            holder: holder.clone(),
            token: lease.token,
            held: now.since(lease.acquired_at),
            end: TenureEnd::Replaced,
        };
        self.emit(events, ended);
        (lease.token, lease.acquired_at) = (self.mint.token(), now);
        let (token, mode, hold) = (lease.token, Mode::Exclusive, lease.hold);
        self.emit(events, EventKind::Granted { name, holder, token, mode, hold, waited: None });
    }

    /// Registers a waiter with its deadline and its sessions, so that it leaves the queue when the
    /// deadline passes or a session ends.
    pub(crate) fn register_waiter(
        &mut self,
        name: &LockName,
        ticket: Ticket,
        waiter: &QueuedWaiter,
    ) {
        self.waiting += 1;
        if let Some(until) = waiter.until {
            self.agenda.add(until, Due::Patience(Box::new((ticket, name.clone()))));
        }
        for id in waiter.sessions() {
            let session = self.sessions.get_mut(&id).expect("a waiter's session is open");
            session.waiters.insert((name.clone(), ticket));
        }
    }

    fn unregister_waiter(&mut self, name: &LockName, ticket: Ticket, waiter: &QueuedWaiter) {
        self.waiting -= 1;
        if let Some(until) = waiter.until {
            self.agenda.discard(until, Due::Patience(Box::new((ticket, name.clone()))));
        }
        for id in waiter.sessions() {
            if let Some(session) = self.sessions.get_mut(&id) {
                session.waiters.remove(&(name.clone(), ticket));
            }
        }
    }
}

impl EngineState {
    /// Returns the tenure of a lease that was granted or acquired again, with what is remembered of
    /// the name of its lock.
    pub(crate) fn tenure(&self, name: &LockName, lease: &Lease) -> Tenure {
        Tenure { previous: self.previous(name), ..Tenure::of(lease) }
    }
}

impl Tenure {
    pub(crate) const fn of(lease: &Lease) -> Self {
        let Lease { token, life, acquired_at, acquisition, seat, .. } = *lease;
        Self { token, life, acquired_at, acquisition, seat, previous: None }
    }
}

/// The relation between a request and the leases of a lock that is held.
pub(crate) enum ConflictCheck<'a> {
    /// The client of the request holds the lock by this lease, which the request renews.
    Own(&'a Lease),
    /// The request may share the lock with its holders.
    Beside,
    /// The request conflicts with this lease. The [`Way`] says how.
    Conflict(&'a Lease, Way),
}

impl ConflictCheck<'_> {
    /// Whether the request, which wants the mode `want` of a lock with the mode `have`, would begin
    /// a tenure: one of a new holder, or one with a new token.
    pub(super) fn begins_tenure(&self, have: Mode, want: Mode) -> bool {
        match self {
            Self::Own(_) => have != want && want == Mode::Exclusive,
            Self::Beside => true,
            Self::Conflict(..) => false,
        }
    }
}

/// The parts of a held lock that decide whether a request conflicts with it. `L` yields the leases,
/// oldest first, and when each ends.
pub(crate) struct Facts<L> {
    pub(crate) leases: L,
    pub(crate) mode: Mode,
    /// Whether the queue of the lock has waiters.
    pub(super) has_line: bool,
    pub(crate) now: Time,
}

impl<'a, L: Iterator<Item = (&'a Lease, Ends)> + Clone> Facts<L> {
    /// Decides whether the request `wish` renews a lease of this lock, may share the lock, or
    /// conflicts with a lease.
    pub(super) fn stance(&self, wish: LeaseRequest<'_>) -> ConflictCheck<'a> {
        let (foremost, ends) = self.foremost();
        if self.mode == Mode::Exclusive && foremost.acquired_at > self.now {
            return ConflictCheck::Conflict(
                foremost,
                Way::StealGrace { until: foremost.acquired_at },
            );
        }
        let leases = self.leases.clone().map(|(lease, _)| lease);
        // A reset that removes some holders of a shared lock leaves a placeholder lease, which
        // begins in the future and belongs to no client.
        let now = self.now;
        let usable = leases.clone().filter(move |lease| lease.acquired_at <= now);
        if let Some(own) = own_among(&usable, wish) {
            // The mode of an open file's lease is changed through that file only: a downgrade by
            // another program would admit sharers beside a program that was promised exclusive
            // access.
            let of_file =
                matches!((own.hold, wish.hold), (Ownership::OpenFile(_), Ownership::Client));
            if self.mode != wish.mode && of_file {
                return ConflictCheck::Conflict(own, Way::Own);
            }
            let other = leases.clone().find(|lease| lease.token != own.token);
            return match other {
                Some(other) if self.mode != wish.mode => ConflictCheck::Conflict(other, Way::Held),
                Some(_) | None => ConflictCheck::Own(own),
            };
        }
        if admits(self.mode, wish.mode) {
            if !has_seat(self.mode, leases.count()) {
                let (next, ends) = self.first_to_end();
                let is_held = ends.phase(self.now) == Phase::Held;
                return ConflictCheck::Conflict(next, if is_held { Way::Held } else { Way::Grace });
            }
            if !self.has_line {
                return ConflictCheck::Beside;
            }
            return ConflictCheck::Conflict(foremost, Way::Behind);
        }
        let way = match ends.phase(self.now) {
            _ if foremost.holder == *wish.client => Way::Own,
            Phase::Held => Way::Held,
            Phase::Grace | Phase::Free => Way::Grace,
        };
        ConflictCheck::Conflict(foremost, way)
    }

    /// Returns the lease whose grace ends first, and whose seat is therefore the next to be free.
    fn first_to_end(&self) -> (&'a Lease, Ends) {
        let first = self.leases.clone().min_by_key(|(_, ends)| ends.grace_until);
        first.expect("a lock that is stored is held")
    }

    /// Returns the lease whose grace ends last, and which therefore blocks other clients longest.
    fn foremost(&self) -> (&'a Lease, Ends) {
        let foremost = self.leases.clone().max_by_key(|(_, ends)| ends.grace_until);
        foremost.expect("a lock that is stored is held")
    }
}

impl LockView {
    /// Returns what is in the way of an acquire that does not wait. The result is what the engine
    /// would answer at this moment, but needs no command.
    pub fn in_the_way(
        &self,
        client: &ClientId,
        hold: Ownership,
        mode: Mode,
        takes_over: Option<Token>,
    ) -> Option<Obstacle<'_>> {
        if self.holders.is_empty() {
            return self.hold_off.map(Obstacle::HoldOff);
        }
        let leases = self.holders.iter().map(|holder| (&holder.lease, holder.ends));
        let has_line = !self.waiters.is_empty();
        let facts = Facts { leases, mode: self.mode, has_line, now: self.at };
        let wish = LeaseRequest { client, hold, mode, takes_over };
        match facts.stance(wish) {
            ConflictCheck::Conflict(lease, way) => {
                let mut holders = self.holders.iter();
                let holder = holders.find(|holder| holder.lease.token == lease.token);
                holder.map(|holder| Obstacle::Lease(holder, way))
            }
            check if check.begins_tenure(self.mode, mode) => self.hold_off.map(Obstacle::HoldOff),
            ConflictCheck::Own(_) | ConflictCheck::Beside => None,
        }
    }
}
