//! Waiting for a lock in its queue, for every front end: tracks the ticket of each waiter until the
//! lock is granted or the waiter leaves, even if events are lost.
//!
//! The engine keeps the queues. This module has one subscription to the engine's events as long as
//! any request waits. A waiter whose request names its own attempt (an
//! [`OpenId`](crate::engine::OpenId)) leaves the queue with the session of that attempt, and can be
//! identified again after events were lost.
//!
//! Pending requests: the commands that a node has received and not answered yet.

use super::event_log::EventWatch;
use crate::engine::{
    Acquire, ClientId, Event, EventKind, LeaseKey, LeaseTerms, Leave, LeaveReason, LockName,
    LockView, Op, OpSubject, Outcome, Ownership, Refusal, Release, SessionId, Tenure, Ticket,
    Token,
};
use crate::service::call::Call;
use crate::service::lock_service::{LockService, Retry};
use crate::service::parent_check::ParentCheck;
use crate::time::{Span, Time};
use common::task::spawn;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

/// The maximum number of events read from the event log at a time. It limits how long the log is
/// locked.
const EVENTS_MAX: usize = 256;

/// How the wait of a request in a queue ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitEnd {
    /// The lock was granted.
    Granted(WaitGrant),
    /// The waiter left the queue: on its own, by its timeout, or with its session.
    Left(LeaveReason),
    /// Events were lost, and the request was made without an [`OpenId`](crate::engine::OpenId) by
    /// which its lease could be recognized. So it is unknown whether the lock was granted.
    Unknown,
}

/// A grant to a waiter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitGrant {
    /// The fencing token of the granted lock.
    pub token: Token,
    /// When the lock was granted.
    pub at: Time,
}

impl WaitGrant {
    /// Returns the tenure that this grant has begun, for a request with these terms.
    pub(crate) fn tenure(self, term: LeaseTerms) -> Tenure {
        let Self { token, at } = self;
        let (life, acquired_at) = (term.begin(at), at);
        Tenure { token, life, acquired_at, acquisition: 0, seat: None, previous: None }
    }
}

/// A callback for the end of a wait. Called with a mutex held, so it must be fast and must not call
/// the lock service.
pub type OnWaitEnd = Box<dyn FnOnce(WaitEnd) + Send>;

/// The answer to a request that may wait.
pub enum Entered {
    /// The request waits in the queue.
    Waits(PlaceGuard),
    /// The request was decided at once.
    Decided(Outcome),
}

/// Tracks the requests that wait in the queues of locks.
pub struct QueueWaits {
    locks: Arc<dyn LockService>,
    own: Weak<Self>,
    state: Mutex<QueueWaitState>,
}

#[derive(Default)]
struct QueueWaitState {
    /// The subscription to events, which exists while any request waits.
    watch: Option<EventWatch>,
    places: HashMap<Ticket, QueuePlace>,
    /// The number of the next request. It tells apart requests that wait under one ticket.
    next: u64,
}

/// One place in the queue of a lock, and the requests that wait in it: several reentrant requests
/// of one client wait under one ticket.
struct QueuePlace {
    name: LockName,
    hold: Ownership,
    waiters: Vec<(u64, OnWaitEnd)>,
    claims: Arc<SharedClaims>,
}

/// Records whether any of the requests that wait under one ticket uses the granted lock. A request
/// claims the grant once the end of its wait has been delivered. A grant that no request claims is
/// released.
#[derive(Default)]
struct SharedClaims {
    open: AtomicUsize,
    claimed: AtomicBool,
    granted: OnceLock<Token>,
}

impl QueueWaits {
    /// Returns a value that tracks no waiting requests yet.
    pub fn new(locks: Arc<dyn LockService>) -> Arc<Self> {
        Arc::new_cyclic(|own| {
            let (own, state) = (Weak::clone(own), Mutex::default());
            Self { locks, own, state }
        })
    }

