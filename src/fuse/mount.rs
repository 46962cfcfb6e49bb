//! The entry points of the FUSE front end: mounts the locks of a service on a directory.
//!
//! Constructs the components of one mount, and passes each the few others that it uses.

use crate::auth::{ClientPattern, Grant};
use crate::engine::ClientId;
use crate::fuse::control_files::ControlFiles;
use crate::fuse::control_files::ctl::{CtlCommands, CtlFile};
use crate::fuse::control_files::mount_pages::MountPages;
use crate::fuse::control_files::wait_files::WaitFiles;
use crate::fuse::credentials;
use crate::fuse::credentials::Callers;
use crate::fuse::file_attrs::LockAttributes;
use crate::fuse::file_waits::{FileWaits, Polls};
use crate::fuse::kernel::handles::Shares;
use crate::fuse::kernel::interrupts::InterruptWatcher;
use crate::fuse::kernel::own_user::own_uid;
use crate::fuse::kernel::session;
pub use crate::fuse::kernel::session::MountError;
use crate::fuse::kernel::session::{MountRequest, SessionKind};
pub use crate::fuse::kernel::session::{Mounted, Unmounted, check};
use crate::fuse::kernel_cache::KernelCache;
use crate::fuse::lock_access::LockAccess;
use crate::fuse::lock_fs::LockFs;
use crate::fuse::lock_nodes::{LockNodes, ParentChecks};
pub use crate::fuse::mount_config::{ClientScope, HoldBy, MountConfig, ReadContent, Users};
use crate::fuse::open_files::{OpenFiles, WaitingReads};
use crate::fuse::ops::create::{CreateOpen, Creation};
use crate::fuse::ops::file_io::FileIo;
use crate::fuse::ops::lease_change::LeaseChanges;
use crate::fuse::ops::link::Links;
use crate::fuse::ops::lookup::{Directories, Lookups};
use crate::fuse::ops::setattr::SetAttributes;
use crate::fuse::ops::unlink::{Removal, Renames};
use crate::fuse::ops::xattr::Xattrs;
use crate::fuse::posix_locks::{LockingParts, PosixLocks};
use crate::fuse::process::bindings::ProcessBindings;
use crate::fuse::process::lease_users::LeaseUsers;
use crate::fuse::refusals::Refusals;
use crate::service::Locks;
use std::sync::Arc;

/// Mounts latchfs at `config.dir`, and serves the locks on a thread of its own until the directory
/// is unmounted.
pub fn mount(locks: &Locks, config: &MountConfig) -> Result<Mounted, MountError> {
    let MountConfig { dir, users, nonempty, .. } = config;
    let kind = SessionKind::LOCKS;
    let wanted = MountRequest { dir, users: *users, nonempty: *nonempty, kind };
    session::mount(wanted, |found| {
        let config = MountConfig { dir: found.dir.clone(), ..config.clone() };
        LockFs::new(locks, &config, found.follows_symlinks)
    })
}

/// Returns the client of this process's user, as a mount with the host name `host` names it.
pub fn client_of_user(host: &ClientId) -> ClientId {
    credentials::client_of_user(host, own_uid())
}

/// Returns the rights over HTTP that a user of this machine has through the given mounts; `None` if
/// no mount serves that user.
pub fn grant_of_user(mounts: &[MountConfig], uid: u32) -> Option<Grant> {
    if uid == 0 || uid == own_uid() {
        let anybody = vec![ClientPattern::Beginning(String::new())];
        return Some(Grant::of_user(uid, anybody, true));
    }
    let serving = mounts.iter().filter(|mount| mount.users == Users::All);
    let clients = serving.map(|mount| {
        let own = || credentials::client_of_user(&mount.client, uid).to_string();
        match mount.owner {
            ClientScope::Host => ClientPattern::Exactly(mount.client.to_string()),
            ClientScope::User => ClientPattern::Exactly(own()),
            ClientScope::Session => ClientPattern::Beginning(format!("{}:", own())),
        }
    });
    let clients: Vec<_> = clients.collect();
    (!clients.is_empty()).then(|| Grant::of_user(uid, clients, false))
}

/// The operations on the files of locks.
pub(crate) struct LockOps {
    /// Handles lookup, stat, readlink and statfs.
    pub(crate) lookups: Lookups,
    /// Handles mkdir and symlink.
    pub(crate) creation: Arc<Creation>,
    /// Handles open with `O_CREAT`.
    pub(crate) create_open: CreateOpen,
    /// Handles link(2), which takes a lock by a hard link.
    pub(crate) links: Links,
    /// Handles open, read, write and close.
    pub(crate) files: FileIo,
    /// Handles chmod, chown, truncate and utimensat.
    pub(crate) attributes: SetAttributes,
    /// Handles unlink and rmdir.
    pub(crate) removal: Removal,
    /// Handles rename(2), which moves a lease to another lock name.
    pub(crate) renames: Renames,
    /// Handles extended attributes.
    pub(crate) xattrs: Xattrs,
    /// Handles opendir and readdir.
    pub(crate) directories: Directories,
}

