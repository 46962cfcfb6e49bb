//! The status of a remote client's connection to its server.

use crate::time::{Span, Wall};
use std::sync::Arc;

/// The difference of two machines' clocks above which a machine may not steal a lock
/// (`max_clock_skew_ms` of a lock record).
pub(crate) const TOLERATED_SKEW: Span = Span::from_secs(2);

/// The status of the connection to a server, for troubleshooting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteStatus {
    /// The name of the server.
    pub server: Arc<str>,
    /// The round-trip time and clock offset of the server's last answer, if there was one.
    pub heard: Option<RttSample>,
    /// The last error on the connection, if there was one.
    pub trouble: Option<String>,
}

/// The round-trip time and the clock offset measured from one answer of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RttSample {
    /// The round-trip time.
    pub round_trip: Span,
    /// How far the server's wall clock is ahead of the local one, in milliseconds, within half the
    /// round-trip time.
    pub wall_ahead_ms: i64,
}

impl RemoteStatus {
    /// Returns a sentence that says what to do if the clock of this machine differs so much from
    /// the server's that it may not steal a lock.
    pub(crate) fn refuses_steal(&self) -> Option<String> {
        let skew = self.heard?.skew();
        (skew > TOLERATED_SKEW).then(|| {
            format!(
                "the clock of this machine is wrong by at least {:.1} s, compared with the server \
                 {}, and a lock is stolen only if the two differ by at most {TOLERATED_SKEW}; set \
                 the clock ('timedatectl set-ntp true'), and try again (E_CLOCK_SKEW_EXCEEDED)",
                skew.as_duration().as_secs_f64(),
                self.server
            )
        })
    }
}

impl RttSample {
    /// Returns the measurement from an answer that was received at the local wall-clock time `here`
    /// and sent at the server's wall-clock time `there`.
    pub fn new(round_trip: Span, there: Wall, here: Wall) -> Self {
        let half = i64::try_from(round_trip.as_millis() / 2).unwrap_or(i64::MAX);
        let wall_ahead_ms = there.millis_ahead_of(here).saturating_add(half);
        Self { round_trip, wall_ahead_ms }
    }

    /// Returns by how much the two clocks certainly differ, whenever between the request and the
    /// answer the server has read its own: `max(0, |ts - (t0 + t1) / 2| - (t1 - t0) / 2)`.
    pub fn skew(self) -> Span {
        let half = self.round_trip.as_millis().div_ceil(2);
        Span::from_millis(self.wall_ahead_ms.unsigned_abs().saturating_sub(half))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the status after a request that was sent at 100 s of the local clock, stamped with
    /// `ts` by the server, and answered after `round_trip`.
    fn asked(ts: i64, round_trip: u64) -> RemoteStatus {
        let wall = |ms: i64| Wall { secs: ms / 1_000, nanos: (ms % 1_000) as u32 * 1_000_000 };
        let here = wall(100_000 + round_trip as i64);
        let heard = Some(RttSample::new(Span::from_millis(round_trip), wall(ts), here));
        RemoteStatus { server: "s".into(), heard, trouble: None }
    }

    fn skew(ts: i64, round_trip: u64) -> u64 {
        asked(ts, round_trip).heard.expect("an answer").skew().as_millis()
    }

    #[test]
    fn skew_is_what_the_round_trip_does_not_explain() {
        assert_eq!(skew(100_000, 0), 0);
        // The server has read its clock at some time of the round trip.
        assert_eq!([100_000, 100_200, 100_400].map(|ts| skew(ts, 400)), [0, 0, 0]);
        assert_eq!((skew(103_400, 400), skew(97_000, 400)), (3_000, 3_000));
        assert_eq!(skew(100_000 - 3_600_000, 20), 3_600_000);
    }

    #[test]
    fn a_steal_is_refused_above_two_seconds() {
        assert_eq!(asked(102_000, 0).refuses_steal(), None);
        assert_eq!(asked(98_000, 0).refuses_steal(), None);
        let why = asked(105_000, 0).refuses_steal().expect("5 s");
        assert!(why.contains("5.0 s") && why.contains("E_CLOCK_SKEW_EXCEEDED"), "{why}");
        let never_heard = RemoteStatus { heard: None, ..asked(0, 0) };
        assert_eq!(never_heard.refuses_steal(), None);
    }
}
