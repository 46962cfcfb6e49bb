//! Queue places with waiting requests: which requests to tell when a place is served or lost.
//!
//! The engine keeps the queue. Here is one watch of its events, as long as any request waits.

use crate::engine::{
    Acquire, ClientId, Event, EventKind, LeaseKey, Leave, LeaveReason, LockName, Op, Outcome,
    Refusal, Release, Ticket, Token,
};
use crate::service::event_log::EventWatch;
use crate::service::{Locks, ParentCheck, Unavailable};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use tokio::sync::oneshot;

/// Requests that wait, in all: each has a connection, or a part of one.
pub(super) const WAITING_MAX: usize = 10_000;

/// Events taken at a time.
const BATCH: usize = 256;

/// All queue places with waiting requests, by ticket.
pub(super) struct QueuePlaces {
    locks: Locks,
    own: Weak<Self>,
    state: Mutex<QueueState>,
}

#[derive(Default)]
struct QueueState {
    /// There is one while anybody waits.
    watch: Option<EventWatch>,
    places: HashMap<Ticket, QueuePlace>,
    waiting: usize,
    /// Tells apart those who share a place: several requests of one client are one in the line.
    next: u64,
}

/// One queue place and the requests that wait for it.
#[derive(Default)]
struct QueuePlace {
    told: Vec<(u64, oneshot::Sender<PlaceOutcome>)>,
    claims: Arc<SharedClaims>,
}

/// The requests that share a place: its grant is released when none of them took it.
#[derive(Default)]
struct SharedClaims {
    open: AtomicUsize,
    taken: AtomicBool,
}

/// The outcome of a queue place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PlaceOutcome {
    /// It was served.
    Served(Token),
    /// It is gone.
    Gone(LeaveReason),
    /// Events were lost: nobody knows without a look.
    Unknown,
}

/// The outcome of entering a request that may wait.
pub(super) enum EnterOutcome {
    Waits(Box<PlaceGuard>),
    Decided(Outcome),
}

pub(super) type EnterResult = Result<EnterOutcome, Refusal>;

impl QueuePlaces {
    pub(super) fn new(locks: Locks) -> Arc<Self> {
        Arc::new_cyclic(|own| {
            let (own, state) = (Weak::clone(own), Mutex::default());
            Self { locks, own, state }
        })
    }

    /// Follows a place that `ask` has taken; `before` is a watch from before that.
    pub(super) fn follow(
        self: &Arc<Self>,
        ask: &Acquire,
        ticket: Ticket,
        before: &mut EventWatch,
    ) -> PlaceGuard {
        let (sender, told) = oneshot::channel();
        let mut state = self.state.lock();
        if state.watch.is_none() {
            state.watch = Some(self.watch());
        }
        state.next += 1;
        let number = state.next;
        let place = state.places.entry(ticket).or_default();
        place.told.push((number, sender));
        let claims = Arc::clone(&place.claims);
        claims.open.fetch_add(1, Ordering::Relaxed);
        drop(state);
        self.look_back(ticket, before);
        let (places, ask) = (Arc::clone(self), ask.clone());
        PlaceGuard { places, ask, ticket, number, told, claims }
    }

    /// Asks for a lock. A request that waits has its [`PlaceGuard`] as soon as it has a place, so
    /// that the place is left also when the connection closes before the answer arrives.
    pub(super) fn enter(
        self: &Arc<Self>,
        ask: &Acquire,
        check: Option<ParentCheck>,
    ) -> oneshot::Receiver<Result<EnterResult, Unavailable>> {
        let (then, answer) = oneshot::channel();
        let (places, asked) = (Arc::clone(self), ask.clone());
        let mut before = self.locks.subscribe(None);
        self.locks.submit_checked(Op::Acquire(ask.clone()), check, move |answer| {
            let entered = |outcome| match outcome {
                Outcome::Waiting { ticket, .. } => {
                    EnterOutcome::Waits(Box::new(places.follow(&asked, ticket, &mut before)))
                }
                outcome => EnterOutcome::Decided(outcome),
            };
            drop(then.send(answer.map(|answer| answer.map(entered))));
        });
        answer
    }

    fn watch(&self) -> EventWatch {
        let own = Weak::clone(&self.own);
        let mut watch = self.locks.subscribe(None);
        watch.wake_by(Arc::new(move || {
            if let Some(places) = own.upgrade() {
                places.pump();
            }
        }));
        watch
    }

    /// Finds what happened to a place between taking and following it.
    fn look_back(&self, ticket: Ticket, before: &mut EventWatch) {
        loop {
            let batch = before.take(BATCH);
            let fate = batch.events.iter().find_map(|(_, event)| fate_of(event, ticket));
            if let Some(fate) = fate.or((batch.lost > 0).then_some(PlaceOutcome::Unknown)) {
                if let Some(place) = self.state.lock().places.remove(&ticket) {
                    place.tell(fate);
                }
                return;
            }
            if batch.events.is_empty() {
                return;
            }
        }
    }

