//! The lock service: the interface between the front ends and a backend, wherever the engine runs.
//!

use super::backend_status::{BackendStatus, SessionOwner};
use super::event_log::EventWatch;
use super::paging::{Children, List, ListPage};
use crate::engine::{
    Answer, Child, Command, Engine, HoldOff, Limit, LockCount, LockName, LockView, Op, Reason,
    Refusal, RequestId, SessionId, SessionView, Token,
};
use crate::service::call::Call;
use crate::service::paging::{ListedNames, StaleReads};
use crate::service::parent_check::ParentCheck;
use crate::service::unavailable::Unavailable;
use crate::shares::CommandPermit;
use crate::time::{Time, Wall};
use std::sync::Arc;

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
///
/// A request acts when it is made: see [`Call`]. The answer may come on another thread, and no
/// mutex is held when it does.
pub trait LockService: BackendStatus + StaleReads + Send + Sync {
    /// Decides a command.
    fn submit(&self, command: Command, retry: Retry) -> Call<Answer>;
    /// Decides a command if `check` permits it, or without a condition if `check` is `None`: in one
    /// step where the engine is in this process, else by [`submit_in_steps`].
    ///
    /// [`submit_in_steps`]: super::parent_check::submit_in_steps
    fn submit_checked(
        self: Arc<Self>,
        command: Command,
        check: Option<ParentCheck>,
    ) -> Call<Answer>;
    /// Lets further commands add to the engine only if `admission` admits them. If the engine is
    /// remote, its server decides that.
    fn limit(&self, admission: Admission) {
        let _ = admission;
    }
    /// Returns the view of one lock.
    fn view(&self, name: &LockName, retry: Retry) -> Call<CacheableView>;
    /// Returns a page of locks, ordered by name. If the engine is remote, the page of the
    /// names that are remembered is empty.
    fn list(&self, names: ListedNames, query: List) -> Call<ListPage<LockView>>;
    /// Returns a page of the entries directly below a name (or at the top level).
    fn children(&self, query: Children) -> Call<ListPage<Child>>;
    /// Returns one session, or `None` if there is no such session, with some of the leases that are
    /// bound to it.
    fn session(&self, id: SessionId) -> Call<Option<SessionView>> {
        let _ = id;
        Call::answered(Ok(None))
    }
    /// Returns a page of the leases that are bound to a session, ordered by name; an empty one if
    /// there is no such session.
    fn leases(
        &self,
        session: SessionId,
        after: Option<LockName>,
    ) -> Call<ListPage<(LockName, Token)>> {
        let _ = (session, after);
        Call::answered(Ok(ListPage { items: Vec::new(), next: None }))
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

/// Decides whether a command may add to the engine, given the engine's state.
pub type Admission = Arc<dyn Fn(&Op, &Engine) -> Result<CommandPermit, Limit> + Send + Sync>;

/// What front ends ask of each backend.
impl dyn LockService {
    /// Submits a release or a departure from a queue, and repeats it until it is carried out.
    /// Nobody waits for that.
    pub fn give_back(&self, op: Op) {
        self.submit(op.into(), Retry::UntilAnswered).detach();
    }

    /// Submits a release or a departure from a queue, and repeats it until it is carried out. The
    /// call is answered once the operation was decided, or once it got no answer in the time in
    /// which a request is answered.
    pub fn give_back_once(self: &Arc<Self>, op: Op) -> Call<()> {
        let own = Arc::clone(self);
        let asked = self.submit(op.clone().into(), Retry::Never);
        Call::of_steps(async move {
            match asked.await {
                // After a missing answer the backend itself repeats the operation.
                Ok(_) | Err(Unavailable::NoAnswer { .. }) => {}
                Err(_) => own.give_back(op),
            }
            Ok(())
        })
    }

    /// Returns the permit of a command, if `admission` admits what the command adds to the engine.
    /// Without an engine in this process, the server decides that.
    pub fn admit(
        &self,
        op: &Op,
        admission: impl Fn(&Engine) -> Result<CommandPermit, Limit>,
    ) -> Result<CommandPermit, Refusal> {
        let mut admitted = Ok(Vec::new());
        if op.needs_room() {
            self.inspect_engine(&mut |engine| admitted = admission(engine));
        }
        admitted.map_err(|limit| Refusal { at: self.now(), reason: Box::new(Reason::Limit(limit)) })
    }

    /// Returns the number of requests whose answers are remembered, if the engine is in this
    /// process.
    pub fn request_ids(&self) -> Option<usize> {
        let mut ids = None;
        self.inspect_engine(&mut |engine| ids = Some(engine.request_ids()));
        ids
    }

    /// Returns the id of the request that was granted a lock under this token, if it had one that
    /// is remembered, and if the engine is in this process.
    pub fn request_of(&self, token: Token) -> Option<RequestId> {
        let mut request = None;
        self.inspect_engine(&mut |engine| request = engine.request_of(token).cloned());
        request
    }

    /// Whether the answer to the request with this id is remembered, if the engine is in this
    /// process.
    pub fn remembers(&self, id: &RequestId) -> bool {
        let mut remembers = false;
        self.inspect_engine(&mut |engine| remembers = engine.remembers(id));
        remembers
    }

    /// Returns the number of names that are remembered beyond a tenure, if the engine is in this
    /// process.
    pub fn remembered_names(&self) -> Option<usize> {
        let mut names = None;
        self.inspect_engine(&mut |engine| names = Some(engine.remembered()));
        names
    }

    /// Returns until when no lock is granted, and why, if the engine is in this process; `None` if
    /// locks are granted.
    pub fn hold_off(&self) -> Option<HoldOff> {
        let mut hold_off = None;
        self.inspect_engine(&mut |engine| hold_off = engine.hold_off());
        hold_off.filter(|hold_off| hold_off.until > self.now())
    }

    /// Calls `each` with the name and the counts of at most `limit` locks after
    /// `after`, and returns the name of the last of them; `None` if none is left, or if the engine
    /// is not in this process.
    pub fn walk(
        &self,
        after: Option<&LockName>,
        limit: usize,
        each: &mut dyn FnMut(&LockName, LockCount),
    ) -> Option<LockName> {
        let (mut last, now) = (None, self.now());
        self.inspect_engine(&mut |engine| last = engine.walk(after, limit, now, each));
        last
    }

    /// Returns an error while no lock is granted: as [`BackendStatus::ready`], or without a
    /// majority.
    pub fn grants(&self) -> Result<(), Unavailable> {
        if !self.has_majority() {
            return Err(Unavailable::no_majority());
        }
        self.ready()
    }
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
