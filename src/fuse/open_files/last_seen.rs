//! A summary of a lock's state, as a program last saw it through an open file. poll(2) detects a
//! change of the lock by comparing this summary with the lock's current state.

use crate::engine::{Holder, LockView, Phase, Token};

/// A summary of a lock's state. It differs after every change of the lock's phase (held, grace or
/// free) or holders, because no fencing token is used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LastSeen {
    pub(crate) phase: Phase,
    holders: usize,
    first: Option<Token>,
    last: Option<Token>,
}

impl LastSeen {
    /// Returns the summary of the lock's state `view`.
    pub(crate) fn of(view: &LockView) -> Self {
        let token = |holder: &Holder| holder.lease.token;
        Self {
            phase: view.phase(),
            holders: view.holders.len(),
            first: view.holders.first().map(token),
            last: view.holders.last().map(token),
        }
    }
}
