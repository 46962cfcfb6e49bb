//! The one door: every edge asks here, and nowhere else.
//!
//! What stands behind the door decides who orders the commands: [`local`] does it on the calling
//! thread, under one short critical section. The rules are the engine's in every case.

#[cfg_attr(not(target_os = "linux"), path = "timer_elsewhere.rs")]
pub(crate) mod timer;
mod batch_idempotency;
pub(crate) mod audit;
pub mod backup;
pub mod failure;
pub mod cluster_status;
mod remote_status;
pub mod event_log;
mod session_leases;
pub mod counters;
mod deferred_commands;
mod clock_mapping;
mod replay;
pub mod local;
#[cfg(all(test, target_os = "linux"))]
mod timer_elsewhere;
pub mod batch_messages;
pub mod scoped_views;
pub mod batch_server;
pub mod stale_read;

use crate::engine::{
    Answer, Child, Command, Engine, Glance, LockName, LockView, Op, SessionId, SessionView, Token,
};
use crate::time::{Span, Time, Wall};
use cluster_status::ClusterAdmin;
use counters::Histogram;
use event_log::EventWatch;
pub use failure::{RequestError, Unavailable};
pub use remote_status::{RemoteStatus, RttSample};
pub(crate) use session_leases::page_of_leases;
use std::sync::Arc;

/// The handle that every edge holds. Cheap to clone.
#[derive(Clone)]
pub struct Locks(Arc<dyn LockService>);

/// Where an answer goes. Called once, with no lock held, perhaps on another thread, perhaps
/// before the call that took it has returned.
pub type Then<T> = Box<dyn FnOnce(T) + Send>;

/// Leases shown of a session: a person looks at fewer, and the mutex is held meanwhile.
pub const SESSION_LEASES_SHOWN_MAX: usize = 1_000;

/// What stands behind the handle.
pub trait LockService: Send + Sync {
    /// Decides a command.
    fn submit(&self, command: Command, then: Then<Result<Answer, Unavailable>>);
    /// Decides a command, and asks again until there is an answer, however long that takes: for
    /// what has to be done although nobody waits for it, such as a release. `Err`: there will be
    /// none, for the engine that was asked is gone.
    fn submit_until_answered(&self, command: Command, then: Then<Result<Answer, Unavailable>>) {
        self.submit(command, then);
    }
    /// Shows one lock.
    fn view(&self, name: &LockName, then: Then<Result<LockView, Unavailable>>);
    /// Shows one lock, and asks again until there is an answer, as
    /// [`LockService::submit_until_answered`].
    fn view_until_answered(&self, name: &LockName, then: Then<Result<LockView, Unavailable>>) {
        self.view(name, then);
    }
    /// Decides a command before it returns, if what decides is here: an answer that nobody waits
    /// for needs no callback. `None`: ask [`LockService::submit`].
    fn submit_here(&self, _command: &Command) -> Option<Result<Answer, Unavailable>> {
        None
    }
    /// The same for [`LockService::view`].
    fn view_here(&self, _name: &LockName) -> Option<Result<LockView, Unavailable>> {
        None
    }
    /// Shows one lock in place, decides what `ask` makes of it, if that is anything, and shows the
    /// lock again, all before it returns and with nothing in between. `None`: what decides is not
    /// here, and nobody was called.
    ///
    /// Everything stands still meanwhile: both must be quick, and not come back here.
    fn act_here(
        &self,
        _name: &LockName,
        _ask: &mut dyn FnMut(Glance<'_>) -> Option<Command>,
        _after: &mut dyn FnMut(Glance<'_>),
    ) -> Option<Done> {
        None
    }
    /// Shows one lock to whoever wants to keep what it sees.
    fn look(&self, name: &LockName, then: Then<Result<CacheableView, Unavailable>>) {
        self.view(
            name,
            Box::new(|view| then(view.map(|view| CacheableView { view, as_of: None }))),
        );
    }
    /// Shows a page of locks, by name.
    fn list(&self, query: List, then: Then<Result<ListPage<LockView>, Unavailable>>);
    /// Shows a page of what lies directly below a name (or at the top).
    fn children(&self, query: Children, then: Then<Result<ListPage<Child>, Unavailable>>);
    /// Shows one session, and some of what hangs on it.
    fn session(&self, id: SessionId, then: Then<Result<Option<SessionView>, Unavailable>>) {
        let _ = id;
        then(Ok(None));
    }
    /// Shows a page of the leases that hang on a session, by name; none if there is no such
    /// session.
    fn leases(
        &self,
        session: SessionId,
        after: Option<LockName>,
        then: Then<Result<ListPage<(LockName, Token)>, Unavailable>>,
    ) {
        let _ = (session, after);
        then(Ok(ListPage { items: Vec::new(), next: None }));
    }
    /// Shows what is known here, while nothing changes, and says how long ago it surely was so, if
    /// anybody knows. `None`: nothing that is known here is old, and nothing was shown.
    fn known(&self, _look: &mut dyn FnMut(&Engine, Time)) -> Option<Option<Span>> {
        None
    }
    /// Follows what happens from now on, or from event `since` on.
    fn watch(&self, since: Option<u64>) -> EventWatch;
    /// The number that the next event will get.
    fn next_event(&self) -> u64;
    /// The session on which the holds of an edge hang.
    fn bond(&self) -> Result<SessionOwner, Unavailable> {
        Ok(SessionOwner::Own)
    }
    /// Whether a session that [`LockService::bond`] gave is over, so that what hung on it is lost.
    fn is_over(&self, session: SessionId) -> bool {
        let _ = session;
        false
    }
    /// The engine's time now, or later: who goes by it never believes in a lease for too long.
    fn now(&self) -> Time;
    /// What the wall clock shows at an engine time. For display only.
    fn wall(&self, at: Time) -> Wall;
    /// How many locks, waiters and sessions there are, and what stands behind the door.
    fn about(&self) -> About;
    /// How it goes with the server, if there is one.
    fn far(&self) -> Option<RemoteStatus> {
        None
    }
    /// The nodes that decide together, if there can be several.
    fn council(&self) -> Option<Arc<dyn ClusterAdmin>> {
        None
    }
    /// The URLs by which clients reach all nodes that decide together, if there can be several.
    fn urls(&self) -> Vec<String> {
        Vec::new()
    }
    /// Whether the engine's time is known here: until then nothing can be shown or asked.
    fn ready(&self) -> Result<(), Unavailable> {
        Ok(())
    }
    /// Whether commands are ordered here, and not forwarded to another server that does it.
    fn leads(&self) -> bool {
        true
    }
    /// The name of the engine that decides, which all nodes of a cluster share, and which outlives
    /// restarts. 0: it has none.
    fn engine_id(&self) -> u64 {
        0
    }
    /// All that the engine knows, as bytes, at one moment after all that was asked before. `None`:
    /// the engine is not here.
    fn state(&self, then: Then<Result<Option<Vec<u8>>, Unavailable>>) {
        then(Ok(None));
    }
    /// Counts of what happened since the start.
    fn counts(&self) -> Vec<(&'static str, u64)>;
    /// How long what happened took.
    fn histograms(&self) -> Vec<Histogram> {
        Vec::new()
    }
}

/// A lock, and what is needed to know for how long this is true.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheableView {
    /// The lock.
    pub view: LockView,
    /// All events before this number are in it; later ones may not be. `None`: it is not to be
    /// kept, for nobody would tell of a change, or asking is cheap.
    pub as_of: Option<u64>,
}

/// What became of something that was decided here, if there was anything to decide.
pub type Done = Option<Result<Answer, Unavailable>>;

/// On which session the holds of an edge hang, and who keeps that alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionOwner {
    /// The edge opens one of its own, which lasts until it is ended: the engine is in this
    /// process, and while that sleeps nobody else is served either.
    Own,
    /// The door keeps one alive, and says by an event when it is over.
    Kept(SessionId),
}

/// How it stands with whoever decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Contact {
    /// Requests are answered.
    Connected,
    /// The last sign of life was not answered; what is held is still held.
    Jeopardy,
    /// For so long that all that hung on the session is lost.
    Lost,
}