    /// Acquires a lock, or joins its queue. The answer contains a [`PlaceGuard`] if the request is
    /// queued; `on_end` is called when the wait in the queue ends.
    pub fn enter(
        self: &Arc<Self>,
        ask: Acquire,
        check: Option<ParentCheck>,
        on_end: impl FnOnce(WaitEnd) + Send + 'static,
    ) -> Call<Result<Entered, Refusal>> {
        let (waits, op) = (Arc::clone(self), Op::Acquire(ask.clone()));
        let mut before = self.locks.subscribe(None);
        let asked = Arc::clone(&self.locks).submit_checked(op.into(), check);
        // If the caller has gone when the answer comes, the guard of the place is dropped.
        Call::of_steps(async move {
            Ok(asked.await?.map(|outcome| match outcome {
                Outcome::Waiting { ticket, .. } => {
                    Entered::Waits(waits.follow(&ask, ticket, &mut before, on_end))
                }
                outcome => Entered::Decided(outcome),
            }))
        })
    }

    /// Tracks the wait of the request `ask`, to which the engine has given `ticket` in the queue of
    /// its lock. `before` is a subscription to events that was opened before the request was sent.
    pub fn follow(
        self: &Arc<Self>,
        ask: &Acquire,
        ticket: Ticket,
        before: &mut EventWatch,
        on_end: impl FnOnce(WaitEnd) + Send + 'static,
    ) -> PlaceGuard {
        let mut state = self.state.lock();
        if state.watch.is_none() {
            state.watch = Some(self.subscribe());
        }
        state.next += 1;
        let number = state.next;
        let place = state.places.entry(ticket).or_insert_with(|| QueuePlace {
            name: ask.name.clone(),
            hold: ask.hold,
            waiters: Vec::new(),
            claims: Arc::default(),
        });
        place.waiters.push((number, Box::new(on_end)));
        let claims = Arc::clone(&place.claims);
        claims.open.fetch_add(1, Ordering::Relaxed);
        drop(state);
        self.search_events(ticket, before);
        PlaceGuard { waits: Arc::clone(self), ask: Box::new(ask.clone()), ticket, number, claims }
    }

    fn subscribe(&self) -> EventWatch {
        let own = Weak::clone(&self.own);
        let mut watch = self.locks.subscribe(None);
        watch.wake_by(Arc::new(move || {
            if let Some(waits) = own.upgrade() {
                waits.on_events();
            }
        }));
        watch
    }

    /// Searches for the end of the wait with this ticket among the events in `before`: the wait may
    /// have ended after the request was queued and before its ticket was tracked.
    fn search_events(self: &Arc<Self>, ticket: Ticket, before: &mut EventWatch) {
        loop {
            let batch = before.take(EVENTS_MAX);
            let end = batch.events.iter().find_map(|(_, event)| end_of(event, ticket));
            if let Some(end) = end {
                return self.end(ticket, end);
            }
            if batch.has_gap() {
                self.recheck(ticket);
            }
            if batch.events.is_empty() {
                return;
            }
        }
    }

    /// Handles new events: notifies the requests whose waits have ended. Runs on the thread that
    /// decided the command which caused the events.
    fn on_events(self: &Arc<Self>) {
        let mut state = self.state.lock();
        let mut unclear = Vec::new();
        let QueueWaitState { watch: Some(watch), places, .. } = &mut *state else { return };
        loop {
            let batch = watch.take(EVENTS_MAX);
            if batch.has_gap() {
                unclear.extend(places.keys().copied());
            }
            for (_, event) in &batch.events {
                if let EventKind::SessionOver { session, .. } = event.what {
                    end_session(places, session);
                }
                if let Some(ticket) = ticket_of(event)
                    && let Some(end) = end_of(event, ticket)
                    && let Some(place) = places.remove(&ticket)
                {
                    // Waiters are notified while the mutex is held, so that the next thread that
                    // locks it finds all of them notified.
                    place.finish(end);
                }
            }
            if batch.events.len() < EVENTS_MAX {
                break;
            }
        }
        drop(state);
        for ticket in unclear {
            self.recheck(ticket);
        }
    }

    fn end(&self, ticket: Ticket, end: WaitEnd) {
        if let Some(place) = self.state.lock().places.remove(&ticket) {
            place.finish(end);
        }
    }

