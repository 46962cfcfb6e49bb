//! The lock service: the interface between the front ends and a backend, wherever the engine runs.

use super::backend_status::{BackendStatus, SessionOwner};
use super::callback::Then;
use super::event_log::EventWatch;
use super::failure::Unavailable;
use super::nested_names::ParentCheck;
use super::paging::{Children, List, ListPage};
use super::stale_read::StaleReads;
use crate::engine::{Answer, Child, Command, LockName, LockView, SessionId, SessionView, Token};
use crate::time::{Time, Wall};

/// Whether a request without an answer is sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// A request that got no answer is not repeated: the caller receives an error.
    Never,
    /// The request is repeated until there is an answer, however long that takes. This suits
    /// releases and similar requests, for whose outcome no user waits. If the caller receives
    /// [`Unavailable`] all the same, the engine is gone for good.
    UntilAnswered,
}

/// A backend of the lock service.
pub trait LockService: BackendStatus + StaleReads + Send + Sync {
    /// Decides a command.
    fn submit(&self, command: Command, retry: Retry, then: Then<Result<Answer, Unavailable>>);
    /// Decides a command in the same step in which `check` is evaluated. `None` if the engine is
    /// remote, so that the condition can only be checked before and after the command.
    fn submit_if(
        &self,
        _check: &ParentCheck,
        _command: &Command,
    ) -> Option<Result<Answer, Unavailable>> {
        None
    }
    /// Returns the view of one lock.
    fn view(&self, name: &LockName, retry: Retry, then: Then<Result<CacheableView, Unavailable>>);
    /// Returns a page of locks, ordered by name.
    fn list(&self, query: List, then: Then<Result<ListPage<LockView>, Unavailable>>);
    /// Returns a page of the locks whose names are remembered, ordered by name; an empty one if the
    /// engine is remote.
    fn remembered(&self, query: List, then: Then<Result<ListPage<LockView>, Unavailable>>) {
        let _ = query;
        then(Ok(ListPage { items: Vec::new(), next: None }));
    }
    /// Returns a page of the entries directly below a name (or at the top level).
    fn children(&self, query: Children, then: Then<Result<ListPage<Child>, Unavailable>>);
    /// Returns one session, or `None` if there is no such session, with some of the leases that are
    /// bound to it.
    fn session(&self, id: SessionId, then: Then<Result<Option<SessionView>, Unavailable>>) {
        let _ = id;
        then(Ok(None));
    }
    /// Returns a page of the leases that are bound to a session, ordered by name; an empty one if
    /// there is no such session.
    fn leases(
        &self,
        session: SessionId,
        after: Option<LockName>,
        then: Then<Result<ListPage<(LockName, Token)>, Unavailable>>,
    ) {
        let _ = (session, after);
        then(Ok(ListPage { items: Vec::new(), next: None }));
    }
    /// Returns whether a front end must open a session for its leases itself, or the session that
    /// the lock service keeps alive for it.
    fn own_session(&self) -> Result<SessionOwner, Unavailable> {
        Ok(SessionOwner::Own)
    }
    /// Whether a session that [`LockService::own_session`] returned has ended, so that the leases
    /// bound to it are lost.
    fn is_session_over(&self, session: SessionId) -> bool {
        let _ = session;
        false
    }
    /// Returns the boot time until which a session that [`LockService::own_session`] returned, or
    /// that the front end opened itself, certainly lives: before that time the engine grants the
    /// locks that are bound to it to no other client. [`Time::ZERO`] if it may be over.
    fn surely_until(&self, session: SessionId) -> Time {
        let _ = session;
        Time::NEVER
    }
    /// Returns a reader of the events from now on, or from event `since` on.
    fn subscribe(&self, since: Option<u64>) -> EventWatch;
    /// Returns the number of the next event.
    fn next_event(&self) -> u64;
    /// Returns the engine's time, or a later one: a caller never trusts a lease for too long.
    fn now(&self) -> Time;
    /// Converts an engine time to wall-clock time. For display only.
    fn wall(&self, at: Time) -> Wall;
}

/// The view of a lock, with the number of the event up to which it is current, so that a cache can
/// tell whether a later event makes the view stale.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheableView {
    /// The view of the lock.
    pub view: LockView,
    /// The view includes all events before this number, and possibly later ones. `None`: the view
    /// must not be cached, because no event would report a change of the lock, or because another
    /// request for the view costs little.
    pub as_of: Option<u64>,
}

impl CacheableView {
    /// Returns a view that must not be cached.
    pub const fn uncached(view: LockView) -> Self {
        Self { view, as_of: None }
    }
}
