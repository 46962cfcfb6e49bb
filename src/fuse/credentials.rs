//! The identity of callers: maps the user and session of a file operation to a client, and
//! describes the process that acquires a lock.

use crate::auth::{ClientPattern, Grant};
use crate::engine::ClientId;
use crate::fuse::mount_config::{ClientScope, MountConfig};
use crate::holder_id::{Maker, pidfd_of, session_of};
use crate::time::{Span, Time, boot_now};
use kernel::file_system::Requester;
use kernel::handles::Numbered;
use kernel::interrupts::status_text;
use nix::unistd::{Uid, User};
use parking_lot::Mutex;
use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The maximum number of cached user names. A lookup may query a directory server, so it must be
/// rare.
const USERS_MAX: usize = 4_096;
/// The maximum number of processes whose start time is cached, each with one open pidfd. The cache
/// serves the few processes that request locks in a loop.
const PROCESSES_MAX: usize = 16;
/// How long a cached process counts as alive without another check. In this time the kernel can't
/// reuse its pid: pids are given out in turn, and creating 32,768 processes, the default maximum on
/// small machines, takes more than a second.
const LIFE_TRUSTED: Span = Span::from_millis(50);
/// The maximum number of sessions whose clients are cached.
const SESSIONS_MAX: usize = 1_024;

/// The user, thread and client that requested a file operation.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// The thread id of the caller, or 0 if the thread lives in a foreign pid namespace.
    pub(crate) pid: u32,
    /// The client as which the caller acts in the lock service.
    pub(crate) client: ClientId,
}

/// Maps the user and thread of a request to its client, and caches users, sessions and processes.
#[derive(Debug)]
pub(crate) struct Callers {
    /// The number of this mount. The per-thread cache of the last caller, which all mounts of the
    /// daemon share, stores it to tell the mounts apart.
    number: u64,
    host: ClientId,
    owner: ClientScope,
    users: Mutex<Numbered<KnownUser>>,
    sessions: Mutex<HashMap<(u32, u32), ClientId>>,
    processes: Mutex<VecDeque<KnownProcess>>,
}

#[derive(Debug, Clone)]
struct KnownUser {
    name: Arc<str>,
    client: ClientId,
}

thread_local! {
    /// The caller of the last request that this thread has read: a cache that needs no mutex, and
    /// that usually hits, because the next request nearly always has the same caller.
    static LATEST: RefCell<Option<LatestCaller>> = const { RefCell::new(None) };
}

struct LatestCaller {
    owners: u64,
    uid: u32,
    client: ClientId,
}

/// A cached process, with a pidfd that tells whether its pid still belongs to the same process.
#[derive(Debug)]
struct KnownProcess {
    tid: u32,
    uid: u32,
    id: Arc<str>,
    alive: OwnedFd,
    /// The time of the last check that the process is alive.
    seen: Time,
}

impl Callers {
    /// Returns the mapping of callers to clients of one mount, with empty caches.
    pub(crate) fn new(config: &MountConfig) -> Self {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        Self {
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            host: config.client.clone(),
            owner: config.owner,
            users: Mutex::default(),
            sessions: Mutex::default(),
            processes: Mutex::default(),
        }
    }

    /// Returns the caller of a file operation, with its client.
    pub(crate) fn caller(&self, who: Requester) -> Caller {
        let Requester { uid, gid, pid } = who;
        Caller { uid, gid, pid, client: self.client(uid, pid) }
    }

