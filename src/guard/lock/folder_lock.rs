//! The lock of a folder in the lock service. The guard holds it by its session and by a number of
//! its own, so that no acquire, touch or release of another program of the same client reaches it.
//!
//! The file that names the session of a guard, so that a restarted guard can end it.
//!
//! The session of a guard whose lock service is in its own process.
//!
//! The session of a lock that a person takes along: it keeps the lock although nothing renews it.

use super::lock_record::HolderProof;
use crate::engine::{
    Acquire, ClientId, EndSession, EventKind, Grace, Handover, LeaseKey, LeaseTerms, LeaveReason,
    LockName, Op, OpenId, OpenSession, Outcome, Ownership, Patch, QueuePolicy, Reason, Refusal,
    RefusalKind, Release, SessionEnd, SessionId, Token,
};
use crate::guard::folder::folder_record::{LockIdentity, another_engine};
use crate::guard::tenure::TenureClock;
use crate::service::event_log::EventWatch;
use crate::service::queue_waits::{Entered, PlaceGuard, QueueWaits, WaitEnd};
use crate::service::{LockService, Retry, SessionOwner, Unavailable};
use crate::time::{Span, Time, Wall, boot_now, slept_at, this_boot};
use barrier::handover::PreviousTenure;
use barrier::tenure_id::TenureId;
use common::task::spawn;
use parking_lot::Mutex;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The answer to a request whose session is over.
const SESSION_LOST: &str =
    "the session of this guard has ended, since the lock service did not hear of it for too long";
/// The maximum number of events handled at a time.
const EVENTS_MAX: usize = 256;

/// The answer to a request for the folder's lock.
#[derive(Debug)]
pub(crate) enum TakeAnswer {
    /// The guard holds the lock in this tenure. With it comes what the lock service remembers of
    /// the last one, unless the grant ended a wait in the queue.
    Granted(TenureId, Option<PreviousTenure>),
    /// Another client holds the lock. The sentence says which, and since when.
    Held {
        /// The client that holds the lock.
        holder: String,
        /// The fencing token of the holder.
        token: Token,
    },
    /// The request waits in the queue; a second answer follows.
    Waits,
    /// The lock can't be had, for this reason.
    Failed(String),
    /// The lock service can't be reached or can't decide now, for this reason.
    Unreachable(String),
}

/// A change of the lock that this guard has not requested.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LockNews {
    /// The tenure with this token has ended: the session is over, or the lock was stolen.
    Ended(Token),
    /// Another client waits for the lock.
    Wanted(String),
    /// Another client that waited for the lock does not wait any more.
    Unwanted,
    /// Events were lost, and the end of the tenure may be one of them.
    Missed,
    /// A client with this machine's own name waits, or does not wait any more: this guard, or
    /// another machine that has the same name.
    SameName,
}

/// The other clients that hold the lock or wait for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SeenLock {
    /// The client that holds the lock.
    pub(crate) holder: Option<String>,
    /// Until when the holder has taken the lock along.
    pub(crate) away_until: Option<Wall>,
    /// The client that has waited longest.
    pub(crate) waiter: Option<String>,
}

/// A message of the lock service about a request for the lock, to be passed to
/// [`FolderLock::accept`].
pub(crate) enum LockMessage {
    /// The answer to the request.
    Answered(OpenId, Box<Result<Result<Entered, Refusal>, Unavailable>>),
    /// The end of the wait in the queue.
    WaitEnded(OpenId, WaitEnd),
}

/// Returns the answer to a request for the lock that the lock service did not decide.
pub(crate) fn unanswered(why: &Unavailable) -> TakeAnswer {
    match why.kind() {
        RefusalKind::Denied => TakeAnswer::Failed(why.to_string()),
        _ => TakeAnswer::Unreachable(why.to_string()),
    }
}

