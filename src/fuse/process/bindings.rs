//! Binds leases to processes: a bound lease is kept alive while its process lives, and released
//! when the process ends.
//!
//! A pidfd detects the end of the process, so PID reuse is no problem. One thread of the mount
//! waits in one epoll for all processes and for the next renewal. It starts when a program first
//! binds a lease.
//!
//! The epoll instance of the thread that watches processes: it reports the ends of processes, and
//! an alarm, which is a timer for the next renewal of a lease.
//!
//! The table of leases that are bound to processes, with the time of each lease's next renewal.

use crate::engine::values::lease::{GRACE_OF_PROCESS, TTL_DEFAULT};
use crate::engine::{
    ClientId, EndSession, EventKind, Firm, LeaseKey, LeaseTerms, Lifetime, LockName, LockView, Op,
    OpenSession, Outcome, Patch, Release, Renew, SessionEnd, SessionId, TenureEnd, Token,
};
use crate::fuse::credentials::{Caller, Callers};
use crate::fuse::mount_config::{HoldBy, MountConfig};
use crate::fuse::process::lease_users::{ProcessHandle, Unbound, named};
use crate::holder_id::session_of;
use crate::service::event_log::EventWatch;
use crate::service::timer::Alarm;
use crate::service::{CacheableView, List, ListedNames, LockService, RequestError, Retry};
use crate::time::{Span, Time, boot_now};
use common::task::spawn;
use kernel::handles::{Pool, Shares};
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

/// After how long a renewal that got no answer is tried again.
const RETRY: Span = Span::from_secs(1);
/// The number of locks per page of the list that is read after a restart of the daemon.
const PAGE: usize = 1_024;

/// The leases of one mount that are bound to processes.
pub(crate) struct ProcessBindings {
    service: Arc<dyn LockService>,
    callers: Arc<Callers>,
    shares: Shares,
    /// The client of the mount itself, which owns its session.
    client: ClientId,
    /// How the mount keeps a lease alive unless the program chooses otherwise.
    hold: HoldBy,
    /// The ttl and grace of a lease unless the program chooses others.
    default_term: LeaseTerms,
    state: Mutex<BindingTable>,
    session: Mutex<Option<SessionId>>,
    /// The last login session whose leader had ended when a lease was to be bound to it.
    leaderless: AtomicU32,
}

/// The ttl and grace of a lease after it is detached from the mount's session.
const LEFT: LeaseTerms = LeaseTerms::Own(TTL_DEFAULT, GRACE_OF_PROCESS);

/// Whether a lease has the ttl and grace of [`LEFT`], which a lease gets when it is detached from
/// the mount's session. Such a lease may have been attached to that session before a restart of the
/// daemon.
fn has_hung(life: Lifetime) -> bool {
    matches!(life, Lifetime::Own { ttl, grace, .. } if LeaseTerms::Own(ttl, grace) == LEFT)
}

fn renewal(key: LeaseKey, term: Option<LeaseTerms>) -> Renew {
    Renew { key, term, firm: Firm::Keep, patch: Patch::default(), acquires: false }
}

fn key_of(name: &LockName, client: &ClientId, token: Token) -> LeaseKey {
    LeaseKey { name: name.clone(), client: client.clone(), token: Some(token) }
}

impl ProcessBindings {
    /// Returns the process bindings of one mount, initially none.
    pub(crate) fn new(
        service: Arc<dyn LockService>,
        config: &MountConfig,
        callers: Arc<Callers>,
        shares: Shares,
    ) -> Arc<Self> {
        Arc::new(Self {
            service,
            callers,
            shares,
            client: config.client.clone(),
            hold: config.hold,
            default_term: LeaseTerms::Own(config.ttl, config.grace),
            state: Mutex::default(),
            session: Mutex::default(),
            leaderless: AtomicU32::new(0),
        })
    }