    /// Tells whom the events concern. Runs on the thread that decided a command.
    fn pump(&self) {
        let mut state = self.state.lock();
        let QueueState { watch: Some(watch), places, .. } = &mut *state else { return };
        loop {
            let batch = watch.take(BATCH);
            if batch.lost > 0 {
                for (_, place) in places.drain() {
                    place.tell(PlaceOutcome::Unknown);
                }
            }
            for (_, event) in &batch.events {
                if let Some(ticket) = ticket_of(event)
                    && let Some(fate) = fate_of(event, ticket)
                    && let Some(place) = places.remove(&ticket)
                {
                    // Told while the mutex is held: who pumps after us finds all told.
                    place.tell(fate);
                }
            }
            if batch.events.len() < BATCH {
                return;
            }
        }
    }

    /// `number` is not interested any more.
    fn unfollow(&self, ticket: Ticket, number: u64) {
        let mut state = self.state.lock();
        let Some(place) = state.places.get_mut(&ticket) else { return };
        place.told.retain(|(other, _)| *other != number);
        if place.told.is_empty() {
            state.places.remove(&ticket);
        }
    }

    pub(super) fn count(self: &Arc<Self>) -> Option<WaitSlot> {
        let mut state = self.state.lock();
        if state.waiting >= WAITING_MAX {
            return None;
        }
        state.waiting += 1;
        Some(WaitSlot(Arc::clone(self)))
    }

    /// How many requests wait.
    pub(super) fn waiting(&self) -> usize {
        self.state.lock().waiting
    }
}

impl QueuePlace {
    fn tell(self, fate: PlaceOutcome) {
        for (_, told) in self.told {
            // An error means that the request no longer waits here: it finds out by itself.
            let _ = told.send(fate);
        }
    }
}

/// One counted waiting request; dropping it frees the slot.
pub(super) struct WaitSlot(Arc<QueuePlaces>);

impl Drop for WaitSlot {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.waiting -= 1;
        // The watch of nobody would cost every command something.
        let watch = if state.waiting == 0 { state.watch.take() } else { None };
        drop(state);
        drop(watch);
    }
}

pub(super) type OutcomeReceiver = oneshot::Receiver<PlaceOutcome>;

fn ticket_of(event: &Event) -> Option<Ticket> {
    match &event.what {
        EventKind::Granted { waited: Some((ticket, _)), .. } | EventKind::Left { ticket, .. } => {
            Some(*ticket)
        }
        _ => None,
    }
}

fn fate_of(event: &Event, ticket: Ticket) -> Option<PlaceOutcome> {
    match &event.what {
        EventKind::Granted { waited: Some((served, _)), token, .. } if *served == ticket => {
            Some(PlaceOutcome::Served(*token))
        }
        EventKind::Left { ticket: gone, why, .. } if *gone == ticket => {
            Some(PlaceOutcome::Gone(*why))
        }
        _ => None,
    }
}

/// A queue place; dropping it before the grant is taken leaves the queue.
pub(super) struct PlaceGuard {
    places: Arc<QueuePlaces>,
    pub(super) ask: Acquire,
    pub(super) ticket: Ticket,
    number: u64,
    pub(super) told: OutcomeReceiver,
    claims: Arc<SharedClaims>,
}

impl PlaceGuard {
    /// Marks the outcome as delivered to the client, or as needing no delivery: dropping the guard
    /// then gives nothing back.
    pub(super) fn take(&self) {
        self.claims.taken.store(true, Ordering::Relaxed);
    }
}

impl Drop for PlaceGuard {
    fn drop(&mut self) {
        let others = self.claims.open.fetch_sub(1, Ordering::Relaxed) > 1;
        if others || self.claims.taken.load(Ordering::Relaxed) {
            return self.places.unfollow(self.ticket, self.number);
        }
        let (name, client) = (self.ask.name.clone(), self.ask.client.clone());
        let (locks, ticket) = (self.places.locks.clone(), self.ticket);
        // Served before this line: `told` says so. Served after it: `after` does.
        let mut after = locks.subscribe(None);
        self.places.pump();
        if let Ok(PlaceOutcome::Served(token)) = self.told.try_recv() {
            return give_back(&locks, &name, &client, token);
        }
        self.places.unfollow(ticket, self.number);
        let leave = Leave { name: name.clone(), ticket, why: LeaveReason::Gone };
        self.places.locks.submit_until_answered(Op::Leave(leave), move |_| {
            let events = after.take(usize::MAX).events;
            let fate = events.iter().find_map(|(_, event)| fate_of(event, ticket));
            if let Some(PlaceOutcome::Served(token)) = fate {
                give_back(&locks, &name, &client, token);
            }
        });
    }
}

