//! The messages of the lock table: the requests of programs that it handles, and the effects that
//! its caller must perform.

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
    /// The changes to the details of the lease, such as its holder id.
    pub(crate) patch: Patch,
    /// The token of a lease that the program has made or written through the same open file, and
    /// which this request takes over. Such a request waits for no other: all of them wait for that
    /// lease.
    pub(crate) takes_over: Option<Token>,
    pub(crate) line: Waits,
    /// Finds out which system call makes the request: to change the mode, flock(2) releases the old
    /// lock before it takes the new one, and fcntl(2) does not.
    pub(crate) call: CallOf,
}

/// Whether a program waits for a lock that is not free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waits {
    Yes,
    No,
}

/// The system call that requests a lock. flock(2) and fcntl(2) change the mode of a lock in
/// different ways, and only the owners of traditional fcntl(2) locks are processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    Flock,
    Fcntl,
    /// fcntl(2) with `F_OFD_SETLKW`.
    Ofd,
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

/// A query to the engine after events or an answer were lost: which lease of the session has this
/// lease number on the lock `name`, and which waiters the lock has.
#[derive(Debug, Clone)]
pub(crate) struct Recall {
    pub(crate) number: u64,
    pub(crate) name: LockName,
    /// The token of the lease with this number when the query was made, if it had one. The answer
    /// can end only the lease with this token: an event that arrived in between may be newer than
    /// the answer.
    pub(crate) token: Option<Token>,
}

/// The engine's reply to a [`Recall`], the query that is made after events or an answer were lost.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    /// The lease with the number of the query, if the engine has one.
    pub(crate) lease: Option<LeaseKey>,
    /// The tickets of all waiters in the queue of the lock that was queried.
    pub(crate) tickets: Vec<Ticket>,
}

/// An action that the table has decided and that the table's caller must perform.
#[derive(Debug)]
pub(crate) enum Effect<R> {
    /// Submit an acquire to the engine, and pass the answer to [`Table::answered`] with this
    /// cookie.
    Submit {
        /// Identifies the request when the answer comes.
        cookie: u64,
        /// The inode of the lock request. It is passed back to the table together with the cookie.
        ino: u64,
        /// The request to the engine. Boxed, so that `Effect` stays small.
        ask: Box<Acquire>,
    },
    /// Submit a release or a departure from a queue to the engine, and ignore the answer. If a
    /// reply is given, a program waits for it: send the reply once the operation is decided, or
    /// once the time limit for answers has passed.
    Tell(Box<Op>, Option<R>),
    /// Reply to the program's lock request.
    Reply(R, Result<(), No>),
    /// The lease on the lock of this name was renewed, and has this fencing token, which an upgrade
    /// to exclusive mode changes.
    Continues(LockName, Token),
    /// From now on, writes through the open file with this handle count as writes by the holder of
    /// this fencing token.
    Speaks(u64, Token),
    /// A request waits for the lease with this number (unique within the session): watch the thread
    /// with this id for signals until the request has been answered.
    Watch(u64, u32),
    /// Events or an answer were lost: query the engine, and pass the result to [`Table::recalled`].
    Recall(Recall),
    /// Events were lost: compare the leases that are attached to the session with those in the
    /// table, and pass each lease that the table does not know to [`Table::found_stray`].
    Compare,
}