    /// Returns the process to which a lease is bound by default: on a mount with `--hold session`,
    /// the leader of the caller's login session; otherwise none.
    pub(crate) fn by_default(&self, caller: &Caller) -> Option<ProcessHandle> {
        if self.hold != HoldBy::Session {
            return None;
        }
        // Beyond the user's limit of bindings, the lease is not bound: the program must renew it,
        // as on mounts without `--hold session`.
        let share = self.shares.take(Pool::Bindings, caller.uid, 1).ok()?;
        let id = session_of(caller.pid);
        let Ok(leader) = ProcessHandle::open(id) else {
            if self.leaderless.swap(id, Ordering::Relaxed) != id {
                log::warn!(
                    "the leader of login session {id} has ended, so the leases of process {} \
                     last for their ttl only; start it in a session of its own (setsid)",
                    caller.pid
                );
            }
            return None;
        };
        Some(ProcessHandle { share: Some(Arc::new(share)), ..leader })
    }

    /// Returns the process `pid`, if the caller may bind leases to it and is below the limit of
    /// bindings.
    pub(crate) fn named(&self, caller: &Caller, pid: u32) -> Result<ProcessHandle, Unbound> {
        named(&self.shares, caller, pid)
    }

    /// Returns the session of this mount, to which bound leases are attached instead of being
    /// renewed; `None` if bound leases must be renewed.
    ///
    /// A mount has a session only if the engine runs in its own daemon: while the machine sleeps or
    /// the daemon is stopped, the engine serves no other client either, so the session needs no
    /// keep-alive. A remote engine goes on meanwhile, so leases on it are renewed.
    pub(crate) fn session(&self) -> Option<SessionId> {
        let mut session = self.session.lock();
        if session.is_none() {
            if !self.service.answers_at_once() {
                return None;
            }
            let client = self.client.clone();
            let open = Op::OpenSession(OpenSession { client, ttl: None, grace: GRACE_OF_PROCESS });
            let opened = self.service.submit(open.into(), Retry::Never);
            // If no session can be opened, bound leases are renewed as with a remote engine.
            if let Ok(Ok(Outcome::SessionOpened(id))) = opened.wait() {
                *session = Some(id);
            }
        }
        *session
    }

    /// Returns the ttl and grace, or the session, of a lease for which the program gives no time.
    /// `bound` is the process to which the lease is bound, if any.
    pub(crate) fn term(&self, bound: Option<&ProcessHandle>) -> LeaseTerms {
        let session = bound.and_then(|_| self.session());
        session.map_or(self.default_term, LeaseTerms::Session)
    }

    /// Binds a lease to a process: keeps the lease alive while the process lives, and then releases
    /// it.
    pub(crate) fn bind(self: &Arc<Self>, key: LeaseKey, life: Lifetime, process: &ProcessHandle) {
        let (name, pid) = (key.name.clone(), process.process.pid);
        let bound = process.copy().and_then(|process| self.add(key.clone(), life, process));
        if let Err(error) = bound {
            // If binding fails, the lease is released at once: the daemon could not notice the end
            // of the process, and would not keep the lease alive.
            log::error!(
                "lock '{name}' can't be bound to process {pid} ({error}), so it is released"
            );
            self.service.give_back(Op::Release(Release::of(key)));
        }
    }

    /// After a restart of the daemon, binds each lease again whose process still lives, and
    /// releases the leases of ended processes. After a reboot all processes have ended.
    pub(crate) fn resume(self: &Arc<Self>) {
        let own = Arc::clone(self);
        spawn(async move {
            let mut after = None;
            loop {
                let query = List { after, limit: PAGE, ..List::default() };
                let Ok(page) = own.service.list(ListedNames::InUse, query).await else {
                    return log::warn!(
                        "the locks can't be listed, so no lock is bound to its process again after \
                         the restart"
                    );
                };
                page.items.iter().for_each(|view| own.resume_lock(view));
                after = page.next.and_then(|next| LockName::parse(&next).ok());
                if after.is_none() {
                    return;
                }
            }
        });
    }