    /// Reads the lock for which a request waits with this ticket, to find out whether the wait has
    /// ended: the event that reports its end may have been lost.
    fn recheck(self: &Arc<Self>, ticket: Ticket) {
        let place = {
            let state = self.state.lock();
            state.places.get(&ticket).map(|place| (place.name.clone(), place.hold))
        };
        let Some((name, hold)) = place else { return };
        let own = Arc::clone(self);
        let view = self.locks.view(&name, Retry::UntilAnswered);
        spawn(async move {
            // A read that is repeated until it is answered fails only if the engine is gone for
            // good. The waiter's session is then gone too.
            let end = match view.await {
                Ok(seen) => end_seen(&seen.view, ticket, hold),
                Err(_) => Some(WaitEnd::Unknown),
            };
            if let Some(end) = end {
                own.end(ticket, end);
            }
        });
    }

    /// Stops tracking a request that no longer waits. `number` tells it from other requests that
    /// wait under the same ticket.
    fn unfollow(&self, ticket: Ticket, number: u64) {
        let mut state = self.state.lock();
        if let Some(place) = state.places.get_mut(&ticket) {
            place.waiters.retain(|(other, _)| *other != number);
            if place.waiters.is_empty() {
                state.places.remove(&ticket);
            }
        }
        // When no request waits, the subscription to events ends: it would slow down every command.
        let watch = if state.places.is_empty() { state.watch.take() } else { None };
        drop(state);
        drop(watch);
    }
}

impl QueuePlace {
    fn finish(self, end: WaitEnd) {
        if let WaitEnd::Granted(grant) = end {
            // A wait in a queue ends only once, so the token of its grant is set only once.
            let _ = self.claims.granted.set(grant.token);
        }
        for (_, on_end) in self.waiters {
            on_end(end);
        }
    }
}

/// Ends the waits whose requests name an attempt of this session, which has ended.
fn end_session(places: &mut HashMap<Ticket, QueuePlace>, session: SessionId) {
    let hangs = |_: &Ticket, place: &mut QueuePlace| {
        place.hold.open().is_some_and(|open| open.session == session)
    };
    for (_, place) in places.extract_if(hangs) {
        place.finish(WaitEnd::Left(LeaveReason::SessionOver));
    }
}

fn ticket_of(event: &Event) -> Option<Ticket> {
    match &event.what {
        EventKind::Granted { waited: Some((ticket, _)), .. } | EventKind::Left { ticket, .. } => {
            Some(*ticket)
        }
        _ => None,
    }
}

/// Returns how the wait with this ticket has ended, if `event` reports its end, and `None`
/// otherwise.
fn end_of(event: &Event, ticket: Ticket) -> Option<WaitEnd> {
    match &event.what {
        EventKind::Granted { waited: Some((served, _)), token, .. } if *served == ticket => {
            Some(WaitEnd::Granted(WaitGrant { token: *token, at: event.at }))
        }
        EventKind::Left { ticket: left, why, .. } if *left == ticket => Some(WaitEnd::Left(*why)),
        _ => None,
    }
}

/// Returns how the wait with this ticket has ended, as a view of the lock shows it. `None` while
/// the ticket is still in the queue.
fn end_seen(view: &LockView, ticket: Ticket, hold: Ownership) -> Option<WaitEnd> {
    if view.waiters.iter().any(|waiter| waiter.ticket == ticket) {
        return None;
    }
    // Another program of the client may hold the lock by a lease whose ownership names no attempt.
    // Only a lease that names the waiter's own attempt certainly belongs to the waiter.
    Some(match hold {
        Ownership::Exclusive(Some(_)) => {
            granted(view, hold).map_or(WaitEnd::Left(LeaveReason::TimedOut), WaitEnd::Granted)
        }
        _ => WaitEnd::Unknown,
    })
}

/// Returns the token and time of the lease that the view shows with the ownership `hold`, or `None`
/// if it shows no such lease. `hold` names the attempt (an [`OpenId`](crate::engine::OpenId)) of
/// one waiter.
fn granted(view: &LockView, hold: Ownership) -> Option<WaitGrant> {
    let lease = view.holders.iter().map(|holder| &holder.lease).find(|l| l.hold == hold)?;
    Some(WaitGrant { token: lease.token, at: lease.acquired_at })
}

