//! Holds of processes: a lease that is kept alive while a process lives, and freed when it ends.
//!
//! A descriptor of the process (a pidfd) tells of its end, so a number that is used again fools
//! nobody. One thread of the mount waits for all of them and for the next renewal, in one epoll;
//! it does not exist before a program binds a lease.

use crate::fuse::process::epoll::{ALARM, Keeper};
use crate::fuse::process::process_handle::Living;
use crate::fuse::mount::HoldBy;
use crate::fuse::credentials::Caller;
use crate::fuse::shared::{Fs, Shared, flat};
use crate::fuse::kernel::user_shares::Pool;
use crate::engine::lease_terms::{GRACE_OF_PROCESS, TTL_DEFAULT};
use crate::engine::{
    ClientId, EndSession, EventKind, Firm, LeaseKey, LeaseTerms, Lifetime, LockName, LockView, Op,
    OpenSession, Outcome, Patch, Release, Renew, SessionEnd, SessionId, TenureEnd, Token,
};
use crate::holder_id::session_of;
use crate::service::event_log::EventWatch;
use crate::service::{List, RequestError};
use crate::time::{Span, Time, boot_now};
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::sync::{Arc, Weak};

/// A lease is renewed so many times in each ttl.
const RENEWALS_PER_TTL: u64 = 3;
/// How soon a renewal is tried again that got no answer.
const RETRY: Span = Span::from_secs(1);
/// Events taken at once.
const NEWS_MAX: usize = 256;
/// Locks looked at in one step after a restart.
const PAGE: usize = 1_024;

/// The processes that leases of one mount are bound to.
#[derive(Default)]
pub(crate) struct Processes {
    state: Mutex<State>,
    session: Mutex<Option<SessionId>>,
}

#[derive(Default)]
struct State {
    keeper: Option<Arc<Keeper>>,
    bindings: HashMap<Token, Binding>,
    /// When each is to be renewed.
    due: BTreeSet<(Time, Token)>,
    /// Follows what becomes of the leases, while any is bound.
    watch: Option<EventWatch>,
}

/// One lease and its process.
struct Binding {
    key: LeaseKey,
    living: Living,
    /// When it is to be renewed; `None`: it hangs on a session.
    next: Option<Time>,
}

/// What a lease is bound to that says nothing of it: on a mount with `--hold session` the leader
/// of the login session that makes it, while that lives.
pub(crate) fn by_default(fs: &Shared, caller: &Caller) -> Option<Living> {
    if fs.config.hold != HoldBy::Session {
        return None;
    }
    // Without room for another binding the lock is held by renewal, as on other mounts.
    let share = fs.shares.take(Pool::Bindings, caller.uid, 1).ok()?;
    let leader = Living::open(session_of(caller.pid)).ok()?;
    Some(Living { share: Some(Arc::new(share)), ..leader })
}

/// The session on which leases hang that last as long as a process, if what decides is in this
/// daemon: while this machine sleeps, or the daemon is stopped, nobody else is served either, and
/// no renewal can come too late. Elsewhere time goes on, and leases are renewed.
pub(crate) fn session(fs: &Fs) -> Option<SessionId> {
    let mut session = fs.processes.session.lock();
    if session.is_none() {
        let client = fs.config.client.clone();
        let open = Op::OpenSession(OpenSession { client, ttl: None, grace: GRACE_OF_PROCESS });
        *session = match fs.locks.submit_here(&open.into())? {
            Ok(Ok(Outcome::SessionOpened(id))) => Some(id),
            // Then leases are renewed, as elsewhere.
            Ok(_) | Err(_) => None,
        };
    }
    *session
}

/// How long a lease lasts for which no time is given, and that is bound to a process, or not.
pub(crate) fn term(fs: &Fs, bound: Option<&Living>) -> LeaseTerms {
    let own = LeaseTerms::Own(fs.config.ttl, fs.config.grace);
    bound.and_then(|_| session(fs)).map_or(own, LeaseTerms::Session)
}

/// What is left of a lease that hung on a session which is over.
const LEFT: LeaseTerms = LeaseTerms::Own(TTL_DEFAULT, GRACE_OF_PROCESS);

/// Whether a lease may have hung on such a session before the daemon was started again.
fn has_hung(life: Lifetime) -> bool {
    matches!(life, Lifetime::Own { ttl, grace, .. } if LeaseTerms::Own(ttl, grace) == LEFT)
}

