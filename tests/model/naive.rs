//! A naive second implementation of the engine's rules (`contrib/doc/rules.md`), for the model
//! check. It searches flat lists from the start each time: it is slow, and simple enough to verify
//! by reading.

use super::super::{ClientId, LockName, Rules};
use crate::time::{Span, Time};
use crate::values::command::Firm;
use crate::values::command::{
    Acquire, Annotate, Answer, Command, EndHoldOff, EndSession, Forget, IdempotencyKey, IfExists,
    LeaseKey, Leave, Move, Op, OpenSession, Outcome, QueuePolicy, Release, Renew, Replay,
    RequestId, RequestKey, RequestNumber, Reset, ResetPart, ResetScope, Steal, Tenure,
};
use crate::values::details::Details;
use crate::values::details::LimitedField;
use crate::values::details::{HANDOVER_BYTES_MAX, NOTE_BYTES_MAX, TEXT_BYTES_MAX};
use crate::values::details::{Patch, TextPatch};
use crate::values::event::{Event, EventKind, LeaveReason, SessionEnd, TenureEnd};
use crate::values::event::{Holder, LockView, WaiterView};
use crate::values::handover::{Handover, HandoverEnd, LastHandover, Previous};
use crate::values::hold_off::HoldOff;
use crate::values::idempotency::UNANSWERED_MAX;
use crate::values::lease::{
    Ends, Lease, LeaseTerms, Lifetime, Mode, OpenId, Ownership, Phase, SessionId, Ticket, Token,
};
use crate::values::lease::{Grace, TTL_DEFAULT, Ttl};
use crate::values::refusal::{Conflict, Limit, Reason, Refusal, Way};
use std::collections::BTreeSet;
use std::sync::Arc;

/// A lease, with the name of its lock and its mode.
#[derive(Clone)]
struct Held {
    name: LockName,
    mode: Mode,
    lease: Lease,
    /// Whether the event that reports the end of the lease's ttl has been emitted.
    expired: bool,
}

/// An acquire request that waits in the queue of a lock.
#[derive(Clone)]
struct Waiting {
    name: LockName,
    ticket: Ticket,
    ask: Acquire,
    since: Time,
    until: Option<Time>,
}

impl Waiting {
    fn leans_on(&self, id: SessionId) -> bool {
        leans_on(self.ask.hold, self.ask.term).contains(&Some(id))
    }
}

/// An open session of a client, which keeps the leases that depend on it alive.
#[derive(Clone)]
struct Bond {
    id: SessionId,
    client: ClientId,
    ttl: Option<Ttl>,
    grace: Grace,
    renewed_at: Time,
    /// The numbers of the requests of this session. A command with a used number is a late copy.
    used: BTreeSet<u64>,
    /// A command with a lower number is a late copy, too: the client has the answer.
    answered_below: u64,
}

impl Bond {
    fn ends(&self) -> Ends {
        let expires_at = self.ttl.map_or(Time::NEVER, |ttl| self.renewed_at + ttl.span());
        let grace_until = expires_at + self.grace.span();
        Ends { expires_at, grace_until, ttl: self.ttl.unwrap_or(TTL_DEFAULT), grace: self.grace }
    }
}

/// The next event that is caused by time alone. At equal times sessions expire first, then the
/// timeouts of waiters, then leases, then stored answers that are dropped, then the hold-off;
/// within each kind the lowest id comes first.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Next {
    Session(SessionId),
    Patience(Ticket),
    Lease(Token),
    Forget(RequestId),
    HoldOff,
}

/// The state of the naive implementation: the leases on all locks, all queues, all sessions, and
/// the stored answers to requests with an idempotency key.
pub(super) struct Naive {
    rules: Rules,
    now: Time,
    next_number: u64,
    next_ticket: u64,
    /// The leases on all locks, in the order in which their holders got the locks.
    held: Vec<Held>,
    /// The waiters of all locks, in the order of their arrival.
    line: Vec<Waiting>,
    sessions: Vec<Bond>,
    replies: Vec<(IdempotencyKey, Time, Replay)>,
    /// The names that are remembered beyond a tenure.
    remembered: Vec<(LockName, Previous)>,
    /// For each remembered name whose lock was taken from its only holder: that holder and its
    /// token, until it acknowledges that by a release.
    stolen: Vec<(LockName, ClientId, Token)>,
    /// Until when no lock is granted, and why.
    hold_off: Option<HoldOff>,
    events: Vec<Event>,
}

impl Naive {
    pub(super) fn new(rules: Rules) -> Self {
        let (held, line, sessions, replies) = (vec![], vec![], vec![], vec![]);
        let (now, events) = (Time::ZERO, vec![]);
        let (next_number, next_ticket, remembered, stolen) = (1, 1, vec![], vec![]);
        Self {
            rules,
            now,
            next_number,
            next_ticket,
            held,
            line,
            sessions,
            replies,
            remembered,
            stolen,
            hold_off: None,
            events,
        }
    }

    /// Grants no lock until the end of `hold_off`.
    pub(super) fn begin_hold_off(&mut self, hold_off: HoldOff) {
        self.hold_off = Some(hold_off).filter(|hold_off| hold_off.until > self.now);
    }

    pub(super) fn apply(&mut self, at: Time, command: &Command) -> (Answer, Vec<Event>) {
        self.pass(at);
        let answer = self.answer(command);
        (answer, std::mem::take(&mut self.events))
    }

    /// Rule 10: a request with a known idempotency key gets its first answer and has no second
    /// effect.
    fn answer(&mut self, command: &Command) -> Answer {
        if let Op::Acquire(Acquire { patch, .. })
        | Op::Renew(Renew { patch, .. })
        | Op::Annotate(Annotate { patch, .. })
        | Op::Steal(Steal { patch, .. }) = &command.op
            && patch.note.as_ref().is_some_and(|note| note.len() > NOTE_BYTES_MAX)
        {
            return self.no(Reason::Oversized(LimitedField::Note));
        }
        if let Op::Annotate(Annotate { handover: Some(handover), .. })
        | Op::Release(Release { handover: Some(handover), .. }) = &command.op
            && handover.text.len() > HANDOVER_BYTES_MAX
        {
            return self.no(Reason::Oversized(LimitedField::Handover));
        }
        let Some(request) = &command.request else {
            return self.carry_out(command);
        };
        if let Some((known, _, replay)) = self.replies.iter().find(|(r, ..)| r.id == request.id) {
            if known.digest != request.digest {
                return self.no(Reason::KeyReused(request.id.key.to_string().into()));
            }
            let replay = replay.clone();
            if let (Op::Acquire(ask), Outcome::Waiting { ticket, .. }) =
                (&command.op, &replay.first)
                && let QueuePolicy::Join(patience) = ask.line
                && patience != Some(Span::ZERO)
                && self.waits_by_id(&request.id)
            {
                let until = patience.map(|patience| self.now + patience);
                let waiting = self.line.iter_mut().find(|waiting| waiting.ticket == *ticket);
                waiting.expect("an id that waits has its place").until = until;
            }
            if let (Op::Acquire(ask), Outcome::Left) = (&command.op, &replay.first) {
                return self.no(Reason::NotInLine(ask.name.clone()));
            }
            return Ok(Outcome::Replayed(Box::new(replay)));
        }
        let max = self.rules.requests_max;
        if !self.has_room_for_reply(command, request) {
            return self.no(Reason::Limit(Limit::QueuedRequests(max)));
        }
        self.use_number(command)?;
        let outcome = self.carry_out(command)?;
        if matches!(outcome, Outcome::ResetPart { .. }) {
            return Ok(outcome);
        }
        if let RequestKey::Number(own) = request.id.key {
            let is_answered = |key: &RequestKey| match key {
                RequestKey::Text(_) => false,
                RequestKey::Number(RequestNumber { session, number }) => {
                    *session == own.session && *number < command.answered_below
                }
            };
            self.replies.retain(|(known, ..)| {
                known.id.caller != request.id.caller || !is_answered(&known.id.key)
            });
        }
        self.make_room_for_reply(&request.id.caller);
        let waits = matches!(outcome, Outcome::Waiting { .. });
        let until = if waits { Time::NEVER } else { self.now + self.rules.requests_kept };
        let replay = self.replay(&outcome);
        self.replies.push((request.clone(), until, replay));
        Ok(outcome)
    }

