//! The lock engine: a deterministic state machine with all rules of locks, leases, queues and
//! sessions.
//!
//! An [`Engine`] receives commands with their times and returns answers; it reads no clock, does no
//! IO, logs nothing and draws no random numbers. The same commands at the same times yield the same
//! answers, events and bytes, on every replica and after every restart.
//!
//! - **Time is an argument.** Each command carries `at`. Everything that is due by then happens
//!   first ([`Op::Settle`] does only that), in the order in which it was due; then the command is
//!   applied.
//! - **Facts are stored, phases are derived.** A lease stores when it ends; whether it is held or
//!   in grace depends on the time of the query. A free lock is not stored.
//! - **A refusal changes nothing.** Every operation first checks whether it is allowed, and only
//!   then changes the state.
//! - **A waiter is served in the step that frees the lock**, and only if its session is alive and
//!   its timeout has not passed.
//!
//! Comments in this crate cite the rules of a lock by number:
//!
//! 1. Acquire: a free lock is granted, the client's own lease is renewed.
//! 2. Renew: only the holder can, until the end of the grace.
//! 3. Release: only the holder can, and only the tenure that it names.
//! 4. Expiry: a lease that is not renewed is in grace, and then ends.
//! 5. Queue: waiters are served first come, first served.
//! 6. Sharing: shared leases coexist; a request for a shared lock does not overtake a waiter.
//! 7. Tokens: each tenure has a fencing token above all earlier ones.
//! 8. Sessions: one keep-alive renews all leases that are bound to a session.
//! 9. Steal: a lock that is taken away stays unusable for the steal grace.
//! 10. Idempotency: a repeated request has one effect and gets the first answer.
//! 13. Hold-off: an engine without the leases of its predecessor grants nothing for a time.
//!
//! The folders and files in reading order:
//!
//! - `time` has moments and spans, and reads the kernel's clocks; no other module does.
//! - `values` has the commands and answers of the engine, and the parts of its state.
//! - `state` puts these together, with the invariants that tests check after each command.
//! - `rules` changes the state: `apply` calls the rule of each command.
//! - `query` reads it, and `usage` counts how much each client has.
//! - `codec` has everything that is stored or sent, as bytes.

pub mod time;
pub mod values;
mod usage;
mod state;
mod query;
mod rules;
#[cfg(test)]
mod tests;

pub use crate::codec::encoding::Interner;
pub use crate::codec::format_version::Feature;
pub use crate::values::command::{
    Acquire, Annotate, Answer, Command, Digest, EndHoldOff, EndSession, Firm, Forget,
    IdempotencyKey, IfExists, LeaseKey, Leave, Move, Op, OpenSession, Outcome, QueuePolicy,
    Release, Renew, Replay, RequestId, RequestKey, RequestNumber, Reset, ResetPart, ResetScope,
    Steal, Tenure,
};
pub use crate::values::details::{
    Details, FileAttrs, FileType, Patch, Process, ReadMode, TextPatch,
};
pub use crate::values::event::{
    Child, Holder, LockView, Obstacle, QueuePlace, SessionView, WaiterView,
};
pub use crate::values::event::{Event, EventKind, LeaveReason, SessionEnd, TenureEnd};
pub use crate::values::handover::{Handover, HandoverEnd, LastHandover, Previous, RememberedName};
pub use crate::values::hold_off::Baseline;
pub use crate::values::hold_off::{HoldOff, HoldOffCause};
pub use crate::values::idempotency::UNANSWERED_MAX;
pub use crate::values::lease::{
    Ends, Lease, LeaseTerms, Lifetime, Mode, OpenId, Ownership, Phase, Seats, SessionId,
    StealReason, Ticket, Token,
};
pub use crate::values::lease::{GRACE_OF_PROCESS, Grace, TermError, Ttl};
pub use crate::values::name::{ClientId, LockName, NameError};
pub use crate::values::refusal::{Conflict, Limit, Reason, Refusal, RefusalKind, ShareOf, Way};
pub use crate::values::subject::{ChangedLocks, OpKind, OpSubject};
pub use query::LockCount;
pub use state::{Engine, Rules};
pub use usage::Usage;

pub mod codec;
#[cfg(test)]
mod tests_state;

#[cfg(test)]
extern crate self as engine; // `tests/model/draw.rs` is also a part of other tests

#[cfg(test)]
#[path = "../../tests/model/mod.rs"]
mod model;
