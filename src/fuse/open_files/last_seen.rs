//! The state of a lock that was last seen through an open file, to tell whether it has changed
//! since.

use crate::engine::{Holder, LockView, Phase, Token};

/// The state of a lock that was seen: enough to know whether its phase or holders are others now,
/// for a tenure's token is never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LastSeen {
    pub(crate) phase: Phase,
    holders: usize,
    first: Option<Token>,
    last: Option<Token>,
}

impl LastSeen {
    /// Returns the state that a view shows.
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
