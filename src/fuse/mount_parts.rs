//! What the operations of one mount share.

use crate::fuse::credentials::Callers;
use crate::fuse::file_attrs::LockAttributes;
use crate::fuse::file_waits::{FileWaits, Polls};
use crate::fuse::kernel::handles::Shares;
use crate::fuse::kernel::interrupts::InterruptWatcher;
use crate::fuse::kernel::machine_facts::own_uid;
use crate::fuse::kernel_cache::KernelCache;
use crate::fuse::lock_access;
use crate::fuse::lock_access::LockAccess;
use crate::fuse::lock_nodes::{LockNodes, ParentChecks};
use crate::fuse::mount_config::MountConfig;
use crate::fuse::open_files::{OpenFiles, WaitingReads};
use crate::fuse::posix_locks::{LockingParts, PosixLocks};
use crate::fuse::process::bindings::ProcessBindings;
use crate::fuse::process::lease_users::LeaseUsers;
use crate::fuse::refusals::Refusals;
use crate::metrics::ServiceMetrics;
use crate::service::LockService;
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
        lock_access::limit_users(&**service, config);
        let shares = Shares::new(own_uid());
        let interrupts = Arc::new(InterruptWatcher::new(shares.clone()));
        let opens = Arc::new(OpenFiles::new(shares.clone()));
        let refusals = Arc::new(Refusals::audited(service.clone(), &config.dir));
        let callers = Arc::new(Callers::new(config));
        let locks = LockAccess::new(service.clone(), refusals);
        let (of, content) = (Arc::clone(&callers), config.content);
        let attrs = LockAttributes::new(service.clone(), of, content, own_uid());
        let users = LeaseUsers::new(service.clone(), Arc::clone(&callers));
        let nodes = Arc::new(LockNodes::new(locks.clone(), attrs, users));
        let cache = KernelCache::new(Arc::clone(&nodes));
        let of = Arc::clone(&callers);
        let bindings = ProcessBindings::new(service.clone(), config, of, shares);
        let (by, host) = (Arc::clone(&opens), config.client.clone());
        let parents = Arc::new(ParentChecks::new(locks.clone(), by, host));
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
            reads: WaitingReads::new(Arc::clone(&opens), Arc::clone(&interrupts), locks),
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
