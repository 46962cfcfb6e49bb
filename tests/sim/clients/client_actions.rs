//! The operations of a simulated client besides acquire and release: it changes the mode or the
//! name of a lease, acquires a lock again without waiting for the answer to its release, steals,
//! restarts, and resets locks as an administrator.
//!
//! The engine does not store refusals under a request id, so a late copy of a refused request may
//! still take effect. A client that cannot know the state of its lease therefore releases it.
//!
//! A simulated client that sets handovers: it acquires names that are remembered, sets handovers in
//! some of its tenures, sends late copies of them, and ends its tenures in every way.
//!
//! A simulated client in a queue: it polls the lock to see whether it has been served, and leaves
//! the queue after a while.

use super::client::{LOCKS, PATIENCE, RequestResult, SimClient, name, shared};
use crate::checks::handover_history::{EndKind, EndRequest, ReportedPrevious, SentHandover};
use crate::clients::client::{ClientLease, less, sharing};
use crate::machines::virtual_environment::{SimTypeConfig, now, sleep};
use crate::machines::virtual_links::NodeRequest;
use crate::world::SimWorld;
use latchfs::engine::{
    Acquire, Annotate, Answer, ClientId, EndSession, Grace, Handover, Holder, IfExists, LeaseKey,
    LeaseTerms, Leave, LeaveReason, Lifetime, LockName, Mode, Move, Op, Outcome, Ownership, Patch,
    QueuePolicy, Release, Reset as Sweep, ResetScope, SessionEnd, Steal, StealReason, Tenure,
    Ticket, Ttl,
};
use latchfs::time::{Span, Time};
use openraft::type_config::TypeConfigExt;
use std::sync::Arc;
use testing::client_history::{Lock, ObservedQueuePlace, ObservedReset, Sharing, StepKind, Who};

/// The client id under which resets are sent.
const ADMIN: &str = "admin";

impl SimClient {
    /// Changes the lease of an open file from exclusive to shared, or back.
    pub(crate) async fn change_mode(&mut self) {
        let of_file = |held: &ClientLease| matches!(held.hold, Ownership::OpenFile(_));
        let Some(at) = self.held.iter().position(of_file) else { return };
        let Some(session) = self.session.as_ref().map(|session| session.id) else { return };
        let ClientLease { lock, token, hold, mode, .. } = self.held[at];
        let mode = if mode == Mode::Exclusive { shared(lock) } else { Mode::Exclusive };
        if mode != Mode::Exclusive {
            // The client no longer relies on an exclusive lock, even before it has an answer: as
            // soon as the lease is shared, the lock may be granted to other sharers as well.
            let held = self.held[at].clone();
            self.believed(&held);
            (self.held[at].mode, self.held[at].from) = (mode, now());
        }
        let (name, client) = (name(lock), self.id());
        let ask =
            Acquire { mode, hold, ..Acquire::new(name, client, LeaseTerms::Session(session)) };
        let came = self.submit(Op::Acquire(ask)).await;
        let Some(Ok(Outcome::Renewed(tenure))) = &came.answer else {
            return self.mode_unknown(lock, token, mode, &came).await;
        };
        let to = tenure.token.as_u64();
        self.world.record.history(|history| {
            history.tenure(lock, to, &self.who);
            let what = StepKind::Changed { from: token, to, mode: sharing(mode) };
            history.act(lock, came.from, Some(came.to), what);
        });
        self.lose(token);
        self.hold(lock, &came, tenure, hold, mode);
    }

    /// Handles a mode change without a success answer: it may have happened, may still happen, or
    /// never will. Releases the lease.
    async fn mode_unknown(&mut self, lock: Lock, token: u64, mode: Mode, came: &RequestResult) {
        self.left_open(lock, came.from);
        self.world.record.history(|history| {
            history.free(token, came.from);
            if mode != Mode::Exclusive {
                let what = StepKind::Changed { from: token, to: token, mode: Sharing::Shared };
                history.act(lock, came.from, None, what);
            }
        });
        self.close(token).await;
    }

    /// Releases the lease with this token if it is among the leases that the client believes it
    /// holds.
    async fn close(&mut self, token: u64) {
        if let Some(at) = self.held.iter().position(|held| held.token == token) {
            self.give_back(at).await;
        }
    }