    /// Whether the answer to a request can be stored: the requests of its caller that wait take up
    /// less than half of what the others leave, and some answer is final and can be forgotten.
    fn has_room_for_reply(&self, command: &Command, request: &IdempotencyKey) -> bool {
        let max = self.rules.requests_max;
        let waiting = self.replies.iter().filter(|(_, until, _)| *until == Time::NEVER);
        let (own, others): (Vec<_>, Vec<_>) =
            waiting.partition(|(known, ..)| known.id.caller == request.id.caller);
        if let Op::Acquire(Acquire { line: QueuePolicy::Join(patience), .. }) = &command.op
            && *patience != Some(Span::ZERO)
            && own.len() >= max.saturating_sub(others.len()) / 2
        {
            return false;
        }
        self.replies.len() < max || own.len() + others.len() < self.replies.len()
    }

    /// Forgets final answers while there is no room for another one: the oldest answer of the
    /// caller with the most of them, and rather of this caller than of another one with as many.
    fn make_room_for_reply(&mut self, caller: &str) {
        while self.replies.len() >= self.rules.requests_max {
            let last = self.replies.iter().filter(|(_, until, _)| *until < Time::NEVER);
            let last: Vec<_> = last.map(|(known, until, _)| (*until, known.id.clone())).collect();
            let size = |of: &str| last.iter().filter(|(_, id)| &*id.caller == of).count();
            let rank = |of: &str| (size(of), of == caller, of.to_owned());
            let largest = last.iter().map(|(_, id)| rank(&id.caller)).max();
            let of_largest = last.iter().filter(|(_, id)| Some(rank(&id.caller)) == largest);
            let Some((_, oldest)) = of_largest.min().cloned() else { return };
            self.replies.retain(|(known, ..)| known.id != oldest);
        }
    }

    /// Refuses a request with a number that its session has used, or has the answer to.
    fn use_number(&mut self, command: &Command) -> Result<(), Refusal> {
        let request = command.request.as_ref().expect("it has an id");
        let RequestKey::Number(RequestNumber { session: id, number }) = request.id.key else {
            return Ok(());
        };
        self.is_session(id)?;
        let refusal = |at, reason| Err(Refusal { at, reason: Box::new(reason) });
        if number >= command.answered_below.saturating_add(UNANSWERED_MAX) {
            let limit = Limit::Unanswered(UNANSWERED_MAX as usize);
            return refusal(self.now, Reason::Limit(limit));
        }
        let now = self.now;
        let session = self.sessions.iter_mut().find(|session| session.id == id);
        let session = session.expect("it is open");
        session.answered_below = session.answered_below.max(command.answered_below);
        if number < session.answered_below || session.used.contains(&number) {
            return refusal(now, Reason::LateCopy(id));
        }
        let is_part =
            matches!(&command.op, Op::Reset(reset) if matches!(reset.part, ResetPart::Names(..)));
        if !is_part {
            session.used.insert(number);
        }
        Ok(())
    }

    fn replay(&self, outcome: &Outcome) -> Replay {
        let ends = match outcome {
            Outcome::SessionOpened(id) => self.session(*id).map(Bond::ends),
            Outcome::Granted(tenure)
            | Outcome::Renewed(tenure)
            | Outcome::Moved(tenure)
            | Outcome::Stolen(tenure) => Some(self.ends(tenure.life)),
            _ => None,
        };
        Replay { at: self.now, first: outcome.clone(), ends }
    }

    fn waits_by_id(&self, id: &RequestId) -> bool {
        self.replies.iter().any(|(known, until, _)| known.id == *id && *until == Time::NEVER)
    }

    /// A request that joins a queue is answered "waiting" and gets a ticket, which identifies its
    /// queue place. When the wait with `ticket` ends, the outcome `end` of the wait replaces
    /// "waiting" as the stored answer that a repeat of the request gets.
    fn wait_is_over(&mut self, ticket: Ticket, end: &Outcome) {
        let (replay, kept) = (self.replay(end), self.now + self.rules.requests_kept);
        for (_, until, known) in &mut self.replies {
            if *until == Time::NEVER
                && matches!(known.first, Outcome::Waiting { ticket: at, .. } if at == ticket)
            {
                (*known, *until) = (replay.clone(), kept);
            }
        }
    }

    fn carry_out(&mut self, command: &Command) -> Answer {
        match &command.op {
            Op::Settle => Ok(Outcome::Settled),
            Op::Acquire(ask) => self.acquire(ask),
            Op::Renew(ask) => self.renew(ask),
            Op::Annotate(ask) => self.annotate(ask),
            Op::Release(ask) => self.release(ask),
            Op::Leave(ask) => self.leave(ask),
            Op::Move(ask) => self.move_over(ask),
            Op::Steal(ask) => self.steal(ask),
            Op::OpenSession(ask) => self.open_session(ask),
            Op::KeepAlive(id) => self.keep_alive(*id),
            Op::EndSession(ask) => self.end_session(ask),
            Op::Reset(ask) => Ok(self.reset(ask)),
            Op::Forget(ask) => self.forget(ask),
            Op::EndHoldOff(ask) => {
                self.grant_again(Some(ask.clone()));
                Ok(Outcome::HoldOffEnded)
            }
        }
    }

    // The following methods query the state of the locks, queues and sessions, or emit an event.

    fn no<T>(&self, reason: Reason) -> Result<T, Refusal> {
        Err(Refusal { at: self.now, reason: Box::new(reason) })
    }

    fn emit(&mut self, what: EventKind) {
        self.events.push(Event { at: self.now, what });
    }

    fn on<'a>(&'a self, name: &'a LockName) -> impl Iterator<Item = &'a Held> {
        self.held.iter().filter(move |held| held.name == *name)
    }

    fn waiting_for<'a>(&'a self, name: &'a LockName) -> impl Iterator<Item = &'a Waiting> {
        self.line.iter().filter(move |waiting| waiting.name == *name)
    }

    fn mode(&self, name: &LockName) -> Mode {
        self.on(name).next().map_or(Mode::Exclusive, |held| held.mode)
    }

    fn session(&self, id: SessionId) -> Option<&Bond> {
        self.sessions.iter().find(|session| session.id == id)
    }

    fn ends(&self, life: Lifetime) -> Ends {
        match life {
            Lifetime::Own { ttl, grace, expires_at } => {
                Ends { expires_at, grace_until: expires_at + grace.span(), ttl, grace }
            }
            Lifetime::Session(id) => self.session(id).expect("it hangs on an open session").ends(),
        }
    }

    fn locks(&self) -> usize {
        self.names().len()
    }

    /// Returns the lease that blocks the lock for the longest time; of several such leases, the
    /// newest.
    fn foremost(&self, name: &LockName) -> Lease {
        let longest = self.on(name).max_by_key(|held| self.ends(held.lease.life).grace_until);
        longest.expect("somebody holds it").lease.clone()
    }

    fn conflict(&self, name: &LockName, lease: &Lease, way: Way) -> Conflict {
        Conflict {
            name: name.clone(),
            holder: lease.holder.clone(),
            token: lease.token,
            mode: self.mode(name),
            ends: self.ends(lease.life),
            way,
            waiting: self.waiting_for(name).count(),
            previous: self.previous(name),
        }
    }

