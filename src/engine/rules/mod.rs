//! The rules of locks, one file each.
//!
//! `apply` advances the time and calls the rule of a command: `acquire`, `renew` (with annotate and
//! release), `transfer` and `steal`, `session_lifecycle`, `reset`, `handover_rules`. `expiry` ends
//! what nobody renewed and serves the next waiters, `request_replay` answers repeated requests, and
//! `hold_off_rules` keeps a new engine from granting too early.

pub(super) mod renew;
pub(super) mod acquire;
pub(super) mod apply;
pub(super) mod handover_rules;
pub(super) mod hold_off_rules;
pub(super) mod request_replay;
pub(super) mod session_lifecycle;
