//! The handle on a lock service that all front ends hold.

use super::audit::AuditEntry;
use super::backend_status::{About, SessionOwner};
use super::cluster_status::ClusterAdmin;
use super::counters::{Count, Histogram};
use super::event_log::EventWatch;
use super::event_places::{EventPlace, EventStart};
use super::failure::Unavailable;
use super::lock_service::{CacheableView, LockService, Retry};
use super::paging::{Children, List, ListPage, ListedNames};
use super::remote_status::RemoteStatus;
use crate::engine::{
    Answer, Child, Command, Engine, HoldOff, Limit, LockName, LockView, Op, Phase, Reason, Refusal,
    RequestId, SessionId, SessionView, Token,
};
use crate::time::{Time, Wall};
use std::sync::Arc;

/// Decides whether a command may add to the engine, given the engine's state.
pub type Admission = Arc<dyn Fn(&Op, &Engine) -> Result<(), Limit> + Send + Sync>;

/// A handle on a lock service. Cheap to clone.
#[derive(Clone)]
pub struct Locks(pub(super) Arc<dyn LockService>, Option<Admission>);

impl Locks {
    /// Returns a handle on `service`.
    pub fn new(service: Arc<dyn LockService>) -> Self {
        Self(service, None)
    }

    /// Returns a handle on the same service that submits a command only if `admission` admits it.
    #[must_use]
    pub fn admitting(&self, admission: Admission) -> Self {
        Self(Arc::clone(&self.0), Some(admission))
    }

    /// Checks that `admission` admits a command. Without an engine in this process, the server
    /// decides that.
    pub fn admit(
        &self,
        op: &Op,
        admission: impl Fn(&Op, &Engine) -> Result<(), Limit>,
    ) -> Result<(), Refusal> {
        let mut admitted = Ok(());
        self.0.look_at_engine(&mut |engine| admitted = admission(op, engine));
        admitted.map_err(|limit| Refusal { at: self.now(), reason: Box::new(Reason::Limit(limit)) })
    }

    /// Checks that the admission of this handle, if it has any, admits a command.
    pub(super) fn admits(&self, op: &Op) -> Result<(), Refusal> {
        match (&self.1, op) {
            (Some(admission), Op::Acquire(_) | Op::Steal(_) | Op::OpenSession(_)) => {
                self.admit(op, |op, engine| admission(op, engine))
            }
            _ => Ok(()),
        }
    }

    /// Decides a command and passes the answer to `then`.
    pub fn submit(
        &self,
        command: impl Into<Command>,
        then: impl FnOnce(Result<Answer, Unavailable>) + Send + 'static,
    ) {
        let command = command.into();
        match self.admits(&command.op) {
            Ok(()) => self.0.submit(command, Retry::Never, Box::new(then)),
            Err(refusal) => then(Ok(Err(refusal))),
        }
    }

    /// Decides a command, and repeats it until there is an answer: see [`Retry::UntilAnswered`].
    pub fn submit_until_answered(
        &self,
        command: impl Into<Command>,
        then: impl FnOnce(Result<Answer, Unavailable>) + Send + 'static,
    ) {
        self.0.submit(command.into(), Retry::UntilAnswered, Box::new(then));
    }

    /// Submits a release or a departure from a queue, and repeats it until it is carried out.
    pub fn give_back(&self, op: Op) {
        self.submit_until_answered(op, |_| {});
    }

    /// Submits a release or a departure from a queue, and repeats it until it is carried out. Calls
    /// `then` once the operation was decided, or once it got no answer in the time in which a
    /// request is answered.
    pub fn give_back_and_tell(&self, op: Op, then: impl FnOnce() + Send + 'static) {
        let (own, again) = (self.clone(), op.clone());
        self.submit(op, move |answer| {
            match answer {
                // After a missing answer the backend itself repeats the operation.
                Ok(_) | Err(Unavailable::NoAnswer { .. }) => {}
                Err(_) => own.give_back(again),
            }
            then();
        });
    }

    /// Passes the view of one lock to `then`.
    pub fn view(
        &self,
        name: &LockName,
        then: impl FnOnce(Result<LockView, Unavailable>) + Send + 'static,
    ) {
        self.view_cacheable(name, |seen| then(seen.map(|seen| seen.view)));
    }

