//! Lets the interrupt watcher interrupt programs that wait for a lock in flock(2) or fcntl(2).

use crate::fuse::kernel::interrupts::{InterruptibleWait, WaitStatus};
use crate::fuse::posix_locks::lock_session::LockSession;
use crate::fuse::posix_locks::table::Call;
use std::sync::{Arc, Weak};

/// A program that waits for a lock in a system call such as `F_SETLKW`, as the interrupt watcher
/// sees it. `number` identifies the requested lease within the session.
struct LockWaiter {
    session: Weak<LockSession>,
    number: u64,
}

impl LockSession {
    /// Watches the thread `tid` for signals while it waits for the lease that `number` identifies
    /// within the session.
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

/// Returns the system call, flock(2) or fcntl(2), in which the thread waits. The FUSE request does
/// not tell, so the call is read from `/proc`. If that fails, it is assumed to be fcntl(2), which
/// keeps the old lock until the new mode is granted.
pub(crate) fn call_of(tid: u32) -> Call {
    let text = std::fs::read_to_string(format!("/proc/{tid}/syscall")).unwrap_or_default();
    let number = text.split(' ').next().and_then(|number| number.parse().ok());
    if number == Some(libc::SYS_flock) { Call::Flock } else { Call::Fcntl }
}
