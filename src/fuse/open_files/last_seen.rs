//! A summary of a lock's state, as a program last saw it through an open file. By comparing it,
//! poll detects a change.

use crate::engine::{Holder, LockView, Phase, Token};

/// A summary of a lock's state that changes with the lock's phase or holders, because no token is
/// used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LastSeen {
    pub(crate) phase: Phase,
    holders: usize,
    first: Option<Token>,
    last: Option<Token>,
}

impl LastSeen {
    /// Returns the summary of a lock's view.
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
