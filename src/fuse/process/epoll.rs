//! The epoll instance of the thread that watches processes: it reports their ends, and an alarm.

use crate::service::timer::Alarm;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

/// The maximum number of events that one wait returns.
const ENDS_MAX: usize = 256;
/// The number of the alarm in the epoll set; no token is that large.
pub(crate) const ALARM: u64 = u64::MAX;

/// An epoll instance with an alarm in it.
pub(crate) struct ProcessEpoll {
    epoll: OwnedFd,
    /// Fires when a lease is due for renewal.
    pub(crate) alarm: Alarm,
}

impl ProcessEpoll {
    /// Creates the epoll instance, and starts a thread that runs `work` on it.
    #[allow(unsafe_code)]
    pub(crate) fn start(work: impl FnOnce(&Self) + Send + 'static) -> io::Result<Arc<Self>> {
        // SAFETY: takes no pointers; the result is checked before it becomes an owner.
        let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if epoll < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just opened and belongs to nobody else.
        let epoll = unsafe { OwnedFd::from_raw_fd(epoll) };
        let shared = Arc::new(Self { epoll, alarm: Alarm::new()? });
        shared.add(&shared.alarm, ALARM)?;
        let own = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("processes".to_owned());
        thread.spawn(move || work(&own))?;
        Ok(shared)
    }

    /// Adds a descriptor, whose becoming readable is reported as `number`.
    #[allow(unsafe_code)]
    pub(crate) fn add(&self, what: &impl AsRawFd, number: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: number };
        let (epoll, fd) = (self.epoll.as_raw_fd(), what.as_raw_fd());
        // SAFETY: both descriptors are open, and the event lives through the call.
        match unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &raw mut event) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Removes a descriptor. Closing it would not remove it while a copy of it is open.
    #[allow(unsafe_code)]
    pub(crate) fn remove(&self, what: &impl AsRawFd) {
        let (epoll, fd) = (self.epoll.as_raw_fd(), what.as_raw_fd());
        // SAFETY: both descriptors are open; removing reads no event.
        unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_DEL, fd, std::ptr::null_mut()) };
    }

    /// Waits for events, and returns their numbers.
    #[allow(unsafe_code)]
    pub(crate) fn wait(&self) -> Vec<u64> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; ENDS_MAX];
        // SAFETY: the array has as many places as are named, and lives through the call.
        let count = unsafe {
            libc::epoll_wait(self.epoll.as_raw_fd(), events.as_mut_ptr(), ENDS_MAX as i32, -1)
        };
        // A wait that a signal interrupted returns no events.
        events[..count.max(0) as usize].iter().map(|event| event.u64).collect()
    }
}
