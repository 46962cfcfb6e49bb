//! The epoll instance of the thread that watches processes: it reports the ends of processes, and
//! an alarm, which is a timer for the next renewal of a lease.

use crate::service::timer::Alarm;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

/// The maximum number of epoll events that one wait returns.
const ENDS_MAX: usize = 256;
/// The number that epoll returns for the alarm (the timer for the next renewal). For a process it
/// returns the fencing token of the lease that is bound to the process; no token is as large as
/// this number.
pub(crate) const ALARM: u64 = u64::MAX;

/// An epoll instance that waits for the ends of processes, and for the alarm of the next renewal.
pub(crate) struct ProcessEpoll {
    epoll: OwnedFd,
    /// The alarm, a timer that fires when a lease is due for renewal.
    pub(crate) alarm: Alarm,
}

impl ProcessEpoll {
    /// Creates the epoll instance, and starts a thread that runs `work` on it.
    #[allow(unsafe_code)]
    pub(crate) fn start(work: impl FnOnce(&Self) + Send + 'static) -> io::Result<Arc<Self>> {
        // SAFETY: epoll_create1 takes no pointers, and its result is checked before an `OwnedFd`
        // owns it.
        let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if epoll < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just opened, and nothing else owns it.
        let epoll = unsafe { OwnedFd::from_raw_fd(epoll) };
        let shared = Arc::new(Self { epoll, alarm: Alarm::new()? });
        shared.add(&shared.alarm, ALARM)?;
        let own = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("processes".to_owned());
        thread.spawn(move || work(&own))?;
        Ok(shared)
    }

    /// Adds a descriptor to the epoll instance. When it becomes readable, `wait` returns `number`.
    #[allow(unsafe_code)]
    pub(crate) fn add(&self, what: &impl AsRawFd, number: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: number };
        let (epoll, fd) = (self.epoll.as_raw_fd(), what.as_raw_fd());
        // SAFETY: both descriptors are open, and the event outlives the call.
        match unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &raw mut event) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Removes a descriptor from the epoll instance. Closing the descriptor would not remove it
    /// while a duplicate is open.
    #[allow(unsafe_code)]
    pub(crate) fn remove(&self, what: &impl AsRawFd) {
        let (epoll, fd) = (self.epoll.as_raw_fd(), what.as_raw_fd());
        // SAFETY: both descriptors are open, and EPOLL_CTL_DEL reads no event.
        unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_DEL, fd, std::ptr::null_mut()) };
    }

    /// Waits for epoll events, and returns the numbers of the ready descriptors.
    #[allow(unsafe_code)]
    pub(crate) fn wait(&self) -> Vec<u64> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; ENDS_MAX];
        // SAFETY: the array has ENDS_MAX elements, as the call says, and outlives it.
        let count = unsafe {
            libc::epoll_wait(self.epoll.as_raw_fd(), events.as_mut_ptr(), ENDS_MAX as i32, -1)
        };
        // If a signal has interrupted the wait, `count` is negative, and no events are returned.
        events[..count.max(0) as usize].iter().map(|event| event.u64).collect()
    }
}
