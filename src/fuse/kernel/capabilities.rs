//! The agreement with the kernel when a session begins: its capabilities, and how many requests
//! it sends in the background.

use fuser::{InitFlags, KernelConfig};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Requests that the kernel sends without a program waiting for them, such as the closing of
/// files: with fuser's 16, a thousand programs that exit at once would close one by one.
const BACKGROUND_MAX: u16 = 1_024;

/// Whether the kernel can be told that a name has expired, and then keeps it until it is used
/// again. Known once the session with the kernel has begun.
#[derive(Debug, Clone, Default)]
pub(crate) struct CanExpire(Arc<AtomicBool>);

impl CanExpire {
    /// Returns whether it can.
    pub(crate) fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Notes whether it can.
    pub(crate) fn set(&self, can_expire: bool) {
        self.0.store(can_expire, Ordering::Relaxed);
    }
}

/// Asks for the capabilities that a mount uses. Returns whether names can expire.
pub(super) fn negotiate(config: &mut KernelConfig) -> bool {
    // O_TRUNC comes with the open, which shows who truncates. Kernels without one of these work
    // too; without the locking ones locks would be the kernel's own, unseen by others.
    for wanted in [
        InitFlags::FUSE_POSIX_LOCKS,
        InitFlags::FUSE_FLOCK_LOCKS,
        InitFlags::FUSE_ATOMIC_O_TRUNC,
        InitFlags::FUSE_PARALLEL_DIROPS,
    ] {
        if config.add_capabilities(wanted).is_err() {
            log::debug!("this kernel's FUSE lacks {wanted:?}");
        }
    }
    if let Err(nearest) = config.set_max_background(BACKGROUND_MAX) {
        log::warn!("the kernel takes {nearest} requests in the background at most");
    }
    config.capabilities().contains(InitFlags::FUSE_HAS_EXPIRE_ONLY)
}