/// Keeps a lease alive from now on, as long as the process lives.
pub(crate) fn bind(fs: &Fs, key: LeaseKey, life: Lifetime, living: &Living) {
    let (name, pid) = (key.name.clone(), living.process.pid);
    let bound = living.copy().and_then(|living| fs.processes.bind(fs, key.clone(), life, living));
    if let Err(error) = bound {
        // The lease says that it is bound; to let it run out would be the later surprise.
        log::error!("lock '{name}' can't be bound to process {pid} ({error}), so it is released");
        fs.locks.give_back(Op::Release(Release::of(key)));
    }
}

/// After a start: binds again what is bound to a process that still lives, and releases the rest,
/// which after a reboot is all.
pub(crate) fn resume(fs: &Fs) {
    resume_from(fs, None);
}

/// Reads pages as long as each is there when the call returns, so that their number does not make
/// the stack grow; a page that comes later goes on from there.
fn resume_from(fs: &Fs, mut after: Option<LockName>) {
    loop {
        let (send, receive) = std::sync::mpsc::channel();
        let shared = Arc::clone(fs);
        let query = List { after: after.take(), limit: PAGE, ..List::default() };
        fs.locks.list(query, move |page| {
            let Ok(page) = page else {
                log::warn!("the locks can't be listed, so none is bound to its process again");
                return;
            };
            page.items.iter().for_each(|view| resume_lock(&shared, view));
            let next = page.next.and_then(|next| LockName::parse(&next).ok());
            if let Some(next) = next
                && let Err(late) = send.send(next)
            {
                resume_from(&shared, Some(late.0));
            }
        });
        match receive.try_recv() {
            Ok(next) => after = Some(next),
            Err(_) => return,
        }
    }
}

fn resume_lock(fs: &Fs, view: &LockView) {
    for holder in &view.holders {
        let lease = &holder.lease;
        let Some(process) = lease.details.process() else { continue };
        if !fs.owners.is_local(&lease.holder) {
            continue;
        }
        let key = key_of(&view.name, &lease.holder, lease.token);
        if let Some(living) = Living::again(process) {
            // It was bound before the restart, so it is not refused now.
            let user = lease.details.looks().uid;
            let share = fs.shares.take_always(Pool::Bindings, user, 1);
            let living = Living { share: Some(Arc::new(share)), ..living };
            if let Some(session) = session(fs).filter(|_| has_hung(lease.life)) {
                hang(fs, key, session, living);
            } else {
                bind(fs, key, lease.life, &living);
                fs.processes.renew_now(lease.token);
            }
        } else {
            log::info!("process {} is gone, so lock '{}' is released", process.pid, view.name);
            fs.locks.give_back(Op::Release(Release::of(key)));
        }
    }
}

/// The lease hangs on a session again.
fn hang(fs: &Fs, key: LeaseKey, session: SessionId, living: Living) {
    let shared = Arc::clone(fs);
    let op = Op::Renew(renewal(key.clone(), Some(LeaseTerms::Session(session))));
    fs.locks.submit(op, move |answer| match flat(answer) {
        Ok(Outcome::Renewed(tenure)) => bind(&shared, key, tenure.life, &living),
        Ok(_) => {}
        Err(failure) => {
            let (name, pid) = (&key.name, living.process.pid);
            log::warn!("lock '{name}' can't be bound to process {pid} again: {failure}");
        }
    });
}

fn renewal(key: LeaseKey, term: Option<LeaseTerms>) -> Renew {
    Renew { key, term, firm: Firm::Keep, patch: Patch::default(), acquires: false }
}

/// The mount is gone: leases run out by themselves, or are bound again by the next start.
pub(crate) fn ended(fs: &Shared) {
    // Not within the condition: its lock would last as long as the block.
    let session = fs.processes.session.lock().take();
    if let Some(session) = session {
        for key in fs.processes.hanging() {
            fs.locks.submit(Op::Renew(renewal(key, Some(LEFT))), |_| {});
        }
        let end = EndSession { session, end: SessionEnd::Closed };
        fs.locks.submit(Op::EndSession(end), |_| {});
    }
    let mut state = fs.processes.state.lock();
    let keeper = state.keeper.take();
    state.bindings.clear();
    state.due.clear();
    let watch = state.watch.take();
    drop(state);
    drop(watch);
    if let Some(keeper) = keeper {
        keeper.alarm.stop();
    }
}

fn key_of(name: &LockName, client: &ClientId, token: Token) -> LeaseKey {
    LeaseKey { name: name.clone(), client: client.clone(), token: Some(token) }
}

/// How long between two renewals; a lease that hangs on a session needs none.
fn every(life: Lifetime) -> Option<Span> {
    match life {
        Lifetime::Own { ttl, .. } => {
            Some(Span::from_nanos(ttl.span().as_nanos() / RENEWALS_PER_TTL))
        }
        Lifetime::Session(_) => None,
    }
}

