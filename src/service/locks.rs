//! The handle on a lock service that every front end holds.

use super::backend_status::{About, SessionOwner};
use super::cluster_status::ClusterAdmin;
use super::counters::Histogram;
use super::event_log::EventWatch;
use super::failure::Unavailable;
use super::lock_service::{CacheableView, Done, LockService};
use super::paging::{Children, List, ListPage};
use super::remote_status::RemoteStatus;
use crate::engine::{
    Answer, Child, Command, Glance, LockName, LockView, Op, SessionId, SessionView, Token,
};
use crate::time::{Time, Wall};
use std::sync::Arc;

/// The handle that every edge holds. Cheap to clone.
#[derive(Clone)]
pub struct Locks(pub(super) Arc<dyn LockService>);

impl Locks {
    /// A handle on `door`.
    pub fn new(door: Arc<dyn LockService>) -> Self {
        Self(door)
    }

    /// Decides a command; the answer goes to `then`.
    pub fn submit(
        &self,
        command: impl Into<Command>,
        then: impl FnOnce(Result<Answer, Unavailable>) + Send + 'static,
    ) {
        let command = command.into();
        match self.submit_here(&command) {
            Some(answer) => then(answer),
            None => self.0.submit(command, Box::new(then)),
        }
    }

    /// Shows one lock to `then`.
    pub fn view(
        &self,
        name: &LockName,
        then: impl FnOnce(Result<LockView, Unavailable>) + Send + 'static,
    ) {
        match self.view_here(name) {
            Some(view) => then(view),
            None => self.0.view(name, Box::new(then)),
        }
    }

    /// Decides a command, and asks again until there is an answer; see
    /// [`LockService::submit_until_answered`].
    pub fn submit_until_answered(
        &self,
        command: impl Into<Command>,
        then: impl FnOnce(Result<Answer, Unavailable>) + Send + 'static,
    ) {
        self.0.submit_until_answered(command.into(), Box::new(then));
    }

    /// Has a release or a departure from a queue carried out, however long that takes.
    pub fn give_back(&self, op: Op) {
        self.submit_until_answered(op, |_| {});
    }

    /// Shows one lock to `then`, and asks again until there is an answer.
    pub fn view_until_answered(
        &self,
        name: &LockName,
        then: impl FnOnce(Result<LockView, Unavailable>) + Send + 'static,
    ) {
        self.0.view_until_answered(name, Box::new(then));
    }

    /// Shows a page of the leases that hang on a session to `then`.
    pub fn leases(
        &self,
        session: SessionId,
        after: Option<LockName>,
        then: impl FnOnce(Result<ListPage<(LockName, Token)>, Unavailable>) + Send + 'static,
    ) {
        self.0.leases(session, after, Box::new(then));
    }

    /// Decides a command before it returns, if that is possible without waiting.
    pub fn submit_here(&self, command: &Command) -> Option<Result<Answer, Unavailable>> {
        self.0.submit_here(command)
    }

    /// Shows one lock before it returns, if that is possible without waiting.
    pub fn view_here(&self, name: &LockName) -> Option<Result<LockView, Unavailable>> {
        self.0.view_here(name)
    }

    /// Shows one lock in place, if what decides is here; `look` must be quick, and ask nobody.
    pub fn glance<T>(&self, name: &LockName, look: impl FnOnce(Glance<'_>) -> T) -> Option<T> {
        self.act_here(name, |_| None, look).map(|(_, seen)| seen)
    }

    /// Decides what `ask` makes of a lock as it is, and what `after` sees of it then, in one
    /// step, if what decides is here; both must be quick, and ask nobody.
    pub fn act_here<T>(
        &self,
        name: &LockName,
        ask: impl FnOnce(Glance<'_>) -> Option<Command>,
        after: impl FnOnce(Glance<'_>) -> T,
    ) -> Option<(Done, T)> {
        let (mut ask, mut after, mut seen) = (Some(ask), Some(after), None);
        let done = self.0.act_here(
            name,
            &mut |lock| ask.take().and_then(|ask| ask(lock)),
            &mut |lock| seen = after.take().map(|after| after(lock)),
        )?;
        seen.map(|seen| (done, seen))
    }

    /// Shows one lock to `then`, which wants to keep what it sees.
    pub fn look(
        &self,
        name: &LockName,
        then: impl FnOnce(Result<CacheableView, Unavailable>) + Send + 'static,
    ) {
        self.0.look(name, Box::new(then));
    }

    /// Shows a page of locks to `then`.
    pub fn list(
        &self,
        query: List,
        then: impl FnOnce(Result<ListPage<LockView>, Unavailable>) + Send + 'static,
    ) {
        self.0.list(query, Box::new(then));
    }

    /// Shows a page of a directory to `then`.
    pub fn children(
        &self,
        query: Children,
        then: impl FnOnce(Result<ListPage<Child>, Unavailable>) + Send + 'static,
    ) {
        self.0.children(query, Box::new(then));
    }

    /// Shows one session, and some of what hangs on it, to `then`.
    pub fn session(
        &self,
        id: SessionId,
        then: impl FnOnce(Result<Option<SessionView>, Unavailable>) + Send + 'static,
    ) {
        self.0.session(id, Box::new(then));
    }

    /// Follows what happens from now on, or from event `since` on.
    pub fn watch(&self, since: Option<u64>) -> EventWatch {
        self.0.watch(since)
    }

    /// The number that the next event will get.
    pub fn next_event(&self) -> u64 {
        self.0.next_event()
    }

    /// The session on which the holds of an edge hang.
    pub fn bond(&self) -> Result<SessionOwner, Unavailable> {
        self.0.bond()
    }

    /// Whether a session that [`Self::bond`] gave is over, so that what hung on it is lost.
    pub fn is_over(&self, session: SessionId) -> bool {
        self.0.is_over(session)
    }

    /// The engine's time now, or later.
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
    pub fn far(&self) -> Option<RemoteStatus> {
        self.0.far()
    }

    /// The URLs by which clients reach all nodes that decide together, if there can be several.
    pub fn urls(&self) -> Vec<String> {
        self.0.urls()
    }

    /// Whether commands are ordered here, and not forwarded to another server that does it.
    pub fn leads(&self) -> bool {
        self.0.leads()
    }

    /// The name of the engine that decides; 0: it has none.
    pub fn engine_id(&self) -> u64 {
        self.0.engine_id()
    }

    /// All that the engine knows, as bytes, to `then`, if the engine is here.
    pub fn state(&self, then: impl FnOnce(Result<Option<Vec<u8>>, Unavailable>) + Send + 'static) {
        self.0.state(Box::new(then));
    }

    /// Counts of what happened since the start, by metric name.
    pub fn counts(&self) -> Vec<(&'static str, u64)> {
        self.0.counts()
    }

    /// How long what happened took.
    pub fn histograms(&self) -> Vec<Histogram> {
        self.0.histograms()
    }

    /// The nodes that decide together, if there can be several.
    pub fn council(&self) -> Option<Arc<dyn ClusterAdmin>> {
        self.0.council()
    }

    /// Whether the engine's time is known here: until then nothing can be shown or asked.
    pub fn ready(&self) -> Result<(), Unavailable> {
        self.0.ready()
    }
}