    /// Passes the view of one lock to `then`, and repeats the request until there is an answer.
    pub fn view_until_answered(
        &self,
        name: &LockName,
        then: impl FnOnce(Result<LockView, Unavailable>) + Send + 'static,
    ) {
        let then = Box::new(|seen: Result<CacheableView, _>| then(seen.map(|seen| seen.view)));
        self.0.view(name, Retry::UntilAnswered, then);
    }

    /// Passes the view of one lock to `then`, with the number of the event up to which the view is
    /// current, which a cache needs.
    pub fn view_cacheable(
        &self,
        name: &LockName,
        then: impl FnOnce(Result<CacheableView, Unavailable>) + Send + 'static,
    ) {
        self.0.view(name, Retry::Never, Box::new(then));
    }

    /// Passes a page of the leases that are bound to a session to `then`.
    pub fn leases(
        &self,
        session: SessionId,
        after: Option<LockName>,
        then: impl FnOnce(Result<ListPage<(LockName, Token)>, Unavailable>) + Send + 'static,
    ) {
        self.0.leases(session, after, Box::new(then));
    }

    /// Passes a page of locks to `then`.
    pub fn list(
        &self,
        query: List,
        then: impl FnOnce(Result<ListPage<LockView>, Unavailable>) + Send + 'static,
    ) {
        self.list_of(ListedNames::InUse, query, then);
    }

    /// Passes a page of the locks with these names to `then`.
    pub fn list_of(
        &self,
        names: ListedNames,
        query: List,
        then: impl FnOnce(Result<ListPage<LockView>, Unavailable>) + Send + 'static,
    ) {
        match names {
            ListedNames::InUse => self.0.list(query, Box::new(then)),
            ListedNames::Remembered => self.0.remembered(query, Box::new(then)),
        }
    }

    /// Passes a page of a directory to `then`.
    pub fn children(
        &self,
        query: Children,
        then: impl FnOnce(Result<ListPage<Child>, Unavailable>) + Send + 'static,
    ) {
        self.0.children(query, Box::new(then));
    }

    /// Passes one session, and some of the leases that are bound to it, to `then`.
    pub fn session(
        &self,
        id: SessionId,
        then: impl FnOnce(Result<Option<SessionView>, Unavailable>) + Send + 'static,
    ) {
        self.0.session(id, Box::new(then));
    }

    /// Returns a reader of the events from now on, or from event `since` on.
    pub fn subscribe(&self, since: Option<u64>) -> EventWatch {
        self.0.subscribe(since)
    }

    /// Returns the place in the replicated log of the event with this number: see
    /// [`BackendStatus::event_place`](super::BackendStatus::event_place).
    pub fn event_place(&self, number: u64) -> Option<EventPlace> {
        self.0.event_place(number)
    }

    /// Returns the number of the first event after a place in the replicated log.
    pub fn events_after(&self, place: EventPlace) -> EventStart {
        self.0.events_after(place)
    }

    /// Returns the number of the next event.
    pub fn next_event(&self) -> u64 {
        self.0.next_event()
    }

    /// Returns whether a front end must open a session for its leases itself, or the session that
    /// the lock service keeps alive for it.
    pub fn own_session(&self) -> Result<SessionOwner, Unavailable> {
        self.0.own_session()
    }

    /// Whether a session that [`Self::own_session`] returned has ended, so that the leases bound to
    /// it are lost.
    pub fn is_session_over(&self, session: SessionId) -> bool {
        self.0.is_session_over(session)
    }

    /// Returns the boot time until which a session certainly lives; [`Time::ZERO`] if it may be
    /// over.
    pub fn surely_until(&self, session: SessionId) -> Time {
        self.0.surely_until(session)
    }

    /// Returns the engine's time, or a later one.
    pub fn now(&self) -> Time {
        self.0.now()
    }

    /// Converts an engine time to wall-clock time. For display only.
    pub fn wall(&self, at: Time) -> Wall {
        self.0.wall(at)
    }

    /// Returns the status of the backend.
    pub fn about(&self) -> About {
        self.0.about()
    }

    /// Returns the status of the connection to the server, if there is one.
    pub fn connection(&self) -> Option<RemoteStatus> {
        self.0.connection()
    }