    pub(super) fn view(&self, name: &LockName) -> LockView {
        let below = format!("{name}/");
        let has_below = self.names().iter().any(|known| known.as_str().starts_with(&below));
        let shown = |held: &Held| {
            let mut lease = held.lease.clone();
            if let Lifetime::Session(id) = lease.life {
                let renewed_at = self.session(id).expect("it hangs there").renewed_at;
                lease.renewed_at = lease.renewed_at.max(renewed_at);
            }
            Holder { ends: self.ends(lease.life), lease }
        };
        let waiter = |waiting: &Waiting| WaiterView {
            client: waiting.ask.client.clone(),
            ticket: waiting.ticket,
            mode: waiting.ask.mode,
            since: waiting.since,
        };
        LockView {
            name: name.clone(),
            at: self.now,
            mode: self.mode(name),
            holders: self.on(name).map(shown).collect(),
            waiters: self.waiting_for(name).map(waiter).collect(),
            has_below,
            previous: self.previous(name),
            hold_off: self.hold_off,
        }
    }

    pub(super) fn names(&self) -> Vec<LockName> {
        let held = self.held.iter().map(|held| held.name.clone());
        let mut names: Vec<_> = held.chain(self.line.iter().map(|w| w.name.clone())).collect();
        names.sort();
        names.dedup();
        names
    }

    // The following methods apply the effects of passing time: rules 4, 5 and 8 of
    // `contrib/doc/rules.md`.

    fn pass(&mut self, at: Time) {
        let until = self.now.max(at);
        while let Some((due, next)) = self.next().filter(|(due, _)| *due <= until) {
            // An expiry that was due between two commands takes place at the time of the later
            // command, because no command could have observed it earlier.
            self.now = until;
            match next {
                Next::Session(id) => self.expire(id),
                Next::Patience(ticket) => {
                    let name = self.unqueue(ticket, LeaveReason::TimedOut);
                    self.serve(&name);
                }
                Next::Lease(token) => self.lease_due(token, due),
                Next::Forget(request) => self.replies.retain(|(known, ..)| known.id != request),
                Next::HoldOff => self.grant_again(None),
            }
        }
        self.now = until;
    }

    pub(super) fn next_deadline(&self) -> Option<Time> {
        self.next().map(|(due, _)| due)
    }

    fn next(&self) -> Option<(Time, Next)> {
        let with_ttl = self.sessions.iter().filter(|session| session.ttl.is_some());
        let sessions = with_ttl.map(|s| (s.ends().expires_at, Next::Session(s.id)));
        let patience = self.line.iter().filter_map(|w| Some((w.until?, Next::Patience(w.ticket))));
        let own = self.held.iter().filter(|held| matches!(held.lease.life, Lifetime::Own { .. }));
        let leases = own.map(|held| {
            let ends = self.ends(held.lease.life);
            let due = if held.expired { ends.grace_until } else { ends.expires_at };
            (due, Next::Lease(held.lease.token))
        });
        let replies = self.replies.iter().filter(|(_, until, _)| *until < Time::NEVER);
        let replies = replies.map(|(r, until, _)| (*until, Next::Forget(r.id.clone())));
        let hold_off = self.hold_off.map(|hold_off| (hold_off.until, Next::HoldOff));
        sessions.chain(patience).chain(leases).chain(replies).chain(hold_off).min()
    }

    fn lease_due(&mut self, token: Token, due: Time) {
        let held = self.held.iter_mut().find(|held| held.lease.token == token);
        let held = held.expect("what is due is there");
        let (name, holder) = (held.name.clone(), held.lease.holder.clone());
        let begins = held.lease.acquired_at;
        held.expired = true;
        let life = held.lease.life;
        let grace_until = self.ends(life).grace_until;
        if due < grace_until {
            return self.emit(EventKind::Expired { name, holder, token });
        }
        self.end(
            token,
            if grace_until == begins { TenureEnd::Released } else { TenureEnd::Lapsed },
        );
        self.serve(&name);
    }

    /// Expires a session: its waiters leave their queues, and its leases enter the grace period, in
    /// which only their holder may take the locks back.
    fn expire(&mut self, id: SessionId) {
        let place = self.sessions.iter().position(|session| session.id == id);
        let session = self.sessions.remove(place.expect("it was open"));
        let ends = session.ends();
        let end = SessionEnd::Expired;
        self.emit(EventKind::SessionOver { session: id, client: session.client, end });
        let waited_for = self.unqueue_all(id);
        for token in self.hanging_on(id) {
            let now = self.now;
            let held = self.held.iter_mut().find(|held| held.lease.token == token);
            let Held { name, lease, expired, .. } = held.expect("it hangs there");
            let expires_at = ends.expires_at.min(now).max(lease.acquired_at);
            lease.life = Lifetime::Own { ttl: ends.ttl, grace: ends.grace, expires_at };
            lease.renewed_at = lease.renewed_at.max(session.renewed_at);
            *expired = expires_at <= now;
            let (name, holder) = (name.clone(), lease.holder.clone());
            if *expired {
                self.emit(EventKind::Expired { name, holder, token });
            }
        }
        for name in &waited_for {
            self.serve(name);
        }
    }

    /// Returns the tokens of the leases that the session `id` keeps alive, ordered by lock name.
    fn hanging_on(&self, id: SessionId) -> Vec<Token> {
        let hanging = self.held.iter().filter(|held| held.lease.life == Lifetime::Session(id));
        let mut hanging: Vec<_> =
            hanging.map(|held| (held.name.clone(), held.lease.token)).collect();
        hanging.sort();
        hanging.into_iter().map(|(_, token)| token).collect()
    }

    /// Removes the waiters that depend on the session `id` from their queues, ordered by lock name.
    /// Returns the names of the locks for which they waited.
    fn unqueue_all(&mut self, id: SessionId) -> Vec<LockName> {
        let of_session = self.line.iter().filter(|waiting| waiting.leans_on(id));
        let mut all: Vec<_> = of_session.map(|w| (w.name.clone(), w.ticket)).collect();
        all.sort();
        for (_, ticket) in &all {
            self.unqueue(*ticket, LeaveReason::SessionOver);
        }
        all.into_iter().map(|(name, _)| name).collect()
    }

    fn unqueue(&mut self, ticket: Ticket, why: LeaveReason) -> LockName {
        let place = self.line.iter().position(|waiting| waiting.ticket == ticket);
        let Waiting { name, ask, .. } = self.line.remove(place.expect("it is in line"));
        self.wait_is_over(ticket, &Outcome::Left);
        self.emit(EventKind::Left { name: name.clone(), client: ask.client, ticket, why });
        name
    }

    /// Rule 5: grants the lock to the first waiters in its queue, as long as they can share it with
    /// the present holders. A waiter whose timeout has passed or whose session has ended leaves the
    /// queue without the lock.
    fn serve(&mut self, name: &LockName) {
        while self.hold_off.is_none() {
            let Some(first) = self.waiting_for(name).next().cloned() else { return };
            let (holders, mode) = (self.on(name).count(), self.mode(name));
            let both_share = mode != Mode::Exclusive && first.ask.mode == mode;
            let has_room = holders < self.rules.holders_max && !self.seats_are_taken(name);
            if holders > 0 && !(both_share && has_room) {
                return;
            }
            let impatient = first.until.is_some_and(|until| until <= self.now);
            let open = |id: &SessionId| {
                self.session(*id).is_some_and(|session| session.ends().expires_at > self.now)
            };
            let sessions = leans_on(first.ask.hold, first.ask.term);
            if impatient {
                self.unqueue(first.ticket, LeaveReason::TimedOut);
            } else if !sessions.iter().flatten().all(open) {
                self.unqueue(first.ticket, LeaveReason::SessionOver);
            } else {
                self.line.retain(|waiting| waiting.ticket != first.ticket);
                let waited = Some((first.ticket, self.now.since(first.since)));
                let tenure = self.grant(&first.ask, waited);
                self.wait_is_over(first.ticket, &Outcome::Granted(tenure));
            }
        }
    }

    /// Ends the hold-off, if there is one, and serves the queues of all locks, ordered by name.
    fn grant_again(&mut self, by: Option<EndHoldOff>) {
        if self.hold_off.take().is_none() {
            return;
        }
        self.emit(EventKind::HoldOffEnded { by });
        for name in self.names() {
            self.serve(&name);
        }
    }