/// The lock of a folder.
pub(crate) struct FolderLock {
    pub(in crate::guard) locks: Arc<dyn LockService>,
    pub(in crate::guard) identity: LockIdentity,
    waits: Arc<QueueWaits>,
    /// The file that records the session, so that a restarted guard can end it.
    pub(in crate::guard) record: PathBuf,
    state: Mutex<LockState>,
    /// The session that keeps the lock of the current tenure alive; 0 without a tenure.
    pub(in crate::guard) session: AtomicU64,
    /// The session that the record names.
    noted: AtomicU64,
    next: AtomicU64,
    /// The session that keeps a lock which a person has taken along.
    pub(in crate::guard) away: AwaySession,
}

#[derive(Default)]
struct LockState {
    /// The session that this guard has opened itself, if the engine is in this process.
    own: Option<SessionId>,
    held: Option<HeldFolderLock>,
    /// The lock that was lost last, until that is acknowledged.
    lost: Option<HeldFolderLock>,
    /// The place in the queue.
    place: Option<PlaceGuard>,
    watch: Option<EventWatch>,
}

/// A lock that this guard holds.
#[derive(Debug, Clone, Copy)]
struct HeldFolderLock {
    open: OpenId,
    token: Token,
    /// The number of the last handover of the tenure.
    counter: u64,
}

impl FolderLock {
    /// Returns a lock that is not held yet. The file `record` names the session that keeps it
    /// alive.
    pub(crate) fn new(
        locks: Arc<dyn LockService>,
        identity: LockIdentity,
        record: PathBuf,
    ) -> Arc<Self> {
        Arc::new(Self {
            waits: QueueWaits::new(locks.clone()),
            locks,
            identity,
            record,
            state: Mutex::default(),
            session: AtomicU64::new(0),
            noted: AtomicU64::new(0),
            next: AtomicU64::new(1),
            away: AwaySession::default(),
        })
    }

    /// Returns the name of the lock.
    pub(crate) const fn name(&self) -> &LockName {
        &self.identity.name
    }

    /// Returns the id of the engine that decides about the lock.
    pub(crate) fn engine_id(&self) -> u64 {
        self.locks.engine_id()
    }

    /// Returns the client as which this guard holds the lock.
    pub(crate) const fn client(&self) -> &ClientId {
        &self.identity.client
    }

    /// Returns how long the lock stays held without a sign of life of this guard.
    pub(crate) const fn ttl(&self) -> Span {
        self.identity.ttl.span()
    }

    /// Calls `tell` for each event that concerns the lock, from now on.
    pub(crate) fn follow(self: &Arc<Self>, tell: impl Fn(LockNews) + Send + Sync + 'static) {
        let mut watch = self.locks.subscribe(None);
        let own = Arc::downgrade(self);
        watch.wake_by(Arc::new(move || {
            if let Some(lock) = own.upgrade() {
                lock.news().into_iter().for_each(&tell);
            }
        }));
        self.state.lock().watch = Some(watch);
    }

    fn news(&self) -> Vec<LockNews> {
        let mut news = Vec::new();
        let mut state = self.state.lock();
        let LockState { held, watch: Some(watch), .. } = &mut *state else { return news };
        loop {
            let batch = watch.take(EVENTS_MAX);
            if batch.has_gap()
                && let Some(held) = held
            {
                // A session that nothing renews ends unnoticed, and a steal ends no session.
                if self.locks.is_session_over(held.open.session)
                    && self.away.session() != Some(held.open.session)
                {
                    news.push(LockNews::Ended(held.token));
                } else {
                    news.push(LockNews::Missed);
                }
            }
            for (_, event) in &batch.events {
                match &event.what {
                    EventKind::Ended { name, token, .. } if *name == self.identity.name => {
                        news.push(LockNews::Ended(*token));
                    }
                    EventKind::SessionOver { session, .. } => {
                        let lost = held.filter(|held| held.open.session == *session);
                        news.extend(lost.map(|held| LockNews::Ended(held.token)));
                    }
                    EventKind::Joined { name, client, .. } if *name == self.identity.name => {
                        news.push(if *client == self.identity.client {
                            LockNews::SameName
                        } else {
                            LockNews::Wanted(client.to_string())
                        });
                    }
                    EventKind::Left { name, client, .. } if *name == self.identity.name => {
                        news.push(if *client == self.identity.client {
                            LockNews::SameName
                        } else {
                            LockNews::Unwanted
                        });
                    }
                    _ => {}
                }
            }
            if batch.events.is_empty() {
                return news;
            }
        }
    }

