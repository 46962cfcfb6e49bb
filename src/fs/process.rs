//! Holds of processes: a lease that is kept alive while a process lives, and freed when it ends.
//!
//! A descriptor of the process (a pidfd) tells of its end, so a number that is used again fools
//! nobody. One thread of the mount waits for all of them and for the next renewal, in one epoll;
//! it does not exist before a program binds a lease.

use super::mount::HoldBy;
use super::owner::{Caller, ids_of, is_alive, pidfd_of, session_of, start_of};
use super::shared::{Fs, Shared, flat};
use crate::engine::{
    ClientId, End, Firm, Kind, LeaseKey, Life, LockName, LockView, Op, Outcome, Patch, Process,
    Release, Renew, Token, What,
};
use crate::locks::feed::Watch;
use crate::locks::timer::Alarm;
use crate::locks::{Failure, List};
use crate::time::{Span, Time, boot_now, this_boot};
use fuser::Errno;
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Weak};

/// A lease is renewed so many times in each ttl.
const RENEWALS_PER_TTL: u64 = 3;
/// How soon a renewal is tried again that got no answer.
const RETRY: Span = Span::from_secs(1);
/// Events, and ends of processes, taken at once.
const NEWS_MAX: usize = 256;
/// Locks looked at in one step after a restart.
const PAGE: usize = 1_024;
/// What the alarm is called in the epoll: no token is so great.
const ALARM: u64 = u64::MAX;

/// The processes that leases of one mount are bound to.
#[derive(Default)]
pub(super) struct Processes(Mutex<State>);

#[derive(Default)]
struct State {
    keeper: Option<Arc<Keeper>>,
    bindings: HashMap<Token, Binding>,
    /// When each is to be renewed.
    due: BTreeSet<(Time, Token)>,
    /// Follows what becomes of the leases, while any is bound.
    watch: Option<Watch>,
}

/// One lease and its process.
struct Binding {
    key: LeaseKey,
    living: Living,
    next: Option<Time>,
}

/// What the thread sleeps on.
struct Keeper {
    epoll: OwnedFd,
    alarm: Alarm,
}

/// A process, and the descriptor that tells of its end.
#[derive(Debug)]
pub(super) struct Living {
    /// Which.
    pub(super) process: Process,
    alive: OwnedFd,
}

/// Why a lease can't be bound to a process: the errno, and a sentence.
pub(super) type Unbound = (Errno, String);

/// The process `pid`, if `caller` may name it.
pub(super) fn named(caller: &Caller, pid: u32) -> Result<Living, Unbound> {
    if caller.pid == 0 || ids_of(caller.pid).is_some_and(|ids| ids.spaces > 1) {
        let sentence = format!(
            "process {pid} can't be named by a caller that counts processes in a pid namespace \
             of its own; do it from outside, or write a ttl such as 60s and renew in time"
        );
        return Err((Errno::EPERM, sentence));
    }
    let gone = || {
        let sentence = format!("there is no process {pid}; name one that runs, such as pid=$$");
        (Errno::ESRCH, sentence)
    };
    let living = Living::open(pid).map_err(|error| match error.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM) => {
            (Errno::ENOSPC, format!("process {pid} can't be watched: {error}; bind fewer locks"))
        }
        _ => gone(),
    })?;
    let ids = ids_of(pid).ok_or_else(gone)?;
    if !caller.is_root() && !ids.users.contains(&caller.uid) {
        let sentence = format!(
            "process {pid} belongs to another user, so this caller can't bind a lock to it; \
             name a process of your own"
        );
        return Err((Errno::EPERM, sentence));
    }
    // What was read is of the process that the descriptor stands for only if that still lives.
    if is_alive(&living.alive) { Ok(living) } else { Err(gone()) }
}

/// The kind of section 7 that goes with the errno of [`named`].
pub(super) fn kind_of(errno: Errno) -> Kind {
    match errno.code() {
        libc::EPERM => Kind::Denied,
        libc::ENOSPC => Kind::Limit,
        _ => Kind::Invalid,
    }
}