    /// Returns the URLs of all nodes of the cluster, if the backend belongs to one.
    pub fn urls(&self) -> Vec<String> {
        self.0.urls()
    }

    /// Whether every call passes its answer to the callback before it returns.
    pub fn answers_at_once(&self) -> bool {
        self.0.answers_at_once()
    }

    /// Whether this node orders the commands itself, instead of forwarding them to the leader.
    pub fn leads(&self) -> bool {
        self.0.leads()
    }

    /// Returns the id of the engine; 0 if it has none.
    pub fn engine_id(&self) -> u64 {
        self.0.engine_id()
    }

    /// Passes the encoded state of the engine to `then`, or `None` if the engine is not in this
    /// process.
    pub fn state(&self, then: impl FnOnce(Result<Option<Vec<u8>>, Unavailable>) + Send + 'static) {
        self.0.state(Box::new(then));
    }

    /// Returns the number of requests whose answers are remembered, if the engine is in this
    /// process.
    pub fn request_ids(&self) -> Option<usize> {
        let mut ids = None;
        self.0.look_at_engine(&mut |engine| ids = Some(engine.request_ids()));
        ids
    }

    /// Returns the id of the request that was granted a lock under this token, if it had one that
    /// is remembered, and if the engine is in this process.
    pub fn request_of(&self, token: Token) -> Option<RequestId> {
        let mut request = None;
        self.0.look_at_engine(&mut |engine| request = engine.request_of(token).cloned());
        request
    }

    /// Whether the answer to the request with this id is remembered, if the engine is in this
    /// process.
    pub fn remembers(&self, id: &RequestId) -> bool {
        let mut remembers = false;
        self.0.look_at_engine(&mut |engine| remembers = engine.remembers(id));
        remembers
    }

    /// Returns the number of names that are remembered beyond a tenure, if the engine is in this
    /// process.
    pub fn remembered_names(&self) -> Option<usize> {
        let mut names = None;
        self.0.look_at_engine(&mut |engine| names = Some(engine.remembered()));
        names
    }

    /// Returns until when no lock is granted, and why, if the engine is in this process; `None` if
    /// locks are granted.
    pub fn hold_off(&self) -> Option<HoldOff> {
        let mut hold_off = None;
        self.0.look_at_engine(&mut |engine| hold_off = engine.hold_off());
        hold_off.filter(|hold_off| hold_off.until > self.now())
    }

    /// Calls `each` with the name, phase and number of waiters of at most `limit` locks after
    /// `after`, and returns the name of the last of them; `None` if none is left, or if the engine
    /// is not in this process.
    pub fn walk(
        &self,
        after: Option<&LockName>,
        limit: usize,
        each: &mut dyn FnMut(&LockName, Phase, usize),
    ) -> Option<LockName> {
        let (mut last, now) = (None, self.now());
        self.0.look_at_engine(&mut |engine| last = engine.walk(after, limit, now, each));
        last
    }

    /// Returns the counters of events and requests since the start.
    pub fn counts(&self) -> Vec<Count> {
        self.0.counts()
    }

    /// Returns histograms of durations, such as how long clients wait for locks, how long they hold
    /// them, and how long disk syncs take.
    pub fn histograms(&self) -> Vec<Histogram> {
        self.0.histograms()
    }

    /// Adds an entry to the audit log of this process.
    pub fn audit(&self, entry: &AuditEntry<'_>) {
        self.0.audit(entry);
    }

    /// Calls `then` when all entries that were added to the audit log before are on disk.
    pub fn when_audited(&self, then: Box<dyn FnOnce() + Send>) {
        self.0.when_audited(then);
    }

    /// Returns the administration of the cluster, if the backend is a node of one.
    pub fn cluster_admin(&self) -> Option<Arc<dyn ClusterAdmin>> {
        self.0.cluster_admin()
    }

    /// Returns an error while this node does not know the engine's time: until then no lock can be
    /// shown or acquired.
    pub fn ready(&self) -> Result<(), Unavailable> {
        self.0.ready()
    }

    /// Returns an error while no lock is granted: as [`Self::ready`], or without a majority.
    pub fn grants(&self) -> Result<(), Unavailable> {
        if !self.0.has_majority() {
            return Err(Unavailable::no_majority());
        }
        self.0.ready()
    }
}
