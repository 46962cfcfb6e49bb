//! Cache invalidation: a thread tells the kernel to forget names and attributes that it keeps.
//!
//! The kernel may have to wait for a program in the directory before it forgets a name, so no
//! thread that serves requests may tell it.

use crate::fuse::kernel::device;
use fuser::{INodeNo, Notifier};
use std::ffi::OsString;
use std::io;
use std::os::fd::RawFd;
use std::sync::mpsc::{Receiver, Sender, channel};

/// A name that the kernel is to forget.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct StaleName {
    /// The inode of the directory.
    pub(crate) parent: u64,
    /// The name within it.
    pub(crate) name: OsString,
    /// The inode whose attributes are stale as well, if there is one.
    pub(crate) ino: Option<u64>,
}

/// Hands stale names to the thread, which ends when this is dropped.
#[derive(Debug, Clone)]
pub(crate) struct Invalidator {
    queue: Sender<Vec<StaleName>>,
    can_expire: bool,
}

impl Invalidator {
    /// Starts the thread. `device` is that of `notifier`; `can_expire` says whether the kernel
    /// takes the notice that a name has expired.
    pub(crate) fn start(notifier: Notifier, device: RawFd, can_expire: bool) -> io::Result<Self> {
        let (send, stale) = channel();
        let thread = std::thread::Builder::new().name("forget".to_owned());
        let kernel = Kernel { notifier, device, can_expire };
        thread.spawn(move || kernel.tell_all(&stale))?;
        Ok(Self { queue: send, can_expire })
    }

    /// An invalidator without a kernel, and the names that it would tell.
    #[cfg(test)]
    pub(crate) fn for_test() -> (Self, Receiver<Vec<StaleName>>) {
        let (send, stale) = channel();
        (Self { queue: send, can_expire: true }, stale)
    }

    /// Whether the kernel keeps an expired name until it is used again. Otherwise it drops the name
    /// at once, and a directory is lost for programs that are in it.
    pub(crate) const fn can_expire(&self) -> bool {
        self.can_expire
    }

    /// Has the kernel forget these names, soon.
    pub(crate) fn forget(&self, stale: Vec<StaleName>) {
        if !stale.is_empty() {
            // Without the thread the mount is gone.
            let _ = self.queue.send(stale);
        }
    }
}

struct Kernel {
    /// Keeps the device open.
    notifier: Notifier,
    device: RawFd,
    can_expire: bool,
}

impl Kernel {
    fn tell_all(&self, stale: &Receiver<Vec<StaleName>>) {
        for stale in stale.iter().flatten() {
            if let Err(error) = self.tell(&stale) {
                log::debug!("the kernel can't be told to forget {}: {error}", stale.name.display());
            }
        }
    }

    fn tell(&self, stale: &StaleName) -> io::Result<()> {
        let of_entry = if self.can_expire {
            device::expire_entry(self.device, stale.parent, &stale.name)
        } else {
            self.notifier.inval_entry(INodeNo(stale.parent), &stale.name)
        };
        // A negative offset: only the attributes, for the kernel keeps no content.
        let inval_inode = |ino| self.notifier.inval_inode(INodeNo(ino), -1, 0);
        of_entry.and(stale.ino.map_or(Ok(()), inval_inode))
    }
}
