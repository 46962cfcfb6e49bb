//! Negotiates the FUSE session with the kernel: capabilities, and the number of background
//! requests.

use crate::fuse::kernel::session_kind::{LocksBy, PermissionsBy, SessionKind};
use fuser::{InitFlags, KernelConfig};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The maximum number of background requests in flight: requests that no program waits for, such as
/// RELEASE. With fuser's default of 16, the files of a thousand programs that exit at once would
/// close one by one.
const BACKGROUND_MAX: u16 = 1_024;

/// Whether the kernel can mark a cached name as expired and keep it until its next use
/// (`FUSE_HAS_EXPIRE_ONLY`). The value is known once the session with the kernel has begun.
#[derive(Debug, Clone, Default)]
pub(crate) struct CanExpire(Arc<AtomicBool>);

impl CanExpire {
    /// Returns whether the kernel can mark cached names as expired.
    pub(crate) fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Records whether the kernel can mark cached names as expired.
    pub(crate) fn set(&self, can_expire: bool) {
        self.0.store(can_expire, Ordering::Relaxed);
    }
}

/// Requests the capabilities that a mount of `kind` uses. Returns whether the kernel can mark
/// cached names as expired.
pub(super) fn negotiate(config: &mut KernelConfig, kind: &SessionKind) -> bool {
    // A mount works, with restrictions, on a kernel that lacks some of the capabilities. Without
    // FUSE_ATOMIC_O_TRUNC, the truncation by `O_TRUNC` is a request of its own, which does not name
    // the open file. Without FUSE_POSIX_LOCKS and FUSE_FLOCK_LOCKS, the kernel itself grants flock
    // and POSIX locks, and clients on other machines do not see them. Without FUSE_POSIX_ACL, the
    // kernel checks permissions by modes alone. Without FUSE_DONT_MASK, the kernel applies the
    // umask of a program also where the default ACL of a directory takes its place.
    // FUSE_WRITEBACK_CACHE is never requested: with it, the kernel would ignore every change of a
    // file's size that it has not made itself.
    let mut all = InitFlags::FUSE_ATOMIC_O_TRUNC | InitFlags::FUSE_PARALLEL_DIROPS;
    if kind.locks == LocksBy::FileSystem {
        all |= InitFlags::FUSE_POSIX_LOCKS | InitFlags::FUSE_FLOCK_LOCKS;
    }
    if kind.permissions == PermissionsBy::Kernel {
        all |= InitFlags::FUSE_POSIX_ACL | InitFlags::FUSE_DONT_MASK;
    }
    if kind.caches_content {
        all |= InitFlags::FUSE_AUTO_INVAL_DATA | InitFlags::FUSE_PASSTHROUGH;
        // The depth 1 admits backing files on file systems that are not stacked themselves, and
        // still allows an overlay on top of the mount. It is below the maximum, so this can't fail.
        let _ = config.set_max_stack_depth(1);
    }
    for wanted in all {
        if config.add_capabilities(wanted).is_err() {
            log::debug!("this kernel's FUSE lacks {wanted:?}");
        }
    }
    if let Err(nearest) = config.set_max_background(BACKGROUND_MAX) {
        log::warn!("the kernel takes {nearest} requests in the background at most");
    }
    config.capabilities().contains(InitFlags::FUSE_HAS_EXPIRE_ONLY)
}
