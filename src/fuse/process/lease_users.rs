//! The processes that made and last renewed the leases of a mount's files.
//!
//! A truncation (`: > NAME`, `truncate`, `open('w')`) is the heartbeat of some programs, and the
//! first half of `exec 9>NAME; flock 9` in others. The two look alike, so a truncation counts as a
//! renewal only if it comes from a process that uses the lease already, or from its login session.
//!
//! Handles of processes to which leases are bound, and the check whether a caller may bind a lease
//! to a process.

use crate::engine::values::lease::TTL_DEFAULT;
use crate::engine::{
    ClientId, EventKind, Lifetime, LockName, LockView, Process, RefusalKind, Tenure, TenureEnd,
    Token,
};
use crate::fuse::credentials::{Caller, Callers, ids_of, is_alive};
use crate::holder_id::{Maker, pidfd_of, start_of};
use crate::service::LockService;
use crate::service::event_log::EventWatch;
use crate::time::{Span, Time, boot_now, this_boot};
use kernel::file_system::Errno;
use kernel::handles::{Named, Pool, Share, Shares};
use parking_lot::Mutex;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// The maximum number of leases whose users are remembered, at some 200 bytes each: more than one
/// machine renews by truncation. A lease beyond it is renewed all the same if its maker truncates
/// the file, but its loss is then not reported by a truncation.
const LEASES_MAX: usize = 1 << 14;
/// The maximum number of remembered leases of one lock, which bounds a look-up.
const LEASES_OF_LOCK_MAX: usize = 64;
/// The maximum number of events handled in one batch, which bounds how long the event log is
/// locked.
const EVENTS_MAX: usize = 256;

/// The relation of a process to the leases of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LeaseUse {
    /// The process made or last renewed the lease with this token.
    ByProcess(Token),
    /// Another process of the same login session made or last renewed the lease with this token.
    BySession(Token),
    /// The process made or last renewed a lease under this token, and has lost it.
    Lost(Token),
    /// The process has nothing to do with a lease of the lock.
    None,
}

/// The users of the leases of one mount.
pub(crate) struct LeaseUsers {
    service: Arc<dyn LockService>,
    callers: Arc<Callers>,
    known: Mutex<KnownLeases>,
}

#[derive(Default)]
struct KnownLeases {
    /// The subscription to lock events, which begins with the first remembered lease.
    watch: Option<EventWatch>,
    by_name: Named<LockName, Vec<KnownLease>>,
    count: usize,
    turns: u64,
}

/// A lease that was made or renewed through this mount. It is forgotten when it is released, and
/// remembered after it was lost.
struct KnownLease {
    token: Token,
    client: ClientId,
    /// The `holder_id` of the process that made the lease, and of the last one that renewed it.
    users: [Option<Arc<str>>; 2],
    ttl: Span,
    /// Until when a truncation fails again, after one has failed because the lease was lost.
    fails_until: Option<Time>,
    turn: u64,
}

impl LeaseUsers {
    /// Returns the users of the leases of a new mount: none yet.
    pub(crate) fn new(service: Arc<dyn LockService>, callers: Arc<Callers>) -> Self {
        Self { service, callers, known: Mutex::default() }
    }

    /// Returns the `holder_id` of the calling process.
    pub(crate) fn id_of(&self, caller: &Caller) -> Arc<str> {
        self.callers.holder_id(caller)
    }

    /// Records that the caller has made the lease of `name`. Leases of the lock that the process
    /// has lost before are forgotten.
    pub(crate) fn made(&self, caller: &Caller, name: &LockName, tenure: &Tenure) {
        let by = self.id_of(caller);
        let me = Maker::parse(&by);
        let mut known = self.known.lock();
        if known.watch.is_none() {
            known.watch = Some(self.service.subscribe(None));
        }
        known.catch_up();
        known.retain(name, |lease| {
            lease.client != caller.client || !me.is_some_and(|me| lease.is_used_by(me))
        });
        let users = [Some(by), None];
        known.insert(name, KnownLease::new(caller.client.clone(), users, tenure));
    }