    fn resume_lock(self: &Arc<Self>, view: &LockView) {
        for holder in &view.holders {
            let lease = &holder.lease;
            let Some(process) = lease.details.process() else { continue };
            if !self.callers.is_local(&lease.holder) {
                continue;
            }
            let key = key_of(&view.name, &lease.holder, lease.token);
            if let Some(handle) = ProcessHandle::reopen(process) {
                // The lease was bound before the daemon restarted, so the user's limit on bindings
                // does not apply.
                let user = lease.details.attrs().uid;
                let share = self.shares.take_always(Pool::Bindings, user, 1);
                let handle = ProcessHandle { share: Some(Arc::new(share)), ..handle };
                if let Some(session) = self.session().filter(|_| has_hung(lease.life)) {
                    self.hang(key, session, handle);
                } else {
                    self.bind(key, lease.life, &handle);
                    self.renew_now(lease.token);
                }
            } else {
                log::info!("process {} is gone, so lock '{}' is released", process.pid, view.name);
                self.service.give_back(Op::Release(Release::of(key)));
            }
        }
    }

    /// Attaches a lease to the mount's session again after a restart, and binds it to its process.
    fn hang(self: &Arc<Self>, key: LeaseKey, session: SessionId, process: ProcessHandle) {
        let own = Arc::clone(self);
        let op = Op::Renew(renewal(key.clone(), Some(LeaseTerms::Session(session))));
        let renewed = self.service.submit(op.into(), Retry::Never);
        spawn(async move {
            match renewed.outcome().await {
                Ok(Outcome::Renewed(tenure)) => own.bind(key, tenure.life, &process),
                Ok(_) => {}
                Err(failure) => {
                    let (name, pid) = (&key.name, process.process.pid);
                    log::warn!("lock '{name}' can't be bound to process {pid} again: {failure}");
                }
            }
        });
    }

    /// Ends all bindings when the mount is gone. The leases expire by themselves, unless the next
    /// start of the daemon binds them again.
    pub(crate) fn end(&self) {
        // The session is taken in a statement of its own: in an `if let` condition, the mutex would
        // be held for the whole block.
        let session = self.session.lock().take();
        if let Some(session) = session {
            for key in self.hanging() {
                let renew = Op::Renew(renewal(key, Some(LEFT)));
                self.service.submit(renew.into(), Retry::Never).detach();
            }
            let end = EndSession { session, end: SessionEnd::Closed };
            self.service.submit(Op::EndSession(end).into(), Retry::Never).detach();
        }
        let mut state = self.state.lock();
        let epoll = state.epoll.take();
        state.bindings.clear();
        state.due.clear();
        let watch = state.watch.take();
        drop(state);
        drop(watch);
        if let Some(epoll) = epoll {
            epoll.alarm.stop();
        }
    }

    /// Returns the number of leases that are bound to processes.
    pub(crate) fn count(&self) -> usize {
        self.state.lock().bindings.len()
    }

    fn add(
        self: &Arc<Self>,
        key: LeaseKey,
        life: Lifetime,
        process: ProcessHandle,
    ) -> io::Result<()> {
        let token = key.token.expect("a lease is bound by its token");
        let mut state = self.state.lock();
        let epoll = state.epoll.clone().map_or_else(
            || {
                let own = Arc::downgrade(self);
                ProcessEpoll::start(move |epoll| keep(&own, epoll))
            },
            Ok,
        )?;
        state.epoll = Some(Arc::clone(&epoll));
        if state.watch.is_none() {
            let mut watch = self.service.subscribe(None);
            let events_of = Arc::downgrade(self);
            watch.wake_by(Arc::new(move || {
                if let Some(own) = events_of.upgrade() {
                    own.on_events();
                }
            }));
            state.watch = Some(watch);
        }
        let before = state.take(&epoll, token);
        epoll.add(&process.alive, token.as_u64())?;
        state.bindings.insert(token, Binding { key, process, next: None });
        state.renew_at(&epoll, token, every(life).map(|every| boot_now() + every));
        drop(state);
        drop(before);
        Ok(())
    }

    /// Removes and returns the binding of the lease with this token.
    fn unbind(&self, token: Token) -> Option<Binding> {
        let mut state = self.state.lock();
        let epoll = state.epoll.clone()?;
        let binding = state.take(&epoll, token);
        // Without bindings, the subscription to lock events is dropped.
        let watch = if state.bindings.is_empty() { state.watch.take() } else { None };
        drop(state);
        drop(watch);
        binding
    }