    fn client(&self, uid: u32, pid: u32) -> ClientId {
        match self.owner {
            ClientScope::Host => self.host.clone(),
            ClientScope::User => LATEST.with_borrow_mut(|latest| match latest {
                Some(same) if (same.owners, same.uid) == (self.number, uid) => same.client.clone(),
                _ => {
                    let client = self.user(uid).client;
                    *latest =
                        Some(LatestCaller { owners: self.number, uid, client: client.clone() });
                    client
                }
            }),
            ClientScope::Session => {
                let session = session_of(pid);
                if let Some(client) = self.sessions.lock().get(&(uid, session)) {
                    return client.clone();
                }
                let user = self.user(uid);
                let client = joined(&user.client, &session.to_string());
                let mut sessions = self.sessions.lock();
                if sessions.len() >= SESSIONS_MAX {
                    sessions.clear();
                }
                sessions.insert((uid, session), client.clone());
                client
            }
        }
    }

    fn user(&self, uid: u32) -> KnownUser {
        if let Some(user) = self.users.lock().get(&uid.into()) {
            return user.clone();
        }
        // The user database is queried with no mutex held, because a lookup may read files or ask a
        // server.
        let name: Arc<str> = name_of_user(uid).unwrap_or_else(|| uid.to_string()).into();
        let user = KnownUser { client: joined(&self.host, &name), name };
        let mut users = self.users.lock();
        if users.len() >= USERS_MAX {
            users.clear();
        }
        users.insert(uid.into(), user.clone());
        user
    }

    /// Whether `client` belongs to the host of this mount.
    pub(crate) fn is_local(&self, client: &ClientId) -> bool {
        client.is_of_host(&self.host)
    }

    /// Returns the `holder_id` of the caller, which identifies its process even after the process
    /// has ended.
    pub(crate) fn holder_id(&self, caller: &Caller) -> Arc<str> {
        self.holder_id_at(boot_now(), caller)
    }

    fn holder_id_at(&self, now: Time, caller: &Caller) -> Arc<str> {
        let (tid, uid) = (caller.pid, caller.uid);
        let is_same = |known: &KnownProcess| (known.tid, known.uid) == (tid, uid);
        if let Some(known) = self.processes.lock().iter_mut().find(|known| is_same(known))
            && known.still_lives(now)
        {
            return Arc::clone(&known.id);
        }
        // The pidfd is opened before the start time is read: either the start time belongs to the
        // process of the pidfd, or the pidfd reports that the process has ended.
        let alive = pidfd_of(tid).ok();
        let pid = if alive.is_some() { tid } else { leader_of(tid).unwrap_or(tid) };
        let maker = Maker::running(pid);
        let id: Arc<str> = format!("{}:{}:{maker}", self.host, self.user(uid).name).into();
        if let Some(alive) = alive {
            let mut processes = self.processes.lock();
            processes.retain(|known| !is_same(known));
            if processes.len() >= PROCESSES_MAX {
                processes.pop_front();
            }
            processes.push_back(KnownProcess { tid, uid, id: Arc::clone(&id), alive, seen: now });
        }
        id
    }
}

impl KnownProcess {
    /// Whether the pid still belongs to the cached process.
    fn still_lives(&mut self, now: Time) -> bool {
        if now.since(self.seen) < LIFE_TRUSTED {
            return true;
        }
        self.seen = now;
        is_alive(&self.alive)
    }
}

/// Returns the client of a user of `host`.
pub(crate) fn client_of_user(host: &ClientId, uid: u32) -> ClientId {
    joined(host, &name_of_user(uid).unwrap_or_else(|| uid.to_string()))
}

impl Caller {
    /// Returns the rights over HTTP that a user has through a mount: to act as the user's own
    /// client, on all locks.
    pub(crate) fn grant(&self, mounter: u32) -> Grant {
        let clients = vec![ClientPattern::Exactly(self.client.to_string())];
        Grant::of_user(self.uid, clients, self.is_root() || self.uid == mounter)
    }

    /// Whether the caller is root. Root may release locks that local users hold.
    pub(crate) const fn is_root(&self) -> bool {
        self.uid == 0
    }
}

/// Returns the client `host:part`, or the host alone if that would be too long.
fn joined(host: &ClientId, part: &str) -> ClientId {
    ClientId::parse(&format!("{host}:{part}")).unwrap_or_else(|_| host.clone())
}

