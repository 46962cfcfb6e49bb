//! Requests to the lock table, and the effects that its caller must perform.

use crate::engine::{
    Acquire, ClientId, LeaseKey, LockName, Mode, Op, Patch, Refusal, Ticket, Token,
};
use crate::fuse::posix_locks::byte_ranges::{Owner, Span};

/// A program's request for a lock.
#[derive(Debug, Clone)]
pub(crate) struct Ask {
    pub(crate) ino: u64,
    pub(crate) owner: Owner,
    /// The thread that makes the request, to be watched for signals while it waits.
    pub(crate) tid: u32,
    pub(crate) span: Span,
    pub(crate) mode: Mode,
    /// The name of the lock whose file is locked.
    pub(crate) name: LockName,
    pub(crate) client: ClientId,
    /// The details to set on the lease.
    pub(crate) patch: Patch,
    pub(crate) line: Waits,
    /// Finds the system call: flock(2) releases its lock before it takes it in another mode,
    /// fcntl(2) does not.
    pub(crate) call: CallOf,
}

/// Whether a program waits for a lock that is not free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waits {
    Yes,
    No,
}

/// The system call of a lock request, where it makes a difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    Flock,
    Fcntl,
}

/// A function that returns the system call of a thread, while the program still waits in it. It is
/// called only when the result matters, because it costs as much as the rest of the lock request.
pub(crate) type CallOf = fn(tid: u32) -> Call;

/// The reason why a lock request fails.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum No {
    /// Another owner holds the lock: EAGAIN.
    Busy(Option<Box<Refusal>>),
    /// A signal arrived: EINTR.
    Interrupted,
    /// The holder waits for the requesting owner: EDEADLK.
    Deadlock,
    /// The file has the maximum number of locked ranges: ENOLCK.
    Full,
    /// The engine refused for another reason.
    Refused(Box<Refusal>),
}

/// A query to the engine: the lease of a number on a lock, and the lock's waiters.
#[derive(Debug, Clone)]
pub(crate) struct Recall {
    pub(crate) number: u64,
    pub(crate) name: LockName,
    /// The token that the number held when the query was made, as far as known. The answer can end
    /// only that tenure: an event in between may be newer than the answer.
    pub(crate) token: Option<Token>,
}

/// The engine's reply to a [`Recall`].
#[derive(Debug, Clone)]
pub(crate) struct Found {
    /// The lease of the number, if it has one.
    pub(crate) lease: Option<LeaseKey>,
    /// All queue places of that lock.
    pub(crate) tickets: Vec<Ticket>,
}

/// An action that the caller of the table must perform.
#[derive(Debug)]
pub(crate) enum Effect<R> {
    /// Submit a request to the engine, and pass its answer to [`Table::answered`] with this cookie.
    Submit {
        /// Identifies the request when the answer comes.
        cookie: u64,
        /// The inode of the request, passed back with the cookie.
        ino: u64,
        /// The request to the engine. Boxed, so that `Effect` stays small.
        ask: Box<Acquire>,
    },
    /// Submit an operation to the engine, whatever the answer. If there is a reply, a program waits
    /// until the operation is decided, or could not be in the time in which requests are answered.
    Tell(Box<Op>, Option<R>),
    /// Reply to the program.
    Reply(R, Result<(), No>),
    /// The hold of this name continues under this token, perhaps a new one.
    Continues(LockName, Token),
    /// Writes through this open file apply to this tenure from now on.
    Speaks(u64, Token),
    /// The request with this number waits: watch the thread with this id until it has been
    /// answered.
    Watch(u64, u32),
    /// Events or an answer were lost: query the engine, and pass the result to [`Table::recalled`].
    Recall(Recall),
    /// Events were lost: compare the leases that are attached to the session with those known here,
    /// and pass each unknown one to [`Table::found_stray`].
    Compare,
}
