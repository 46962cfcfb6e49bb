//! Who waits in a system call for a lock, and what becomes of it when a signal comes.

use crate::fuse::posix_locks::Running;
use crate::fuse::posix_locks::run;
use crate::fuse::posix_locks::table::Call;
use crate::fuse::kernel::interrupts::{Waiter, Waiting};
use crate::fuse::shared::{Fs, Shared};
use std::sync::{Arc, Weak};

/// A program that waits in `F_SETLKW`, as the lookout knows it.
pub(crate) struct Asker {
    pub(crate) fs: Weak<Shared>,
    pub(crate) number: u64,
}

impl Asker {
    /// The mount and its table, while there is one.
    fn running(&self) -> Option<(Fs, Arc<Running>)> {
        let fs = self.fs.upgrade()?;
        let running = fs.locking.running()?;
        Some((fs, running))
    }
}

impl Waiter for Asker {
    fn waiting(&self) -> Waiting {
        let running = self.running();
        running.map_or(Waiting::Over, |(_, running)| {
            running.desk.look(|table| table.is_waiting(self.number))
        })
    }

    fn interrupt(&self) {
        if let Some((fs, running)) = self.running() {
            run(&fs, &running, |table, todo| table.interrupt(self.number, todo));
        }
    }

    fn expire(&self) {
        if let Some((fs, running)) = self.running() {
            run(&fs, &running, |table, todo| table.expire(self.number, todo));
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
