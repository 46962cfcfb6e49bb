//! The file system of locks: sends each operation to the part that does it.

use crate::fuse::control_files::ControlFiles;
use crate::fuse::control_names::{ControlFile, LockFact};
use crate::fuse::credentials::{Caller, Callers};
use crate::fuse::errno::Act;
use crate::fuse::file_attrs::Attributes;
use crate::fuse::inodes::NodePlace;
use crate::fuse::kernel::file_system::{Done, FileSystem, NameIn, Unsupported};
use crate::fuse::kernel::interrupts::InterruptWatcher;
use crate::fuse::kernel::invalidation::Invalidator;
use crate::fuse::kernel::own_user::own_uid;
use crate::fuse::kernel::poll_waker::PollWaker;
use crate::fuse::kernel::user_shares::{Pool, Shares};
use crate::fuse::kernel::values::{
    DirPage, Errno, FileSystemStats, LockFound, LockRequest, NodeAttr, NodeEntry, Opened,
    PollEvents, ReadBytes, ReadRequest, RenameFlags, Requester, SetAttrs, TimeOrNow,
};
use crate::fuse::kernel_cache::KernelCache;
use crate::fuse::lock_access::LockAccess;
use crate::fuse::lock_nodes::LockNodes;
use crate::fuse::mount_config::MountConfig;
use crate::fuse::open_files::OpenFiles;
use crate::fuse::open_files::open_file::OpenTarget;
use crate::fuse::open_files::waiting_reads::WaitingReads;
use crate::fuse::ops::ancestors::Ancestors;
use crate::fuse::ops::create::{Creation, act_of};
use crate::fuse::ops::file_io::FileIo;
use crate::fuse::ops::lease_change::LeaseChanges;
use crate::fuse::ops::lookup::Lookups;
use crate::fuse::ops::readdir::Directories;
use crate::fuse::ops::rename::Renames;
use crate::fuse::ops::setattr::SetAttributes;
use crate::fuse::ops::unlink::Removal;
use crate::fuse::ops::xattr::Xattrs;
use crate::fuse::poll::Polls;
use crate::fuse::posix_locks::{PosixLocks, ioctls};
use crate::fuse::process::bindings::ProcessBindings;
use crate::fuse::queue_wait::QueueWaits;
use crate::fuse::refusals::Refusals;
use crate::service::Locks;
use std::ffi::OsStr;
use std::sync::Arc;

/// One mount.
pub(crate) struct LockFs {
    callers: Arc<Callers>,
    nodes: Arc<LockNodes>,
    cache: Arc<KernelCache>,
    lookups: Lookups,
    creation: Creation,
    removal: Removal,
    renames: Renames,
    attributes: SetAttributes,
    files: FileIo,
    directories: Directories,
    xattrs: Xattrs,
    posix_locks: Arc<PosixLocks>,
    waits: Arc<QueueWaits>,
    polls: Arc<Polls>,
    bindings: Arc<ProcessBindings>,
    control: ControlFiles,
}

impl LockFs {
    /// A mount of `service`, in which the kernel follows symlinks or not.
    pub(crate) fn new(service: &Locks, config: &MountConfig, follows_symlinks: bool) -> Arc<Self> {
        let shares = Shares::new(own_uid());
        let interrupts = Arc::new(InterruptWatcher::new(shares.clone()));
        let opens = Arc::new(OpenFiles::new(shares.clone()));
        let refusals = Arc::new(Refusals::default());
        let callers = Arc::new(Callers::new(config));
        let locks = LockAccess::new(service.clone(), Arc::clone(&refusals));
        let attrs =
            Attributes::new(service.clone(), Arc::clone(&callers), config.content, own_uid());
        let nodes = Arc::new(LockNodes::new(locks, attrs));
        let cache = KernelCache::new(Arc::clone(&nodes));
        let bindings = ProcessBindings::new(service, config, Arc::clone(&callers), shares);
        let ancestors = Arc::new(Ancestors::new(Arc::clone(&nodes), Arc::clone(&callers)));
        let posix_locks = PosixLocks::new(
            Arc::clone(&nodes),
            Arc::clone(&opens),
            Arc::clone(&callers),
            Arc::clone(&interrupts),
            Arc::clone(&ancestors),
            config.client.clone(),
        );
        let reads = WaitingReads::new(Arc::clone(&opens), Arc::clone(&interrupts), refusals);
        let reads = Arc::new(reads);
        let waits = QueueWaits::new(service.clone(), Arc::clone(&posix_locks), Arc::clone(&opens));
        let polls = Polls::new(service.clone());
        let changes = LeaseChanges::new(Arc::clone(&nodes), Arc::clone(&bindings));
        let changes = Arc::new(changes);
        let control = ControlFiles::new(
            config,
            Arc::clone(&nodes),
            Arc::clone(&opens),
            Arc::clone(&ancestors),
            Arc::clone(&callers),
            Arc::clone(&bindings),
            Arc::clone(&waits),
            reads,
            Arc::clone(&interrupts),
        );
        Arc::new(Self {
            lookups: Lookups::new(
                Arc::clone(&nodes),
                Arc::clone(&cache),
                Arc::clone(&callers),
                follows_symlinks,
            ),
            creation: Creation::new(
                Arc::clone(&nodes),
                Arc::clone(&opens),
                Arc::clone(&callers),
                Arc::clone(&bindings),
                Arc::clone(&posix_locks),
                Arc::clone(&ancestors),
                Arc::clone(&changes),
            ),
            removal: Removal::new(
                Arc::clone(&nodes),
                Arc::clone(&callers),
                Arc::clone(&posix_locks),
            ),
            renames: Renames::new(
                Arc::clone(&nodes),
                Arc::clone(&cache),
                Arc::clone(&posix_locks),
                ancestors,
            ),
            attributes: SetAttributes::new(
                Arc::clone(&nodes),
                Arc::clone(&opens),
                Arc::clone(&changes),
            ),
            files: FileIo::new(
                Arc::clone(&nodes),
                Arc::clone(&opens),
                Arc::clone(&bindings),
                Arc::clone(&changes),
                Arc::clone(&polls),
            ),
            directories: Directories::new(Arc::clone(&nodes), opens),
            xattrs: Xattrs::new(Arc::clone(&nodes), changes),
            callers,
            nodes,
            cache,
            posix_locks,
            waits,
            polls,
            bindings,
            control,
        })
    }
}
