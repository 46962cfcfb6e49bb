//! What is asked of the table, and what it says is to be done.

use super::super::ranges::{Owner, Span};
use crate::engine::{Acquire, ClientId, LockName, Mode, Op, Patch, Refusal, Token};

/// What a program asks for.
#[derive(Debug, Clone)]
pub(in crate::fs::locking) struct Ask {
    pub(in crate::fs::locking) ino: u64,
    pub(in crate::fs::locking) owner: Owner,
    /// The thread that waits, to be watched for signals.
    pub(in crate::fs::locking) tid: u32,
    pub(in crate::fs::locking) span: Span,
    pub(in crate::fs::locking) mode: Mode,
    /// The lock that the open file speaks of.
    pub(in crate::fs::locking) name: LockName,
    pub(in crate::fs::locking) client: ClientId,
    /// What the lease is to say.
    pub(in crate::fs::locking) patch: Patch,
    pub(in crate::fs::locking) line: Waits,
    /// flock(2) gives its lock back before it takes it in another mode; fcntl(2) does not.
    pub(in crate::fs::locking) call: CallOf,
}

/// Whether a program waits for a lock that is not to be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::fs::locking) enum Waits {
    Yes,
    No,
}

/// The system call that a lock came by, where it makes a difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::fs::locking) enum Call {
    Flock,
    Fcntl,
}

/// Finds the call of a thread out, while the program still waits in it. Asked only when it
/// matters: it costs as much as the whole lock does otherwise.
pub(in crate::fs::locking) type CallOf = fn(tid: u32) -> Call;

/// Why a program does not get a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::fs::locking) enum No {
    /// Somebody has it: EAGAIN.
    Busy(Option<Box<Refusal>>),
    /// A signal came: EINTR.
    Interrupted,
    /// Whoever has it waits for the asker: EDEADLK.
    Deadlock,
    /// The engine refused for another reason.
    Refused(Box<Refusal>),
}

/// What is to be done now.
#[derive(Debug)]
pub(in crate::fs::locking) enum Effect<R> {
    /// Ask the engine, and bring the answer back by [`Table::answered`] under this cookie.
    Submit {
        /// Brings the answer back to the request.
        cookie: u64,
        /// So does this.
        ino: u64,
        /// What to ask. Boxed, so that a list of effects is short.
        ask: Box<Acquire>,
    },
    /// Tell the engine; nothing depends on the answer.
    Tell(Box<Op>),
    /// Answer the program.
    Reply(R, Result<(), No>),
    /// The open file speaks for this tenure from now on.
    Speaks(u64, Token),
    /// This number waits: look after its thread until it has been answered.
    Watch(u64, u32),
    /// Events were lost: find out what this number holds of this lock, and say it by
    /// [`Table::recalled`].
    Recall((u64, LockName)),
}