/// Returns the name of a user from the system's user database.
fn name_of_user(uid: u32) -> Option<String> {
    let name = User::from_uid(Uid::from_raw(uid)).ok()??.name;
    let fits = !name.is_empty() && !name.chars().any(|c| c.is_control() || c == ':');
    fits.then_some(name)
}

/// Whether the process behind a pidfd has not ended yet. The kernel does not reuse the pid of a
/// process before it has ended.
#[allow(unsafe_code)]
pub(crate) fn is_alive(process: &OwnedFd) -> bool {
    let mut poll = libc::pollfd { fd: process.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: `poll` points to one valid pollfd, and the timeout is 0.
    let ready = unsafe { libc::poll(&raw mut poll, 1, 0) };
    ready == 0
}

/// Whether the thread `tid` belongs to a process in `processes`, or to a descendant of such a
/// process.
pub(crate) fn descends_from(tid: u32, processes: &[u32]) -> bool {
    /// The maximum number of ancestors that are searched: more than any process has in practice. It
    /// bounds the search if the process tree changes meanwhile.
    const GENERATIONS_MAX: usize = 64;
    let mut at = leader_of(tid);
    for _ in 0..GENERATIONS_MAX {
        match at {
            Some(pid) if pid != 0 && processes.contains(&pid) => return true,
            Some(pid) if pid > 1 => at = parent_of(pid),
            _ => return false,
        }
    }
    false
}

/// The user ids of a process, for a permission check like that of kill(2), and the depth of its pid
/// namespace.
pub(crate) struct Ids {
    /// The real and the saved user id of the process.
    pub(crate) users: [u32; 2],
    /// The number of pid namespaces in which the process has a pid, from that of this daemon
    /// downwards.
    pub(crate) spaces: usize,
}

/// Returns the user ids and the namespace depth of the thread `tid`; `None` if it has ended.
pub(crate) fn ids_of(tid: u32) -> Option<Ids> {
    let status = status_text(tid)?;
    let fields = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
    // In `/proc/TID/status`, the line `Uid:` holds the real, effective, saved and file-system user
    // id.
    let mut users = fields("Uid:")?.split_whitespace();
    let mut next = |skip| users.nth(skip)?.parse().ok();
    let users = [next(0)?, next(1)?];
    let spaces = fields("NSpid:").map_or(1, |numbers| numbers.split_whitespace().count());
    Some(Ids { users, spaces })
}

pub(crate) fn parent_of(pid: u32) -> Option<u32> {
    let status = status_text(pid)?;
    let line = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
    line.trim().parse().ok()
}

/// Returns the pid of the process to which a thread belongs.
fn leader_of(tid: u32) -> Option<u32> {
    let status = status_text(tid)?;
    let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?;
    line.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::values::lease::{GRACE_DEFAULT, TTL_DEFAULT};
    use crate::fuse::mount_config::{HoldBy, ReadContent, Users};
    use crate::holder_id::start_of;

    fn owners(owner: ClientScope) -> Callers {
        Callers::new(&MountConfig {
            dir: "/nowhere".into(),
            client: ClientId::parse("laptop1").expect("valid"),
            owner,
            ttl: TTL_DEFAULT,
            grace: GRACE_DEFAULT,
            content: ReadContent::Status,
            users: Users::All,
            hold: HoldBy::Renewal,
            nonempty: false,
            share: crate::shares::SharePercent::default(),
        })
    }

    #[test]
    fn a_client_is_host_and_user() {
        let own = std::process::id();
        assert_eq!(owners(ClientScope::Host).client(0, own).as_str(), "laptop1");
        assert_eq!(owners(ClientScope::User).client(0, own).as_str(), "laptop1:root");
        assert_eq!(
            owners(ClientScope::User).client(3_999_999_999, own).as_str(),
            "laptop1:3999999999"
        );
        let session = owners(ClientScope::Session).client(0, own);
        let tail = session.as_str().strip_prefix("laptop1:root:").expect("a session");
        assert!(tail.parse::<u32>().is_ok(), "{session}");
    }

    #[test]
    fn host_and_its_users_are_local() {
        let owners = owners(ClientScope::User);
        let local = |text| owners.is_local(&ClientId::parse(text).expect("valid"));
        assert!(local("laptop1") && local("laptop1:root"));
        assert!(!local("laptop10") && !local("laptop10:root") && !local("other:laptop1"));
    }

    /// Returns the pid and the start time from the `holder_id` that `owners` makes for the process
    /// `pid`.
    fn process(owners: &Callers, pid: u32) -> (u32, u64) {
        process_at(boot_now(), owners, pid)
    }

    fn process_at(now: Time, owners: &Callers, pid: u32) -> (u32, u64) {
        let client = owners.client(0, pid);
        let id = owners.holder_id_at(now, &Caller { uid: 0, gid: 0, pid, client });
        let parts: Vec<&str> = id.split(':').collect();
        assert_eq!(parts[..2], ["laptop1", "root"]);
        (parts[2].parse().expect("a number"), parts[3].parse().expect("a number"))
    }

    #[test]
    fn process_is_cached_while_it_lives() {
        let owners = owners(ClientScope::User);
        let own = std::process::id();
        let start = start_of(own).expect("we run");
        assert_eq!(process(&owners, own), (own, start));
        assert_eq!(process(&owners, own), (own, start), "from the cache");
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("sleep");
        let pid = child.id();
        assert_ne!(process(&owners, pid).1, 0);
        child.kill().expect("it runs");
        child.wait().expect("it ends");
        let later = boot_now() + LIFE_TRUSTED;
        assert_eq!(process_at(later, &owners, pid).1, 0, "gone, and not taken from the cache");
        assert_eq!(process(&owners, 0), (0, 0));
    }

    #[test]
    fn caches_of_users_sessions_and_processes_are_bounded() {
        let (owners, own) = (owners(ClientScope::Session), std::process::id());
        let uid = |number: usize| 3_000_000_000 + number as u32;
        let users = |number| {
            owners.user(uid(number));
            owners.users.lock().len()
        };
        assert_eq!((0..USERS_MAX).map(users).last(), Some(USERS_MAX));
        assert_eq!(users(USERS_MAX), 1, "the names are looked up again");
        let sessions = |number| {
            owners.client(uid(number), own);
            owners.sessions.lock().len()
        };
        assert_eq!((0..SESSIONS_MAX).map(sessions).last(), Some(SESSIONS_MAX));
        assert_eq!(sessions(SESSIONS_MAX), 1);
        let processes = |number| {
            let client = owners.client(0, own);
            owners.holder_id(&Caller { uid: uid(number), gid: 0, pid: own, client });
            owners.processes.lock().len()
        };
        assert_eq!((0..PROCESSES_MAX).map(processes).last(), Some(PROCESSES_MAX));
        assert_eq!(processes(PROCESSES_MAX), PROCESSES_MAX);
        let oldest = owners.processes.lock().front().map(|known| known.uid);
        assert_eq!(oldest, Some(uid(1)), "the oldest one made room");
    }

    #[test]
    fn thread_gets_the_holder_id_of_its_process() {
        let owners = owners(ClientScope::User);
        let own = std::process::id();
        let found = std::thread::scope(|scope| {
            let of_a_thread = scope.spawn(|| {
                let link = std::fs::read_link("/proc/thread-self").expect("a thread");
                let tid = link.file_name().expect("a number").to_string_lossy().into_owned();
                process(&owners, tid.parse().expect("a number"))
            });
            of_a_thread.join().expect("it ends")
        });
        assert_eq!(found, (own, start_of(own).expect("we run")));
    }
}