    /// Refuses what would begin a tenure of the lock during the hold-off.
    fn may_grant(&self, name: &LockName) -> Result<(), Refusal> {
        let Some(hold_off) = self.hold_off else { return Ok(()) };
        let waiting = self.waiting_for(name).count();
        self.no(Reason::HoldOff { name: name.clone(), hold_off, waiting })
    }

    /// Queues or refuses a request that would begin a tenure. During the hold-off only.
    fn put_off(&mut self, ask: &Acquire) -> Answer {
        let patience = match ask.line {
            QueuePolicy::Join(patience) if patience != Some(Span::ZERO) => patience,
            _ => return self.may_grant(&ask.name).map(|()| Outcome::Settled),
        };
        if self.on(&ask.name).next().is_none() && self.waiting_for(&ask.name).next().is_none() {
            self.has_room_for_a_lock()?;
        }
        self.join(ask, patience.map(|patience| self.now + patience))
    }

    fn end(&mut self, token: Token, end: TenureEnd) {
        let place = self.held.iter().position(|held| held.lease.token == token);
        let Held { name, lease, .. } = self.held.remove(place.expect("it is held"));
        let held = self.now.since(lease.acquired_at);
        let how = match &end {
            TenureEnd::Released | TenureEnd::Moved { .. } | TenureEnd::Replaced => {
                HandoverEnd::Released
            }
            TenureEnd::Lapsed => HandoverEnd::Expired,
            TenureEnd::Stolen { .. } => HandoverEnd::Stolen,
        };
        self.note_end(&name, token, how);
        self.emit(EventKind::Ended { name, holder: lease.holder, token, held, end });
    }

    /// Releases the lease with the token `token`. A lease that begins in the future is one that a
    /// steal or a reset has granted, so that its holder gets the lock only after a second. If such
    /// a lease is released before it begins, it still blocks the lock until then, and ends at that
    /// moment.
    fn give_back(&mut self, token: Token, ttl: Ttl) {
        let now = self.now;
        let held = self.held.iter_mut().find(|held| held.lease.token == token);
        let lease = &mut held.expect("it is held").lease;
        if lease.acquired_at > now {
            let expires_at = lease.acquired_at;
            lease.life = Lifetime::Own { ttl, grace: Grace::NONE, expires_at };
        } else {
            self.end(token, TenureEnd::Released);
        }
    }

    fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number - 1
    }
}

// The following methods acquire, renew, release and share locks: rules 1 to 3 and 6 of
// `contrib/doc/rules.md`.

impl Naive {
    fn acquire(&mut self, ask: &Acquire) -> Answer {
        let Acquire { name, client, mode, .. } = ask;
        for id in leans_on(ask.hold, ask.term).into_iter().flatten() {
            self.is_session(id)?;
        }
        self.may_seat(ask)?;
        if self.on(name).next().is_none() {
            if self.hold_off.is_some() {
                return self.put_off(ask);
            }
            self.has_room_for_a_lock()?;
            return self.begin(ask);
        }
        let foremost = self.foremost(name);
        let mine = self.on(name).filter(|held| held.lease.holder == *client);
        let meant: Vec<_> = mine.filter(|held| is_meant(&held.lease, ask)).collect();
        let would_wait_for_itself = !meant.is_empty();
        let begun = meant.into_iter().filter(|held| held.lease.acquired_at <= self.now);
        let meant: Vec<_> = begun.collect();
        let same_hold = meant.iter().find(|held| held.lease.hold == ask.hold);
        let own = same_hold.or(meant.first()).map(|held| Held::clone(held));
        let in_the_way = if self.mode(name) == Mode::Exclusive && foremost.acquired_at > self.now {
            (foremost.clone(), Way::StealGrace { until: foremost.acquired_at })
        } else if let Some(own) = &own {
            let by_file =
                matches!(own.lease.hold, Ownership::OpenFile(_)) && ask.hold == Ownership::Client;
            let other = |held: &&Held| held.lease.token != own.lease.token;
            let other = self.on(name).find(other).cloned();
            match other {
                _ if own.mode != *mode && by_file => (own.lease.clone(), Way::Own),
                Some(other) if own.mode != *mode => (other.lease, Way::Held),
                _ => {
                    if own.mode != *mode && *mode == Mode::Exclusive {
                        self.may_grant(name)?;
                    }
                    return self.continue_tenure(ask, own);
                }
            }
        } else if self.mode(name) == *mode && self.seats_are_taken(name) {
            let next = self.first_to_end(name);
            let way = self.held_or_grace(&next);
            (next, way)
        } else if self.mode(name) == *mode && *mode != Mode::Exclusive {
            if self.waiting_for(name).next().is_none() {
                if self.hold_off.is_some() {
                    return self.put_off(ask);
                }
                if self.on(name).count() >= self.rules.holders_max {
                    return self.no(Reason::Limit(Limit::Holders(self.rules.holders_max)));
                }
                return self.begin(ask);
            }
            (foremost, Way::Behind)
        } else if foremost.holder == *client {
            (foremost, Way::Own)
        } else {
            let way = self.held_or_grace(&foremost);
            (foremost, way)
        };
        match ask.line {
            QueuePolicy::Join(patience)
                if !would_wait_for_itself && patience != Some(Span::ZERO) =>
            {
                self.join(ask, patience.map(|patience| self.now + patience))
            }
            _ => self.no(Reason::Conflict(self.conflict(name, &in_the_way.0, in_the_way.1))),
        }
    }

    /// Rule 6: a lock has one number of seats, for all who hold it or wait for it, and none if its
    /// name is remembered.
    fn may_seat(&self, ask: &Acquire) -> Result<(), Refusal> {
        let name = &ask.name;
        let Mode::Seats(seats) = ask.mode else { return Ok(()) };
        if ask.remember || self.previous(name).is_some() {
            return self.no(Reason::SeatsAndHandovers(name.clone()));
        }
        let of_holders = self.on(name).map(|held| held.mode);
        let of_waiters = self.waiting_for(name).map(|waiting| waiting.ask.mode);
        for mode in of_holders.chain(of_waiters) {
            let Mode::Seats(has) = mode else { continue };
            if has != seats {
                let (name, named, has) = (name.clone(), seats.get(), has.get());
                return self.no(Reason::OtherSeats { name, named, has });
            }
            break;
        }
        Ok(())
    }

    /// Whether the lock has seats, and all of them are taken.
    fn seats_are_taken(&self, name: &LockName) -> bool {
        match self.mode(name) {
            Mode::Seats(seats) => self.on(name).count() >= usize::from(seats.get()),
            Mode::Exclusive | Mode::Shared => false,
        }
    }

    /// Returns the seat of a new holder: the lowest that nobody has.
    fn free_seat(&self, name: &LockName, mode: Mode) -> Option<u16> {
        let taken: Vec<_> = self.on(name).map(|held| held.lease.seat).collect();
        match mode {
            Mode::Seats(_) => (0..1_000).find(|seat| !taken.contains(&Some(*seat))),
            Mode::Exclusive | Mode::Shared => None,
        }
    }

    /// Begins a tenure at once.
    fn begin(&mut self, ask: &Acquire) -> Answer {
        self.fits(&ask.name, &ask.patch, &Details::default())?;
        self.remember(ask);
        Ok(Outcome::Granted(self.grant(ask, None)))
    }

    /// Returns the lease whose seat is free next.
    fn first_to_end(&self, name: &LockName) -> Lease {
        let next = self.on(name).min_by_key(|held| self.ends(held.lease.life).grace_until);
        next.expect("somebody holds it").lease.clone()
    }

    fn held_or_grace(&self, lease: &Lease) -> Way {
        let phase = self.ends(lease.life).phase(self.now);
        if phase == Phase::Held { Way::Held } else { Way::Grace }
    }

    fn is_session(&self, id: SessionId) -> Result<(), Refusal> {
        if self.session(id).is_some() { Ok(()) } else { self.no(Reason::NoSession(id)) }
    }