    /// Records that the process with this `holder_id` has renewed the lease of `name`.
    pub(crate) fn renewed(&self, by: Arc<str>, client: &ClientId, name: &LockName, of: &Tenure) {
        let mut known = self.known.lock();
        if known.watch.is_none() {
            known.watch = Some(self.service.subscribe(None));
        }
        known.catch_up();
        let leases = known.by_name.get_mut(name);
        if let Some(lease) =
            leases.and_then(|leases| leases.iter_mut().find(|lease| lease.token == of.token))
        {
            lease.users[1] = Some(by);
            lease.ttl = ttl_of(of);
            return;
        }
        known.insert(name, KnownLease::new(client.clone(), [None, Some(by)], of));
    }

    /// Forgets a lease of `name` that was released or moved through this mount. The event that
    /// tells of it may arrive later.
    pub(crate) fn released(&self, name: &LockName, token: Option<Token>) {
        self.known.lock().retain(name, |lease| Some(lease.token) != token);
    }

    /// Forgets the leases of `name` that the calling process has made or lost, after an open file
    /// has taken the lock.
    pub(crate) fn locked(&self, caller: &Caller, name: &LockName) {
        let mut known = self.known.lock();
        if !known.by_name.contains_key(name) {
            return;
        }
        let Some(me) = Maker::parse(&self.id_of(caller)) else { return };
        known.retain(name, |lease| lease.client != caller.client || !lease.is_used_by(me));
    }

    /// Returns the relation of the caller to the leases of the lock whose state is `view`. A lost
    /// lease counts until the process takes the lock in another way, or truncates nothing for as
    /// long as its ttl.
    pub(crate) fn use_of(&self, caller: &Caller, view: &LockView) -> LeaseUse {
        let me = Maker::parse(&self.id_of(caller));
        let Some(me) = me.filter(|me| me.process.is_known()) else { return LeaseUse::None };
        let mut known = self.known.lock();
        known.catch_up();
        let KnownLeases { by_name, .. } = &mut *known;
        let remembered = by_name.get_mut(&view.name).map(Vec::as_mut_slice).unwrap_or_default();
        let mut by_session = None;
        let current = view.holders.iter().map(|holder| &holder.lease);
        for lease in current.clone().filter(|lease| lease.holder == caller.client) {
            let recorded = remembered.iter().filter(|known| known.token == lease.token);
            let maker = lease.details.holder_id().and_then(|id| Maker::parse(id));
            let users = recorded.flat_map(KnownLease::makers).chain(maker);
            for user in users {
                if user.is_same_process(me) {
                    return LeaseUse::ByProcess(lease.token);
                }
                if user.is_same_session(me) {
                    by_session = Some(lease.token);
                }
            }
        }
        let now = boot_now();
        let is_over = |token| current.clone().all(|lease| lease.token != token);
        let lost = remembered.iter_mut().filter(|lease| {
            lease.client == caller.client
                && is_over(lease.token)
                && lease.fails_until.is_none_or(|until| now < until)
                && lease.is_used_by(me)
        });
        if let Some(lost) = lost.max_by_key(|lease| lease.token) {
            lost.fails_until = Some(now + lost.ttl);
            return LeaseUse::Lost(lost.token);
        }
        by_session.map_or(LeaseUse::None, LeaseUse::BySession)
    }
}

impl KnownLeases {
    /// Forgets the leases whose clients have released or moved them since the last call.
    fn catch_up(&mut self) {
        loop {
            let Some(watch) = &mut self.watch else { return };
            let mut ended = Vec::new();
            let visit = watch.visit(EVENTS_MAX, |_, event| {
                let EventKind::Ended { name, token, end, .. } = &event.what else { return };
                if self.by_name.contains_key(name)
                    && !matches!(end, TenureEnd::Lapsed | TenureEnd::Stolen { .. })
                {
                    ended.push((name.clone(), *token));
                }
            });
            for (name, token) in ended {
                self.retain(&name, |lease| lease.token != token);
            }
            if !visit.more {
                return;
            }
        }
    }

    fn retain(&mut self, name: &LockName, keep: impl Fn(&KnownLease) -> bool) {
        let Some(leases) = self.by_name.get_mut(name) else { return };
        let before = leases.len();
        leases.retain(keep);
        self.count -= before - leases.len();
        if leases.is_empty() {
            self.by_name.remove(name);
        }
    }

