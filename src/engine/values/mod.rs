//! What the engine is told, what it answers, and what it keeps.
//!
//! `name` has the names of locks and clients, `command` the commands and their outcomes, `details`
//! what a holder stores with its lock, within `limits`. `lease` and `lock` are what is held,
//! `event` what has happened, and `refusal` and `refusal_sentences` why something was refused.

pub mod name;
pub mod details;
pub mod lease;
pub(super) mod hold_off;
pub(super) mod handover;
pub mod refusal;
pub mod event;
pub mod command;
pub(super) mod idempotency;
pub(super) mod deadlines;
pub(super) mod lock;
