//! The rules of a lock, as a pure value.
//!
//! An [`Engine`] is told what is asked and when, and answers; it reads no clock, does no IO, logs
//! nothing and draws no random numbers. The same commands at the same times give the same answers,
//! events and bytes, on every replica and after every restart.
//!
//! - **Time is an argument.** Each command carries `at`. First all that is due by then happens
//!   ([`Op::Settle`] is only that), in the order in which it was due; then the command.
//! - **Facts are stored, phases derived.** A lease has its ends; whether it is held or in grace
//!   depends on when one looks. A free lock is not stored.
//! - **A refusal leaves nothing behind.** Every operation first finds out whether it may, and only
//!   then changes anything.
//! - **A waiter is served in the step that frees the lock**, and only if it is still somebody:
//!   its session lives, its patience is not over.
//!
//! The modules in reading order:
//!
//! - Values: `name`, `lease_terms` (ttl and grace), `limits` (lengths of the parts of a command),
//!   `details` (note, text, process and file attributes), `lease`.
//! - The interface: `event`, `refusal`, `command`, `view`.
//! - Parts of the state: `tokens` (rule 7), `deadlines`, `lock` (one lock and its queue),
//!   `lock_table`, `session`, `idempotency` (answers kept for repeats), `interner`; `conflict`
//!   decides whether a lease is in the way of a request; `state` puts them together.
//! - Operations on it: `renew` (rules 2 and 3), `acquire` (rules 1, 5, 6), `expiry` (rule 4),
//!   `session_lifecycle` (rule 8), `transfer` (moves and rule 9), `reset`, `baseline` (a start
//!   after the loss of all replicas), `request_replay` (rule 10); `apply` carries a command out.
//! - Readers: `query`, and `invariants`, which tests check after each command.
//! - Bytes: `encoding` (how each value is written), `codec` (what outlives a process),
//!   `event_codec` (what only crosses to another one).

pub mod name;
pub mod lease_terms;
pub mod limits;
pub mod details;
pub mod lease;
pub mod event;
pub mod refusal;
pub mod command;
mod tokens;
mod deadlines;
mod lock;
mod lock_table;
mod session;
mod idempotency;
mod interner;
pub mod view;
mod conflict;
mod state;
mod renew;
mod acquire;
mod expiry;
mod session_lifecycle;
mod transfer;
mod reset;
mod baseline;
mod request_replay;
mod apply;
mod query;
mod invariants;
mod encoding;
pub mod codec;
mod event_codec;

pub use baseline::Baseline;
pub use command::{
    Acquire, Annotate, Answer, Command, Digest, EndSession, Firm, IdempotencyKey, IfExists,
    LeaseKey, Leave, Move, Op, OpenSession, Outcome, QueuePolicy, Release, Renew, Replay,
    RequestId, RequestOrder, Reset, ResetScope, Rulebook, Steal, Tenure,
};
pub use details::{Details, FileAttrs, FileType, Patch, Process, ReadMode, TextPatch};
pub use event::{Event, EventKind, LeaveReason, SessionEnd, TenureEnd};
pub use interner::Interner;
pub use lease::{
    Ends, Lease, LeaseTerms, Lifetime, Mode, OpenId, Ownership, Phase, SessionId, StealReason,
    Ticket, Token,
};
pub use lease_terms::{GRACE_OF_PROCESS, Grace, TermError, Ttl};
pub use name::{ClientId, LockName, NameError};
pub use refusal::{Conflict, Limit, Reason, Refusal, RefusalKind, Way};
pub use state::{Engine, Rules};
pub use view::{Child, Holder, LockView, SessionView, WaiterView};

#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_codec;
#[cfg(test)]
mod tests_queries;
#[cfg(test)]
mod tests_state;
#[cfg(test)]
mod tests_values;

#[cfg(test)]
#[path = "../../tests/model/mod.rs"]
pub(crate) mod model;
