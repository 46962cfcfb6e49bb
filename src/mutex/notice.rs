//! The notices of a mutex, such as waiting, granted and lost, and the callbacks that receive them.

use parking_lot::RwLock;
use std::sync::Arc;

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