    fn has_room_for_a_lock(&self) -> Result<(), Refusal> {
        if self.locks() < self.rules.locks_max {
            return Ok(());
        }
        self.no(Reason::Limit(Limit::Locks(self.rules.locks_max)))
    }

    fn fits(&self, name: &LockName, patch: &Patch, before: &Details) -> Result<(), Refusal> {
        let changed = patch.text.is_some();
        if changed && patched(before, patch).text().len() > TEXT_BYTES_MAX {
            return self.no(Reason::TextTooLong(name.clone()));
        }
        Ok(())
    }

    /// Grants the lock that `ask` names: begins a lease with a new token.
    fn grant(&mut self, ask: &Acquire, waited: Option<(Ticket, Span)>) -> Tenure {
        let lease = Lease {
            holder: ask.client.clone(),
            token: Token::named(self.number()),
            hold: ask.hold,
            life: ask.term.begin(self.now),
            acquired_at: self.now,
            renewed_at: self.now,
            acquisition: 0,
            seat: self.free_seat(&ask.name, ask.mode),
            details: Arc::new(patched(&Details::default(), &ask.patch)),
        };
        self.hold(&ask.name, ask.mode, lease, waited)
    }

    fn hold(
        &mut self,
        name: &LockName,
        mode: Mode,
        lease: Lease,
        waited: Option<(Ticket, Span)>,
    ) -> Tenure {
        let (holder, token, hold) = (lease.holder.clone(), lease.token, lease.hold);
        self.emit(EventKind::Granted { name: name.clone(), holder, token, mode, hold, waited });
        if let Some(previous) = self.memory(name) {
            previous.seq += 1;
        }
        self.stolen.retain(|(known, ..)| known != name);
        let tenure = self.telling(name, tenure(&lease));
        self.held.push(Held { name: name.clone(), mode, lease, expired: false });
        tenure
    }

    /// Acquires a lock for a client that already holds it by the lease `own`. The lease keeps its
    /// token, except for an upgrade from shared to exclusive, which replaces the lease by one with
    /// a new token.
    fn continue_tenure(&mut self, ask: &Acquire, own: &Held) -> Answer {
        self.fits(&ask.name, &ask.patch, &own.lease.details)?;
        self.remember(ask);
        let mut held = own.clone();
        held.lease.acquisition += 1;
        held.lease.life = match (ask.hold, own.lease.life, ask.term) {
            (Ownership::OpenFile(_), ..) => ask.term.begin(self.now),
            _ if self.is_open(own.lease.hold) => renewed_lifetime(own.lease.life, self.now),
            (.., Lifetime::Session(id), LeaseTerms::Own(..)) => Lifetime::Session(id),
            _ => ask.term.begin(self.now),
        };
        if matches!(ask.hold, Ownership::OpenFile(_)) {
            held.lease.hold = ask.hold;
        }
        if own.mode != ask.mode {
            held.lease.seat = first_seat(ask.mode);
        }
        held.mode = ask.mode;
        let of_file = matches!(ask.hold, Ownership::OpenFile(_));
        let attrs = ask.patch.attrs.filter(|_| !of_file);
        let patch = Patch { attrs, ..ask.patch.clone() };
        if own.mode != Mode::Exclusive && ask.mode == Mode::Exclusive {
            return Ok(Outcome::Renewed(self.upgraded(held, &patch)));
        }
        let outcome = match self.renewed(held, &patch) {
            Outcome::Renewed(tenure) => Outcome::Renewed(self.telling(&ask.name, tenure)),
            other => other,
        };
        if own.mode != ask.mode {
            self.serve(&ask.name);
        }
        Ok(outcome)
    }

    /// Rule 6: upgrades a shared lease to exclusive. This ends the shared lease, and begins one
    /// with a new token.
    fn upgraded(&mut self, held: Held, patch: &Patch) -> Tenure {
        self.end(held.lease.token, TenureEnd::Replaced);
        let mut lease = held.lease;
        lease.token = Token::named(self.number());
        (lease.acquired_at, lease.renewed_at) = (self.now, self.now);
        lease.details = Arc::new(patched(&lease.details, patch));
        self.hold(&held.name, held.mode, lease, None)
    }

    /// Stores a renewed lease in place of the stored lease with the same token, and emits the event
    /// `Renewed`.
    fn renewed(&mut self, mut held: Held, patch: &Patch) -> Outcome {
        held.expired = false;
        held.lease.renewed_at = self.now;
        held.lease.details = Arc::new(patched(&held.lease.details, patch));
        let (name, holder, token) =
            (held.name.clone(), held.lease.holder.clone(), held.lease.token);
        self.emit(EventKind::Renewed { name, holder, token });
        let outcome = Outcome::Renewed(tenure(&held.lease));
        let place = self.held.iter().position(|h| h.lease.token == token);
        self.held[place.expect("it is held")] = held;
        outcome
    }

    /// Whether the owner `hold` of a lease is an open file, and the session of that file still
    /// exists.
    fn is_open(&self, hold: Ownership) -> bool {
        matches!(hold, Ownership::OpenFile(open) if self.session(open.session).is_some())
    }

    fn join(&mut self, ask: &Acquire, until: Option<Time>) -> Answer {
        let name = &ask.name;
        self.fits(name, &ask.patch, &Details::default())?;
        let has_own_place = ask.hold == Ownership::Exclusive(None);
        let same =
            |w: &&Waiting| !has_own_place && w.ask.client == ask.client && w.ask.hold == ask.hold;
        let known = self.waiting_for(name).find(same).map(|waiting| waiting.ticket);
        if let Some(known) = known {
            self.remember(ask);
            let waiting = self.line.iter_mut().find(|waiting| waiting.ticket == known);
            let waiting = waiting.expect("just seen");
            (waiting.ask, waiting.until) = (ask.clone(), until);
            self.serve(name);
            let before = self.waiting_for(name).position(|waiting| waiting.ticket == known);
            if let Some(before) = before {
                return Ok(Outcome::Waiting { ticket: known, before });
            }
            let by_ask = |h: &&Held| h.lease.holder == ask.client && h.lease.hold == ask.hold;
            let served = self.on(name).filter(by_ask).last();
            let granted = tenure(&served.expect("served").lease);
            return Ok(Outcome::Granted(self.telling(name, granted)));
        }
        let before = self.waiting_for(name).count();
        if before >= self.rules.waiters_max {
            return self.no(Reason::Limit(Limit::Waiters(self.rules.waiters_max)));
        }
        self.remember(ask);
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        let (since, ask) = (self.now, ask.clone());
        let (name, client) = (name.clone(), ask.client.clone());
        self.line.push(Waiting { name: name.clone(), ticket, ask, since, until });
        self.emit(EventKind::Joined { name, client, ticket });
        Ok(Outcome::Waiting { ticket, before })
    }

    fn leave(&mut self, ask: &Leave) -> Answer {
        if !self.waiting_for(&ask.name).any(|waiting| waiting.ticket == ask.ticket) {
            return self.no(Reason::NotInLine(ask.name.clone()));
        }
        self.unqueue(ask.ticket, ask.why);
        self.serve(&ask.name);
        Ok(Outcome::Left)
    }

    /// Returns the lease that `key` identifies by lock name, client and, if the key has one, token.
    fn meant(&self, key: &LeaseKey) -> Result<Held, Refusal> {
        let LeaseKey { name, client, token } = key.clone();
        let mine: Vec<_> = self.on(&key.name).filter(|held| held.lease.holder == client).collect();
        let any = mine.first().copied().or_else(|| self.on(&key.name).next());
        let holder = any.map(|held| held.lease.holder.clone());
        let Some(named) = token else {
            let by_file = |held: &&&Held| matches!(held.lease.hold, Ownership::OpenFile(_));
            // A lease that has begun is preferred to one that begins in the future: the latter may
            // be the placeholder by which a reset keeps the lock from everybody for a second.
            let begun = mine.iter().filter(|held| held.lease.acquired_at <= self.now);
            let plain = begun.clone().find(|held| !by_file(held)).or(begun.clone().next());
            let plain = plain.or(mine.iter().find(|held| !by_file(held))).or(mine.first());
            return match plain {
                Some(held) => Ok((*held).clone()),
                None => self.no(Reason::NotHeld { name, client, holder }),
            };
        };
        match (mine.iter().find(|held| held.lease.token == named), any) {
            (Some(held), _) => Ok((*held).clone()),
            (None, None) => self.no(Reason::Expired { name, token: named }),
            (None, Some(held)) if held.lease.token == named => {
                self.no(Reason::NotHeld { name, client, holder })
            }
            (None, Some(held)) => {
                self.no(Reason::StaleToken { name, named, current: held.lease.token })
            }
        }
    }