impl Processes {
    /// How many leases are bound.
    pub(crate) fn count(&self) -> usize {
        self.state.lock().bindings.len()
    }

    fn bind(&self, fs: &Fs, key: LeaseKey, life: Lifetime, living: Living) -> io::Result<()> {
        let token = key.token.expect("a lease is bound by its token");
        let mut state = self.state.lock();
        let keeper = state.keeper.clone().map_or_else(
            || {
                let fs = Arc::downgrade(fs);
                Keeper::start(move |keeper| keep(&fs, keeper))
            },
            Ok,
        )?;
        state.keeper = Some(Arc::clone(&keeper));
        if state.watch.is_none() {
            let mut watch = fs.locks.watch(None);
            let events_of = Arc::downgrade(fs);
            watch.wake_by(Arc::new(move || on_events(&events_of)));
            state.watch = Some(watch);
        }
        let before = state.take(&keeper, token);
        keeper.add(&living.alive, token.as_u64())?;
        state.bindings.insert(token, Binding { key, living, next: None });
        state.renew_at(&keeper, token, every(life).map(|every| boot_now() + every));
        drop(state);
        drop(before);
        Ok(())
    }

    /// Forgets a binding; whoever asked for it has been told, or needs not to be.
    fn unbind(&self, token: Token) -> Option<Binding> {
        let mut state = self.state.lock();
        let keeper = state.keeper.clone()?;
        let binding = state.take(&keeper, token);
        // Nobody is bound: events need not be followed any more.
        let watch = if state.bindings.is_empty() { state.watch.take() } else { None };
        drop(state);
        drop(watch);
        binding
    }

    /// The leases that hang on the session.
    fn hanging(&self) -> Vec<LeaseKey> {
        let state = self.state.lock();
        let hanging = state.bindings.values().filter(|binding| binding.next.is_none());
        hanging.map(|binding| binding.key.clone()).collect()
    }

    /// The holder wants the lease to outlive the process. Returns how long it is to last then, if
    /// that was not known: it hung on a session.
    pub(crate) fn unbind_for(&self, token: Token, client: &ClientId) -> Option<LeaseTerms> {
        let state = self.state.lock();
        let is_own = state.bindings.get(&token).is_some_and(|bound| bound.key.client == *client);
        drop(state);
        let binding = if is_own { self.unbind(token)? } else { return None };
        binding.next.is_none().then_some(LEFT)
    }

    fn renew_now(&self, token: Token) {
        let mut state = self.state.lock();
        if let Some(keeper) = state.keeper.clone() {
            state.renew_at(&keeper, token, Some(Time::ZERO));
        }
    }

    /// The leases whose time to be renewed has come. Each is due again soon, unless its answer
    /// says when.
    fn take_due(&self, now: Time) -> Vec<LeaseKey> {
        let mut state = self.state.lock();
        let Some(keeper) = state.keeper.clone() else { return Vec::new() };
        keeper.alarm.clear();
        let mut keys = Vec::new();
        while let Some((at, token)) = state.due.first().copied()
            && at <= now
        {
            state.renew_at(&keeper, token, Some(now + RETRY));
            keys.extend(state.bindings.get(&token).map(|binding| binding.key.clone()));
        }
        if let Some((at, _)) = state.due.first() {
            keeper.alarm.set(*at);
        }
        keys
    }

    /// The lease lasts so long from now on, whoever renewed it.
    fn renewed(&self, token: Token, life: Lifetime) {
        let mut state = self.state.lock();
        if let Some(keeper) = state.keeper.clone() {
            let next = every(life).map(|every| boot_now() + every);
            state.renew_at(&keeper, token, next);
        }
    }
}

impl State {
    fn take(&mut self, keeper: &Keeper, token: Token) -> Option<Binding> {
        let binding = self.bindings.remove(&token)?;
        if let Some(next) = binding.next {
            self.due.remove(&(next, token));
        }
        keeper.remove(&binding.living.alive);
        Some(binding)
    }

    fn renew_at(&mut self, keeper: &Keeper, token: Token, next: Option<Time>) {
        let Some(binding) = self.bindings.get_mut(&token) else { return };
        if let Some(before) = std::mem::replace(&mut binding.next, next) {
            self.due.remove(&(before, token));
        }
        if let Some(next) = next {
            self.due.insert((next, token));
            keeper.alarm.set(next);
        }
    }
}