    /// Requests the lock, and waits in its queue for at most `patience`. Calls `send` with the
    /// answer, and with the end of the wait if there is one. `send` must not block.
    pub(crate) fn take(
        self: &Arc<Self>,
        patience: Span,
        send: impl Fn(LockMessage) + Clone + Send + 'static,
    ) -> Result<(), Unavailable> {
        let away = self.away.session();
        let session = away.map_or_else(|| self.session(), Ok)?;
        if self.noted.swap(session.as_u64(), Ordering::Relaxed) != session.as_u64() {
            self.note_session(session);
        }
        let open = OpenId { session, number: self.next.fetch_add(1, Ordering::Relaxed) };
        let holder_id = Arc::clone(&self.identity.holder_id);
        let details = HolderProof::of_guard(session.as_u64()).details(holder_id);
        let line = match patience {
            Span::ZERO => QueuePolicy::Skip,
            patience => QueuePolicy::Join(Some(patience)),
        };
        let ask = Acquire {
            hold: Ownership::OpenFile(open),
            mode: self.identity.mode,
            line,
            remember: self.identity.remembers,
            patch: Patch { note: away.map(|_| AWAY_NOTE.into()), ..details },
            ..Acquire::new(
                self.identity.name.clone(),
                self.identity.client.clone(),
                LeaseTerms::Session(session),
            )
        };
        let at_end = send.clone();
        let on_end = move |end| at_end(LockMessage::WaitEnded(open, end));
        let entered = self.waits.enter(ask, None, on_end);
        spawn(async move {
            let answer = entered.await;
            send(LockMessage::Answered(open, Box::new(answer)));
        });
        Ok(())
    }

    /// Takes note of a message of the lock service. Returns the answer to the request.
    pub(crate) fn accept(&self, message: LockMessage) -> TakeAnswer {
        match message {
            LockMessage::WaitEnded(open, WaitEnd::Granted(grant)) => {
                self.granted(open, grant.token, None)
            }
            LockMessage::WaitEnded(open, end @ (WaitEnd::Left(_) | WaitEnd::Unknown)) => {
                self.leave();
                if matches!(end, WaitEnd::Unknown) {
                    self.give_back_unknown(open);
                }
                match end {
                    // The session was lost while the lock service did not answer. The wait goes on
                    // in the next one.
                    WaitEnd::Left(LeaveReason::SessionOver) | WaitEnd::Unknown => {
                        TakeAnswer::Unreachable(SESSION_LOST.to_owned())
                    }
                    _ => TakeAnswer::Failed("the wait for the lock has ended".to_owned()),
                }
            }
            LockMessage::Answered(open, answer) => match *answer {
                Ok(Ok(Entered::Waits(place))) => self.waits_in(open, place),
                Ok(Ok(Entered::Decided(outcome))) => self.decided(open, &outcome),
                Ok(Err(refusal)) => match &*refusal.reason {
                    Reason::Conflict(conflict) => TakeAnswer::Held {
                        holder: self.shown(&conflict.holder),
                        token: conflict.token,
                    },
                    Reason::NoSession(_) => TakeAnswer::Unreachable(SESSION_LOST.to_owned()),
                    _ => TakeAnswer::Failed(refusal.to_string()),
                },
                Err(why) => {
                    self.give_back_unknown(open);
                    unanswered(&why)
                }
            },
        }
    }