/// What a lease is bound to that says nothing of it: on a mount with `--hold session` the leader
/// of the login session that makes it, while that lives.
pub(super) fn by_default(fs: &Shared, caller: &Caller) -> Option<Living> {
    let leader = || Living::open(session_of(caller.pid)).ok();
    if fs.config.hold == HoldBy::Session { leader() } else { None }
}

impl Living {
    fn open(pid: u32) -> io::Result<Self> {
        // First the descriptor: what is read then is of the process it stands for, or that is dead.
        let alive = pidfd_of(pid)?;
        let start = start_of(pid).ok_or(io::ErrorKind::NotFound)?;
        if !is_alive(&alive) {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(Self { process: Process { pid, start, boot: this_boot() as u64 }, alive })
    }

    /// That very process, if it still lives.
    pub(super) fn again(process: Process) -> Option<Self> {
        Self::open(process.pid).ok().filter(|living| living.process == process)
    }

    fn copy(&self) -> io::Result<Self> {
        Ok(Self { process: self.process, alive: self.alive.try_clone()? })
    }
}

/// Keeps a lease alive from now on, as long as the process lives.
pub(super) fn bind(fs: &Fs, key: LeaseKey, life: Life, living: &Living) {
    let (name, pid) = (key.name.clone(), living.process.pid);
    let bound = living.copy().and_then(|living| fs.processes.bind(fs, key.clone(), life, living));
    if let Err(error) = bound {
        // The lease says that it is bound; to let it run out would be the later surprise.
        log::error!("lock '{name}' can't be bound to process {pid} ({error}), so it is released");
        fs.locks.submit(Op::Release(Release { key }), |_| {});
    }
}

/// After a start: binds again what is bound to a process that still lives, and releases the rest,
/// which after a reboot is all.
pub(super) fn resume(fs: &Fs) {
    resume_from(fs, None);
}

fn resume_from(fs: &Fs, after: Option<LockName>) {
    let shared = Arc::clone(fs);
    let query = List { after, limit: PAGE, ..List::default() };
    fs.locks.list(query, move |page| {
        let Ok(page) = page else {
            return log::warn!("the locks can't be listed, so none is bound to its process again");
        };
        for view in &page.items {
            resume_lock(&shared, view);
        }
        if let Some(next) = page.next.and_then(|next| LockName::parse(&next).ok()) {
            resume_from(&shared, Some(next));
        }
    });
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
            bind(fs, key, lease.life, &living);
            fs.processes.renew_now(lease.token);
        } else {
            log::info!("process {} is gone, so lock '{}' is released", process.pid, view.name);
            fs.locks.submit(Op::Release(Release { key }), |_| {});
        }
    }
}