    /// Returns the leases that are attached to the mount's session.
    fn hanging(&self) -> Vec<LeaseKey> {
        let state = self.state.lock();
        let hanging = state.bindings.values().filter(|binding| binding.next.is_none());
        hanging.map(|binding| binding.key.clone()).collect()
    }

    /// Removes the binding of a lease that its holder wants to outlive the process. If the lease
    /// was attached to the mount's session, returns the ttl and grace with which it continues.
    pub(crate) fn unbind_for(&self, token: Token, client: &ClientId) -> Option<LeaseTerms> {
        let state = self.state.lock();
        let is_own = state.bindings.get(&token).is_some_and(|bound| bound.key.client == *client);
        drop(state);
        let binding = if is_own { self.unbind(token)? } else { return None };
        binding.next.is_none().then_some(LEFT)
    }

    fn renew_now(&self, token: Token) {
        let mut state = self.state.lock();
        if let Some(epoll) = state.epoll.clone() {
            state.renew_at(&epoll, token, Some(Time::ZERO));
        }
    }

    /// Takes the bound leases that are due for renewal. Each is scheduled for an early retry, and
    /// the answer to the renewal replaces that time.
    fn take_due(&self, now: Time) -> Vec<LeaseKey> {
        let mut state = self.state.lock();
        let Some(epoll) = state.epoll.clone() else { return Vec::new() };
        epoll.alarm.clear();
        let mut keys = Vec::new();
        while let Some((at, token)) = state.due.first().copied()
            && at <= now
        {
            state.renew_at(&epoll, token, Some(now + RETRY));
            keys.extend(state.bindings.get(&token).map(|binding| binding.key.clone()));
        }
        if let Some((at, _)) = state.due.first() {
            epoll.alarm.set(*at);
        }
        keys
    }

    /// Schedules the next renewal of a bound lease, after the mount or another client has renewed
    /// the lease.
    fn renewed(&self, token: Token, life: Lifetime) {
        let mut state = self.state.lock();
        if let Some(epoll) = state.epoll.clone() {
            let next = every(life).map(|every| boot_now() + every);
            state.renew_at(&epoll, token, next);
        }
    }

    fn process_ended(&self, token: Token) {
        let Some(Binding { key, process, .. }) = self.unbind(token) else { return };
        log::debug!("process {} has ended, so lock '{}' is free", process.process.pid, key.name);
        self.service.give_back(Op::Release(Release::of(key)));
    }

    fn renew(self: &Arc<Self>, key: LeaseKey) {
        let token = key.token.expect("a lease is bound by its token");
        let (own, name) = (Arc::clone(self), key.name.clone());
        let renewed = self.service.submit(Op::Renew(renewal(key, None)).into(), Retry::Never);
        spawn(async move {
            match renewed.outcome().await {
                Ok(Outcome::Renewed(tenure)) => own.renewed(token, tenure.life),
                Ok(_) => {}
                Err(RequestError::Unavailable(why)) => {
                    log::warn!("lock '{name}' of a process can't be renewed: {why}");
                }
                Err(RequestError::Refused(no)) => {
                    if let Some(binding) = own.unbind(token) {
                        let pid = binding.process.process.pid;
                        log::warn!("lock '{name}' is not renewed for process {pid} any more: {no}");
                    }
                }
            }
        });
    }

    /// Handles new lock events. Called on the thread that delivered them, with no mutex held.
    fn on_events(self: &Arc<Self>) {
        loop {
            // The events are taken in a statement of their own: in a condition, the mutex would be
            // held for the whole block.
            let news = self.state.lock().take_news();
            let Some((events, more)) = news else { return };
            for what in events {
                self.handle_event(what);
            }
            if !more {
                return;
            }
        }
    }