fn give_back(locks: &Locks, name: &LockName, client: &ClientId, token: Token) {
    let key = LeaseKey { name: name.clone(), client: client.clone(), token: Some(token) };
    locks.submit_until_answered(Op::Release(Release::of(key)), |answer| {
        log::debug!("who waited is gone, so the lock goes on: {answer:?}");
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::lease_terms::{GRACE_DEFAULT, TTL_DEFAULT};
    use crate::engine::{LeaseTerms, LockView, Mode, Ownership, Patch, QueuePolicy, Rules};
    use crate::service::local::Local;
    use std::sync::mpsc;
    use std::thread;

    fn places() -> Arc<QueuePlaces> {
        let local = Local::in_memory(Rules::default()).expect("a thread can be started");
        QueuePlaces::new(Locks::new(Arc::new(local)))
    }

    fn ask(client: &str, line: QueuePolicy) -> Acquire {
        let hold = Ownership::Exclusive(None);
        Acquire {
            name: LockName::parse("build").expect("valid"),
            client: ClientId::parse(client).expect("valid"),
            mode: Mode::Exclusive,
            hold,
            term: LeaseTerms::Own(TTL_DEFAULT, GRACE_DEFAULT),
            line,
            patch: Patch::default(),
        }
    }

    fn submit(places: &QueuePlaces, op: Op) -> Outcome {
        let (send, answer) = mpsc::channel();
        places.locks.submit(op, move |answer| send.send(answer).expect("it is waited for"));
        answer.recv().expect("an answer").expect("it is there").expect("nobody is in the way")
    }

    fn look(places: &QueuePlaces) -> LockView {
        let (send, view) = mpsc::channel();
        let name = LockName::parse("build").expect("valid");
        places.locks.view(&name, move |view| send.send(view).expect("it is waited for"));
        view.recv().expect("an answer").expect("it is there")
    }

    fn stand(places: &Arc<QueuePlaces>, client: &str) -> PlaceGuard {
        stand_by(places, &ask(client, QueuePolicy::Join(None)))
    }

    fn stand_by(places: &Arc<QueuePlaces>, ask: &Acquire) -> PlaceGuard {
        let mut before = places.locks.subscribe(None);
        let outcome = submit(places, Op::Acquire(ask.clone()));
        let Outcome::Waiting { ticket, .. } = outcome else { panic!("{outcome:?}") };
        places.follow(ask, ticket, &mut before)
    }

    #[test]
    fn waiting_requests_have_a_limit() {
        let places = places();
        let all: Vec<_> = (0..WAITING_MAX).map(|_| places.count()).collect();
        assert!(all.iter().all(Option::is_some));
        assert!(places.count().is_none());
        drop(all);
        assert_eq!(places.waiting(), 0);
        assert!(places.count().is_some());
    }

    /// Whether it is served first or gone first: nobody keeps what nobody took.
    #[test]
    fn who_goes_while_being_served_keeps_nothing() {
        let places = places();
        for _ in 0..500 {
            let first = ask("first", QueuePolicy::Skip);
            let key =
                LeaseKey { name: first.name.clone(), client: first.client.clone(), token: None };
            submit(&places, Op::Acquire(first));
            let (gone, next) = (stand(&places, "gone"), stand(&places, "next"));
            let serving = Arc::clone(&places);
            let serve = thread::spawn(move || submit(&serving, Op::Release(Release::of(key))));
            drop(gone);
            serve.join().expect("it does not panic");
            let holder = look(&places).holder().map(|holder| holder.lease.holder.clone());
            assert_eq!(holder.as_ref().map(ClientId::as_str), Some("next"));
            drop(next);
            assert!(look(&places).holder().is_none(), "it went on to nobody");
        }
        assert!(places.state.lock().places.is_empty());
    }

    /// The connection may close before the request hears that it waits.
    #[test]
    fn a_place_that_a_closed_connection_never_heard_of_is_left() {
        let places = places();
        let first = ask("first", QueuePolicy::Skip);
        let key = LeaseKey { name: first.name.clone(), client: first.client.clone(), token: None };
        submit(&places, Op::Acquire(first));
        let heard = places.enter(&ask("b", QueuePolicy::Join(None)), None);
        assert_eq!(look(&places).waiters.len(), 1);
        drop(heard);
        assert_eq!(look(&places).waiters.len(), 0);
        let heard = places.enter(&ask("b", QueuePolicy::Join(None)), None);
        submit(&places, Op::Release(Release::of(key)));
        assert!(look(&places).holder().is_some());
        drop(heard);
        assert!(look(&places).holder().is_none());
        assert!(places.state.lock().places.is_empty());
    }

    /// Two reentrant requests of one client are one place: it is kept until both have gone.
    #[test]
    fn a_place_is_shared_by_the_reentrant_requests_of_a_client() {
        let places = places();
        submit(&places, Op::Acquire(ask("first", QueuePolicy::Skip)));
        let reentrant = || Acquire { hold: Ownership::Client, ..ask("b", QueuePolicy::Join(None)) };
        let (one, two) = (stand_by(&places, &reentrant()), stand_by(&places, &reentrant()));
        assert_eq!(one.ticket, two.ticket);
        drop(one);
        assert_eq!(look(&places).waiters.len(), 1);
        drop(two);
        assert_eq!(look(&places).waiters.len(), 0);
    }
}
