//! The session and the leases that a simulated client believes it has. A lease has an end of its
//! own, or ends with the session.

use super::client_history::{Lock, Sharing};
use crate::engine::{Mode, Ownership, SessionId, Ttl};
use crate::time::{Span, Time};

/// The part of a ttl, in thousandths, by which a client shortens it, since clocks run at different
/// rates.
const OFF_PER_MILLE: u64 = 1;
/// The fixed time by which a client additionally shortens a ttl, to allow for its own processing
/// time.
const OFF: Span = Span::from_millis(50);

/// A session, as its client knows it.
pub(super) struct ClientSession {
    pub(super) id: SessionId,
    pub(super) ttl: Ttl,
    /// The earliest end of the session, on the client's clock.
    pub(super) until: Time,
    pub(super) kept: Time,
}

/// A lease that the client believes it holds.
#[derive(Clone)]
pub(super) struct ClientLease {
    pub(super) lock: Lock,
    pub(super) token: u64,
    pub(super) hold: Ownership,
    pub(super) mode: Mode,
    /// The engine's count of the acquires that were answered with this lease, at the last of them.
    /// A release contains this number, so that a late release does not end a lease that was
    /// acquired again after it.
    pub(super) acquisition: u32,
    /// When the client requested the lease, in virtual time.
    pub(super) asked: Time,
    /// When the client learned of the grant, in virtual time.
    pub(super) from: Time,
    /// The end of the lease on the client's clock. `None`: the lease ends with the session.
    pub(super) until: Option<Time>,
    /// Whether the client leaves the lease to expire: it neither renews nor releases it.
    pub(super) runs_out: bool,
}

/// Returns a ttl minus the allowances for clock rates and processing time.
pub(super) fn less(ttl: Span) -> Span {
    let off = Span::from_nanos(ttl.as_nanos() * OFF_PER_MILLE / 1_000 + OFF.as_nanos());
    Span::from_nanos(ttl.as_nanos().saturating_sub(off.as_nanos()))
}

/// Converts a mode to the type that the history uses.
pub(super) const fn sharing(mode: Mode) -> Sharing {
    match mode {
        Mode::Exclusive => Sharing::Alone,
        Mode::Shared => Sharing::Shared,
    }
}