    fn handle_event(self: &Arc<Self>, what: EventKind) {
        match what {
            // Another client may have renewed the lease with another ttl, which changes the time of
            // the next renewal.
            EventKind::Renewed { name, token, .. } => {
                let own = Arc::clone(self);
                let view = self.service.view(&name, Retry::Never);
                spawn(async move {
                    let Ok(CacheableView { view, .. }) = view.await else { return };
                    let mut leases = view.holders.iter().map(|holder| &holder.lease);
                    if let Some(lease) = leases.find(|lease| lease.token == token) {
                        own.renewed(token, lease.life);
                    }
                });
            }
            EventKind::Ended { name, token, holder, end, .. } => {
                let Some(binding) = self.unbind(token) else { return };
                match end {
                    TenureEnd::Moved { to } => self.follow(&to, holder, binding.process),
                    TenureEnd::Stolen { by, .. } => {
                        log::warn!("lock '{name}' of a process was taken away by {by}");
                    }
                    TenureEnd::Lapsed => {
                        log::warn!("lock '{name}' of a process was not renewed in time");
                    }
                    TenureEnd::Replaced => self.follow(&name, holder, binding.process),
                    TenureEnd::Released => {}
                }
            }
            _ => {}
        }
    }

    /// Binds a lease that continues a bound one under another token, and perhaps another name, to
    /// the same process.
    fn follow(self: &Arc<Self>, to: &LockName, client: ClientId, process: ProcessHandle) {
        let own = Arc::clone(self);
        let view = self.service.view(to, Retry::UntilAnswered);
        spawn(async move {
            let Ok(CacheableView { view, .. }) = view.await else { return };
            let lease = view.held_by(&client).map(|holder| &holder.lease);
            if let Some(lease) = lease.filter(|l| l.details.process() == Some(process.process)) {
                own.bind(key_of(&view.name, &client, lease.token), lease.life, &process);
            }
        });
    }
}

/// The loop of the thread that watches processes: releases leases of ended processes, and renews
/// those that are due.
fn keep(bindings: &Weak<ProcessBindings>, epoll: &ProcessEpoll) {
    loop {
        let news = epoll.wait();
        let Some(bindings) = bindings.upgrade() else { return };
        for number in news {
            if number != ALARM {
                bindings.process_ended(Token::named(number));
            } else if !epoll.alarm.wait() {
                return;
            } else {
                for key in bindings.take_due(boot_now()) {
                    bindings.renew(key);
                }
            }
        }
    }
}

/// The maximum number of epoll events that one wait returns.
const ENDS_MAX: usize = 256;
/// The number that epoll returns for the alarm (the timer for the next renewal). For a process it
/// returns the fencing token of the lease that is bound to the process; no token is as large as
/// this number.
pub(crate) const ALARM: u64 = u64::MAX;

/// An epoll instance that waits for the ends of processes, and for the alarm of the next renewal.
pub(crate) struct ProcessEpoll {
    epoll: OwnedFd,
    /// The alarm, a timer that fires when a lease is due for renewal.
    pub(crate) alarm: Alarm,
}

impl ProcessEpoll {
    /// Creates the epoll instance, and starts a thread that runs `work` on it.
    #[allow(unsafe_code)]
    pub(crate) fn start(work: impl FnOnce(&Self) + Send + 'static) -> io::Result<Arc<Self>> {
        // SAFETY: epoll_create1 takes no pointers, and its result is checked before an `OwnedFd`
        // owns it.
        let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if epoll < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just opened, and nothing else owns it.
        let epoll = unsafe { OwnedFd::from_raw_fd(epoll) };
        let shared = Arc::new(Self { epoll, alarm: Alarm::new()? });
        shared.add(&shared.alarm, ALARM)?;
        let own = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("processes".to_owned());
        thread.spawn(move || work(&own))?;
        Ok(shared)
    }

    /// Adds a descriptor to the epoll instance. When it becomes readable, `wait` returns `number`.
    #[allow(unsafe_code)]
    pub(crate) fn add(&self, what: &impl AsRawFd, number: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: number };
        let (epoll, fd) = (self.epoll.as_raw_fd(), what.as_raw_fd());
        // SAFETY: both descriptors are open, and the event outlives the call.
        match unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &raw mut event) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Removes a descriptor from the epoll instance. Closing the descriptor would not remove it
    /// while a duplicate is open.
    #[allow(unsafe_code)]
    pub(crate) fn remove(&self, what: &impl AsRawFd) {
        let (epoll, fd) = (self.epoll.as_raw_fd(), what.as_raw_fd());
        // SAFETY: both descriptors are open, and EPOLL_CTL_DEL reads no event.
        unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_DEL, fd, std::ptr::null_mut()) };
    }

    /// Waits for epoll events, and returns the numbers of the ready descriptors.
    #[allow(unsafe_code)]
    pub(crate) fn wait(&self) -> Vec<u64> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; ENDS_MAX];
        // SAFETY: the array has ENDS_MAX elements, as the call says, and outlives it.
        let count = unsafe {
            libc::epoll_wait(self.epoll.as_raw_fd(), events.as_mut_ptr(), ENDS_MAX as i32, -1)
        };
        // If a signal has interrupted the wait, `count` is negative, and no events are returned.
        events[..count.max(0) as usize].iter().map(|event| event.u64).collect()
    }
}