/// The thread of a mount.
fn keep(fs: &Weak<Shared>, keeper: &Keeper) {
    loop {
        let news = keeper.wait();
        let Some(fs) = fs.upgrade() else { return };
        for number in news {
            if number != ALARM {
                process_ended(&fs, Token::named(number));
            } else if !keeper.alarm.wait() {
                return;
            } else {
                for key in fs.processes.take_due(boot_now()) {
                    renew(&fs, key);
                }
            }
        }
    }
}

fn process_ended(fs: &Fs, token: Token) {
    let Some(Binding { key, living, .. }) = fs.processes.unbind(token) else { return };
    log::debug!("process {} has ended, so lock '{}' is free", living.process.pid, key.name);
    fs.locks.give_back(Op::Release(Release::of(key)));
}

fn renew(fs: &Fs, key: LeaseKey) {
    let token = key.token.expect("a lease is bound by its token");
    let (shared, name) = (Arc::clone(fs), key.name.clone());
    fs.locks.submit(Op::Renew(renewal(key, None)), move |answer| match flat(answer) {
        Ok(Outcome::Renewed(tenure)) => shared.processes.renewed(token, tenure.life),
        Ok(_) => {}
        Err(RequestError::Unavailable(why)) => {
            log::warn!("lock '{name}' of a process can't be renewed: {why}");
        }
        Err(RequestError::Refused(no)) => {
            if let Some(binding) = shared.processes.unbind(token) {
                let pid = binding.living.process.pid;
                log::warn!("lock '{name}' is not renewed for process {pid} any more: {no}");
            }
        }
    });
}

/// Called on the thread that decided a command, with no lock held.
fn on_events(fs: &Weak<Shared>) {
    let Some(fs) = fs.upgrade() else { return };
    loop {
        let (events, more) = {
            let mut state = fs.processes.state.lock();
            let Some(watch) = &mut state.watch else { return };
            let batch = watch.take(NEWS_MAX);
            let more = batch.events.len() == NEWS_MAX;
            if batch.lost > 0 {
                // A renewal of each tells what became of it.
                let all: Vec<_> = state.bindings.keys().copied().collect();
                if let Some(keeper) = state.keeper.clone() {
                    for token in all {
                        state.renew_at(&keeper, token, Some(Time::ZERO));
                    }
                }
            }
            let bound = |token: &Token| state.bindings.contains_key(token);
            let ours = batch.events.into_iter().map(|(_, event)| event.what).filter(|what| {
                matches!(what, EventKind::Renewed { token, .. } | EventKind::Ended { token, .. }
                    if bound(token))
            });
            (ours.collect::<Vec<_>>(), more)
        };
        for what in events {
            hear(&fs, what);
        }
        if !more {
            return;
        }
    }
}

fn hear(fs: &Fs, what: EventKind) {
    match what {
        // Perhaps with another ttl, and by somebody else.
        EventKind::Renewed { name, token, .. } => {
            let shared = Arc::clone(fs);
            fs.locks.view(&name, move |view| {
                let Ok(view) = view else { return };
                let mut leases = view.holders.iter().map(|holder| &holder.lease);
                if let Some(lease) = leases.find(|lease| lease.token == token) {
                    shared.processes.renewed(token, lease.life);
                }
            });
        }
        EventKind::Ended { name, token, holder, end, .. } => {
            let Some(binding) = fs.processes.unbind(token) else { return };
            match end {
                TenureEnd::Moved { to } => follow(fs, &to, holder, binding.living),
                TenureEnd::Stolen { by, .. } => {
                    log::warn!("lock '{name}' of a process was taken away by {by}");
                }
                TenureEnd::Lapsed => {
                    log::warn!("lock '{name}' of a process was not renewed in time");
                }
                TenureEnd::Replaced => follow(fs, &name, holder, binding.living),
                TenureEnd::Released => {}
            }
        }
        _ => {}
    }
}

/// The hold goes on under another token, and perhaps another name.
fn follow(fs: &Fs, to: &LockName, client: ClientId, living: Living) {
    let shared = Arc::clone(fs);
    fs.locks.view_until_answered(to, move |view| {
        let Ok(view) = view else { return };
        let lease = view.held_by(&client).map(|holder| &holder.lease);
        if let Some(lease) = lease.filter(|l| l.details.process() == Some(living.process)) {
            bind(&shared, key_of(&view.name, &client, lease.token), lease.life, &living);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_renewed_three_times_in_its_ttl() {
        let ttl = crate::engine::Ttl::parse("30s").expect("valid");
        let life = LeaseTerms::Own(ttl, crate::engine::Grace::NONE).begin(Time::ZERO);
        assert_eq!(every(life), Some(Span::from_secs(10)));
    }
}