/// The wait of one request in the queue of a lock. If the guard is dropped before the grant is
/// claimed, the request leaves the queue, or releases the lock if it was granted at that moment.
pub struct PlaceGuard {
    waits: Arc<QueueWaits>,
    ask: Box<Acquire>,
    ticket: Ticket,
    number: u64,
    claims: Arc<SharedClaims>,
}

impl PlaceGuard {
    /// Records that the end of the wait was delivered, or need not be: dropping the guard then
    /// releases nothing.
    pub fn claim(&self) {
        self.claims.claimed.store(true, Ordering::Relaxed);
    }

    fn key(&self, token: Token) -> LeaseKey {
        let (name, client) = (self.ask.name.clone(), self.ask.client.clone());
        LeaseKey { name, client, token: Some(token) }
    }
}

impl Drop for PlaceGuard {
    fn drop(&mut self) {
        let others = self.claims.open.fetch_sub(1, Ordering::Relaxed) > 1;
        if others || self.claims.claimed.load(Ordering::Relaxed) {
            return self.waits.unfollow(self.ticket, self.number);
        }
        let (locks, ticket) = (self.waits.locks.clone(), self.ticket);
        // A grant that came before the subscription `after` is recorded in `granted`. A later grant
        // is among the events of `after`.
        let mut after = locks.subscribe(None);
        self.waits.on_events();
        self.waits.unfollow(ticket, self.number);
        if let Some(token) = self.claims.granted.get() {
            return locks.give_back(Op::Release(Release::of(self.key(*token))));
        }
        let (ask, name) = (Acquire::clone(&self.ask), self.ask.name.clone());
        let leave = Op::Leave(Leave { name, ticket, why: LeaveReason::Gone });
        let left = locks.submit(leave.into(), Retry::UntilAnswered);
        spawn(async move {
            if matches!(left.await, Ok(Ok(_))) {
                return;
            }
            let batch = after.take(usize::MAX);
            let end = batch.events.iter().find_map(|(_, event)| end_of(event, ticket));
            give_back_unclaimed(&locks, ask, ticket, end).await;
        });
    }
}

/// Releases a lock that was granted to a waiter just before it left the queue. `end` is the end of
/// the wait as the events reported it; `None` if they did not.
async fn give_back_unclaimed(
    locks: &Arc<dyn LockService>,
    ask: Acquire,
    ticket: Ticket,
    end: Option<WaitEnd>,
) {
    let end = if end.is_some() {
        end
    } else {
        let seen = locks.view(&ask.name, Retry::UntilAnswered).await;
        seen.ok().and_then(|seen| end_seen(&seen.view, ticket, ask.hold))
    };
    if let Some(WaitEnd::Granted(grant)) = end {
        let key = LeaseKey { name: ask.name, client: ask.client, token: Some(grant.token) };
        locks.give_back(Op::Release(Release::of(key)));
    }
}

/// A command that a node has received and not answered yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingRequest {
    /// How far the command has come.
    pub stage: PendingStage,
    /// The kind of the command.
    pub command: &'static str,
    /// The lock that the command names.
    pub lock: Option<LockName>,
    /// The client that the command names.
    pub client: Option<ClientId>,
    /// How long ago this node received the command.
    pub age: Span,
}

/// How far a pending command has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PendingStage {
    /// The command waits for the next entry.
    Queued,
    /// The command was sent to the leader, or will be when there is one.
    Forwarded,
    /// The command is in an entry that this node, the leader, replicates.
    Replicating,
}

impl PendingStage {
    /// Returns the name of the stage in answers.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Forwarded => "forwarded",
            Self::Replicating => "replicating",
        }
    }
}

impl PendingRequest {
    /// Returns the description of a command.
    pub fn of(op: &Op, stage: PendingStage, age: Span) -> Self {
        let OpSubject { kind, name, client, .. } = op.subject();
        Self { stage, command: kind.as_str(), lock: name.cloned(), client: client.cloned(), age }
    }
}