    /// Moves a lease to another lock name.
    pub(super) async fn move_one(&mut self, to: Lock) {
        // A lease that the client holds by name is not moved: a late copy of a refused move would
        // take away the lease that the client later acquires again by name.
        let Some(held) = self.held.iter().find(|held| held.hold != Ownership::Client).cloned()
        else {
            return;
        };
        if self.held.iter().any(|held| held.lock == to) {
            return;
        }
        let ClientLease { lock, token, hold, mode, .. } = held;
        // The client no longer relies on the lock under the old name, even before it has an answer:
        // as soon as the lease is moved, another client may acquire the lock.
        self.lose(token);
        let from = self.key(lock, token);
        let came = self.submit(Op::Move(Move { from, to: name(to), over: IfExists::Refuse })).await;
        match &came.answer {
            Some(Ok(Outcome::Moved(tenure))) => {
                let new = tenure.token.as_u64();
                self.world.record.history(|history| {
                    history.tenure(to, new, &self.who);
                    history.act(lock, came.from, Some(came.to), StepKind::Released(token));
                    let what = StepKind::Granted(new, sharing(mode));
                    history.act(to, came.from, Some(came.to), what);
                });
                self.hold(to, &came, tenure, hold, mode);
            }
            other => {
                if let Some(Err(refusal)) = other {
                    self.refused(to, &came, &refusal.reason);
                }
                self.left_open(to, came.from);
                self.world.record.history(|history| history.free(token, came.from));
                self.held.push(ClientLease { from: now(), ..held });
                self.close(token).await;
            }
        }
    }

    /// Steals a lock from its holder. The client does not count it as held afterwards.
    pub(crate) async fn steal(&mut self, lock: Lock) {
        if self.held.iter().any(|held| held.lock == lock) {
            return;
        }
        let ttl = Ttl::new(self.world.dice.millis(1_000, 1_500)).expect("long enough");
        let steal = Steal {
            name: name(lock),
            only: None,
            client: self.id(),
            reason: reason(),
            term: LeaseTerms::Own(ttl, Grace::NONE),
            patch: Patch::default(),
            at_once: false,
        };
        let came = self.submit(Op::Steal(steal)).await;
        match came.answer {
            Some(Ok(Outcome::Stolen(tenure))) => {
                let token = tenure.token.as_u64();
                self.world.record.history(|history| {
                    history.tenure(lock, token, &self.who);
                    history.act(lock, came.from, Some(came.to), StepKind::Stolen(token));
                    history.steals.push((lock, came.from, token));
                    history.secure(token, came.from + less(ttl.span()));
                });
            }
            Some(Ok(_) | Err(_)) => {}
            None => self.world.record.history(|history| {
                history.steals.push((lock, came.from, u64::MAX));
                history.act(lock, came.from, None, StepKind::AllEnded);
                history.left_open(lock, &self.who, came.from);
            }),
        }
    }

    /// Resets the locks: ends every lease and queue place, except for those of a random set of
    /// clients.
    pub(crate) async fn reset(&mut self) {
        let dice = self.world.dice.clone();
        let holders = self.world.record.history(|history| history.tenures.clone());
        let mut kept: Vec<Who> = holders.into_values().map(|(_, who)| who).collect();
        kept.sort_unstable();
        kept.dedup();
        kept.retain(|_| dice.percent(50));
        let ids = kept.iter().map(|who| ClientId::parse(who).expect("a valid name"));
        let whose = ResetScope::AllBut(ids.collect());
        let by = ClientId::parse(ADMIN).expect("a valid name");
        let came = self.submit(Op::Reset(Sweep::new(whose, by, reason()))).await;
        // The administrator counts as a client whose leases the reset keeps, because it is the
        // holder of the locks during the steal grace.
        kept.push(ADMIN.into());
        let to: Option<Time> = matches!(came.answer, Some(Ok(_))).then_some(came.to);
        self.world.record.history(|history| {
            history.resets.push(ObservedReset { from: came.from, to, kept });
            for lock in 0..LOCKS {
                history.left_open(lock, &Arc::from(ADMIN), came.from);
            }
        });
    }

