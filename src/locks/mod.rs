//! The one door: every edge asks here, and nowhere else.
//!
//! What stands behind the door decides who orders the commands: [`local`] does it on the calling
//! thread, under one short critical section. The rules are the engine's in every case.

mod audit;
pub mod feed;
pub mod local;
mod restore;
pub mod state;
pub mod tally;
mod timeline;
pub(crate) mod timer;

use crate::engine::{
    Answer, Child, Command, Kind, LockName, LockView, Refusal, SessionId, SessionView,
};
use crate::time::{Time, Wall};
use feed::Watch;
use std::fmt;
use std::sync::Arc;
use tally::Histogram;

/// The handle that every edge holds. Cheap to clone.
#[derive(Clone)]
pub struct Locks(Arc<dyn Door>);

/// Where an answer goes. Called once, with no lock held, perhaps on another thread, perhaps
/// before the call that took it has returned.
pub type Then<T> = Box<dyn FnOnce(T) + Send>;

/// Leases shown of a session: a person looks at fewer, and the mutex is held meanwhile.
pub const SESSION_LEASES_SHOWN_MAX: usize = 1_000;

/// What stands behind the handle.
pub trait Door: Send + Sync {
    /// Decides a command.
    fn submit(&self, command: Command, then: Then<Result<Answer, Unavailable>>);
    /// Shows one lock.
    fn view(&self, name: &LockName, then: Then<Result<LockView, Unavailable>>);
    /// Decides a command before it returns, if what decides is here: an answer that nobody waits
    /// for needs no callback. `None`: ask [`Door::submit`].
    fn submit_here(&self, _command: &Command) -> Option<Result<Answer, Unavailable>> {
        None
    }
    /// The same for [`Door::view`].
    fn view_here(&self, _name: &LockName) -> Option<Result<LockView, Unavailable>> {
        None
    }
    /// Shows a page of locks, by name.
    fn list(&self, query: List, then: Then<Result<Page<LockView>, Unavailable>>);
    /// Shows a page of what lies directly below a name (or at the top).
    fn children(&self, query: Children, then: Then<Result<Page<Child>, Unavailable>>);
    /// Shows one session, and some of what hangs on it.
    fn session(&self, id: SessionId, then: Then<Result<Option<SessionView>, Unavailable>>) {
        let _ = id;
        then(Ok(None));
    }
    /// Follows what happens from now on, or from event `since` on.
    fn watch(&self, since: Option<u64>) -> Watch;
    /// The engine's time now.
    fn now(&self) -> Time;
    /// What the wall clock shows at an engine time. For display only.
    fn wall(&self, at: Time) -> Wall;
    /// How many locks, waiters and sessions there are, and what stands behind the door.
    fn about(&self) -> About;
    /// Counts of what happened since the start.
    fn counts(&self) -> Vec<(&'static str, u64)>;
    /// How long what happened took.
    fn histograms(&self) -> Vec<Histogram> {
        Vec::new()
    }
}

/// Which locks to list.
#[derive(Debug, Clone, Default)]
pub struct List {
    /// Only names that begin so.
    pub prefix: String,
    /// Only names behind this one.
    pub after: Option<LockName>,
    /// At most so many.
    pub limit: usize,
}

/// Which directory to list.
#[derive(Debug, Clone, Default)]
pub struct Children {
    /// The directory; `None` is the top.
    pub parent: Option<LockName>,
    /// Where the page before ended.
    pub cursor: Option<String>,
    /// At most so many.
    pub limit: usize,
}

/// A page, and where the next begins.
#[derive(Debug, Clone)]
pub struct Page<T> {
    /// What is on it.
    pub items: Vec<T>,
    /// Ask with this for the next; `None`: this was the last.
    pub next: Option<String>,
}

/// There was no answer, or none that can be trusted: the outcome is unknown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unavailable {
    /// The state directory can't be written: nothing is granted that a restart would forget.
    State {
        /// Whether there is no room, which may pass.
        full: bool,
        /// What the system said.
        why: Arc<str>,
    },
    /// The daemon is on its way out.
    Closing,
}

impl Unavailable {
    /// The kind of section 7. A full disk is a limit like others: nothing was done, try again.
    pub const fn kind(&self) -> Kind {
        match self {
            Self::State { full: true, .. } => Kind::Limit,
            Self::State { full: false, .. } | Self::Closing => Kind::ConsistencyUnavailable,
        }
    }
}

/// What stands behind the door, for `.latchfs/server` and `status`.
#[derive(Debug, Clone)]
pub struct About {
    /// `embedded`, and later `server` and `cluster`.
    pub kind: &'static str,
    /// Where the state is kept, or why it is not.
    pub state: String,
    /// Locks that are held, in grace or waited for.
    pub locks: usize,
    /// Waiters in all lines.
    pub waiters: usize,
    /// Open sessions.
    pub sessions: usize,
}

impl Locks {
    /// A handle on `door`.
    pub fn new(door: Arc<dyn Door>) -> Self {
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

    /// Decides a command before it returns, if that is possible without waiting.
    pub fn submit_here(&self, command: &Command) -> Option<Result<Answer, Unavailable>> {
        self.0.submit_here(command)
    }

    /// Shows one lock before it returns, if that is possible without waiting.
    pub fn view_here(&self, name: &LockName) -> Option<Result<LockView, Unavailable>> {
        self.0.view_here(name)
    }

    /// Shows a page of locks to `then`.
    pub fn list(
        &self,
        query: List,
        then: impl FnOnce(Result<Page<LockView>, Unavailable>) + Send + 'static,
    ) {
        self.0.list(query, Box::new(then));
    }

    /// Shows a page of a directory to `then`.
    pub fn children(
        &self,
        query: Children,
        then: impl FnOnce(Result<Page<Child>, Unavailable>) + Send + 'static,
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
    pub fn watch(&self, since: Option<u64>) -> Watch {
        self.0.watch(since)
    }

    /// The engine's time now.
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

    /// Counts of what happened since the start, by metric name.
    pub fn counts(&self) -> Vec<(&'static str, u64)> {
        self.0.counts()
    }

    /// How long what happened took.
    pub fn histograms(&self) -> Vec<Histogram> {
        self.0.histograms()
    }
}

/// Why there is no outcome to show: a no, or no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// The engine said no.
    Refused(Refusal),
    /// Nobody said anything.
    Unavailable(Unavailable),
}

impl Failure {
    /// The kind of section 7.
    pub const fn kind(&self) -> Kind {
        match self {
            Self::Refused(refusal) => refusal.kind(),
            Self::Unavailable(unavailable) => unavailable.kind(),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(refusal) => refusal.fmt(f),
            Self::Unavailable(unavailable) => unavailable.fmt(f),
        }
    }
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::State { why, .. } => write!(
                f,
                "the state directory can't be written ({why}), so nothing is granted or changed \
                 that a restart would forget; make room or mend it, and try again"
            ),
            Self::Closing => write!(f, "the daemon is being stopped; try again when it is back"),
        }
    }
}

impl std::error::Error for Unavailable {}

#[cfg(test)]
mod tests;