/// The mount is gone: leases run out by themselves, or are bound again by the next start.
pub(super) fn ended(fs: &Shared) {
    let mut state = fs.processes.0.lock();
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
fn every(life: Life) -> Option<Span> {
    match life {
        Life::Own { ttl, .. } => Some(Span::from_nanos(ttl.span().as_nanos() / RENEWALS_PER_TTL)),
        Life::Session(_) => None,
    }
}

impl Processes {
    /// How many leases are bound.
    pub(super) fn count(&self) -> usize {
        self.0.lock().bindings.len()
    }

    fn bind(&self, fs: &Fs, key: LeaseKey, life: Life, living: Living) -> io::Result<()> {
        let token = key.token.expect("a lease is bound by its token");
        let mut state = self.0.lock();
        let keeper = match &state.keeper {
            Some(keeper) => Arc::clone(keeper),
            None => Arc::clone(state.keeper.insert(Keeper::start(fs)?)),
        };
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
        let mut state = self.0.lock();
        let keeper = state.keeper.clone()?;
        let binding = state.take(&keeper, token);
        // Nobody is bound: events need not be followed any more.
        let watch = if state.bindings.is_empty() { state.watch.take() } else { None };
        drop(state);
        drop(watch);
        binding
    }

    /// The holder wants the lease to outlive the process.
    pub(super) fn unbind_for(&self, token: Token, client: &ClientId) {
        let state = self.0.lock();
        let is_own = state.bindings.get(&token).is_some_and(|bound| bound.key.client == *client);
        drop(state);
        if is_own {
            self.unbind(token);
        }
    }

    fn renew_now(&self, token: Token) {
        let mut state = self.0.lock();
        if let Some(keeper) = state.keeper.clone() {
            state.renew_at(&keeper, token, Some(Time::ZERO));
        }
    }

    /// The leases whose time to be renewed has come. Each is due again soon, unless its answer
    /// says when.
    fn take_due(&self, now: Time) -> Vec<LeaseKey> {
        let mut state = self.0.lock();
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
    fn renewed(&self, token: Token, life: Life) {
        let mut state = self.0.lock();
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
    let name = key.name.clone();
    fs.locks.submit(Op::Release(Release { key }), move |answer| {
        if let Err(Failure::Unavailable(why)) = flat(answer) {
            log::warn!("lock '{name}' of a process that ended can't be released: {why}");
        }
    });
}

fn renew(fs: &Fs, key: LeaseKey) {
    let token = key.token.expect("a lease is bound by its token");
    let (shared, name) = (Arc::clone(fs), key.name.clone());
    let op = Renew { key, term: None, firm: Firm::Keep, patch: Patch::default() };
    fs.locks.submit(Op::Renew(op), move |answer| match flat(answer) {
        Ok(Outcome::Renewed(tenure)) => shared.processes.renewed(token, tenure.life),
        Ok(_) => {}
        Err(Failure::Unavailable(why)) => {
            log::warn!("lock '{name}' of a process can't be renewed: {why}");
        }
        Err(Failure::Refused(no)) => {
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
            let mut state = fs.processes.0.lock();
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
                matches!(what, What::Renewed { token, .. } | What::Ended { token, .. }
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

fn hear(fs: &Fs, what: What) {
    match what {
        // Perhaps with another ttl, and by somebody else.
        What::Renewed { name, token, .. } => {
            let shared = Arc::clone(fs);
            fs.locks.view(&name, move |view| {
                let Ok(view) = view else { return };
                let mut leases = view.holders.iter().map(|holder| &holder.lease);
                if let Some(lease) = leases.find(|lease| lease.token == token) {
                    shared.processes.renewed(token, lease.life);
                }
            });
        }
        What::Ended { name, token, holder, end, .. } => {
            let Some(binding) = fs.processes.unbind(token) else { return };
            match end {
                End::Moved { to } => follow(fs, &to, holder, binding.living),
                End::Stolen { by, .. } => {
                    log::warn!("lock '{name}' of a process was taken away by {by}");
                }
                End::Lapsed => log::warn!("lock '{name}' of a process was not renewed in time"),
                End::Released | End::Replaced => {}
            }
        }
        _ => {}
    }
}

/// The hold goes on under another name and token.
fn follow(fs: &Fs, to: &LockName, client: ClientId, living: Living) {
    let shared = Arc::clone(fs);
    fs.locks.view(to, move |view| {
        let Ok(view) = view else { return };
        let lease = view.held_by(&client).map(|holder| &holder.lease);
        if let Some(lease) = lease.filter(|l| l.details.process() == Some(living.process)) {
            bind(&shared, key_of(&view.name, &client, lease.token), lease.life, &living);
        }
    });
}

impl Keeper {
    #[allow(unsafe_code)]
    fn start(fs: &Fs) -> io::Result<Arc<Self>> {
        // SAFETY: takes no pointers; the result is checked before it becomes an owner.
        let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if epoll < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just opened and belongs to nobody else.
        let epoll = unsafe { OwnedFd::from_raw_fd(epoll) };
        let keeper = Arc::new(Self { epoll, alarm: Alarm::new()? });
        keeper.add(&keeper.alarm, ALARM)?;
        let (fs, keeping) = (Arc::downgrade(fs), Arc::clone(&keeper));
        let thread = std::thread::Builder::new().name("processes".to_owned());
        thread.spawn(move || keep(&fs, &keeping))?;
        Ok(keeper)
    }

    /// Has the end of `what` told as `number`.
    #[allow(unsafe_code)]
    fn add(&self, what: &impl AsRawFd, number: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: number };
        let (epoll, fd) = (self.epoll.as_raw_fd(), what.as_raw_fd());
        // SAFETY: both descriptors are open, and the event lives through the call.
        match unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &raw mut event) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// By hand: closing would not do while a copy of the descriptor is open.
    #[allow(unsafe_code)]
    fn remove(&self, what: &impl AsRawFd) {
        let (epoll, fd) = (self.epoll.as_raw_fd(), what.as_raw_fd());
        // SAFETY: both descriptors are open; removing reads no event.
        unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_DEL, fd, std::ptr::null_mut()) };
    }

    /// Sleeps until something has happened.
    #[allow(unsafe_code)]
    fn wait(&self) -> Vec<u64> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; NEWS_MAX];
        // SAFETY: the array has as many places as are named, and lives through the call.
        let count = unsafe {
            libc::epoll_wait(self.epoll.as_raw_fd(), events.as_mut_ptr(), NEWS_MAX as i32, -1)
        };
        // A signal that ended the wait brings nothing.
        events[..count.max(0) as usize].iter().map(|event| event.u64).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    fn sleeper() -> Child {
        Command::new("sleep").arg("60").spawn().expect("sleep is there")
    }

    fn caller(uid: u32) -> Caller {
        let client = ClientId::parse("laptop1").expect("valid");
        Caller { uid, gid: uid, pid: std::process::id(), client }
    }

    #[test]
    fn only_ones_own_process_can_be_named() {
        let mut child = sleeper();
        let uid = ids_of(child.id()).expect("it runs").users[0];
        assert!(named(&caller(uid), child.id()).is_ok());
        assert!(named(&caller(0), child.id()).is_ok(), "root names any");
        let (errno, sentence) = named(&caller(uid + 1), child.id()).expect_err("another's");
        assert_eq!(errno.code(), libc::EPERM, "{sentence}");
        let foreign = Caller { pid: 0, ..caller(uid) };
        assert_eq!(named(&foreign, child.id()).expect_err("foreign").0.code(), libc::EPERM);
        child.kill().expect("it runs");
        child.wait().expect("it ends");
        let (errno, sentence) = named(&caller(uid), child.id()).expect_err("gone");
        assert_eq!(errno.code(), libc::ESRCH, "{sentence}");
    }

    #[test]
    fn one_that_has_ended_but_is_not_reaped_is_gone() {
        let mut child = Command::new("true").spawn().expect("true is there");
        let living = pidfd_of(child.id()).expect("not reaped");
        while is_alive(&living) {
            std::thread::yield_now();
        }
        assert!(Living::open(child.id()).is_err());
        child.wait().expect("it ends");
    }

    #[test]
    fn a_number_used_again_is_another_process() {
        let own = Living::open(std::process::id()).expect("we run").process;
        assert!(Living::again(own).is_some());
        assert!(Living::again(Process { start: own.start + 1, ..own }).is_none());
    }

    /// The same numbers may come again after a reboot: what such a process held is released.
    #[test]
    fn a_process_of_another_boot_is_gone() {
        let own = Living::open(std::process::id()).expect("we run").process;
        assert_ne!(own.boot, 0, "the kernel names its boots");
        assert!(Living::again(Process { boot: own.boot ^ 1, ..own }).is_none());
    }

    #[test]
    fn a_lease_is_renewed_three_times_in_its_ttl() {
        let ttl = crate::engine::Ttl::parse("30s").expect("valid");
        let life = crate::engine::Term::Own(ttl, crate::engine::Grace::NONE).begin(Time::ZERO);
        assert_eq!(every(life), Some(Span::from_secs(10)));
    }
}
