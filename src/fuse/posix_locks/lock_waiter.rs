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

/// The number of flock(2) in the 32-bit system calls of x86 and Arm. No native system call with
/// this number waits for a lock.
const FLOCK_OF_32_BITS: libc::c_long = 143;

/// Returns the system call in which the thread waits for a lock. The FUSE request does not tell, so
/// the call is read from `/proc`. If that fails, it is assumed to be fcntl(2), which keeps the old
/// lock until the new mode is granted.
pub(crate) fn call_of(tid: u32) -> Call {
    call_in(&std::fs::read_to_string(format!("/proc/{tid}/syscall")).unwrap_or_default())
}

/// Parses a line of `/proc/TID/syscall`: the number of the call, and its arguments.
fn call_in(line: &str) -> Call {
    let mut words = line.split(' ');
    let number = words.next().and_then(|number| number.parse::<libc::c_long>().ok());
    let command = words.nth(1).and_then(|word| word.strip_prefix("0x"));
    let command = command.and_then(|word| i32::from_str_radix(word, 16).ok());
    match (number, command) {
        (Some(libc::SYS_flock | FLOCK_OF_32_BITS), _) => Call::Flock,
        (_, Some(libc::F_OFD_SETLK | libc::F_OFD_SETLKW)) => Call::Ofd,
        _ => Call::Fcntl,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_calls_of_64_and_32_bits_are_recognized() {
        let native = format!("{} 0x3 0x6 0x0 0x0 0x0 0x0 0x7ffd 0x7f0c", libc::SYS_flock);
        assert_eq!(call_in(&native), Call::Flock);
        assert_eq!(call_in("143 0x3 0x6 0x0 0x0 0x0 0x0 0xffd 0xf7f0c"), Call::Flock);
        let fcntl = |command| {
            call_in(&format!("{} 0x3 {command} 0x7ffd 0x0 0x0 0x0 0x7ffd 0x7f0c", libc::SYS_fcntl))
        };
        assert_eq!((fcntl("0x7"), fcntl("0x26")), (Call::Fcntl, Call::Ofd));
        assert_eq!(call_in("221 0x3 0x26 0xffd 0x0 0x0 0x0 0xffd 0xf7f0c"), Call::Ofd);
        assert_eq!((call_in("running\n"), call_in("")), (Call::Fcntl, Call::Fcntl));
    }
}
