//! The public types of the mutex across processes: [`Mutex`], and the [`Guard`] that holds its
//! lock.
//!
//! The notices of a mutex, such as waiting, granted and lost, and the callbacks that receive them.

use super::lock_file;
use super::lock_file::{MutexMode, WaitLimit};
use super::thread_ownership::{ProcessLock, Reentry, ThreadHold};
use crate::time::{Span, boot_now};
use parking_lot::RwLock;
use std::io::ErrorKind;
use std::marker::PhantomData;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io, thread};

/// A mutex across processes and machines: one lock in one latchfs mount.
pub struct Mutex {
    place: Arc<ProcessLock>,
    hooks: Arc<Listeners>,
}

/// A held lock, which is released when the guard is dropped. The guard belongs to the thread that
/// locked the mutex.
#[must_use = "the lock is given back when the guard is dropped"]
pub struct Guard<'a> {
    mutex: &'a Mutex,
    hold: Arc<ThreadHold>,
    /// Makes the guard `!Send`: nested locking is counted per thread, so a guard must be dropped by
    /// the thread that locked the mutex.
    thread: PhantomData<*const ()>,
}

impl Mutex {
    /// Opens the lock `name` of the latchfs that is mounted at `dir`, without locking it.
    pub fn open(dir: impl AsRef<Path>, name: &str) -> io::Result<Self> {
        Ok(Self { place: ProcessLock::open(dir.as_ref(), name)?, hooks: Arc::default() })
    }

    /// Calls `listener` whenever this mutex waits for its lock, is granted it, or loses it. The
    /// thread that locks the mutex makes the call, except for a loss, which a watching thread
    /// reports. Listeners should be registered before the mutex is locked.
    pub fn listen(&self, listener: impl Fn(Notice) + Send + Sync + 'static) {
        self.hooks.listeners.write().push(Arc::new(listener));
    }

    /// Calls `handler` on changes that no call of this mutex has requested, such as a loss of the
    /// lock. Handlers should be registered before the mutex is locked.
    pub fn on_unexpected(&self, handler: impl Fn(Unexpected) + Send + Sync + 'static) {
        self.hooks.handlers.write().push(Arc::new(handler));
    }

    /// Takes the lock in exclusive mode; waits in the queue until it is granted.
    pub fn lock(&self) -> io::Result<Guard<'_>> {
        self.enter(MutexMode::Exclusive, WaitLimit::Ever).and_then(granted)
    }

    /// Takes the lock in exclusive mode if it is free.
    pub fn try_lock(&self) -> io::Result<Option<Guard<'_>>> {
        self.enter(MutexMode::Exclusive, WaitLimit::No)
    }

    /// Takes the lock in exclusive mode; waits in the queue for at most `patience`.
    pub fn lock_timeout(&self, patience: Duration) -> io::Result<Option<Guard<'_>>> {
        self.enter(MutexMode::Exclusive, within(patience))
    }

    /// Takes the lock in shared mode; waits in the queue until it is granted.
    pub fn read(&self) -> io::Result<Guard<'_>> {
        self.enter(MutexMode::Shared, WaitLimit::Ever).and_then(granted)
    }

    /// Takes the lock in shared mode if it can be granted at once.
    pub fn try_read(&self) -> io::Result<Option<Guard<'_>>> {
        self.enter(MutexMode::Shared, WaitLimit::No)
    }

    /// Takes the lock in shared mode; waits in the queue for at most `patience`.
    pub fn read_timeout(&self, patience: Duration) -> io::Result<Option<Guard<'_>>> {
        self.enter(MutexMode::Shared, within(patience))
    }

    fn enter(&self, mode: MutexMode, wait: WaitLimit) -> io::Result<Option<Guard<'_>>> {
        let guard = |hold| Guard { mutex: self, hold, thread: PhantomData };
        let thread = thread::current().id();
        let is_first = match self.place.reenter(thread, mode)? {
            Reentry::Already(hold) => return Ok(Some(guard(hold))),
            Reentry::No { is_first } => is_first,
        };
        let taken = self.take(mode, wait, is_first);
        let hold = match taken {
            Ok(Some(hold)) => hold,
            none => {
                self.place.gave_up();
                return none.map(|_| None);
            }
        };
        self.place.entered(thread, &hold);
        self.hooks.notice(Notice::Granted { token: hold.token });
        Ok(Some(guard(hold)))
    }

    fn take(
        &self,
        mode: MutexMode,
        wait: WaitLimit,
        is_first: bool,
    ) -> io::Result<Option<Arc<ThreadHold>>> {
        if is_first
            && self.hooks.handles()
            && let Some(token) = self.place.held_by_this_process()?
        {
            self.hooks.unexpected(Unexpected::Granted { token });
        }
        let waiting = || self.hooks.notice(Notice::Waiting);
        let Some(file) = lock_file::take(self.place.path(), mode, wait, waiting)? else {
            return Ok(None);
        };
        let hooks = (!self.hooks.is_empty()).then(|| Arc::clone(&self.hooks));
        ThreadHold::new(&self.place, file, mode, hooks).map(Some)
    }
}

