//! Reads of control files that wait for data, and their interruption by signals.

use crate::fuse::kernel::file_system::Done;
use crate::fuse::kernel::interrupts::{InterruptWatcher, InterruptibleWait, WaitStatus};
use crate::fuse::kernel::pending::Pending;
use crate::fuse::kernel::user_shares::Shares;
use crate::fuse::kernel::values::{Errno, ReadBytes};
use crate::fuse::lock_access::LockAccess;
use crate::fuse::open_files::held_read::HeldRead;
use crate::fuse::open_files::open_file::OpenFileState;
use crate::fuse::open_files::open_table::OpenFiles;
use parking_lot::MutexGuard;
use std::sync::{Arc, Weak};

/// Registers waiting reads, and ends them when their threads get a signal.
pub(crate) struct WaitingReads {
    opens: Arc<OpenFiles>,
    interrupts: Arc<InterruptWatcher>,
    locks: LockAccess,
}

impl WaitingReads {
    /// Returns the registry of waiting reads of the open files `opens`. `interrupts` checks the
    /// threads that wait in these reads for signals.
    pub(crate) const fn new(
        opens: Arc<OpenFiles>,
        interrupts: Arc<InterruptWatcher>,
        locks: LockAccess,
    ) -> Self {
        Self { opens, interrupts, locks }
    }

    /// Returns a number for a new read, which no other read has had.
    pub(crate) fn number(&self) -> u64 {
        self.opens.number()
    }

    /// Returns the per-user limits against which waiting threads count.
    pub(crate) fn shares(&self) -> &Shares {
        self.opens.shares()
    }

    /// Registers a read of the open file `fh` by the thread `tid`. Returns the future of its
    /// answer.
    pub(crate) fn hold(
        &self,
        fh: u64,
        mut state: MutexGuard<'_, OpenFileState>,
        size: u32,
        tid: u32,
    ) -> Pending<Done<ReadBytes>> {
        let (held, answer) = HeldRead::new(self.opens.number(), size);
        let number = held.number;
        state.held.push(held);
        drop(state);
        self.watch(fh, number, tid);
        answer
    }

    /// Lets the interrupt watcher watch the thread of a waiting read that is registered already.
    pub(crate) fn watch(&self, fh: u64, number: u64, tid: u32) {
        let (opens, locks) = (Arc::downgrade(&self.opens), self.locks.clone());
        self.interrupts.watch(number, tid, WaitingRead { opens, locks, fh, number });
    }
}

/// A waiting read, as the interrupt watcher sees it.
struct WaitingRead {
    opens: Weak<OpenFiles>,
    locks: LockAccess,
    fh: u64,
    number: u64,
}

impl WaitingRead {
    /// Returns the index of this read among the waiting reads of its file.
    fn place(&self, state: &OpenFileState) -> Option<usize> {
        state.held.iter().position(|held| held.number == self.number)
    }
}

impl InterruptibleWait for WaitingRead {
    fn status(&self) -> WaitStatus {
        let open = self.opens.upgrade().and_then(|opens| opens.get(self.fh));
        let waits = open.is_some_and(|open| self.place(&open.state()).is_some());
        if waits { WaitStatus::Asks } else { WaitStatus::Over }
    }

    /// Fails the waiting read with EINTR. The file keeps its place in the lock's queue, because the
    /// program may read again; if it does not, closing the file gives the place up.
    fn interrupt(&self) {
        let Some(open) = self.opens.upgrade().and_then(|opens| opens.get(self.fh)) else { return };
        let mut state = open.state();
        let held = self.place(&state).map(|place| state.held.remove(place));
        drop(state);
        if let Some(held) = held {
            self.locks.refusals().count_errno(Errno::EINTR);
            held.promise.keep(Err(Errno::EINTR));
        }
    }
}
