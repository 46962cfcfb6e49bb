//! The session and the leases that a client believes to have, each until an end of its own.

use super::client_history::{Lock, Sharing};
use crate::engine::{Mode, Ownership, SessionId, Ttl};
use crate::time::{Span, Time};

/// Per mille that a client subtracts from a ttl, because clocks run at different rates.
const OFF_PER_MILLE: u64 = 1;
/// Fixed time that a client subtracts as well, because a decision takes a moment.
const OFF: Span = Span::from_millis(50);

/// A session.
pub(super) struct ClientSession {
    pub(super) id: SessionId,
    pub(super) ttl: Ttl,
    /// Until when it surely lasts, on the client's clock.
    pub(super) until: Time,
    pub(super) kept: Time,
}

/// A lock that it believes to hold.
#[derive(Clone)]
pub(super) struct ClientLease {
    pub(super) lock: Lock,
    pub(super) token: u64,
    pub(super) hold: Ownership,
    pub(super) mode: Mode,
    /// The acquire by which it holds, for its release to name.
    pub(super) acquisition: u32,
    /// When it was asked for, in virtual time.
    pub(super) asked: Time,
    /// Since when, in virtual time.
    pub(super) from: Time,
    /// Its own end, on the client's clock; `None`: that of the session.
    pub(super) until: Option<Time>,
    /// Whether it is neither renewed nor given back: it runs out.
    pub(super) runs_out: bool,
}

/// A ttl, less what clocks differ by and a decision takes.
pub(super) fn less(ttl: Span) -> Span {
    let off = Span::from_nanos(ttl.as_nanos() * OFF_PER_MILLE / 1_000 + OFF.as_nanos());
    Span::from_nanos(ttl.as_nanos().saturating_sub(off.as_nanos()))
}

/// A mode, in the words of the checker.
pub(super) const fn sharing(mode: Mode) -> Sharing {
    match mode {
        Mode::Exclusive => Sharing::Alone,
        Mode::Shared => Sharing::Shared,
    }
}