    /// Simulates a restart of the client process, with or without closing its session. The client
    /// comes back under another id.
    pub(super) async fn die_or_end(&mut self) {
        let Some(session) = &self.session else { return };
        let id = session.id;
        self.forget_all();
        if self.world.dice.percent(50) {
            let from = now();
            self.world.record.history(|history| {
                // All tenures of the client may end with the session. The client does not know
                // which ones: a late copy of a refused request may have tied a lease to the
                // session.
                let mine = history.tenures.iter().filter(|(_, (_, who))| *who == self.who);
                let mine: Vec<_> = mine.map(|(token, _)| *token).collect();
                for token in mine {
                    history.free(token, from);
                }
            });
            self.submit(Op::EndSession(EndSession { session: id, end: SessionEnd::Closed })).await;
        }
        self.session = None;
        self.life += 1;
        self.who = format!("c{}.{}", self.end - 100, self.life).into();
    }

    /// Ends the session of the client, and returns the answer; `None` if there is none.
    pub(crate) async fn end_session(&mut self) -> Option<RequestResult> {
        let session = self.session.as_ref()?.id;
        let end = EndSession { session, end: SessionEnd::Closed };
        let came = self.submit(Op::EndSession(end)).await;
        self.lose_session();
        Some(came)
    }

    /// Sends a release, and acquires the lock again without waiting for the answer: the release may
    /// arrive before the acquire, after it, or never.
    pub(super) async fn change_its_mind(&mut self, lock: Lock, release: Release) {
        self.requests += 1;
        // The release has no number ([`RequestNumber`](latchfs::engine::RequestNumber)), because
        // the acquire is in flight at the same time and may overtake it. The acquire acknowledges
        // all earlier numbers: the engine would then refuse the release as a late copy.
        let key = self.text_key();
        let request = NodeRequest::Submit(self.command(&key, Op::Release(release)).into());
        let (world, end, node) = (Arc::clone(&self.world), self.end, self.node);
        let later = world.dice.millis(0, 100);
        SimTypeConfig::spawn(async move {
            sleep(later).await;
            world.request(end, node, request, PATIENCE).await;
        });
        let ask = self.by_name(lock, QueuePolicy::Skip);
        self.take(lock, ask).await;
    }
}

fn reason() -> StealReason {
    StealReason::parse("to see what comes of it").expect("a reason")
}

/// The number of names for which the clients compete.
const NAMES: usize = 2;

/// A client that sets handovers.
pub(crate) struct HandoverClient {
    client: SimClient,
    /// The number of handovers that the client has sent, by which their texts differ.
    sent: u64,
}

/// A tenure of such a client.
struct OwnTenure {
    name: usize,
    key: LeaseKey,
    token: u64,
    is_of_session: bool,
    counter: u64,
}

fn named(name: usize) -> LockName {
    LockName::parse(&format!("folder{name}")).expect("a valid name")
}

impl HandoverClient {
    /// Returns the client with this number, which no other client of the simulation has.
    pub(crate) fn new(world: &Arc<SimWorld>, number: u64) -> Self {
        Self { client: SimClient::new(world, number), sent: 0 }
    }

    /// Performs random tenures until `until`.
    pub(crate) async fn live(mut self, until: Time) {
        while now() < until {
            self.client.keep_up().await;
            self.client.drop_the_late();
            let dice = self.client.world.dice.clone();
            let name = dice.index(NAMES);
            let tenure =
                if dice.percent(6) { self.steal(name).await } else { self.acquire(name).await };
            if let Some(tenure) = tenure {
                self.spend(tenure).await;
            }
            sleep(dice.millis(1, 150)).await;
        }
    }

    async fn acquire(&mut self, name: usize) -> Option<OwnTenure> {
        let session = self.client.session.as_ref().map(|session| session.id);
        let session = session.filter(|_| self.client.world.dice.percent(50));
        let term = session.map_or_else(|| self.own_term(), LeaseTerms::Session);
        let ask = Acquire {
            hold: Ownership::Exclusive(None),
            remember: true,
            ..Acquire::new(named(name), self.client.id(), term)
        };
        let came = self.client.submit(Op::Acquire(ask)).await;
        match &came.answer {
            Some(Ok(Outcome::Granted(tenure))) => {
                Some(self.begun(name, &came, tenure, session.is_some()))
            }
            _ => None,
        }
    }