    /// Returns the lease that the open file `open` owns: the one with the token in `key`, otherwise
    /// its oldest. While the session of the open file exists, the lock name in `key` does not
    /// matter, because the lock may have been renamed.
    fn held_by_open_file(&self, open: OpenId, key: &LeaseKey) -> Result<Held, Refusal> {
        let is_over = self.session(open.session).is_none();
        let mut own: Vec<_> = (self.held.iter())
            .filter(|held| held.lease.hold == Ownership::OpenFile(open))
            .filter(|held| match held.lease.life {
                Lifetime::Session(id) => id == open.session,
                Lifetime::Own { .. } => is_over && held.name == key.name,
            })
            .collect();
        own.sort_by_key(|held| held.lease.token);
        let named = own.iter().find(|held| Some(held.lease.token) == key.token && !is_over);
        let Some(held) = named.or(own.first()) else {
            let holder = Some(self.meant(key)?.lease.holder);
            let (name, client) = (key.name.clone(), key.client.clone());
            return self.no(match key.token {
                Some(token) => Reason::Expired { name, token },
                None => Reason::NotHeld { name, client, holder },
            });
        };
        let token = Some(held.lease.token);
        self.meant(&LeaseKey { name: held.name.clone(), token, client: key.client.clone() })
    }

    fn is_usable(&self, held: &Held) -> Result<(), Refusal> {
        let until = held.lease.acquired_at;
        if until <= self.now {
            return Ok(());
        }
        let way = Way::StealGrace { until };
        self.no(Reason::Conflict(self.conflict(&held.name, &held.lease, way)))
    }

    fn renew(&mut self, ask: &Renew) -> Answer {
        let mut held = self.meant(&ask.key)?;
        self.is_usable(&held)?;
        self.fits(&held.name, &ask.patch, &held.lease.details)?;
        if let Some(LeaseTerms::Session(id)) = ask.term {
            self.is_session(id)?;
        }
        held.lease.life = match ask.term {
            Some(term) if !self.is_open(held.lease.hold) => term.begin(self.now),
            _ => renewed_lifetime(held.lease.life, self.now),
        };
        if ask.firm == Firm::Make && held.lease.hold == Ownership::Client {
            held.lease.hold = Ownership::Exclusive(None);
        }
        held.lease.acquisition += u32::from(ask.acquires);
        Ok(self.renewed(held, &ask.patch))
    }

    fn annotate(&mut self, ask: &Annotate) -> Answer {
        let meant = self.meant(&ask.key)?;
        self.fits(&meant.name, &ask.patch, &meant.lease.details)?;
        self.hand_over(&ask.key, &meant, ask.handover.as_ref())?;
        let token = meant.lease.token;
        let held = self.held.iter_mut().find(|held| held.lease.token == token);
        held.expect("just seen").lease.details =
            Arc::new(patched(&meant.lease.details, &ask.patch));
        self.emit(EventKind::Annotated { name: meant.name, token });
        Ok(Outcome::Annotated)
    }

    fn release(&mut self, ask: &Release) -> Answer {
        let LeaseKey { name, client, token } = &ask.key;
        let is_it = |known: &(LockName, ClientId, Token)| {
            (&known.0, &known.1, Some(known.2)) == (name, client, *token)
        };
        let acknowledges = ask.acknowledges && ask.handover.is_none();
        if let (true, Some(at)) = (acknowledges, self.stolen.iter().position(is_it)) {
            let begins_later = |held: &&Held| held.lease.acquired_at > self.now;
            let found = self.on(name).find(begins_later).cloned();
            if let Some(held) = found {
                self.stolen.remove(at);
                let (thief, begins) = (held.lease.token, held.lease.acquired_at);
                let is_released = self.ends(held.lease.life).grace_until == begins;
                let now = self.now;
                let held = self.held.iter_mut().find(|held| held.lease.token == thief);
                let lease = &mut held.expect("just seen").lease;
                (lease.acquired_at, lease.renewed_at) = (now, now);
                if let (true, Lifetime::Own { expires_at, .. }) = (is_released, &mut lease.life) {
                    *expires_at = now;
                }
                self.emit(EventKind::Annotated { name: name.clone(), token: thief });
                self.pass(now);
                return Ok(Outcome::Released);
            }
        }
        let held = match ask.open {
            Some(open) => self.held_by_open_file(open, &ask.key)?,
            None => self.meant(&ask.key)?,
        };
        if let Some(named) = ask.acquisition
            && held.lease.acquisition > named
        {
            let Lease { token, acquisition: current, .. } = held.lease;
            return self.no(Reason::AcquiredAgain { name: held.name, token, current });
        }
        let named = LeaseKey { name: held.name.clone(), ..ask.key.clone() };
        self.hand_over(&named, &held, ask.handover.as_ref())?;
        self.give_back(held.lease.token, self.ends(held.lease.life).ttl);
        self.serve(&held.name);
        Ok(Outcome::Released)
    }
}

// The following methods move locks to other names, manage sessions (rule 8 of
// `contrib/doc/rules.md`), and steal locks (rule 9).

impl Naive {
    fn move_over(&mut self, ask: &Move) -> Answer {
        let Move { from, to, over } = ask;
        let held = self.meant(from)?;
        self.is_usable(&held)?;
        if from.name == *to {
            return self.no(Reason::SameName(to.clone()));
        }
        self.may_grant(to)?;
        let goal: Vec<_> = self.on(to).cloned().collect();
        if !goal.is_empty() {
            let foremost = self.foremost(to);
            let replaceable = goal.len() == 1
                && *over == IfExists::Replace
                && !matches!(foremost.hold, Ownership::OpenFile(_));
            let until = foremost.acquired_at;
            let way = match () {
                () if until > self.now => Some(Way::StealGrace { until }),
                () if foremost.holder != from.client => Some(self.held_or_grace(&foremost)),
                () if !replaceable => Some(Way::Own),
                () => None,
            };
            if let Some(way) = way {
                return self.no(Reason::Conflict(self.conflict(to, &foremost, way)));
            }
        } else if self.on(&from.name).count() > 1 || self.waiting_for(&from.name).count() > 0 {
            self.has_room_for_a_lock()?;
        }
        self.end(held.lease.token, TenureEnd::Moved { to: to.clone() });
        for replaced in &goal {
            self.end(replaced.lease.token, TenureEnd::Replaced);
        }
        let mut lease = held.lease;
        lease.token = Token::named(self.number());
        lease.life = renewed_lifetime(lease.life, self.now);
        (lease.acquired_at, lease.renewed_at) = (self.now, self.now);
        lease.seat = first_seat(held.mode);
        let tenure = self.hold(to, held.mode, lease, None);
        self.serve(&from.name);
        self.serve(to);
        Ok(Outcome::Moved(tenure))
    }