    fn insert(&mut self, name: &LockName, lease: KnownLease) {
        if self.count >= LEASES_MAX {
            self.make_room(&lease.client);
        }
        self.turns += 1;
        let leases = self.by_name.entry(name.clone()).or_default();
        if leases.len() >= LEASES_OF_LOCK_MAX {
            leases.remove(0);
            self.count -= 1;
        }
        leases.push(KnownLease { turn: self.turns, ..lease });
        self.count += 1;
    }

    /// Forgets the oldest leases: those of `client` if it has more than half of all.
    fn make_room(&mut self, client: &ClientId) {
        let of_client = |lease: &&KnownLease| lease.client == *client;
        let only_own = self.by_name.values().flatten().filter(of_client).count() > LEASES_MAX / 2;
        let counts = |lease: &KnownLease| !only_own || lease.client == *client;
        let all = self.by_name.values().flatten().filter(|lease| counts(lease));
        let mut turns: Vec<u64> = all.map(|lease| lease.turn).collect();
        turns.sort_unstable();
        let Some(oldest) = turns.get(turns.len() / 4).copied() else { return };
        for leases in self.by_name.values_mut() {
            leases.retain(|lease| lease.turn > oldest || !counts(lease));
        }
        self.by_name.retain(|_, leases| !leases.is_empty());
        self.count = self.by_name.values().map(Vec::len).sum();
    }
}

impl KnownLease {
    fn new(client: ClientId, users: [Option<Arc<str>>; 2], of: &Tenure) -> Self {
        Self { token: of.token, client, users, ttl: ttl_of(of), fails_until: None, turn: 0 }
    }

    fn makers(&self) -> impl Iterator<Item = Maker> {
        self.users.iter().flatten().filter_map(|id| Maker::parse(id))
    }

    fn is_used_by(&self, me: Maker) -> bool {
        self.makers().any(|user| user.is_same_process(me))
    }
}

fn ttl_of(tenure: &Tenure) -> Span {
    match tenure.life {
        Lifetime::Own { ttl, .. } => ttl.span(),
        Lifetime::Session(_) => TTL_DEFAULT.span(),
    }
}

/// A process to which leases can be bound, with a pidfd that becomes readable when the process
/// ends.
#[derive(Debug)]
pub(crate) struct ProcessHandle {
    /// The identity of the process: pid, start time and boot.
    pub(crate) process: Process,
    /// The pidfd, readable after the process has ended.
    pub(crate) alive: OwnedFd,
    /// Counts the lease that is bound to the process against the user's limit on bound leases;
    /// `None` if the lease is exempt.
    pub(crate) share: Option<Arc<Share>>,
}

/// The errno and message that say why a lease can't be bound to a process.
pub(crate) type Unbound = (Errno, String);

/// Returns a handle of the process `pid`, if the caller may bind leases to it and is below the
/// limit of bindings.
pub(crate) fn named(shares: &Shares, caller: &Caller, pid: u32) -> Result<ProcessHandle, Unbound> {
    let share = shares.take(Pool::Bindings, caller.uid, 1);
    let share = share.map_err(|full| (Errno::ENOSPC, full.to_string()))?;
    Ok(ProcessHandle { share: Some(Arc::new(share)), ..found(caller, pid)? })
}

