//! Log lines about refused commands: the lock, the client and the reason.

use super::locks::Locks;
use crate::engine::{ClientId, LockName, Op, Refusal, RefusalKind, Token};
use crate::time::Wall;
use parking_lot::{Mutex, RwLock};
use std::collections::VecDeque;
use std::sync::Arc;

/// The target of all log records about single locks and sessions, which `--log-locks off` leaves
/// out.
pub const LOCKS_LOG: &str = "latchfs::locks";

/// The target of the log records about answered HTTP requests.
pub(crate) const ACCESS_LOG: &str = "latchfs::access";

/// The lock and the client of a command, for the log.
pub(crate) struct CommandSubject {
    lock: Option<LockName>,
    client: Option<ClientId>,
    token: Option<Token>,
}

impl CommandSubject {
    /// Returns the subject of a command; `None` if refusals are not logged.
    pub(crate) fn of(op: &Op) -> Option<Self> {
        log::log_enabled!(target: LOCKS_LOG, log::Level::Info).then(|| Self::named_in(op))
    }

    /// Returns the subject of a command that concerns all that a client has.
    pub(crate) fn of_client(client: &ClientId) -> Self {
        Self { lock: None, client: Some(client.clone()), token: None }
    }

    /// Returns the lock, the client and the token that a command names.
    pub(crate) fn named_in(op: &Op) -> Self {
        let (lock, client, token) = match op {
            Op::Acquire(ask) => (Some(&ask.name), Some(&ask.client), None),
            Op::Renew(ask) => (Some(&ask.key.name), Some(&ask.key.client), ask.key.token),
            Op::Annotate(ask) => (Some(&ask.key.name), Some(&ask.key.client), ask.key.token),
            Op::Release(ask) => (Some(&ask.key.name), Some(&ask.key.client), ask.key.token),
            Op::Move(ask) => (Some(&ask.from.name), Some(&ask.from.client), ask.from.token),
            Op::Leave(ask) => (Some(&ask.name), None, None),
            Op::Steal(ask) => (Some(&ask.name), Some(&ask.client), None),
            Op::Forget(ask) => (Some(&ask.name), None, None),
            Op::OpenSession(ask) => (None, Some(&ask.client), None),
            #[cfg(feature = "planted-version")]
            Op::Planted(name) => (Some(name), None, None),
            Op::Settle
            | Op::KeepAlive(_)
            | Op::EndSession(_)
            | Op::Reset(_)
            | Op::EndHoldOff(_) => (None, None, None),
        };
        Self { lock: lock.cloned(), client: client.cloned(), token }
    }

    /// The lock that the command concerns.
    pub(crate) fn lock(&self) -> Option<&str> {
        self.lock.as_ref().map(LockName::as_str)
    }

    /// The client for which the command acts.
    pub(crate) fn client(&self) -> Option<&str> {
        self.client.as_ref().map(ClientId::as_str)
    }

    /// The token that the command names.
    pub(crate) fn token(&self) -> Option<u64> {
        self.token.map(Token::as_u64)
    }

    /// Logs a refusal of the command.
    pub(crate) fn refused(&self, refusal: &Refusal) {
        log_refusal(&RefusalLine {
            lock: self.lock(),
            client: self.client(),
            token: self.token(),
            kind: refusal.kind(),
            reason: &refusal.to_string(),
            request: None,
        });
    }
}

/// The fields of a line about a refusal.
pub(crate) struct RefusalLine<'a> {
    pub(crate) lock: Option<&'a str>,
    pub(crate) client: Option<&'a str>,
    pub(crate) token: Option<u64>,
    pub(crate) kind: RefusalKind,
    pub(crate) reason: &'a str,
    /// The id of the HTTP request.
    pub(crate) request: Option<&'a str>,
}

/// Logs a refusal: at once, or in its order with the events of the engine where these are logged.
pub(crate) fn log_refusal(line: &RefusalLine<'_>) {
    if !log::log_enabled!(target: LOCKS_LOG, log::Level::Info) {
        return;
    }
    let refusal = LoggedRefusal::of(line);
    let ordered = ORDERED.read().clone();
    let left = match ordered {
        Some(queue) => queue.add(refusal),
        None => Some(refusal),
    };
    left.iter().for_each(LoggedRefusal::log);
}

/// The queue of the refusals of this process, while the events of its engine are logged.
static ORDERED: RwLock<Option<Arc<RefusalQueue>>> = RwLock::new(None);

/// The maximum number of refusals that wait for the events before them. In a flood the log leaves
/// out most lines of one kind anyway.
const WAITING_MAX: usize = 1_024;

/// A refusal whose line is still to be written.
pub(crate) struct LoggedRefusal {
    lock: Option<String>,
    client: Option<String>,
    token: Option<u64>,
    kind: RefusalKind,
    reason: String,
    request: Option<String>,
    at: Wall,
}

impl LoggedRefusal {
    fn of(line: &RefusalLine<'_>) -> Self {
        let own = |text: Option<&str>| text.map(str::to_owned);
        Self {
            lock: own(line.lock),
            client: own(line.client),
            token: line.token,
            kind: line.kind,
            reason: line.reason.to_owned(),
            request: own(line.request),
            at: Wall::now(),
        }
    }

    /// Writes the line.
    pub(crate) fn log(&self) {
        let Self { lock, client, token, kind, reason, request, at } = self;
        let (lock, client) = (lock.as_deref(), client.as_deref());
        let (request, event_time) = (request.as_deref(), &*at.to_string());
        log::info!(target: LOCKS_LOG, event_time, lock, client, token = *token,
            kind = kind.as_str(), reason = &**reason, request; "request refused");
    }
}

/// Refusals that wait for the lines of the events before them: a grant is logged before the refusal
/// that it has caused.
pub(crate) struct RefusalQueue {
    locks: Locks,
    waiting: Mutex<VecDeque<(u64, LoggedRefusal)>>,
    wake: Box<dyn Fn() + Send + Sync>,
}

impl RefusalQueue {
    /// Lets the refusals of this process wait in a queue, until [`RefusalQueue::end`]. `wake` is
    /// called when the queue is no longer empty.
    pub(crate) fn start(locks: Locks, wake: impl Fn() + Send + Sync + 'static) -> Arc<Self> {
        let queue = Self { locks, waiting: Mutex::default(), wake: Box::new(wake) };
        let queue = Arc::new(queue);
        *ORDERED.write() = Some(Arc::clone(&queue));
        queue
    }

    /// Lets the refusals of this process be logged at once again.
    pub(crate) fn end(self: &Arc<Self>) {
        ORDERED.write().take_if(|queue| Arc::ptr_eq(queue, self));
    }

    /// Adds a refusal, or returns it if too many wait.
    fn add(&self, refusal: LoggedRefusal) -> Option<LoggedRefusal> {
        let mut waiting = self.waiting.lock();
        if waiting.len() >= WAITING_MAX {
            return Some(refusal);
        }
        // The events that have caused the refusal have numbers below this one.
        waiting.push_back((self.locks.next_event(), refusal));
        let is_first = waiting.len() == 1;
        drop(waiting);
        if is_first {
            (self.wake)();
        }
        None
    }

    /// Takes all refusals, each with the number of the first event after it.
    pub(crate) fn take(&self) -> VecDeque<(u64, LoggedRefusal)> {
        std::mem::take(&mut *self.waiting.lock())
    }
}