    fn steal(&mut self, ask: &Steal) -> Answer {
        self.may_grant(&ask.name)?;
        if let LeaseTerms::Session(id) = ask.term {
            self.is_session(id)?;
        }
        self.fits(&ask.name, &ask.patch, &Details::default())?;
        let (mut mode, mut seat) = (Mode::Exclusive, None);
        if let Some(token) = ask.only {
            let newest = self.on(&ask.name).map(|held| held.lease.token).last();
            let held = self.on(&ask.name).find(|held| held.lease.token == token);
            let name = ask.name.clone();
            match (held, newest) {
                (Some(held), _) => (mode, seat) = (held.mode, held.lease.seat),
                (None, current) => {
                    return self.no(Reason::NothingToSteal { name, named: token, current });
                }
            }
        }
        let of_lock = self.on(&ask.name).map(|held| held.lease.token);
        let robbed: Vec<_> = of_lock.filter(|of| ask.only.is_none_or(|only| only == *of)).collect();
        let mut begins = self.now;
        if robbed.is_empty() {
            self.has_room_for_a_lock()?;
        } else {
            begins = self.now + self.rules.steal_grace;
        }
        let mut only = None;
        if !ask.at_once {
            begins = begins.max(self.others_until(&ask.name));
            only = self.only_holder(&ask.name);
        }
        for token in robbed {
            self.end(
                token,
                TenureEnd::Stolen { by: ask.client.clone(), reason: ask.reason.clone() },
            );
        }
        if let (true, Some(Previous { last: Some(last), .. })) =
            (ask.at_once, self.memory(&ask.name))
        {
            last.end = HandoverEnd::Unknown;
        }
        let lease = Lease {
            holder: ask.client.clone(),
            token: Token::named(self.number()),
            hold: Ownership::Exclusive(None),
            life: ask.term.begin(begins),
            acquired_at: begins,
            renewed_at: begins,
            acquisition: 0,
            seat,
            details: Arc::new(patched(&Details::default(), &ask.patch)),
        };
        let stolen = self.hold(&ask.name, mode, lease, None);
        self.stolen.extend(only);
        Ok(Outcome::Stolen(stolen))
    }

    /// Returns until when the holders of a remembered lock may go on if they hear of nothing.
    fn others_until(&self, name: &LockName) -> Time {
        if self.previous(name).is_none() {
            return Time::ZERO;
        }
        let until = self.on(name).map(|held| {
            let begins = held.lease.acquired_at;
            if begins > self.now { begins } else { self.ends(held.lease.life).expires_at }
        });
        until.filter(|until| *until < Time::NEVER).max().unwrap_or(Time::ZERO)
    }

    /// Returns the only holder of a remembered lock, or that before it if it has not begun.
    fn only_holder(&self, name: &LockName) -> Option<(LockName, ClientId, Token)> {
        self.previous(name)?;
        let mut holders = self.on(name);
        let held = holders.next().filter(|_| holders.next().is_none())?;
        if held.lease.acquired_at > self.now {
            return self.stolen.iter().find(|(known, ..)| known == name).cloned();
        }
        Some((name.clone(), held.lease.holder.clone(), held.lease.token))
    }

    /// Takes the locks and queue places of all clients that the reset `ask` names, by rule 9: first
    /// the clients lose their queue places, then their locks, and only then are the remaining
    /// waiters served.
    fn reset(&mut self, ask: &Reset) -> Outcome {
        let is_meant = |client: &ClientId| {
            let names = |named: &ClientId| {
                client == named || client.as_str().starts_with(&format!("{named}:"))
            };
            match &ask.whose {
                ResetScope::AllBut(kept) => !kept.iter().any(names),
                ResetScope::Of(one) => names(one),
            }
        };
        let is_in_part = |name: &LockName| match &ask.part {
            ResetPart::Names(first, last) => first <= name && name <= last,
            ResetPart::Rest { .. } => true,
        };
        let waits = self.line.iter().filter(|waiting| is_meant(&waiting.ask.client));
        let waits = waits.filter(|waiting| is_in_part(&waiting.name));
        let mut waits: Vec<_> = waits.map(|w| (w.name.clone(), w.ticket)).collect();
        waits.sort();
        let given_back = |held: &Held| {
            let begins = held.lease.acquired_at;
            begins > self.now && self.ends(held.lease.life).grace_until == begins
        };
        let holds = self.held.iter().filter(|held| is_meant(&held.lease.holder));
        let holds = holds.filter(|held| !given_back(held) && is_in_part(&held.name));
        let mut holds: Vec<_> = holds.map(|held| (held.name.clone(), held.lease.token)).collect();
        holds.sort();
        let mut names: Vec<_> = holds.iter().map(|(name, _)| name.clone()).collect();
        names.dedup();
        for (_, ticket) in &waits {
            self.unqueue(*ticket, LeaveReason::Reset);
        }
        for name in &names {
            let (others_until, only) = (self.others_until(name), self.only_holder(name));
            let mut seats = vec![];
            for (_, token) in holds.iter().filter(|(of, _)| of == name) {
                let (by, reason) = (ask.by.clone(), ask.reason.clone());
                let held = self.on(name).find(|held| held.lease.token == *token);
                seats.push(held.expect("it is held").lease.seat);
                self.end(*token, TenureEnd::Stolen { by, reason });
            }
            let begins = (self.now + self.rules.steal_grace).max(others_until);
            if !matches!(self.mode(name), Mode::Seats(_)) {
                seats = vec![None];
            }
            for seat in seats {
                self.keep_from_all(name, seat, &ask.by, begins);
            }
            self.stolen.extend(only);
        }
        let outcome = match ask.part {
            ResetPart::Names(..) => Outcome::ResetPart { holds: holds.len(), waits: waits.len() },
            ResetPart::Rest { holds: before, waits: left } => {
                Outcome::Reset { holds: before + holds.len(), waits: left + waits.len() }
            }
        };
        names.extend(waits.into_iter().map(|(name, _)| name));
        names.sort();
        names.dedup();
        for name in &names {
            self.serve(name);
        }
        outcome
    }

    /// Keeps a lock, or a seat of it, unusable until `begins`.
    fn keep_from_all(&mut self, name: &LockName, seat: Option<u16>, by: &ClientId, begins: Time) {
        let lease = Lease {
            holder: by.clone(),
            token: Token::named(self.number()),
            hold: Ownership::Exclusive(None),
            life: Lifetime::Own { ttl: TTL_DEFAULT, grace: Grace::NONE, expires_at: begins },
            acquired_at: begins,
            renewed_at: begins,
            acquisition: 0,
            seat,
            details: Arc::default(),
        };
        self.hold(name, self.mode(name), lease, None);
    }

    fn open_session(&mut self, ask: &OpenSession) -> Answer {
        if self.sessions.len() >= self.rules.sessions_max {
            return self.no(Reason::Limit(Limit::Sessions(self.rules.sessions_max)));
        }
        let id = SessionId::named(self.number());
        let OpenSession { client, ttl, grace } = ask.clone();
        self.emit(EventKind::SessionOpened { session: id, client: client.clone() });
        self.sessions.push(Bond {
            id,
            client,
            ttl,
            grace,
            renewed_at: self.now,
            used: BTreeSet::new(),
            answered_below: 0,
        });
        Ok(Outcome::SessionOpened(id))
    }

    fn keep_alive(&mut self, id: SessionId) -> Answer {
        self.is_session(id)?;
        let session = self.sessions.iter_mut().find(|session| session.id == id);
        let session = session.expect("just seen");
        if session.ttl.is_some() {
            session.renewed_at = self.now;
        }
        let until = session.ends().expires_at;
        self.emit(EventKind::SessionKept { session: id });
        Ok(Outcome::KeptAlive(until))
    }