fn within(patience: Duration) -> WaitLimit {
    WaitLimit::Until(boot_now() + Span::from(patience))
}

/// Unwraps the result of a wait without a timeout, which ends with a guard or with an error.
fn granted(guard: Option<Guard<'_>>) -> io::Result<Guard<'_>> {
    guard.ok_or_else(|| io::Error::new(ErrorKind::WouldBlock, "the lock was not granted"))
}

impl Guard<'_> {
    /// Returns the fencing token of this hold of the lock, which is greater than the token of every
    /// earlier holder. Each holder of a shared lock has its own token.
    pub fn token(&self) -> u64 {
        self.hold.token
    }

    /// Returns the mode in which the lock is held.
    pub fn mode(&self) -> MutexMode {
        self.hold.mode
    }

    /// Asks the mount whether the lock is still held.
    pub fn is_held(&self) -> bool {
        self.hold.is_held()
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.mutex.place.leave(thread::current().id());
    }
}

impl fmt::Debug for Mutex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mutex").field("path", &self.place.path()).finish_non_exhaustive()
    }
}

impl fmt::Debug for Guard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.mutex.place.path();
        f.debug_struct("Guard").field("path", &path).field("token", &self.token()).finish()
    }
}

/// A change of a mutex's state, reported to listeners in the order in which it happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notice {
    /// Another holder has the lock, and the caller begins to wait.
    Waiting,
    /// The lock was granted to the caller.
    Granted {
        /// The fencing token of the granted lock.
        token: u64,
    },
    /// The lock was lost while it was held.
    Lost {
        /// The fencing token of the lost lock.
        token: u64,
    },
}

/// A change that no call of a mutex has requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unexpected {
    /// The lock was lost while it was held: stolen, removed, or the mount is gone.
    Lost {
        /// The fencing token of the lost lock.
        token: u64,
    },
    /// This process holds the lock, but not through any of its mutexes: it has created the lock's
    /// file in another way. Reported before the next lock call, which then takes over the existing
    /// lock if possible.
    Granted {
        /// The fencing token of the lock that this process holds.
        token: u64,
    },
}

type Callback<T> = Arc<dyn Fn(T) + Send + Sync>;

/// The callbacks of one mutex.
#[derive(Default)]
pub(super) struct Listeners {
    pub(super) listeners: RwLock<Vec<Callback<Notice>>>,
    pub(super) handlers: RwLock<Vec<Callback<Unexpected>>>,
}

impl Listeners {
    pub(super) fn notice(&self, notice: Notice) {
        let listeners = self.listeners.read().clone();
        for listener in listeners {
            listener(notice);
        }
    }

    pub(super) fn unexpected(&self, what: Unexpected) {
        let handlers = self.handlers.read().clone();
        for handler in handlers {
            handler(what);
        }
    }

    pub(super) fn handles(&self) -> bool {
        !self.handlers.read().is_empty()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.listeners.read().is_empty() && !self.handles()
    }
}
