//! The session of a lock that a person takes along: it keeps the lock although nothing renews it.

use crate::engine::SessionId;
use crate::time::{Span, Time};
use std::sync::atomic::{AtomicU64, Ordering};

/// The note of a lock that a person has taken along, by which other guards know it.
pub(super) const AWAY_NOTE: &str = "away";

/// How far the clocks of two machines may drift apart, per mille of the time.
const DRIFT_PER_MILLE: u64 = 1;
/// How much earlier the time ends here than at the lock service.
const MARGIN: Span = Span::from_millis(50);
/// How long before the end the lock is given up in good order, at most: the last marker takes time.
const GIVE_BEFORE: Span = Span::from_secs(10);

/// The session that keeps a lock which a person has taken along.
#[derive(Default)]
pub(super) struct AwaySession {
    /// The number of the session; 0 if there is none.
    session: AtomicU64,
    /// Until when it certainly lasts, in nanoseconds of the boot clock.
    until: AtomicU64,
    /// When the lock is given up in good order.
    gives_at: AtomicU64,
}

impl AwaySession {
    pub(super) fn session(&self) -> Option<SessionId> {
        match self.session.load(Ordering::Acquire) {
            0 => None,
            session => Some(SessionId::named(session)),
        }
    }

    /// Returns until when the session certainly lasts, if it is this one.
    pub(super) fn surely_until(&self, session: u64) -> Option<Time> {
        let until = self.until();
        (self.session.load(Ordering::Acquire) == session).then_some(until)
    }

    pub(super) fn until(&self) -> Time {
        Time::from_nanos(self.until.load(Ordering::Acquire))
    }

    pub(super) fn gives_at(&self) -> Time {
        Time::from_nanos(self.gives_at.load(Ordering::Acquire))
    }

    pub(super) fn begin(&self, session: SessionId, asked_at: Time, length: Span) {
        let drift = Span::from_nanos(length.as_nanos() / 1_000 * DRIFT_PER_MILLE);
        let until = asked_at + length - drift - MARGIN;
        let early = GIVE_BEFORE.min(Span::from_nanos(length.as_nanos() / 10));
        self.until.store(until.as_nanos(), Ordering::Release);
        self.gives_at.store((until - early).as_nanos(), Ordering::Release);
        self.session.store(session.as_u64(), Ordering::Release);
    }

    /// Forgets the session, and returns it.
    pub(super) fn end(&self) -> Option<SessionId> {
        let session = self.session.swap(0, Ordering::AcqRel);
        (session != 0).then(|| SessionId::named(session))
    }
}