    fn end_session(&mut self, ask: &EndSession) -> Answer {
        let id = ask.session;
        self.is_session(id)?;
        if ask.end == SessionEnd::Expired {
            self.expire(id);
            // The leases of an expired session enter the grace period. A lease whose grace period
            // has no length is over at once, which `pass` carries out.
            self.pass(self.now);
            return Ok(Outcome::SessionEnded);
        }
        let session = self.session(id).expect("just seen").clone();
        self.sessions.retain(|session| session.id != id);
        let waited_for = self.unqueue_all(id);
        let mut hanging = self.hanging_on(id);
        if ask.end == SessionEnd::Revoked && session.ttl.is_some() {
            let ends = session.ends();
            for token in hanging.clone() {
                let found = self.held.iter().position(|held| held.lease.token == token);
                let at = found.expect("a lease of the session");
                if self.previous(&self.held[at].name).is_none() {
                    continue;
                }
                let lease = &mut self.held[at].lease;
                let (ttl, expires_at) = (ends.ttl, ends.expires_at.max(lease.acquired_at));
                lease.life = Lifetime::Own { ttl, grace: Grace::NONE, expires_at };
                lease.renewed_at = lease.renewed_at.max(session.renewed_at);
                hanging.retain(|hangs| *hangs != token);
            }
        }
        let name_of = |token| self.held.iter().find(|h| h.lease.token == token).map(|h| &h.name);
        let names: Vec<_> = hanging.iter().filter_map(|token| name_of(*token)).cloned().collect();
        for (token, name) in hanging.iter().zip(&names) {
            self.note_end(name, *token, HandoverEnd::Session);
            self.give_back(*token, session.ends().ttl);
        }
        let (client, end) = (session.client, SessionEnd::Closed);
        self.emit(EventKind::SessionOver { session: id, client, end });
        for name in names.iter().chain(&waited_for) {
            self.serve(name);
        }
        Ok(Outcome::SessionEnded)
    }
}

// The following methods remember names beyond a tenure: rule 12 of `contrib/doc/rules.md`.

impl Naive {
    fn memory(&mut self, name: &LockName) -> Option<&mut Previous> {
        let mut all = self.remembered.iter_mut();
        all.find(|(known, _)| known == name).map(|(_, previous)| previous)
    }

    fn previous(&self, name: &LockName) -> Option<Arc<Previous>> {
        let mut all = self.remembered.iter();
        all.find(|(known, _)| known == name).map(|(_, previous)| Arc::new(previous.clone()))
    }

    fn telling(&self, name: &LockName, mut tenure: Tenure) -> Tenure {
        tenure.previous = self.previous(name);
        tenure
    }

    fn remember(&mut self, ask: &Acquire) {
        if ask.remember && self.previous(&ask.name).is_none() {
            self.remembered.push((ask.name.clone(), Previous { seq: 0, last: None }));
        }
    }

    /// Records how a tenure has ended, if it is the one that has set the last handover. The first
    /// end counts: a session that is ended releases its leases.
    fn note_end(&mut self, name: &LockName, token: Token, end: HandoverEnd) {
        if let Some(Previous { last: Some(last), .. }) = self.memory(name)
            && last.token == token
            && last.end == HandoverEnd::Open
        {
            last.end = end;
        }
    }

    /// Sets the handover of a tenure, or refuses it.
    fn hand_over(
        &mut self,
        key: &LeaseKey,
        held: &Held,
        handover: Option<&Handover>,
    ) -> Result<(), Refusal> {
        let Some(handover) = handover else { return Ok(()) };
        self.is_usable(held)?;
        let (name, current, at) = (key.name.clone(), held.lease.token, self.now);
        let Some(previous) = self.previous(&name) else {
            return self.no(Reason::NotRemembered(name));
        };
        if matches!(held.mode, Mode::Seats(_)) {
            return self.no(Reason::SeatsAndHandovers(name));
        }
        let Some(named) = key.token else { return self.no(Reason::HandoverNeedsToken(name)) };
        if named != current {
            return self.no(Reason::StaleToken { name, named, current });
        }
        if let Some(last) = &previous.last
            && last.token == current
            && last.handover.counter >= handover.counter
        {
            let (named, current) = (handover.counter, last.handover.counter);
            return self.no(Reason::OldHandover { name, named, current });
        }
        let previous = self.memory(&name).expect("just seen");
        previous.last = Some(LastHandover {
            token: current,
            client: held.lease.holder.clone(),
            at: Some(at),
            end: HandoverEnd::Open,
            handover: handover.clone(),
        });
        Ok(())
    }

    fn forget(&mut self, ask: &Forget) -> Answer {
        if self.on(&ask.name).next().is_none() && self.waiting_for(&ask.name).next().is_some() {
            self.may_grant(&ask.name)?;
        }
        if self.on(&ask.name).next().is_some() {
            let foremost = self.foremost(&ask.name);
            let until = foremost.acquired_at;
            let begun = until <= self.now;
            let way = if begun { self.held_or_grace(&foremost) } else { Way::StealGrace { until } };
            return self.no(Reason::Conflict(self.conflict(&ask.name, &foremost, way)));
        }
        if let Some(previous) = self.previous(&ask.name) {
            let token = previous.last.as_ref().map_or(Token::named(0), |last| last.token);
            self.emit(EventKind::Annotated { name: ask.name.clone(), token });
            self.remembered.retain(|(name, _)| *name != ask.name);
        }
        Ok(Outcome::Forgotten)
    }
}

/// Whether an acquire may continue the lease `held` of the same client, instead of being refused.
/// An acquire as `Client` may continue any lease. An acquire by an open file may continue a lease
/// of the client, an exclusive lease that the same open file created, the open file's own lease,
/// and an exclusive lease that no file created and whose token the acquire names. An exclusive
/// acquire by an open file may continue only an exclusive lease that the same open file created, as
/// a retry does. An exclusive acquire without an open file continues no lease.
fn is_meant(held: &Lease, ask: &Acquire) -> bool {
    let (have, want) = (held.hold, ask.hold);
    match want {
        Ownership::Client => true,
        Ownership::Exclusive(maker) => maker.is_some() && have == want,
        Ownership::OpenFile(open) => {
            have == Ownership::Client
                || have == Ownership::Exclusive(Some(open))
                || have == Ownership::OpenFile(open)
                || have == Ownership::Exclusive(None) && ask.takes_over == Some(held.token)
        }
    }
}

/// Returns the sessions that must exist for a request to be executed: the session that is to keep
/// the lease alive, and the session of the open file that makes the request.
fn leans_on(hold: Ownership, term: LeaseTerms) -> [Option<SessionId>; 2] {
    let of_term = match term {
        LeaseTerms::Session(id) => Some(id),
        LeaseTerms::Own(..) => None,
    };
    let of_file = match hold {
        Ownership::OpenFile(open) | Ownership::Exclusive(Some(open)) => Some(open.session),
        Ownership::Client | Ownership::Exclusive(None) => None,
    };
    [of_term, of_file]
}

/// Returns what keeps a lease alive after a renewal at the time `now`. The ttl of a lease begins
/// anew; a lease that is kept alive by a session is not changed.
fn renewed_lifetime(life: Lifetime, now: Time) -> Lifetime {
    match life {
        Lifetime::Own { ttl, grace, .. } => {
            Lifetime::Own { ttl, grace, expires_at: now + ttl.span() }
        }
        Lifetime::Session(id) => Lifetime::Session(id),
    }
}

fn tenure(lease: &Lease) -> Tenure {
    let Lease { token, life, acquired_at, acquisition, seat, .. } = *lease;
    Tenure { token, life, acquired_at, acquisition, seat, previous: None }
}

/// Returns the seat of the only holder of a lock in this mode.
fn first_seat(mode: Mode) -> Option<u16> {
    matches!(mode, Mode::Seats(_)).then_some(0)
}

/// Returns the details of a lease (note, content, process and file attributes) after the change
/// `patch`.
fn patched(before: &Details, patch: &Patch) -> Details {
    let text = match &patch.text {
        None => before.text().to_vec(),
        Some(TextPatch::Set(text)) => text.to_vec(),
        Some(TextPatch::Append(text)) => [before.text(), text].concat(),
    };
    let note = patch.note.clone().or_else(|| before.note().cloned());
    Details::default()
        .with_holder_id(patch.holder_id.clone().or_else(|| before.holder_id().cloned()))
        .with_note(note.filter(|note| !note.is_empty()))
        .with_text(text.into())
        .with_process(patch.process.unwrap_or_else(|| before.process()))
        .with_attrs(patch.attrs.unwrap_or_else(|| before.attrs()))
}