    /// Releases a lock that may have been granted although no answer arrived. Otherwise this guard
    /// would keep everybody from the lock, itself included, as long as its session lasts.
    fn give_back_unknown(&self, open: OpenId) {
        let (name, client) = (self.identity.name.clone(), self.identity.client.clone());
        let key = LeaseKey { name, client, token: None };
        self.locks.give_back(Op::Release(Release::of_open_file(open, key)));
    }

    /// Keeps the place in the queue. The end of the wait may have been reported before the place.
    fn waits_in(&self, open: OpenId, place: PlaceGuard) -> TakeAnswer {
        let mut state = self.state.lock();
        match state.held.filter(|held| held.open == open) {
            None => {
                state.place = Some(place);
                TakeAnswer::Waits
            }
            Some(held) => {
                drop(state);
                place.claim();
                let engine = self.locks.engine_id();
                TakeAnswer::Granted(TenureId { engine, token: held.token }, None)
            }
        }
    }

    fn decided(&self, open: OpenId, outcome: &Outcome) -> TakeAnswer {
        match outcome {
            Outcome::Granted(tenure) | Outcome::Renewed(tenure) => {
                let previous = self.previous_tenure(tenure.previous.as_deref());
                self.granted(open, tenure.token, Some(previous))
            }
            other => TakeAnswer::Failed(format!("the lock service answered {other:?}")),
        }
    }

    fn granted(&self, open: OpenId, token: Token, previous: Option<PreviousTenure>) -> TakeAnswer {
        let mut state = self.state.lock();
        state.held = Some(HeldFolderLock { open, token, counter: 0 });
        let place = state.place.take();
        drop(state);
        if let Some(place) = place {
            place.claim();
        }
        let found = self.locks.engine_id();
        if let Some(recorded) = self.identity.engine.filter(|recorded| *recorded != found) {
            self.release(|| {});
            return TakeAnswer::Failed(another_engine(recorded, found));
        }
        if let Some(why) = self.replaced() {
            self.release(|| {});
            return TakeAnswer::Failed(why);
        }
        self.session.store(open.session.as_u64(), Ordering::Release);
        TakeAnswer::Granted(TenureId { engine: found, token }, previous)
    }

    /// Whether a lease is one that this guard has requested.
    pub(in crate::guard) fn is_own(&self, hold: Ownership) -> bool {
        let noted = self.noted.load(Ordering::Relaxed);
        matches!(hold, Ownership::OpenFile(open) if open.session.as_u64() == noted)
    }

    /// Returns a sentence that says what to do if another lock decides about the folder by now.
    pub(in crate::guard) fn replaced(&self) -> Option<String> {
        self.identity.record.replaced()
    }

    /// Whether this guard waits in the queue.
    pub(crate) fn is_in_line(&self) -> bool {
        self.state.lock().place.is_some()
    }

    /// Leaves the queue, if this guard waits in it.
    pub(crate) fn leave(&self) {
        let place = self.state.lock().place.take();
        drop(place);
    }

    /// Forgets the tenure after it was lost. From now on the deadline is in the past.
    pub(crate) fn forget(&self) {
        self.session.store(0, Ordering::Release);
        let mut state = self.state.lock();
        state.lost = state.held.take();
        drop(state);
        self.end_away();
    }

    /// Tells the lock service that nothing of a tenure that it has ended goes on. The next client
    /// gets the lock then, and does not wait for the end of the lease.
    pub(in crate::guard) fn acknowledge_loss(&self) {
        let lost = self.state.lock().lost.take();
        if let Some(lost) = lost {
            let release = Release { acknowledges: true, ..self.release_of(lost) };
            self.locks.give_back_once(Op::Release(release)).detach();
        }
    }

    fn release_of(&self, held: HeldFolderLock) -> Release {
        let (name, client) = (self.identity.name.clone(), self.identity.client.clone());
        Release::of_open_file(held.open, LeaseKey { name, client, token: Some(held.token) })
    }