#[cfg(test)]
mod tests {
    use super::super::local::Local;
    use super::*;
    use crate::engine::values::lease::{GRACE_DEFAULT, TTL_DEFAULT, Ttl};
    use crate::engine::{
        ClientId, EndSession, Grace, LeaseTerms, OpenId, OpenSession, QueuePolicy, Rules,
        SessionEnd,
    };
    use std::sync::mpsc::{Receiver, channel};
    use std::thread;

    fn waits() -> Arc<QueueWaits> {
        let local = Local::in_memory(Rules::default()).expect("a thread can be started");
        QueueWaits::new(Arc::new(local))
    }

    fn client(text: &str) -> ClientId {
        ClientId::parse(text).expect("valid")
    }

    fn acquire(who: &str, line: QueuePolicy) -> Acquire {
        Acquire {
            hold: Ownership::Exclusive(None),
            line,
            ..Acquire::new(
                LockName::parse("build").expect("valid"),
                client(who),
                LeaseTerms::Own(TTL_DEFAULT, GRACE_DEFAULT),
            )
        }
    }

    fn waiting(who: &str) -> Acquire {
        acquire(who, QueuePolicy::Join(None))
    }

    fn submit(waits: &QueueWaits, op: Op) -> Outcome {
        let answer = waits.locks.submit(op.into(), Retry::Never).wait();
        answer.expect("available").expect("not refused")
    }

    fn view(waits: &QueueWaits) -> LockView {
        let name = LockName::parse("build").expect("valid");
        waits.locks.view(&name, Retry::Never).wait().expect("available").view
    }

    fn holder(waits: &QueueWaits) -> Option<String> {
        view(waits).holder().map(|holder| holder.lease.holder.to_string())
    }

    /// Lets the client `first` acquire the lock. Returns the key by which its lease is released.
    fn held(waits: &QueueWaits) -> LeaseKey {
        let first = acquire("first", QueuePolicy::Skip);
        let key = LeaseKey { name: first.name.clone(), client: first.client.clone(), token: None };
        submit(waits, Op::Acquire(first));
        key
    }

    /// Joins the queue of a lock. Returns the guard of the wait, and the channel that receives the
    /// end of the wait.
    fn queue(waits: &Arc<QueueWaits>, ask: Acquire) -> (PlaceGuard, Receiver<WaitEnd>) {
        let (on_end, end) = channel();
        let notify_end = move |end| on_end.send(end).unwrap_or_default();
        let entered = waits.enter(ask, None, notify_end).wait();
        match entered.expect("available").expect("not refused") {
            Entered::Waits(place) => (place, end),
            Entered::Decided(outcome) => panic!("{outcome:?}"),
        }
    }

    fn session(waits: &QueueWaits) -> SessionId {
        let (client, ttl) = (client("server"), Ttl::parse("5s").ok());
        match submit(waits, Op::OpenSession(OpenSession { client, ttl, grace: Grace::NONE })) {
            Outcome::SessionOpened(session) => session,
            outcome => panic!("{outcome:?}"),
        }
    }

    #[test]
    fn waiter_is_notified_of_its_grant() {
        let waits = waits();
        let key = held(&waits);
        let (place, end) = queue(&waits, waiting("next"));
        assert!(end.try_recv().is_err());
        submit(&waits, Op::Release(Release::of(key)));
        let WaitEnd::Granted(grant) = end.recv().expect("the wait ended") else {
            panic!("not granted")
        };
        assert_eq!(view(&waits).holders[0].lease.token, grant.token);
        place.claim();
        drop(place);
        assert_eq!(holder(&waits).as_deref(), Some("next"));
        assert!(waits.state.lock().watch.is_none(), "no request waits any more");
    }

    /// Whether the lock is granted to a waiter before or after it has left the queue, the waiter
    /// does not keep the lock.
    #[test]
    fn waiter_that_leaves_while_it_is_served_keeps_nothing() {
        let waits = waits();
        for _ in 0..500 {
            let key = held(&waits);
            let ((gone, _), (next, _)) =
                (queue(&waits, waiting("gone")), queue(&waits, waiting("next")));
            let serving = Arc::clone(&waits);
            let serve = thread::spawn(move || submit(&serving, Op::Release(Release::of(key))));
            drop(gone);
            serve.join().expect("it does not panic");
            assert_eq!(holder(&waits).as_deref(), Some("next"));
            drop(next);
            assert_eq!(holder(&waits), None, "it went on to nobody");
        }
        assert!(waits.state.lock().places.is_empty());
    }

