//! The rules of locks, as methods of the engine.
//!
//! `apply` advances the time, ends what nobody renewed (rule 4) and calls the rule of a command:
//! `acquire` (rules 1, 5, 6), `renew` with releases, moves and steals (rules 2, 3, 9),
//! `session_lifecycle` with resets of many locks (rule 8), `handover_rules` for what is remembered
//! of a name. `request_replay` answers repeated requests (rule 10), and `hold_off_rules` keeps a
//! new engine from granting too early (rule 13).

pub(super) mod renew;
pub(super) mod acquire;
pub(super) mod apply;
pub(super) mod handover_rules;
pub(super) mod hold_off_rules;
pub(super) mod request_replay;
pub(super) mod session_lifecycle;
