//! A program that waits in a system call for a lock, and what becomes of it when a signal comes.

use crate::fuse::kernel::interrupts::{InterruptibleWait, WaitStatus};
use crate::fuse::posix_locks::lock_session::LockSession;
use crate::fuse::posix_locks::table::Call;
use std::sync::{Arc, Weak};

/// A program that waits in `F_SETLKW`, as the watcher of interrupts knows it.
struct LockWaiter {
    session: Weak<LockSession>,
    number: u64,
}

impl LockSession {
    /// Has the thread `tid` watched while it waits under this number.
    pub(crate) fn watch_waiter(self: &Arc<Self>, number: u64, tid: u32) {
        let waiter = LockWaiter { session: Arc::downgrade(self), number };
        self.parts().interrupts.watch(number, tid, waiter);
    }
}

impl InterruptibleWait for LockWaiter {
    fn status(&self) -> WaitStatus {
        let session = self.session.upgrade();
        session.map_or(WaitStatus::Over, |session| {
            session.queue.look(|table| table.is_waiting(self.number))
        })
    }

    fn interrupt(&self) {
        if let Some(session) = self.session.upgrade() {
            session.run(|table, todo| table.interrupt(self.number, todo));
        }
    }

    fn expire(&self) {
        if let Some(session) = self.session.upgrade() {
            session.run(|table, todo| table.expire(self.number, todo));
        }
    }
}

/// By which system call the thread asks. The kernel does not say it; where `/proc` can't be read
/// either it is taken for fcntl(2), which promises more.
pub(crate) fn call_of(tid: u32) -> Call {
    let text = std::fs::read_to_string(format!("/proc/{tid}/syscall")).unwrap_or_default();
    let number = text.split(' ').next().and_then(|number| number.parse().ok());
    if number == Some(libc::SYS_flock) { Call::Flock } else { Call::Fcntl }
}