fn found(caller: &Caller, pid: u32) -> Result<ProcessHandle, Unbound> {
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
    let living = ProcessHandle::open(pid).map_err(|error| match error.raw_os_error() {
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
    // The user ids were read by pid, and the pid may have been reused. They belong to the process
    // of the pidfd only if that process is still alive now.
    if is_alive(&living.alive) { Ok(living) } else { Err(gone()) }
}

/// Returns the kind of refusal that corresponds to an errno that [`named`] returns.
pub(crate) fn kind_of(errno: Errno) -> RefusalKind {
    match errno.code() {
        libc::EPERM => RefusalKind::Denied,
        libc::ENOSPC => RefusalKind::Limit,
        _ => RefusalKind::Invalid,
    }
}

impl ProcessHandle {
    /// Opens a handle of the process with the given pid.
    pub(crate) fn open(pid: u32) -> io::Result<Self> {
        // The pidfd is opened before the start time is read: either the start time belongs to the
        // process of the pidfd, or the pidfd reports that the process has ended.
        let alive = pidfd_of(pid)?;
        let start = start_of(pid).ok_or(io::ErrorKind::NotFound)?;
        if !is_alive(&alive) {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(Self { process: Process { pid, start, boot: this_boot() as u64 }, alive, share: None })
    }

    /// Returns a new handle of the process that has this pid and start time, if it still lives.
    pub(crate) fn reopen(process: Process) -> Option<Self> {
        Self::open(process.pid).ok().filter(|living| living.process == process)
    }

    /// Returns another handle of the same process, with a duplicate of its pidfd.
    pub(crate) fn copy(&self) -> io::Result<Self> {
        let (process, share) = (self.process, self.share.clone());
        Ok(Self { process, alive: self.alive.try_clone()?, share })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(client: &ClientId, token: u64) -> KnownLease {
        let (token, users) = (Token::named(token), [None, None]);
        let ttl = TTL_DEFAULT.span();
        KnownLease { token, client: client.clone(), users, ttl, fails_until: None, turn: 0 }
    }

    #[test]
    fn the_leases_whose_users_are_remembered_are_bounded() {
        let mut known = KnownLeases::default();
        let client = |text: &str| ClientId::parse(text).expect("valid");
        let (ann, bob) = (client("a:ann"), client("a:bob"));
        let name = |n: u64| LockName::parse(&format!("n{n}")).expect("valid");
        let of = |known: &KnownLeases, client: &ClientId| {
            known.by_name.values().flatten().filter(|lease| lease.client == *client).count()
        };
        for n in 0..1_000 {
            known.insert(&name(n), lease(&ann, n));
        }
        for n in 1_000..3 * LEASES_MAX as u64 {
            known.insert(&name(n), lease(&bob, n));
            assert!(known.count <= LEASES_MAX);
        }
        assert_eq!(known.count, of(&known, &ann) + of(&known, &bob));
        assert_eq!(of(&known, &ann), 1_000, "bob has forgotten only his own");
        for n in 0..1_000 {
            known.insert(&name(0), lease(&ann, n));
        }
        assert_eq!(known.by_name[&name(0)].len(), LEASES_OF_LOCK_MAX);
    }
}

#[cfg(test)]
mod process_handle_tests {
    use super::*;
    use crate::engine::ClientId;
    use std::process::{Child, Command};

    fn sleeper() -> Child {
        Command::new("sleep").arg("60").spawn().expect("sleep is there")
    }

    fn caller(uid: u32) -> Caller {
        let client = ClientId::parse("laptop1").expect("valid");
        Caller { uid, gid: uid, pid: std::process::id(), client }
    }

    #[test]
    fn only_processes_of_the_own_user_can_be_named() {
        let mut child = sleeper();
        let uid = ids_of(child.id()).expect("it runs").users[0];
        assert!(found(&caller(uid), child.id()).is_ok());
        assert!(found(&caller(0), child.id()).is_ok(), "root names any");
        let (errno, sentence) = found(&caller(uid + 1), child.id()).expect_err("another's");
        assert_eq!(errno.code(), libc::EPERM, "{sentence}");
        let foreign = Caller { pid: 0, ..caller(uid) };
        assert_eq!(found(&foreign, child.id()).expect_err("foreign").0.code(), libc::EPERM);
        child.kill().expect("it runs");
        child.wait().expect("it ends");
        let (errno, sentence) = found(&caller(uid), child.id()).expect_err("gone");
        assert_eq!(errno.code(), libc::ESRCH, "{sentence}");
    }

    #[test]
    fn zombie_process_counts_as_ended() {
        let mut child = Command::new("true").spawn().expect("true is there");
        let living = pidfd_of(child.id()).expect("not reaped");
        while is_alive(&living) {
            std::thread::yield_now();
        }
        assert!(ProcessHandle::open(child.id()).is_err());
        child.wait().expect("it ends");
    }

    #[test]
    fn reused_pid_is_another_process() {
        let own = ProcessHandle::open(std::process::id()).expect("we run").process;
        assert!(ProcessHandle::reopen(own).is_some());
        assert!(ProcessHandle::reopen(Process { start: own.start + 1, ..own }).is_none());
    }

    /// After a reboot, another process may have the same pid and start time. So the locks of a
    /// process of an earlier boot are released.
    #[test]
    fn a_process_of_another_boot_is_gone() {
        let own = ProcessHandle::open(std::process::id()).expect("we run").process;
        assert_ne!(own.boot, 0, "the kernel names its boots");
        assert!(ProcessHandle::reopen(Process { boot: own.boot ^ 1, ..own }).is_none());
    }
}