    /// A front end may disappear before it learns that its request waits in a queue. The request
    /// then leaves the queue at once.
    #[test]
    fn place_without_a_taker_is_left() {
        let waits = waits();
        let key = held(&waits);
        waits.enter(waiting("b"), None, |_| {}).detach();
        assert_eq!(view(&waits).waiters.len(), 0);
        let (place, _end) = queue(&waits, waiting("b"));
        submit(&waits, Op::Release(Release::of(key)));
        assert_eq!(holder(&waits).as_deref(), Some("b"));
        drop(place);
        assert_eq!(holder(&waits), None);
        assert!(waits.state.lock().places.is_empty());
    }

    /// Two reentrant requests of one client wait under one ticket, which stays in the queue until
    /// both have left.
    #[test]
    fn reentrant_requests_of_a_client_share_a_place() {
        let waits = waits();
        held(&waits);
        let reentrant = || Acquire { hold: Ownership::Client, ..waiting("b") };
        let ((one, _), (two, _)) = (queue(&waits, reentrant()), queue(&waits, reentrant()));
        assert_eq!(one.ticket, two.ticket);
        drop(one);
        assert_eq!(view(&waits).waiters.len(), 1);
        drop(two);
        assert_eq!(view(&waits).waiters.len(), 0);
    }

    #[test]
    fn waiter_leaves_with_the_session_of_its_attempt() {
        let waits = waits();
        held(&waits);
        let open = OpenId { session: session(&waits), number: 1 };
        let ask = Acquire { hold: Ownership::Exclusive(Some(open)), ..waiting("b") };
        let (place, end) = queue(&waits, ask);
        submit(
            &waits,
            Op::EndSession(EndSession { session: open.session, end: SessionEnd::Closed }),
        );
        assert_eq!(end.recv(), Ok(WaitEnd::Left(LeaveReason::SessionOver)));
        drop(place);
        assert_eq!(view(&waits).waiters.len(), 0);
    }

    /// If more events occur than the event log keeps, the engine is queried about each ticket that
    /// is tracked.
    #[test]
    fn waiter_whose_events_were_lost_is_found_by_its_attempt() {
        let waits = waits();
        let session = session(&waits);
        let attempt = |number| Ownership::Exclusive(Some(OpenId { session, number }));
        for hold in [attempt(1), Ownership::Exclusive(None)] {
            let key = held(&waits);
            let mut before = waits.locks.subscribe(None);
            let ask = Acquire { hold, ..waiting("b") };
            let Outcome::Waiting { ticket, .. } = submit(&waits, Op::Acquire(ask.clone())) else {
                panic!("it was granted")
            };
            submit(&waits, Op::Release(Release::of(key)));
            for number in 0..5_000 {
                let name = LockName::parse(&format!("other{}", number % 7)).expect("valid");
                let client = client("other");
                let other = Acquire { name: name.clone(), ..ask.clone() };
                let other = Acquire { client: client.clone(), hold: Ownership::Client, ..other };
                submit(&waits, Op::Acquire(other));
                let key = LeaseKey { name, client, token: None };
                submit(&waits, Op::Release(Release::of(key)));
            }
            let (on_end, end) = channel();
            let notify_end = move |end| on_end.send(end).unwrap_or_default();
            let place = waits.follow(&ask, ticket, &mut before, notify_end);
            let lease = view(&waits).holders[0].lease.clone();
            let grant = WaitGrant { token: lease.token, at: lease.acquired_at };
            let expected = match hold {
                Ownership::Exclusive(Some(_)) => WaitEnd::Granted(grant),
                _ => WaitEnd::Unknown,
            };
            assert_eq!(end.try_recv(), Ok(expected));
            place.claim();
            let key = LeaseKey { name: ask.name, client: ask.client, token: None };
            submit(&waits, Op::Release(Release::of(key)));
        }
    }
}
