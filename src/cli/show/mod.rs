//! Commands that show many locks, or what happened to them.
//!
//! `ls` prints their status once and `top` again and again, `events` prints each change as it
//! happens, and `audit` checks the log of all of them.

pub(super) mod audit;
pub(super) mod events;
pub(super) mod ls;
pub(super) mod top;