    async fn steal(&mut self, name: usize) -> Option<OwnTenure> {
        let steal = Steal {
            name: named(name),
            only: None,
            client: self.client.id(),
            reason: StealReason::parse("to see what comes of it").expect("a reason"),
            term: self.own_term(),
            patch: Patch::default(),
            at_once: false,
        };
        let came = self.client.submit(Op::Steal(steal)).await;
        let by = came.answer.as_ref().and_then(|answer| answer.as_ref().ok()?.tenure());
        let by = by.map(|tenure| tenure.token.as_u64());
        self.note_end(EndKind::Steal { name, by }, &came);
        match &came.answer {
            Some(Ok(Outcome::Stolen(tenure))) if tenure.previous.is_some() => {
                Some(self.begun(name, &came, tenure, false))
            }
            _ => None,
        }
    }

    fn own_term(&self) -> LeaseTerms {
        let ttl = Ttl::new(self.client.world.dice.millis(1_000, 2_000)).expect("long enough");
        LeaseTerms::Own(ttl, Grace::NONE)
    }

    /// Records the last handover that a grant reported.
    fn begun(
        &self,
        name: usize,
        came: &RequestResult,
        tenure: &Tenure,
        is_of_session: bool,
    ) -> OwnTenure {
        let token = tenure.token.as_u64();
        let last = tenure.previous.as_ref().and_then(|previous| previous.last.clone());
        let (asked, answered) = (came.from, came.to);
        let (session, lasts_until) = match tenure.life {
            Lifetime::Own { ttl, .. } => (None, asked + less(ttl.span())),
            Lifetime::Session(id) => (Some(id), self.client.session_secured()),
        };
        self.client.world.record.handovers(|history| {
            let report =
                ReportedPrevious { name, token, asked, answered, session, lasts_until, last };
            history.reports.push(report);
        });
        let client = self.client.id();
        let key = LeaseKey { name: named(name), client, token: Some(tenure.token) };
        OwnTenure { name, key, token, is_of_session, counter: 0 }
    }

    /// Sets some handovers or none, and ends the tenure or leaves it to expire.
    async fn spend(&mut self, mut tenure: OwnTenure) {
        let dice = self.client.world.dice.clone();
        let count = if dice.percent(45) { 0 } else { 1 + dice.below(3) };
        let mut before = None;
        for _ in 0..count {
            sleep(dice.millis(1, 200)).await;
            let handover = self.next(&mut tenure);
            let (key, patch) = (tenure.key.clone(), Patch::default());
            let op = Op::Annotate(Annotate { key, patch, handover: Some(handover.clone()) });
            let came = self.client.submit(op.clone()).await;
            self.note_set(&handover, &came);
            if let Some(late) = before.replace(op).filter(|_| dice.percent(40)) {
                self.send_late(late);
            }
        }
        sleep(dice.millis(1, 300)).await;
        match dice.below(10) {
            0..6 => self.release(tenure).await,
            6 | 7 if tenure.is_of_session => {
                let Some(session) = self.client.session.as_ref().map(|own| own.id) else { return };
                if let Some(ended) = self.client.end_session().await {
                    self.note_end(EndKind::EndSession(session), &ended);
                }
            }
            // Left to expire, or to be stolen.
            _ => {}
        }
    }

    async fn release(&mut self, mut tenure: OwnTenure) {
        let hands_over = self.client.world.dice.percent(40);
        let handover = hands_over.then(|| self.next(&mut tenure));
        let release = Release { handover: handover.clone(), ..Release::of(tenure.key.clone()) };
        let came = self.client.submit(Op::Release(release)).await;
        if let Some(handover) = &handover {
            self.note_set(handover, &came);
        }
        self.note_end(EndKind::Release(tenure.token), &came);
    }

    /// Returns the next handover of a tenure, and records it as sent.
    fn next(&mut self, tenure: &mut OwnTenure) -> Handover {
        tenure.counter += 1 + self.client.world.dice.below(2);
        self.sent += 1;
        let who = Arc::clone(&self.client.who);
        let text: Arc<str> = format!("{who} sets {}", self.sent).into();
        let OwnTenure { name, token, counter, .. } = *tenure;
        let sent = SentHandover { name, who, token, counter, sent: now(), confirmed: None };
        self.client.world.record.handovers(|history| {
            history.sent.insert(Arc::clone(&text), sent);
        });
        Handover { text, counter }
    }

    fn note_set(&self, handover: &Handover, came: &RequestResult) {
        if is_done(came.answer.as_ref()) {
            self.client.world.record.handovers(|history| {
                let sent = history.sent.get_mut(&handover.text).expect("it was sent");
                sent.confirmed = Some(came.to);
            });
        }
    }

