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
    /// The thread that waits, to be watched for signals.
    pub(crate) tid: u32,
    pub(crate) span: Span,
    pub(crate) mode: Mode,
    /// The lock that the open file speaks of.
    pub(crate) name: LockName,
    pub(crate) client: ClientId,
    /// The details to set on the lease.
    pub(crate) patch: Patch,
    pub(crate) line: Waits,
    /// flock(2) gives its lock back before it takes it in another mode; fcntl(2) does not.
    pub(crate) call: CallOf,
}

/// Whether a program waits for a lock that is not to be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waits {
    Yes,
    No,
}

/// The system call that a lock came by, where it makes a difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    Flock,
    Fcntl,
}

/// Finds the call of a thread out, while the program still waits in it. Asked only when it
/// matters: it costs as much as the whole lock does otherwise.
pub(crate) type CallOf = fn(tid: u32) -> Call;

/// Why a program does not get a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum No {
    /// Somebody has it: EAGAIN.
    Busy(Option<Box<Refusal>>),
    /// A signal came: EINTR.
    Interrupted,
    /// A holder waits for the requesting owner: EDEADLK.
    Deadlock,
    /// The file has as many locked ranges as it may have: ENOLCK.
    Full,
    /// The engine refused for another reason.
    Refused(Box<Refusal>),
}

/// A query to the engine: the lease of a number on a lock, and the lock's waiters.
#[derive(Debug, Clone)]
pub(crate) struct Recall {
    pub(crate) number: u64,
    pub(crate) name: LockName,
    /// The token that the number held when this was asked, as far as was known. Only that tenure
    /// can have ended by the time of the answer: an event in between may be newer than the answer.
    pub(crate) token: Option<Token>,
}

/// The engine's reply to a [`Recall`].
#[derive(Debug, Clone)]
pub(crate) struct Found {
    /// The lease of the number, if it has one.
    pub(crate) lease: Option<LeaseKey>,
    /// All places in the queue of that lock.
    pub(crate) tickets: Vec<Ticket>,
}

/// An action that the caller of the table must perform.
#[derive(Debug)]
pub(crate) enum Effect<R> {
    /// Ask the engine, and bring the answer back by [`Table::answered`] under this cookie.
    Submit {
        /// Brings the answer back to the request.
        cookie: u64,
        /// So does this.
        ino: u64,
        /// The request to the engine. Boxed, so that `Effect` stays small.
        ask: Box<Acquire>,
    },
    /// Tell the engine; nothing depends on the answer.
    Tell(Box<Op>),
    /// Answer the program.
    Reply(R, Result<(), No>),
    /// The hold of this name goes on under this token, perhaps a new one.
    Continues(LockName, Token),
    /// The open file speaks for this tenure from now on.
    Speaks(u64, Token),
    /// This number waits: look after its thread until it has been answered.
    Watch(u64, u32),
    /// Events or an answer were lost: find out what there is, and say it by [`Table::recalled`].
    Recall(Recall),
    /// Events were lost: compare what hangs on the session with what is known here, and say by
    /// [`Table::found_stray`] what is not.
    Compare,
}