/// The components that other components share.
#[derive(Clone)]
pub(crate) struct SharedParts {
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
}

impl SharedParts {
    /// Returns the shared components of a mount of `service`.
    pub(crate) fn new(service: &Locks, config: &MountConfig) -> Self {
        let shares = Shares::new(own_uid());
        let interrupts = Arc::new(InterruptWatcher::new(shares.clone()));
        let opens = Arc::new(OpenFiles::new(shares.clone()));
        let refusals = Arc::new(Refusals::audited(service.clone(), &config.dir));
        let callers = Arc::new(Callers::new(config));
        let locks = LockAccess::new(service.clone(), refusals);
        let (of, content) = (Arc::clone(&callers), config.content);
        let attrs = LockAttributes::new(service.clone(), of, content, own_uid());
        let users = LeaseUsers::new(service.clone(), Arc::clone(&callers));
        let nodes = Arc::new(LockNodes::new(locks, attrs, users));
        let cache = KernelCache::new(Arc::clone(&nodes));
        let of = Arc::clone(&callers);
        let bindings = ProcessBindings::new(service.clone(), config, of, shares);
        let (of, host) = (nodes.locks.clone(), config.client.clone());
        let parents = Arc::new(ParentChecks::new(of, Arc::clone(&opens), host));
        let parts = LockingParts {
            nodes: Arc::clone(&nodes),
            opens: Arc::clone(&opens),
            interrupts: Arc::clone(&interrupts),
            parents: Arc::clone(&parents),
        };
        let (of, client) = (Arc::clone(&callers), config.client.clone());
        let posix_locks = Arc::new(PosixLocks::new(parts, of, client));
        let polls = Polls::new(Arc::clone(&nodes), Arc::clone(&opens));
        Self { callers, nodes, opens, cache, interrupts, bindings, parents, posix_locks, polls }
    }

    /// Returns the control files of the mount.
    pub(crate) fn control_files(
        self,
        config: &MountConfig,
        waits: &Arc<FileWaits>,
    ) -> ControlFiles {
        let Self { callers, nodes, opens, interrupts, bindings, parents, .. } = self;
        let pages = MountPages::new(
            config.clone(),
            Arc::clone(&nodes),
            Arc::clone(&opens),
            Arc::clone(&bindings),
        );
        let (pages, waits) = (Arc::new(pages), Arc::clone(waits));
        let of = nodes.locks.clone();
        let reads = WaitingReads::new(Arc::clone(&opens), Arc::clone(&interrupts), of);
        let reads = Arc::new(reads);
        let commands = CtlCommands::new(
            Arc::clone(&nodes),
            Arc::clone(&parents),
            Arc::clone(&callers),
            Arc::clone(&bindings),
            Arc::clone(&waits),
            Arc::clone(&pages),
        );
        let (of, by) = (Arc::clone(&nodes), Arc::clone(&opens));
        let ctl = CtlFile::new(of, by, Arc::clone(&reads), commands);
        let of = Arc::clone(&nodes);
        let waits = WaitFiles::new(of, parents, callers, bindings, waits, reads);
        ControlFiles::new(nodes, opens, interrupts, pages, ctl, waits)
    }

    /// Returns the operations; `follows_symlinks` says whether the kernel follows symlinks of the
    /// mount.
    pub(crate) fn ops(self, follows_symlinks: bool) -> LockOps {
        let Self { callers, nodes, opens, cache, bindings, parents, posix_locks, polls, .. } = self;
        let changes = LeaseChanges::new(Arc::clone(&nodes), Arc::clone(&bindings));
        let changes = Arc::new(changes);
        let creation = Arc::new(Creation::new(
            Arc::clone(&nodes),
            Arc::clone(&parents),
            Arc::clone(&callers),
            Arc::clone(&bindings),
        ));
        LockOps {
            lookups: Lookups::new(
                Arc::clone(&nodes),
                Arc::clone(&cache),
                Arc::clone(&callers),
                follows_symlinks,
            ),
            create_open: CreateOpen::new(
                Arc::clone(&nodes),
                Arc::clone(&opens),
                Arc::clone(&parents),
                Arc::clone(&creation),
                Arc::clone(&posix_locks),
                Arc::clone(&changes),
            ),
            creation,
            links: Links::new(
                Arc::clone(&nodes),
                Arc::clone(&parents),
                Arc::clone(&bindings),
                Arc::clone(&posix_locks),
            ),
            removal: Removal::new(Arc::clone(&nodes), callers, Arc::clone(&posix_locks)),
            renames: Renames::new(Arc::clone(&nodes), cache, posix_locks, parents),
            attributes: SetAttributes::new(
                Arc::clone(&nodes),
                Arc::clone(&opens),
                Arc::clone(&changes),
            ),
            files: FileIo::new(
                Arc::clone(&nodes),
                Arc::clone(&opens),
                bindings,
                Arc::clone(&changes),
                polls,
            ),
            xattrs: Xattrs::new(Arc::clone(&nodes), changes),
            directories: Directories::new(nodes, opens),
        }
    }
}