    /// Returns the token of the tenure.
    pub(in crate::guard) fn token(&self) -> Option<Token> {
        self.state.lock().held.map(|held| held.token)
    }

    /// Returns the token of the tenure and the counter of its next handover.
    pub(super) fn next_handover(&self) -> Option<(Token, u64)> {
        let mut state = self.state.lock();
        let held = state.held.as_mut()?;
        held.counter += 1;
        Some((held.token, held.counter))
    }

    /// Releases the lock, and calls `then` when that is decided or got no answer in time.
    pub(crate) fn release(&self, then: impl FnOnce() + Send + 'static) {
        self.release_with(None, then);
    }

    /// Releases the lock, and leaves a handover, if there is one, in the same step.
    pub(super) fn release_with(
        &self,
        text: Option<Arc<str>>,
        then: impl FnOnce() + Send + 'static,
    ) {
        self.session.store(0, Ordering::Release);
        let held = self.state.lock().held.take();
        let Some(held) = held else { return then() };
        let handover = text.map(|text| Handover { text, counter: held.counter + 1 });
        let release = Release { handover, ..self.release_of(held) };
        let given_back = self.locks.give_back_once(Op::Release(release));
        spawn(async move {
            let _ = given_back.await;
            then();
        });
        self.end_away();
    }

    /// Returns the session that keeps the lock of the current tenure alive.
    pub(super) fn current_session(&self) -> SessionId {
        let own = || SessionId::named(self.session.load(Ordering::Acquire));
        self.away.session().unwrap_or_else(own)
    }

    /// Returns the session to which the lock is bound: the one that the lock service keeps alive,
    /// or one that lasts as long as this process.
    fn session(&self) -> Result<SessionId, Unavailable> {
        match self.locks.own_session()? {
            SessionOwner::Kept(session) => Ok(session),
            SessionOwner::Own => {
                let own = self.state.lock().own;
                if let Some(session) = own {
                    return Ok(session);
                }
                // Opening a session makes events, whose reader locks the state. Only the thread of
                // the tenures calls this, so no second session is opened meanwhile.
                let session = open_process_session(&self.locks, &self.identity.client)?;
                self.state.lock().own = Some(session);
                Ok(session)
            }
        }
    }

    /// Ends the session that this guard has opened itself.
    pub(crate) fn close(&self) {
        let own = self.state.lock().own.take();
        if let Some(session) = own {
            let end = EndSession { session, end: SessionEnd::Closed };
            self.locks.submit(Op::EndSession(end).into(), Retry::Never).detach();
        }
    }
}

impl TenureClock for FolderLock {
    fn now(&self) -> Time {
        boot_now()
    }

    fn surely_until(&self) -> Time {
        match self.session.load(Ordering::Acquire) {
            0 => Time::ZERO,
            session => match self.away.surely_until(session) {
                Some(until) => until,
                None => self.locks.surely_until(SessionId::named(session)),
            },
        }
    }

    fn slept(&self) -> Span {
        slept_at(boot_now())
    }
}

/// How long a start waits for the end of an earlier guard's session.
const END_PATIENCE: Span = Span::from_secs(5);

impl FolderLock {
    /// Ends the session of an earlier guard of this folder on this machine, which was killed. A
    /// session of another boot is left to expire: a cloned machine has a copy of the record.
    pub(crate) fn end_previous(&self) {
        let text = fs::read_to_string(&self.record).unwrap_or_default();
        let Some((session, boot)) = text.trim().split_once(' ') else { return };
        let (Ok(session), Ok(boot)) = (session.parse(), boot.parse::<u128>()) else { return };
        if boot != this_boot() && !self.locks.answers_at_once() {
            return;
        }
        let end = EndSession { session: SessionId::named(session), end: SessionEnd::Closed };
        let ended = self.locks.submit(Op::EndSession(end).into(), Retry::Never);
        if let Some(Ok(Ok(_))) = ended.wait_at_most(END_PATIENCE) {
            log::info!("ended session {session} of an earlier guard");
        }
    }

