//! The handle on a lock service that all front ends hold.
//!
//! Commands that create a name below another lock, which are decided only if the holders of that
//! lock permit the caller; and the names below a lock that is to be removed.
//!
//! Views that are restricted to some prefixes: the locks whose names begin with one of them, and
//! the directories that lead there. Names outside the prefixes influence neither the content nor
//! the length of a view, nor its page boundaries.
//!
//! Prefixes are sorted, and none lies within another.

use super::backend_status::{About, SessionOwner};
use super::counters::{Count, Histogram};
use super::event_log::EventWatch;
use super::lock_service::{CacheableView, LockService, Retry};
use super::paging::{Children, List, ListPage, ListedNames};
use crate::engine::{
    Answer, Child, ClientId, Command, Engine, HoldOff, Lease, LeaseKey, Limit, LockCount, LockName,
    LockView, Mode, Op, Outcome, Reason, Refusal, Release, RequestId, SessionId, SessionView,
    Token,
};
use crate::service::audit::audit_log::AuditEntry;
use crate::service::backend_status::{ClusterAdmin, RemoteStatus};
use crate::service::event_log::{EventPlace, EventStart};
use crate::service::lock_service::{Then, Unavailable};
use crate::time::{Time, Wall};
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use std::vec::IntoIter;

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
        self.0.inspect_engine(&mut |engine| admitted = admission(op, engine));
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
    pub fn give_back_then(&self, op: Op, then: impl FnOnce() + Send + 'static) {
        let (own, retry) = (self.clone(), op.clone());
        self.submit(op, move |answer| {
            match answer {
                // After a missing answer the backend itself repeats the operation.
                Ok(_) | Err(Unavailable::NoAnswer { .. }) => {}
                Err(_) => own.give_back(retry),
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
        self.0.inspect_engine(&mut |engine| ids = Some(engine.request_ids()));
        ids
    }

    /// Returns the id of the request that was granted a lock under this token, if it had one that
    /// is remembered, and if the engine is in this process.
    pub fn request_of(&self, token: Token) -> Option<RequestId> {
        let mut request = None;
        self.0.inspect_engine(&mut |engine| request = engine.request_of(token).cloned());
        request
    }

    /// Whether the answer to the request with this id is remembered, if the engine is in this
    /// process.
    pub fn remembers(&self, id: &RequestId) -> bool {
        let mut remembers = false;
        self.0.inspect_engine(&mut |engine| remembers = engine.remembers(id));
        remembers
    }

    /// Returns the number of names that are remembered beyond a tenure, if the engine is in this
    /// process.
    pub fn remembered_names(&self) -> Option<usize> {
        let mut names = None;
        self.0.inspect_engine(&mut |engine| names = Some(engine.remembered()));
        names
    }

    /// Returns until when no lock is granted, and why, if the engine is in this process; `None` if
    /// locks are granted.
    pub fn hold_off(&self) -> Option<HoldOff> {
        let mut hold_off = None;
        self.0.inspect_engine(&mut |engine| hold_off = engine.hold_off());
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
        self.0.inspect_engine(&mut |engine| last = engine.walk(after, limit, now, each));
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

/// The maximum number of locks below a lock that are examined before that lock is removed: one
/// page. Only the caller's own locks block the removal; other clients may hold any number of locks
/// below it.
const BELOW_MAX: usize = 1_000;

/// A check that permits or denies a command, given the holders of the nearest held lock above its
/// name. The error is the reason for the denial.
type Allows = dyn Fn(&[Lease]) -> Result<(), Arc<str>> + Send + Sync;

/// A condition on a command that creates a name below other names: the holders of the nearest held
/// lock above that name must permit the caller. A client that already holds the name or waits for
/// it needs no permission.
#[derive(Clone)]
pub struct ParentCheck {
    name: LockName,
    client: ClientId,
    allows: Arc<Allows>,
}

impl ParentCheck {
    /// Returns the condition under which `op` may be decided, or `None` if `op` creates no name
    /// below other names. The check that `allows` returns is called with the name, the client that
    /// creates it, and the holders of the nearest held lock above.
    pub fn of<F>(op: &Op, allows: impl FnOnce(&LockName) -> F) -> Option<Self>
    where
        F: Fn(&LockName, &ClientId, &[Lease]) -> Result<(), Arc<str>> + Send + Sync + 'static,
    {
        match op {
            Op::Acquire(ask) => Self::of_name(&ask.name, &ask.client, allows),
            Op::Move(ask) => Self::of_name(&ask.to, &ask.from.client, allows),
            _ => None,
        }
    }

    /// Returns the condition under which `client` may create `name`, or `None` if the name has only
    /// one part and so lies below no other name.
    pub fn of_name<F>(
        name: &LockName,
        client: &ClientId,
        allows: impl FnOnce(&LockName) -> F,
    ) -> Option<Self>
    where
        F: Fn(&LockName, &ClientId, &[Lease]) -> Result<(), Arc<str>> + Send + Sync + 'static,
    {
        name.parents().next()?;
        let (name, client, allows) = (name.clone(), client.clone(), allows(name));
        let asked = (name.clone(), client.clone());
        let allows = Arc::new(move |holders: &[Lease]| allows(&asked.0, &asked.1, holders));
        Some(Self { name, client, allows })
    }

    /// Checks, in the state of `engine`, whether the client may create the name: the holders of the
    /// nearest held lock above the name must permit it, unless the client already holds the name or
    /// waits for it.
    pub(super) fn allows(&self, engine: &Engine) -> Result<(), Unavailable> {
        if engine.involves(&self.name, &self.client) {
            return Ok(());
        }
        self.allows_below(engine.holders_above(&self.name))
    }

    /// Checks, by the views of locks, whether the client may create the name. `views` starts with
    /// the view of the name itself, followed by those of the names above it, nearest first.
    fn allows_seen(&self, views: &[LockView]) -> Result<(), Unavailable> {
        let involved = views.first().is_some_and(|own| own.involves(&self.client));
        if involved { Ok(()) } else { self.allows_below(&nearest(views)) }
    }

    fn allows_below(&self, holders: &[Lease]) -> Result<(), Unavailable> {
        (self.allows)(holders).map_err(|why| Unavailable::Denied { why })
    }
}

/// Two checks are equal only if they have the same name and share the same closure `allows`.
impl PartialEq for ParentCheck {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name && Arc::ptr_eq(&self.allows, &other.allows)
    }
}

impl Eq for ParentCheck {}

impl fmt::Debug for ParentCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ParentCheck").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Returns the holders of the nearest held lock above a name. `views` starts with the view of the
/// name itself, followed by the views of the names above it, nearest first.
fn nearest(views: &[LockView]) -> Vec<Lease> {
    let above = views.iter().skip(1).find(|view| !view.holders.is_empty());
    let holders = above.map(|view| view.holders.iter().map(|holder| holder.lease.clone()));
    holders.into_iter().flatten().collect()
}

impl Locks {
    /// Decides a command if `check` permits it, or without a condition if `check` is `None`.
    ///
    /// The local backend checks and decides in one step. With any other backend the condition is
    /// checked before and after the command: if another client took a lock above in between, the
    /// lock that was acquired is released again, and the answer is a denial.
    pub fn submit_checked(
        &self,
        command: impl Into<Command>,
        check: Option<ParentCheck>,
        then: impl FnOnce(Result<Answer, Unavailable>) + Send + 'static,
    ) {
        let command = command.into();
        let Some(check) = check else { return self.submit(command, then) };
        if let Err(refusal) = self.admits(&command.op) {
            return then(Ok(Err(refusal)));
        }
        match self.0.submit_if(&check, &command) {
            Some(answer) => then(answer),
            None => submit_elsewhere(self, command, check, Box::new(then)),
        }
    }

    /// Passes to `then` whether the client in `check` may now create the name in `check` below
    /// another lock.
    pub fn check_parent(
        &self,
        check: ParentCheck,
        then: impl FnOnce(Result<(), Unavailable>) + Send + 'static,
    ) {
        look_up(self, &check.name.clone(), move |views| {
            then(views.and_then(|views| check.allows_seen(&views)));
        });
    }

    /// Passes to `then` whether `client` itself holds a lock below `name`, as far as one page
    /// shows.
    pub fn holds_below(
        &self,
        name: &LockName,
        client: &ClientId,
        then: impl FnOnce(Result<bool, Unavailable>) + Send + 'static,
    ) {
        let (prefix, client) = (format!("{name}/"), client.clone());
        self.list(List { prefix, after: None, limit: BELOW_MAX }, move |page| {
            then(page.map(|page| page.items.iter().any(|lock| lock.held_by(&client).is_some())));
        });
    }
}

/// Submits a command that creates a name below another lock to a backend that cannot check the
/// permission in the step that decides the command. The permission is checked before the command is
/// submitted, and again after a lock was granted.
fn submit_elsewhere(
    locks: &Locks,
    command: Command,
    check: ParentCheck,
    then: Then<Result<Answer, Unavailable>>,
) {
    let service = locks.clone();
    locks.check_parent(check.clone(), move |allowed| {
        if let Err(why) = allowed {
            return then(Err(why));
        }
        // Only after an acquire is the permission checked again. A move could not be undone if the
        // second check failed: another client may hold the old name by then.
        let acquires = matches!(command.op, Op::Acquire(_));
        service.clone().submit(command, move |answer| match &answer {
            Ok(Ok(outcome)) if acquires => match outcome.clone().first() {
                Outcome::Granted(tenure) => {
                    let key = LeaseKey {
                        name: check.name.clone(),
                        client: check.client.clone(),
                        token: Some(tenure.token),
                    };
                    confirm(&service, key, check, answer, then);
                }
                _ => then(answer),
            },
            _ => then(answer),
        });
    });
}

/// Checks again, after a lock was granted, whether the client may create its name. Releases the
/// lock if another client had taken a lock above the name before the grant and does not permit it.
fn confirm(
    locks: &Locks,
    granted: LeaseKey,
    check: ParentCheck,
    answer: Result<Answer, Unavailable>,
    then: Then<Result<Answer, Unavailable>>,
) {
    let service = locks.clone();
    look_up(locks, &granted.name.clone(), move |views| {
        // If the locks above the name can't be read, the grant stands: the client had the
        // permission a moment ago.
        let above = views.map(|views| nearest(&views)).unwrap_or_default();
        // A lock above the granted one whose token is higher was acquired after the grant. Its
        // holder found the name already in use, so the grant stands.
        let is_older = |lease: &Lease| granted.token.is_some_and(|token| lease.token < token);
        match check.allows_below(&above) {
            Err(denied) if above.iter().any(is_older) => {
                service.give_back(Op::Release(Release::of(granted)));
                then(Err(denied));
            }
            _ => then(answer),
        }
    });
}

/// Passes the views of a lock and of all locks above it to `then`, nearest first.
fn look_up(
    locks: &Locks,
    name: &LockName,
    then: impl FnOnce(Result<Vec<LockView>, Unavailable>) + Send + 'static,
) {
    let names: Vec<_> = std::iter::once(name.clone()).chain(name.parents()).collect();
    let (views, missing) = (vec![None; names.len()], names.len());
    let seen = PendingViews { views, missing, then: Some(Box::new(then)) };
    let seen = Arc::new(Mutex::new(seen));
    for (place, name) in names.iter().enumerate() {
        let seen = Arc::clone(&seen);
        locks.view(name, move |view| {
            let mut all = seen.lock();
            all.views[place] = Some(view);
            all.missing -= 1;
            if all.missing > 0 {
                return;
            }
            let (views, then) = (std::mem::take(&mut all.views), all.then.take());
            drop(all);
            if let Some(then) = then {
                then(views.into_iter().flatten().collect());
            }
        });
    }
}

/// The views of several locks that were requested at the same time, as far as the answers have
/// arrived.
struct PendingViews {
    views: Vec<Option<Result<LockView, Unavailable>>>,
    missing: usize,
    then: Option<Then<Result<Vec<LockView>, Unavailable>>>,
}

/// Passes a page of the locks within `prefixes` to `then`. The prefix of the query is ignored: the
/// caller has already narrowed `prefixes` to it.
pub fn list(
    locks: &Locks,
    prefixes: Vec<String>,
    query: List,
    then: impl FnOnce(Result<ListPage<LockView>, Unavailable>) + Send + 'static,
) {
    list_of(locks, ListedNames::InUse, prefixes, query, then);
}

/// Passes a page of the locks within `prefixes` that have these names to `then`, as [`list`] does.
pub fn list_of(
    locks: &Locks,
    names: ListedNames,
    prefixes: Vec<String>,
    query: List,
    then: impl FnOnce(Result<ListPage<LockView>, Unavailable>) + Send + 'static,
) {
    list_on(locks.clone(), names, prefixes.into_iter(), query, Vec::new(), Box::new(then));
}

fn list_on(
    locks: Locks,
    names: ListedNames,
    mut left: IntoIter<String>,
    query: List,
    mut found: Vec<LockView>,
    then: Then<Result<ListPage<LockView>, Unavailable>>,
) {
    let is_full = found.len() >= query.limit;
    let Some(prefix) = left.next().filter(|_| !is_full) else {
        let next = found.last().filter(|_| is_full).map(|last| last.name.to_string());
        return then(Ok(ListPage { items: found, next }));
    };
    let part = List { prefix, after: query.after.clone(), limit: query.limit - found.len() };
    locks.clone().list_of(names, part, move |page| match page {
        Ok(page) => {
            found.extend(page.items);
            list_on(locks, names, left, query, found, then);
        }
        Err(why) => then(Err(why)),
    });
}

/// Passes the view of a name that itself lies outside `prefixes` but leads to them, to `then`. All
/// prefixes must lie below the name. The view shows a directory if locks exist within the prefixes,
/// and never shows whether the name itself is held.
pub fn lead(
    locks: &Locks,
    name: LockName,
    prefixes: Vec<String>,
    then: impl FnOnce(Result<LockView, Unavailable>) + Send + 'static,
) {
    let (asked, one) = (locks.clone(), List { limit: 1, ..List::default() });
    list(locks, prefixes, one, move |page| match page {
        Err(why) => then(Err(why)),
        Ok(below) => asked.view(&name, move |view| {
            let (holders, waiters) = (Vec::new(), Vec::new());
            let has_below = !below.items.is_empty();
            then(view.map(|view| LockView {
                mode: Mode::Exclusive,
                holders,
                waiters,
                has_below,
                ..view
            }));
        }),
    });
}

/// Passes a page of the entries directly below a name (or at the top level) that lie within
/// `prefixes` or lead there. All prefixes must lie below the name.
pub fn children(
    locks: &Locks,
    prefixes: Vec<String>,
    query: Children,
    then: impl FnOnce(Result<ListPage<Child>, Unavailable>) + Send + 'static,
) {
    let dir = query.parent.as_ref().map_or_else(String::new, |parent| format!("{parent}/"));
    let left = prefixes.into_iter();
    Walk { locks: locks.clone(), dir, left, query, found: Vec::new() }.fill_page(Box::new(then));
}

/// The progress of a request that lists a directory within some prefixes.
struct Walk {
    locks: Locks,
    /// The text with which the names of all entries begin: the directory's own name and a slash.
    dir: String,
    left: IntoIter<String>,
    /// The query for the page. Its cursor advances during the listing, and is the smallest name
    /// that the next entry may have.
    query: Children,
    found: Vec<Child>,
}

impl Walk {
    fn fill_page(mut self, then: Then<Result<ListPage<Child>, Unavailable>>) {
        if self.found.len() >= self.query.limit {
            return then(Ok(ListPage { items: self.found, next: self.query.cursor }));
        }
        let cursor = self.query.cursor.as_deref().unwrap_or_default();
        let is_behind = |prefix: &String| cursor > prefix.as_str() && !cursor.starts_with(prefix);
        let Some(prefix) = self.left.find(|prefix| !is_behind(prefix)) else {
            return then(Ok(ListPage { items: self.found, next: None }));
        };
        let rest = prefix.strip_prefix(&self.dir).unwrap_or_default();
        match rest.split_once('/') {
            Some((part, _)) => {
                let dir = format!("{}{part}", self.dir);
                self.lead(dir, prefix, then);
            }
            None => self.whole(prefix, then),
        }
    }

    /// Adds the entry `dir` as a directory, if there is a lock below it whose name begins with
    /// `prefix`.
    fn lead(
        mut self,
        dir: String,
        prefix: String,
        then: Then<Result<ListPage<Child>, Unavailable>>,
    ) {
        let one = List { prefix, after: None, limit: 1 };
        self.locks.clone().list(one, move |page| match page {
            Ok(page) => {
                if !page.items.is_empty()
                    && let Ok(name) = LockName::parse(&dir)
                {
                    self.found.push(Child { name, lock: None });
                    // '0' follows '/' in ASCII. So the smallest name that the next entry may have
                    // is greater than all names below this directory.
                    self.query.cursor = Some(dir + "0");
                }
                self.fill_page(then);
            }
            Err(why) => then(Err(why)),
        });
    }

    /// Adds the directory's entries whose names begin with `prefix`.
    fn whole(mut self, prefix: String, then: Then<Result<ListPage<Child>, Unavailable>>) {
        let Children { parent, cursor, limit } = self.query.clone();
        let from = cursor.filter(|cursor| *cursor > prefix).unwrap_or_else(|| prefix.clone());
        let part = Children { parent, cursor: Some(from), limit: limit - self.found.len() };
        self.locks.clone().children(part, move |page| match page {
            Ok(page) => {
                let is_within = |child: &Child| child.name.as_str().starts_with(&prefix);
                self.found.extend(page.items.into_iter().take_while(is_within));
                if let Some(next) = page.next.filter(|next| next.starts_with(&prefix)) {
                    self.query.cursor = Some(next);
                }
                self.fill_page(then);
            }
            Err(why) => then(Err(why)),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::local::Local;
    use super::super::lock_service::{CacheableView, LockService, Retry};
    use super::super::test_backends::{forward_status_to_engine, forward_to_engine};
    use super::*;
    use crate::engine::values::lease::{GRACE_DEFAULT, TTL_DEFAULT};
    use crate::engine::{Acquire, LeaseTerms, Refusal, Rules, Tenure};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::channel;

    fn name(text: &str) -> LockName {
        LockName::parse(text).expect("valid")
    }

    fn client(text: &str) -> ClientId {
        ClientId::parse(text).expect("valid")
    }

    fn acquire(lock: &str, who: &str) -> Op {
        Op::Acquire(Acquire::new(
            name(lock),
            client(who),
            LeaseTerms::Own(TTL_DEFAULT, GRACE_DEFAULT),
        ))
    }

    fn release(lock: &str, who: &str) -> Op {
        let key = LeaseKey { name: name(lock), client: client(who), token: None };
        Op::Release(Release::of(key))
    }

    /// Returns the condition that no other client holds the nearest lock above the name that `op`
    /// creates.
    fn closed(op: &Op) -> Option<ParentCheck> {
        ParentCheck::of(op, |_| {
            |_: &LockName, client: &ClientId, holders: &[Lease]| {
                let holds = |lease: &Lease| lease.holder == *client;
                let may = holders.is_empty() || holders.iter().any(holds);
                may.then_some(()).ok_or_else(|| "closed".into())
            }
        })
    }

    fn submit(locks: &Locks, op: Op) -> Result<Answer, Unavailable> {
        let (send, answer) = channel();
        let check = closed(&op);
        locks.submit_checked(op, check, move |answer| send.send(answer).expect("waited for"));
        answer.recv().expect("answered")
    }

    fn granted(answer: Result<Answer, Unavailable>) -> Tenure {
        match answer.expect("decided").map(Outcome::first) {
            Ok(Outcome::Granted(tenure) | Outcome::Renewed(tenure)) => tenure,
            other => panic!("{other:?}"),
        }
    }

    fn denied() -> Result<Result<Outcome, Refusal>, Unavailable> {
        Err(Unavailable::Denied { why: "closed".into() })
    }

    fn view(locks: &Locks, lock: &str) -> LockView {
        let (send, view) = channel();
        locks.view(&name(lock), move |view| send.send(view).expect("waited for"));
        view.recv().expect("answered").expect("shown")
    }

    fn local() -> Local {
        Local::in_memory(Rules::default()).expect("started")
    }

    /// A hook that runs before or after a command is decided.
    type Meanwhile = Box<dyn Fn(&Local, &Command) + Send + Sync>;

    /// A stand-in for a remote engine, with hooks in which other clients act before or after a
    /// command is decided.
    struct Elsewhere {
        engine: Local,
        before: Meanwhile,
        after: Meanwhile,
    }

    fn elsewhere(
        before: impl Fn(&Local, &Command) + Send + Sync + 'static,
        after: impl Fn(&Local, &Command) + Send + Sync + 'static,
    ) -> Locks {
        let (before, after): (Meanwhile, Meanwhile) = (Box::new(before), Box::new(after));
        Locks::new(Arc::new(Elsewhere { engine: local(), before, after }))
    }

    impl LockService for Elsewhere {
        fn submit(&self, command: Command, retry: Retry, then: Then<Result<Answer, Unavailable>>) {
            (self.before)(&self.engine, &command);
            self.engine.submit(command.clone(), retry, then);
            (self.after)(&self.engine, &command);
        }

        fn view(
            &self,
            name: &LockName,
            retry: Retry,
            then: Then<Result<CacheableView, Unavailable>>,
        ) {
            self.engine.view(name, retry, then);
        }

        forward_to_engine!();
    }

    forward_status_to_engine!(Elsewhere);

    #[test]
    fn nearest_held_lock_above_decides() {
        for locks in [Locks::new(Arc::new(local())), elsewhere(|_, _| {}, |_, _| {})] {
            granted(submit(&locks, acquire("a/b/c", "alice")));
            granted(submit(&locks, acquire("a/b", "bob")));
            assert_eq!(submit(&locks, acquire("a/b/x", "alice")), denied());
            assert_eq!(submit(&locks, acquire("a/b/x/y", "alice")), denied());
            assert_eq!(view(&locks, "a/b/x").holders, []);
            // Alice already holds the name `a/b/c`, so her acquire needs no permission by the
            // holder of the lock above. Creating `a/b/x` does.
            granted(submit(&locks, acquire("a/b/c", "alice")));
            granted(submit(&locks, acquire("a/x", "alice")));
            granted(submit(&locks, acquire("a/b/x", "bob")));
            granted(submit(&locks, acquire("ab", "alice")));
            // The nearest held lock above `a/b/c/x` is `a/b/c`, which is Alice's. So she may create
            // the name, and Bob may not.
            granted(submit(&locks, acquire("a/b/c/x", "alice")));
            assert_eq!(submit(&locks, acquire("a/b/c/y", "bob")), denied());
        }
    }

    /// Bob acquires and releases `backup` while Alice acquires `backup/x`. She gets it only at a
    /// moment when nobody holds `backup`.
    #[test]
    fn lock_above_is_checked_in_the_same_step() {
        const ROUNDS: usize = 20_000;
        let locks = Locks::new(Arc::new(local()));
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    if submit(&locks, acquire("backup/x", "alice")).is_ok() {
                        submit(&locks, release("backup/x", "alice")).expect("decided").ok();
                    }
                }
            });
            let rounds = || {
                for round in 0..ROUNDS {
                    let own = granted(submit(&locks, acquire("backup", "bob")));
                    let below = view(&locks, "backup/x");
                    let older = below.holders.iter().all(|other| other.lease.token < own.token);
                    if !older {
                        return Some((round, below));
                    }
                    submit(&locks, release("backup", "bob")).expect("decided").expect("released");
                }
                None
            };
            let wrong = rounds();
            stop.store(true, Ordering::Relaxed);
            assert_eq!(wrong, None, "made below a lock that was held");
        });
    }

    #[test]
    fn name_made_below_a_lock_taken_meanwhile_is_given_back() {
        let bob_comes = |engine: &Local, command: &Command| {
            let Op::Acquire(ask) = &command.op else { return };
            if ask.name.as_str() == "backup/x" {
                let bob = acquire("backup", "bob").into();
                engine.submit(bob, Retry::Never, Box::new(|_| {}));
            }
        };
        let locks = elsewhere(bob_comes, |_, _| {});
        assert_eq!(submit(&locks, acquire("backup/x", "alice")), denied());
        assert_eq!(view(&locks, "backup/x").holders, []);
        // If another client acquires a lock above a name that exists already, the name is not
        // affected.
        let locks = elsewhere(|_, _| {}, bob_comes);
        granted(submit(&locks, acquire("backup/x", "alice")));
        assert_eq!(view(&locks, "backup/x").holders.len(), 1);
        assert_eq!(view(&locks, "backup").holders.len(), 1);
    }

    #[test]
    fn only_own_names_below_are_in_the_way() {
        let locks = Locks::new(Arc::new(local()));
        let holds = |who: &str| {
            let (send, held) = channel();
            locks.holds_below(&name("a"), &client(who), move |held| {
                send.send(held).expect("waited for");
            });
            held.recv().expect("answered").expect("shown")
        };
        granted(submit(&locks, acquire("ab", "bob")));
        granted(submit(&locks, acquire("a", "bob")));
        assert!(!holds("bob"));
        granted(submit(&locks, acquire("a/x", "bob")));
        assert!(holds("bob") && !holds("alice"));
    }
}

#[cfg(test)]
mod scoped_views_tests {
    use super::super::local::Local;
    use super::*;
    use crate::engine::values::lease::{GRACE_DEFAULT, TTL_DEFAULT};
    use crate::engine::{Acquire, ClientId, LeaseTerms, Op, Rules};
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use std::sync::Arc;
    use std::sync::mpsc::channel;

    fn name(text: &str) -> LockName {
        LockName::parse(text).expect("valid")
    }

    fn holding(names: &BTreeSet<String>) -> Locks {
        let locks = Locks::new(Arc::new(Local::in_memory(Rules::default()).expect("started")));
        for text in names {
            let acquire = Op::Acquire(Acquire::new(
                name(text),
                ClientId::parse("a").expect("valid"),
                LeaseTerms::Own(TTL_DEFAULT, GRACE_DEFAULT),
            ));
            locks.submit(acquire, |answer| assert!(matches!(answer, Ok(Ok(_)))));
        }
        locks
    }

    /// Calls `ask` with a callback, and returns the answer, which must arrive before `ask` returns.
    fn got<T: Send + 'static>(ask: impl FnOnce(Then<Result<T, Unavailable>>)) -> T {
        let (send, come) = channel();
        ask(Box::new(move |answer| drop(send.send(answer))));
        come.try_recv().expect("answered at once").expect("available")
    }

    fn list_all(locks: &Locks, prefixes: &[String], limit: usize) -> Vec<String> {
        let (mut all, mut after) = (Vec::new(), None);
        loop {
            let query = List { prefix: String::new(), after, limit };
            let page = got(|then| list(locks, prefixes.to_vec(), query, then));
            assert!(page.items.len() <= limit);
            all.extend(page.items.iter().map(|view| view.name.to_string()));
            let Some(next) = page.next else { return all };
            assert_eq!(all.last(), Some(&next), "a page ends with what it shows");
            after = Some(name(&next));
        }
    }

    /// Returns the names of the entries, and whether each is shown as a lock.
    fn children_all(
        locks: &Locks,
        prefixes: &[String],
        parent: Option<&str>,
        limit: usize,
    ) -> BTreeSet<(String, bool)> {
        let (mut all, mut cursor) = (BTreeSet::new(), None);
        loop {
            let query = Children { parent: parent.map(name), cursor, limit };
            let page = got(|then| children(locks, prefixes.to_vec(), query, then));
            assert!(page.items.len() <= limit);
            for child in page.items {
                assert!(all.insert((child.name.to_string(), child.lock.is_some())), "{child:?}");
            }
            let Some(next) = page.next else { return all };
            let is_of = |(shown, _): &(String, bool)| next.starts_with(shown.as_str());
            assert!(all.iter().any(is_of), "'{next}' is made of what is shown");
            cursor = Some(next);
        }
    }

    /// Returns `prefixes` below `below`, without those that begin with another one of them, as
    /// `Grant::narrowed` does.
    fn disjoint(prefixes: BTreeSet<String>, below: &str) -> Vec<String> {
        let mut kept: Vec<String> = Vec::new();
        for prefix in prefixes.into_iter().filter(|prefix| prefix.starts_with(below)) {
            if kept.last().is_none_or(|last| !prefix.starts_with(last.as_str())) {
                kept.push(prefix);
            }
        }
        kept
    }

    fn text(pattern: &'static str) -> impl Strategy<Value = BTreeSet<String>> {
        prop::collection::btree_set(pattern, 0..12)
    }

    proptest! {
        #[test]
        fn pages_show_only_names_within_the_prefixes(
            held in text("[ab]{1,2}(/[ab!]{1,2}){0,2}"),
            prefixes in text("[ab]{1,2}(/[ab]{0,2}){0,2}"),
            limit in 1..5_usize,
        ) {
            let locks = holding(&held);
            let prefixes_of = |below: &str| disjoint(prefixes.clone(), below);
            let all = prefixes_of("");
            let is_within = |name: &str| all.iter().any(|prefix| name.starts_with(&**prefix));
            let seen: Vec<&String> = held.iter().filter(|name| is_within(name)).collect();
            let listed = list_all(&locks, &all, limit);
            prop_assert_eq!(listed.iter().collect::<Vec<_>>(), seen.clone());
            for parent in [None, Some("a"), Some("ab")] {
                let dir = parent.map_or_else(String::new, |parent| format!("{parent}/"));
                // A directory that lies wholly within a prefix is left out, because such a
                // directory is listed by the unrestricted query.
                if is_within(&dir) {
                    continue;
                }
                let below = seen.iter().filter_map(|name| name.strip_prefix(&dir));
                let expected: BTreeSet<(String, bool)> = below
                    .map(|rest| format!("{dir}{}", rest.split('/').next().unwrap_or_default()))
                    .map(|child| (child.clone(), held.contains(&child) && is_within(&child)))
                    .collect();
                let shown = children_all(&locks, &prefixes_of(&dir), parent, limit);
                prop_assert_eq!(shown, expected);
            }
        }
    }

    #[test]
    fn a_directory_that_leads_to_a_prefix_shows_nothing_of_itself() {
        let held = ["team", "team/a/x", "team/b"].map(str::to_owned).into();
        let locks = holding(&held);
        let lead = |prefix: &str| {
            let view = got(|then| lead(&locks, name("team"), vec![prefix.to_owned()], then));
            assert_eq!((view.holders.len(), view.waiters.len()), (0, 0));
            view.has_below
        };
        assert!(lead("team/a/"));
        assert!(!lead("team/c"));
    }
}