impl Contact {
    /// As written in statuses.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Connected => "connected",
            Self::Jeopardy => "in jeopardy",
            Self::Lost => "lost",
        }
    }
}

/// Which locks to list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct List {
    /// Only names that begin so.
    pub prefix: String,
    /// Only names behind this one.
    pub after: Option<LockName>,
    /// At most so many.
    pub limit: usize,
}

/// Which directory to list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Children {
    /// The directory; `None` is the top.
    pub parent: Option<LockName>,
    /// Where the page before ended.
    pub cursor: Option<String>,
    /// At most so many.
    pub limit: usize,
}

/// A page, and where the next begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListPage<T> {
    /// What is on it.
    pub items: Vec<T>,
    /// Ask with this for the next; `None`: this was the last.
    pub next: Option<String>,
}

/// What stands behind the door, for `.latchfs/server` and `status`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct About {
    /// Who decides, and from where.
    pub kind: BackendKind,
    /// How it stands with it.
    pub contact: Contact,
    /// Where the state is kept, or why it is not.
    pub state: String,
    /// Locks that are held, in grace or waited for.
    pub locks: usize,
    /// Waiters in all lines.
    pub waiters: usize,
    /// Open sessions.
    pub sessions: usize,
}

/// Who decides, and from where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackendKind {
    /// An engine in this process.
    Embedded,
    /// One behind a server.
    Server,
}

impl BackendKind {
    /// As written in statuses.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Embedded => "embedded",
            Self::Server => "server",
        }
    }
}

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

    /// What the wall clock shows at an engine time. For display only.
    pub fn wall(&self, at: Time) -> Wall {
        self.0.wall(at)
    }

    /// What stands behind the door.
    pub fn about(&self) -> About {
        self.0.about()
    }

    /// How it goes with the server behind the door, if there is one.
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
}

#[cfg(test)]
mod tests;
