//! What the operations of one mount share.
//!
//! The shares of local users in the locks, queues and sessions of the engine of a mount. Root and
//! the user who mounted have no share of their own: they could end the daemon as well. Behind a
//! server, the server limits the mount as a whole.

use crate::auth::{ClientPattern, EngineShares, Grant};
use crate::engine::ClientId;
use crate::fuse::credentials::{Callers, client_of_user};
use crate::fuse::file_attrs::LockAttributes;
use crate::fuse::file_waits::{FileWaits, Polls};
use crate::fuse::kernel_cache::KernelCache;
use crate::fuse::lock_nodes::{LockNodes, ParentChecks};
use crate::fuse::mount_config::{ClientScope, MountConfig};
use crate::fuse::open_files::{OpenFiles, WaitingReads};
use crate::fuse::posix_locks::{LockingParts, PosixLocks};
use crate::fuse::process::bindings::ProcessBindings;
use crate::fuse::process::lease_users::LeaseUsers;
use crate::fuse::refusals::Refusals;
use crate::metrics::ServiceMetrics;
use crate::service::LockService;
use crate::shares::LoweredLimits;
use kernel::handles::Shares;
use kernel::interrupts::InterruptWatcher;
use kernel::machine_facts::own_uid;
use std::sync::Arc;

/// One mount: what its operations share. The operations are functions of `ops`, `posix_locks` and
/// `control_files`.
pub(crate) struct Mount {
    /// The configuration of the mount.
    pub(crate) config: MountConfig,
    /// Whether the kernel follows the symlinks of the mount. Kernels before Linux 5.10 always do,
    /// and an older fusermount3 does not know the option `nosymfollow`.
    pub(crate) follows_symlinks: bool,
    /// The mapping of callers to clients.
    pub(crate) callers: Arc<Callers>,
    /// The inodes that stand for locks.
    pub(crate) nodes: Arc<LockNodes>,
    /// The table of the mount's open files and directories.
    pub(crate) opens: Arc<OpenFiles>,
    /// The kernel's cached names and attributes.
    pub(crate) cache: Arc<KernelCache>,
    /// The watcher that interrupts waiting threads when they get a signal.
    pub(crate) interrupts: Arc<InterruptWatcher>,
    /// Leases that are bound to processes.
    pub(crate) bindings: Arc<ProcessBindings>,
    /// The checks whether a caller may create names below a lock.
    pub(crate) parents: Arc<ParentChecks>,
    /// flock, fcntl and OFD locks on the files of locks.
    pub(crate) posix_locks: Arc<PosixLocks>,
    /// The open files that programs poll.
    pub(crate) polls: Arc<Polls>,
    /// The places of open files in the queues of locks.
    pub(crate) waits: Arc<FileWaits>,
    /// The reads of control files that wait for an answer.
    pub(crate) reads: WaitingReads,
    /// The counters of the lock service.
    pub(crate) metrics: ServiceMetrics,
}

impl Mount {
    /// Returns a mount of `service`; `follows_symlinks` says whether the kernel follows symlinks in
    /// the mount.
    pub(crate) fn new(
        service: &Arc<dyn LockService>,
        config: &MountConfig,
        follows_symlinks: bool,
    ) -> Arc<Self> {
        limit_users(&**service, config);
        let shares = Shares::new(own_uid());
        let interrupts = Arc::new(InterruptWatcher::new(shares.clone()));
        let opens = Arc::new(OpenFiles::new(shares.clone()));
        let refusals = Arc::new(Refusals::audited(service.clone(), &config.dir));
        let callers = Arc::new(Callers::new(config));
        let (of, content) = (Arc::clone(&callers), config.content);
        let attrs = LockAttributes::new(service.clone(), of, content, own_uid());
        let users = LeaseUsers::new(service.clone(), Arc::clone(&callers));
        let nodes = Arc::new(LockNodes::new(service.clone(), Arc::clone(&refusals), attrs, users));
        let cache = KernelCache::new(Arc::clone(&nodes));
        let of = Arc::clone(&callers);
        let bindings = ProcessBindings::new(service.clone(), config, of, shares);
        let (by, host) = (Arc::clone(&opens), config.client.clone());
        let parents = Arc::new(ParentChecks::new(service.clone(), Arc::clone(&refusals), by, host));
        let parts = LockingParts {
            nodes: Arc::clone(&nodes),
            opens: Arc::clone(&opens),
            interrupts: Arc::clone(&interrupts),
            parents: Arc::clone(&parents),
        };
        let (of, client) = (Arc::clone(&callers), config.client.clone());
        let posix_locks = Arc::new(PosixLocks::new(parts, of, client));
        let (of, by) = (Arc::clone(&posix_locks), Arc::clone(&opens));
        Arc::new(Self {
            config: config.clone(),
            follows_symlinks,
            cache,
            polls: Polls::new(Arc::clone(&nodes), Arc::clone(&opens)),
            waits: FileWaits::new(service.clone(), of, by),
            reads: WaitingReads::new(Arc::clone(&opens), Arc::clone(&interrupts), refusals),
            metrics: ServiceMetrics::new(service.clone()),
            callers,
            nodes,
            opens,
            interrupts,
            bindings,
            parents,
            posix_locks,
        })
    }
}