    /// Records the session to which the lock is going to be bound.
    pub(super) fn note_session(&self, session: SessionId) {
        let text = format!("{} {}\n", session.as_u64(), this_boot());
        if let Err(error) = fs::write(&self.record, text) {
            let path = self.record.display();
            log::warn!("{path} can't be written, so a restart waits for the lease to end: {error}");
        }
    }

    /// Returns the directory of this machine in the state directory.
    pub(in crate::guard) fn state_dir(&self) -> Option<&Path> {
        self.record.parent()
    }

    /// Returns the number of the session that keeps the lock, if there is one.
    pub(in crate::guard) fn held_session(&self) -> Option<u64> {
        Some(self.session.load(Ordering::Acquire)).filter(|session| *session > 0)
    }
}

/// Opens a session that lasts as long as this process. It has no grace: the engine is in this
/// process, so a guard that starts after it was killed is the only one that can take the lock.
pub(super) fn open_process_session(
    locks: &Arc<dyn LockService>,
    client: &ClientId,
) -> Result<SessionId, Unavailable> {
    let (client, ttl, grace) = (client.clone(), None, Grace::NONE);
    let op = Op::OpenSession(OpenSession { client, ttl, grace });
    // The engine is in this process, so the answer is there at once.
    match locks.submit(op.into(), Retry::Never).wait()? {
        Ok(Outcome::SessionOpened(session)) => Ok(session),
        _ => Err(Unavailable::Closing),
    }
}

/// The note of a lock that a person has taken along, by which other guards know it.
pub(super) const AWAY_NOTE: &str = "away";

/// How far the clocks of two machines may drift apart, per mille of the time.
const DRIFT_PER_MILLE: u64 = 1;
/// How much earlier the time ends here than at the lock service.
const MARGIN: Span = Span::from_millis(50);
/// How long before the end the lock is given up in good order, at most: the last marker takes time.
const GIVE_BEFORE: Span = Span::from_secs(10);

/// The session that keeps a lock which a person has taken along.
#[derive(Default)]
pub(in crate::guard) struct AwaySession {
    /// The number of the session; 0 if there is none.
    session: AtomicU64,
    /// Until when the session certainly lasts, in nanoseconds of the boot clock.
    until: AtomicU64,
    /// When the lock is given up in good order.
    gives_at: AtomicU64,
}

impl AwaySession {
    pub(in crate::guard) fn session(&self) -> Option<SessionId> {
        match self.session.load(Ordering::Acquire) {
            0 => None,
            session => Some(SessionId::named(session)),
        }
    }

    /// Returns until when the session certainly lasts, if it is this one.
    pub(in crate::guard) fn surely_until(&self, session: u64) -> Option<Time> {
        let until = self.until();
        (self.session.load(Ordering::Acquire) == session).then_some(until)
    }

    pub(in crate::guard) fn until(&self) -> Time {
        Time::from_nanos(self.until.load(Ordering::Acquire))
    }

    pub(in crate::guard) fn gives_at(&self) -> Time {
        Time::from_nanos(self.gives_at.load(Ordering::Acquire))
    }

    pub(in crate::guard) fn begin(&self, session: SessionId, asked_at: Time, length: Span) {
        let drift = Span::from_nanos(length.as_nanos() / 1_000 * DRIFT_PER_MILLE);
        let until = asked_at + length - drift - MARGIN;
        let early = GIVE_BEFORE.min(Span::from_nanos(length.as_nanos() / 10));
        self.until.store(until.as_nanos(), Ordering::Release);
        self.gives_at.store((until - early).as_nanos(), Ordering::Release);
        self.session.store(session.as_u64(), Ordering::Release);
    }

    /// Forgets the session, and returns it.
    pub(in crate::guard) fn end(&self) -> Option<SessionId> {
        let session = self.session.swap(0, Ordering::AcqRel);
        (session != 0).then(|| SessionId::named(session))
    }
}
