//! A mutex across processes and machines, for programs in Rust: `flock` on the file of a lock in a
//! latchfs mount, re-entrant per thread, with a token, and with a word when the lock is lost.
//!
//! ```no_run
//! use latchfs::mutex::{Mutex, Unexpected};
//! use std::time::Duration;
//!
//! # fn main() -> std::io::Result<()> {
//! let build = Mutex::open("/locks", "build")?;
//! build.on_unexpected(|what| match what {
//!     Unexpected::Lost { token } => eprintln!("the lock of token {token} is lost; stopping"),
//!     Unexpected::Granted { token } => eprintln!("this process held it already, by {token}"),
//! });
//! if let Some(guard) = build.lock_timeout(Duration::from_secs(10))? {
//!     // Give the token to what the lock guards, and let that refuse lesser ones.
//!     println!("mine, with token {}", guard.token());
//!     let again = build.lock()?; // The same thread may: this is the same hold.
//!     assert_eq!(again.token(), guard.token());
//! } // Here it is given back, to whoever has waited longest.
//! # Ok(())
//! # }
//! ```
//!
//! Each thread that locks opens the file for itself, so threads exclude each other as processes
//! do. Not promised, by this or any other lock: that a process which was stopped for long does
//! not *believe* that it holds the lock. [`Guard::is_held`] asks, the handler of
//! [`Mutex::on_unexpected`] is told, and whoever checks tokens is safe in any case.

mod lock_file;
mod thread_ownership;

use lock_file::WaitLimit;
use std::fmt;
use std::io::{self, ErrorKind};
use std::marker::PhantomData;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use thread_ownership::{ProcessLock, Reentry, ThreadHold};

pub use thread_ownership::MutexMode;

use crate::time::{Span, boot_now};

/// One lock of one mount.
pub struct Mutex {
    place: Arc<ProcessLock>,
    hooks: Arc<Listeners>,
}

/// What a listener is told, in the order in which it happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notice {
    /// Another has the lock, so the caller waits.
    Waiting,
    /// The caller has it.
    Granted {
        /// The tenure.
        token: u64,
    },
    /// It was lost while it was held.
    Lost {
        /// The tenure that is over.
        token: u64,
    },
}

/// What nobody asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unexpected {
    /// The lock was lost while it was held: stolen, removed, or the mount is gone.
    Lost {
        /// The tenure that is over.
        token: u64,
    },
    /// This process holds the lock, though by none of its mutexes: it made the file otherwise.
    /// Told before the next lock, which then takes over what can be taken over.
    Granted {
        /// The tenure.
        token: u64,
    },
}

/// The lock is held until this is dropped. It belongs to the thread that locked.
#[must_use = "the lock is given back when the guard is dropped"]
pub struct Guard<'a> {
    mutex: &'a Mutex,
    hold: Arc<ThreadHold>,
    /// Not to be sent: re-entrance is counted by thread.
    thread: PhantomData<*const ()>,
}

type Callback<T> = Arc<dyn Fn(T) + Send + Sync>;

/// Callbacks of one mutex.
#[derive(Default)]
struct Listeners {
    listeners: parking_lot::RwLock<Vec<Callback<Notice>>>,
    handlers: parking_lot::RwLock<Vec<Callback<Unexpected>>>,
}

impl Listeners {
    fn notice(&self, notice: Notice) {
        let listeners = self.listeners.read().clone();
        for listener in listeners {
            listener(notice);
        }
    }

    fn unexpected(&self, what: Unexpected) {
        let handlers = self.handlers.read().clone();
        for handler in handlers {
            handler(what);
        }
    }

    fn handles(&self) -> bool {
        !self.handlers.read().is_empty()
    }

    fn is_empty(&self) -> bool {
        self.listeners.read().is_empty() && !self.handles()
    }
}

impl Mutex {
    /// The lock `name` of the latchfs that is mounted at `dir`. Nothing is locked yet.
    pub fn open(dir: impl AsRef<Path>, name: &str) -> io::Result<Self> {
        Ok(Self { place: ProcessLock::open(dir.as_ref(), name)?, hooks: Arc::default() })
    }

    /// Calls `listener` whenever this mutex waits, is granted, or is lost. It is called by the
    /// thread that locks, and for a loss by a thread that watches; register it before locking.
    pub fn listen(&self, listener: impl Fn(Notice) + Send + Sync + 'static) {
        self.hooks.listeners.write().push(Arc::new(listener));
    }

    /// Calls `handler` when something happens that nobody asked for; register it before locking.
    pub fn on_unexpected(&self, handler: impl Fn(Unexpected) + Send + Sync + 'static) {
        self.hooks.handlers.write().push(Arc::new(handler));
    }

    /// Takes the lock, alone; waits in line until it is there.
    pub fn lock(&self) -> io::Result<Guard<'_>> {
        self.enter(MutexMode::Exclusive, WaitLimit::Ever).and_then(granted)
    }

    /// Takes the lock, alone, if that is possible at once.
    pub fn try_lock(&self) -> io::Result<Option<Guard<'_>>> {
        self.enter(MutexMode::Exclusive, WaitLimit::No)
    }

    /// Takes the lock, alone, if that is possible within `patience`; waits in line meanwhile.
    pub fn lock_timeout(&self, patience: Duration) -> io::Result<Option<Guard<'_>>> {
        self.enter(MutexMode::Exclusive, within(patience))
    }

    /// Takes the lock together with others that only read; waits in line until it is there.
    pub fn read(&self) -> io::Result<Guard<'_>> {
        self.enter(MutexMode::Shared, WaitLimit::Ever).and_then(granted)
    }

    /// The same, if that is possible at once.
    pub fn try_read(&self) -> io::Result<Option<Guard<'_>>> {
        self.enter(MutexMode::Shared, WaitLimit::No)
    }

    /// The same, if that is possible within `patience`, as [`Mutex::lock_timeout`] does it.
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

/// Who waits for ever comes back with the lock, or with an error.
fn granted(guard: Option<Guard<'_>>) -> io::Result<Guard<'_>> {
    guard.ok_or_else(|| io::Error::new(ErrorKind::WouldBlock, "the lock was not granted"))
}

impl Guard<'_> {
    /// The fencing token: greater than that of every tenure before. Each holder of a shared lock
    /// has its own.
    pub fn token(&self) -> u64 {
        self.hold.token
    }

    /// How it is held.
    pub fn mode(&self) -> MutexMode {
        self.hold.mode
    }

    /// Asks whether it is held still.
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
