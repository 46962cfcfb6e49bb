//! The commands of the engine, its answers, and the parts of its state.
//!
//! `name` has the names of locks and clients, `lease` what is held, with its terms and its token,
//! and `lock` one lock with its queue; `details` is what a holder stores with it, within limits.
//! `handover` is what is remembered of a name beyond a tenure, and `hold_off` a time in which
//! nothing is granted. `event` has what happened and how a lock appears to clients, `refusal` why
//! something was refused, with its sentence, and `command` the commands and their outcomes;
//! `subject` is what a command is about.
//! `deadlines` and `idempotency` are parts of the state: what is due when, with the sessions, and
//! the answers to repeats.

pub mod name;
pub mod details;
pub mod lease;
pub(super) mod hold_off;
pub(super) mod handover;
pub mod refusal;
pub mod event;
pub mod subject;
pub mod command;
pub(super) mod idempotency;
pub(super) mod deadlines;
pub(super) mod lock;
