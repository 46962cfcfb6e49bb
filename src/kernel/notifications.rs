//! Kernel cache invalidation: a thread that makes the kernel drop cached names, attributes and
//! content of files.
//!
//! An invalidation can block until a program in the directory has finished an operation, so a
//! thread that serves requests must never send one.
//!
//! Wakes a program that waits in poll(2).

use crate::LOG;
use crate::device;
use fuser::{INodeNo, Notifier};
use std::ffi::OsString;
use std::os::fd::RawFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::{fmt, io};

/// A name that the kernel must drop from its cache.
#[derive(Debug, PartialEq, Eq)]
pub struct StaleName {
    /// The inode number of the directory that contains the name.
    pub parent: u64,
    /// The name without its directory.
    pub name: OsString,
    /// The inode whose cached attributes the kernel must drop together with the name; `None` if
    /// only the name must be dropped.
    pub ino: Option<u64>,
}

/// A part of the kernel's cache that must be dropped.
#[derive(Debug)]
pub enum Stale {
    /// Names, in order.
    Names(Vec<StaleName>),
    /// The attributes and the whole content of an inode.
    Node(u64),
    /// A call after everything before it was dropped.
    Then(AfterDrop),
}

/// A call after a part of the kernel's cache was dropped.
pub struct AfterDrop(pub Box<dyn FnOnce() + Send>);

impl fmt::Debug for AfterDrop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AfterDrop")
    }
}

/// A handle to the invalidation thread, which ends when the last handle is dropped.
#[derive(Debug, Clone)]
pub struct Invalidator {
    queue: Sender<Stale>,
    can_expire: bool,
}

impl Invalidator {
    /// Starts the invalidation thread. `device` is the descriptor of the FUSE device that
    /// `notifier` uses; `can_expire` says whether the kernel supports `FUSE_EXPIRE_ONLY`.
    pub fn start(notifier: Notifier, device: RawFd, can_expire: bool) -> io::Result<Self> {
        let (send, stale) = channel();
        let thread = std::thread::Builder::new().name("forget".to_owned());
        let kernel = Kernel { notifier, device, can_expire };
        thread.spawn(move || kernel.invalidate_all(&stale))?;
        Ok(Self { queue: send, can_expire })
    }

    /// Returns an invalidator that is not connected to a kernel, and the receiver of what
    /// it would invalidate, for tests of file systems.
    pub fn for_test() -> (Self, Receiver<Stale>) {
        let (send, stale) = channel();
        (Self { queue: send, can_expire: true }, stale)
    }

    /// Whether the kernel can mark a name as expired and keep it until its next use. If it can't,
    /// an invalidation drops the name at once, and programs whose working directory has that name
    /// lose it.
    pub const fn can_expire(&self) -> bool {
        self.can_expire
    }

    /// Queues names that the kernel must drop from its cache.
    pub fn forget(&self, stale: Vec<StaleName>) {
        if !stale.is_empty() {
            // The send fails only if the invalidation thread has ended, which it does after the
            // mount is gone.
            let _ = self.queue.send(Stale::Names(stale));
        }
    }

    /// Queues an inode whose attributes and content the kernel must drop from its cache. Pages that
    /// programs have changed through a shared mapping are written back first.
    pub fn forget_node(&self, ino: u64) {
        let _ = self.queue.send(Stale::Node(ino)); // fails as in `forget`
    }

    /// Makes a call once everything is dropped that was queued before.
    pub fn then(&self, call: impl FnOnce() + Send + 'static) {
        let _ = self.queue.send(Stale::Then(AfterDrop(Box::new(call)))); // fails as in `forget`
    }
}

struct Kernel {
    /// fuser's notifier, which keeps the FUSE device open, so that the descriptor `device` stays
    /// valid.
    notifier: Notifier,
    device: RawFd,
    can_expire: bool,
}

impl Kernel {
    fn invalidate_all(&self, stale: &Receiver<Stale>) {
        for stale in stale {
            match stale {
                Stale::Names(names) => names.iter().for_each(|name| self.drop_name(name)),
                Stale::Node(ino) => self.drop_node(ino),
                Stale::Then(call) => (call.0)(),
            }
        }
    }

    fn drop_name(&self, stale: &StaleName) {
        if let Err(error) = self.invalidate_name(stale) {
            let name = stale.name.display();
            log::debug!(target: LOG, "invalidating {name} in the kernel's cache failed: {error}");
        }
    }

    fn drop_node(&self, ino: u64) {
        // The range from offset 0 with length 0 is the whole file.
        if let Err(error) = self.notifier.inval_inode(INodeNo(ino), 0, 0) {
            log::debug!(
                target: LOG,
                "invalidating inode {ino} in the kernel's cache failed: {error}"
            );
        }
    }

    fn invalidate_name(&self, stale: &StaleName) -> io::Result<()> {
        let of_entry = if self.can_expire {
            device::expire_entry(self.device, stale.parent, &stale.name)
        } else {
            self.notifier.inval_entry(INodeNo(stale.parent), &stale.name)
        };
        // The negative offset -1 limits the invalidation to attributes.
        let inval_inode = |ino| self.notifier.inval_inode(INodeNo(ino), -1, 0);
        of_entry.and(stale.ino.map_or(Ok(()), inval_inode))
    }
}

/// A callback that tells the kernel, once, that an open file should be polled again.
pub struct PollWaker(Box<dyn FnOnce() -> io::Result<()> + Send>);

impl PollWaker {
    /// Returns a waker that calls `wake`.
    pub fn new(wake: impl FnOnce() -> io::Result<()> + Send + 'static) -> Self {
        Self(Box::new(wake))
    }

    /// Notifies the kernel, which wakes the programs that poll the file.
    pub fn wake(self) {
        if let Err(error) = self.0() {
            log::debug!(target: LOG, "waking a poll failed: {error}");
        }
    }
}

impl fmt::Debug for PollWaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PollWaker")
    }
}