/// The number of renewals of a bound lease within its ttl.
const RENEWALS_PER_TTL: u64 = 3;
/// The maximum number of lock events taken in one batch.
const NEWS_MAX: usize = 256;

/// The table of leases of one mount that are bound to processes.
#[derive(Default)]
pub(super) struct BindingTable {
    pub(super) epoll: Option<Arc<ProcessEpoll>>,
    pub(super) bindings: HashMap<Token, Binding>,
    /// The tokens of the leases that need renewal, in order of the time of the next renewal.
    pub(super) due: BTreeSet<(Time, Token)>,
    /// The subscription to lock events, while any lease is bound.
    pub(super) watch: Option<EventWatch>,
}

/// A lease that is bound to a process, with that process.
pub(super) struct Binding {
    pub(super) key: LeaseKey,
    pub(super) process: ProcessHandle,
    /// The time of the next renewal; `None` if the lease is attached to a session.
    pub(super) next: Option<Time>,
}

/// Returns the interval between two renewals of a bound lease; `None` for a lease that is attached
/// to a session, which needs no renewal.
pub(super) fn every(life: Lifetime) -> Option<Span> {
    match life {
        Lifetime::Own { ttl, .. } => {
            Some(Span::from_nanos(ttl.span().as_nanos() / RENEWALS_PER_TTL))
        }
        Lifetime::Session(_) => None,
    }
}

impl BindingTable {
    pub(super) fn take(&mut self, epoll: &ProcessEpoll, token: Token) -> Option<Binding> {
        let binding = self.bindings.remove(&token)?;
        if let Some(next) = binding.next {
            self.due.remove(&(next, token));
        }
        epoll.remove(&binding.process.alive);
        Some(binding)
    }

    pub(super) fn renew_at(&mut self, epoll: &ProcessEpoll, token: Token, next: Option<Time>) {
        let Some(binding) = self.bindings.get_mut(&token) else { return };
        if let Some(before) = std::mem::replace(&mut binding.next, next) {
            self.due.remove(&(before, token));
        }
        if let Some(next) = next {
            self.due.insert((next, token));
            epoll.alarm.set(next);
        }
    }

    /// Returns the next batch of events about bound leases, and whether there may be more events.
    pub(super) fn take_news(&mut self) -> Option<(Vec<EventKind>, bool)> {
        let batch = self.watch.as_mut()?.take(NEWS_MAX);
        let more = batch.events.len() == NEWS_MAX;
        if batch.has_gap() {
            // Lock events were lost, so every bound lease is renewed now: the answer tells its
            // state.
            let all: Vec<_> = self.bindings.keys().copied().collect();
            if let Some(epoll) = self.epoll.clone() {
                for token in all {
                    self.renew_at(&epoll, token, Some(Time::ZERO));
                }
            }
        }
        let bound = |token: &Token| self.bindings.contains_key(token);
        let ours = batch.events.into_iter().map(|(_, event)| event.what).filter(|what| {
            matches!(what, EventKind::Renewed { token, .. } | EventKind::Ended { token, .. }
                if bound(token))
        });
        Some((ours.collect(), more))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::LeaseTerms;

    #[test]
    fn a_lease_is_renewed_three_times_in_its_ttl() {
        let ttl = engine::Ttl::parse("30s").expect("valid");
        let life = LeaseTerms::Own(ttl, engine::Grace::NONE).begin(Time::ZERO);
        assert_eq!(every(life), Some(Span::from_secs(10)));
    }
}