/// Lets each user of a mount take only a share of `service`.
fn limit_users(service: &dyn LockService, config: &MountConfig) {
    if config.owner == ClientScope::Host {
        // All users are one client, and each may release the locks of all.
        return;
    }
    let shares = EngineShares::new(config.share, LoweredLimits::default());
    let free = [0, own_uid()].map(|uid| client_of_user(&config.client, uid));
    let (host, owner) = (config.client.clone(), config.owner);
    service.limit(Arc::new(move |op, engine| {
        let Some(client) = op.subject().client else { return Ok(Vec::new()) };
        // Other mounts and servers of this process decide about their own clients.
        let is_of_mount = client.belongs_to(&host) && *client != host;
        if !is_of_mount || free.iter().any(|free| client.belongs_to(free)) {
            return Ok(Vec::new());
        }
        shares.admit(&grant_of(client, owner), op, engine)
    }));
}

/// Returns a grant for all clients of the user behind `client`.
fn grant_of(client: &ClientId, owner: ClientScope) -> Grant {
    let client = client.as_str();
    let user = match owner {
        // The last part of the client's name is the login session.
        ClientScope::Session => client.rsplit_once(':').map_or(client, |(user, _)| user),
        ClientScope::Host | ClientScope::User => client,
    };
    let clients =
        vec![ClientPattern::Exactly(user.to_owned()), ClientPattern::Beginning(format!("{user}:"))];
    Grant { name: user.to_owned(), ..Grant::of_user(0, clients, false) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::values::lease::{GRACE_DEFAULT, TTL_DEFAULT};
    use crate::engine::{Acquire, LeaseTerms, Limit, LockName, Op, Reason, Rules, ShareOf};
    use crate::fuse::mount_config::{HoldBy, ReadContent, Users};
    use crate::service::Retry;
    use crate::service::local::Local;
    use crate::shares::SharePercent;

    const LOCKS: usize = 20;

    fn client(name: &str) -> ClientId {
        ClientId::parse(name).expect("valid")
    }

    fn mount(service: &Arc<dyn LockService>, host: &str, share: &str) -> Arc<Mount> {
        let config = MountConfig {
            dir: "/nowhere".into(),
            client: client(host),
            owner: ClientScope::User,
            ttl: TTL_DEFAULT,
            grace: GRACE_DEFAULT,
            content: ReadContent::Status,
            users: Users::All,
            hold: HoldBy::Renewal,
            nonempty: false,
            share: SharePercent::parse(share).expect("valid"),
        };
        Mount::new(service, &config, true)
    }

    /// Returns the number of locks that a client gets in a process with two mounts, and the limit
    /// that refuses one more.
    fn locks_of(holder: &ClientId) -> (usize, Limit) {
        let rules = Rules { locks_max: LOCKS, ..Rules::default() };
        let service: Arc<dyn LockService> = Arc::new(Local::in_memory(rules).expect("it starts"));
        let _mounts = [mount(&service, "vm1", "25"), mount(&service, "vm2", "50")];
        for number in 0.. {
            let name = LockName::parse(&format!("x{number}")).expect("valid");
            let term = LeaseTerms::Own(TTL_DEFAULT, GRACE_DEFAULT);
            let acquire = Op::Acquire(Acquire::new(name, holder.clone(), term));
            let answer = service.submit(acquire.into(), Retry::Never).wait().expect("an answer");
            match answer.map_err(|refusal| *refusal.reason) {
                Ok(_) => {}
                Err(Reason::Limit(limit)) => return (number, limit),
                Err(other) => panic!("{other:?}"),
            }
        }
        unreachable!("the table has {LOCKS} places");
    }

    /// In an earlier version the shares of a mount limited all clients of its process.
    #[test]
    fn mounts_of_one_process_limit_their_own_users_alone() {
        for (user, share) in [("vm1:1000", LOCKS / 4), ("vm2:1000", LOCKS / 2)] {
            let expected = (share, Limit::Share(ShareOf::Locks, share));
            assert_eq!(locks_of(&client(user)), expected, "{user}");
        }
        // Clients over HTTP, and those whose names only begin like that of a mount.
        let others = ["laptop", "laptop:1000", "vm1", "vm", "vm10:1000"].map(client);
        let exempt = ["vm1", "vm2"].map(|host| client_of_user(&client(host), 0));
        for other in others.iter().chain(&exempt) {
            assert_eq!(locks_of(other), (LOCKS, Limit::Locks(LOCKS)), "{other}");
        }
    }
}
