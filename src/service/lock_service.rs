//! The lock service: the interface between the front ends and whatever decides.

use super::backend_status::{About, SessionOwner};
use super::callback::Then;
use super::cluster_status::ClusterAdmin;
use super::counters::Histogram;
use super::event_log::EventWatch;
use super::failure::Unavailable;
use super::paging::{Children, List, ListPage};
use super::remote_status::RemoteStatus;
use crate::engine::{
    Answer, Child, Command, Engine, Glance, LockName, LockView, SessionId, SessionView, Token,
};
use crate::time::{Span, Time, Wall};
use std::sync::Arc;

/// A backend of the lock service.
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
    /// The engine's time now, or later: a caller that uses it never trusts a lease for too long.
    fn now(&self) -> Time;
    /// Converts an engine time to wall-clock time. For display only.
    fn wall(&self, at: Time) -> Wall;
    /// Returns the status of the backend: its kind, and the number of locks, waiters and sessions.
    fn about(&self) -> About;
    /// Returns the status of the connection to the server, if there is one.
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

/// The answer to a command that was decided here, if there was anything to decide.
pub type Done = Option<Result<Answer, Unavailable>>;
