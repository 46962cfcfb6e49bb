//! The lock service: the interface between the front ends and the engine, wherever that is.

use super::backend_status::{BackendStatus, SessionOwner};
use super::callback::Then;
use super::event_log::EventWatch;
use super::failure::Unavailable;
use super::nested_names::ParentCheck;
use super::paging::{Children, List, ListPage};
use super::stale_read::StaleReads;
use crate::engine::{Answer, Child, Command, LockName, LockView, SessionId, SessionView, Token};
use crate::time::{Time, Wall};

/// Whether a request that gets no answer is sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// The caller is told that there is no answer.
    Never,
    /// Until there is an answer, however long that takes: for a release and the like, for which no
    /// client waits. `Unavailable` then says that the engine is gone.
    UntilAnswered,
}

/// A backend of the lock service.
pub trait LockService: BackendStatus + StaleReads + Send + Sync {
    /// Decides a command.
    fn submit(&self, command: Command, retry: Retry, then: Then<Result<Answer, Unavailable>>);
    /// Decides a command in the same step in which a condition on it is checked. `None`: the engine
    /// is elsewhere, so that the condition can only be checked before and after.
    fn submit_if(
        &self,
        _check: &ParentCheck,
        _command: &Command,
    ) -> Option<Result<Answer, Unavailable>> {
        None
    }
    /// Shows one lock.
    fn view(&self, name: &LockName, retry: Retry, then: Then<Result<CacheableView, Unavailable>>);
    /// Shows a page of locks, by name.
    fn list(&self, query: List, then: Then<Result<ListPage<LockView>, Unavailable>>);
    /// Shows a page of what lies directly below a name (or at the top).
    fn children(&self, query: Children, then: Then<Result<ListPage<Child>, Unavailable>>);
    /// Shows one session, and some of the leases that hang on it.
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
    /// Returns the session on which the holds of a front end hang.
    fn own_session(&self) -> Result<SessionOwner, Unavailable> {
        Ok(SessionOwner::Own)
    }
    /// Whether a session that [`LockService::own_session`] gave is over, so that all leases that
    /// hung on it are lost.
    fn is_session_over(&self, session: SessionId) -> bool {
        let _ = session;
        false
    }
    /// Follows events from now on, or from event `since` on.
    fn subscribe(&self, since: Option<u64>) -> EventWatch;
    /// Returns the number that the next event will get.
    fn next_event(&self) -> u64;
    /// Returns the engine's time now, or later: a caller that uses it never trusts a lease for too
    /// long.
    fn now(&self) -> Time;
    /// Converts an engine time to wall-clock time. For display only.
    fn wall(&self, at: Time) -> Wall;
}

/// A lock, and what a cache of it needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheableView {
    /// The lock.
    pub view: LockView,
    /// All events before this number are in it; later ones may not be. `None`: it must not be
    /// cached, because no event would tell of a change, or because asking is cheap.
    pub as_of: Option<u64>,
}

impl CacheableView {
    /// A view that must not be cached.
    pub const fn uncached(view: LockView) -> Self {
        Self { view, as_of: None }
    }
}