    /// Records a request that ends tenures.
    fn note_end(&self, kind: EndKind, came: &RequestResult) {
        let done = is_done(came.answer.as_ref()).then_some(came.to);
        let request = EndRequest { kind, sent: came.from, done };
        self.client.world.record.handovers(|history| history.ends.push(request));
    }

    /// Sends an earlier request once more, as a request of its own that arrives late.
    fn send_late(&mut self, op: Op) {
        self.client.requests += 1;
        let key = format!("late-{}", self.client.requests).as_str().into();
        let request = NodeRequest::Submit(self.client.command(&key, op).into());
        let (world, end, node) =
            (Arc::clone(&self.client.world), self.client.end, self.client.node);
        let later = world.dice.millis(0, 300);
        SimTypeConfig::spawn(async move {
            sleep(later).await;
            world.request(end, node, request, PATIENCE).await;
        });
    }
}

fn is_done(answer: Option<&Answer>) -> bool {
    let done = |outcome: &Outcome| {
        use Outcome::{Annotated, Released, SessionEnded, Stolen};
        matches!(outcome, Annotated | Released | SessionEnded | Stolen(_))
    };
    answer.is_some_and(|answer| answer.as_ref().is_ok_and(done))
}

/// The interval at which a waiter polls the lock.
const RECHECK: Span = Span::from_millis(80);

impl SimClient {
    /// Waits until the lock is granted, or for a random time, after which the client leaves the
    /// queue. Records the queue place in the history.
    pub(crate) async fn wait(
        &mut self,
        lock: Lock,
        joined: &RequestResult,
        ticket: Ticket,
        ask: &Acquire,
    ) {
        let (who, queued_at, number) = (Arc::clone(&self.who), joined.to, ticket.as_u64());
        let mut place = ObservedQueuePlace { lock, who, queued_at, ticket: number, served: None };
        let enough = now() + self.world.dice.millis(300, 5_000);
        while now() < enough {
            sleep(RECHECK).await;
            self.keep_up().await;
            let from = joined.from;
            let Some((sent, view, at)) = self.read_lock(lock).await else { continue };
            let made = |holder: &&Holder| {
                let details = &holder.lease.details;
                holder.lease.holder == ask.client
                    && details.holder_id() == ask.patch.holder_id.as_ref()
            };
            if let Some(holder) = view.holders.iter().find(made) {
                place.served = Some(holder.lease.token.as_u64());
                self.served(ask, lock, from, sent, at, holder);
                break;
            }
            if !view.waiters.iter().any(|waiter| waiter.ticket == ticket) {
                break;
            }
        }
        if place.served.is_none() {
            self.left_open(lock, joined.from);
            let why = LeaveReason::Asked;
            self.submit(Op::Leave(Leave { name: name(lock), ticket, why })).await;
        }
        self.world.record.history(|history| history.place(place));
    }

    /// Records the grant of a lock to a waiter, which learned of it by a read: `sent` is the time
    /// of the read on the client's clock, and `at` an upper bound of the engine time.
    fn served(
        &mut self,
        ask: &Acquire,
        lock: Lock,
        from: Time,
        sent: Time,
        at: Time,
        holder: &Holder,
    ) {
        let (token, life) = (holder.lease.token.as_u64(), &holder.lease.life);
        let left = holder.ends.expires_at.since(at);
        let until = match life {
            Lifetime::Own { .. } => Some(sent + less(left)),
            Lifetime::Session(_) => None,
        };
        let elsewhere = self.is_of_another_session(life);
        self.world.record.history(|history| {
            if !history.granted.contains(&token) {
                let what = StepKind::Granted(token, sharing(ask.mode));
                history.act(lock, from, Some(now()), what);
            }
            let secured = match until {
                _ if elsewhere => Time::ZERO,
                Some(_) => self.clock.virtual_at(sent) + less(left),
                None => self.session_secured(),
            };
            history.secure(token, secured);
            if until.is_none() {
                history.hangs_on_session(token);
            }
        });
        if !elsewhere && !self.held.iter().any(|held| held.token == token) {
            let (hold, mode, acquisition) = (ask.hold, ask.mode, holder.lease.acquisition);
            let (asked, from, runs_out) = (from, now(), false);
            let one =
                ClientLease { lock, token, hold, mode, acquisition, asked, from, until, runs_out };
            self.held.push(one);
        }
    }
}
