//! The status of a remote client's connection to its server.

use crate::time::{Span, Wall};
use std::sync::Arc;

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

impl RttSample {
    /// Returns the measurement from an answer that was received at the local wall-clock time `here`
    /// and sent at the server's wall-clock time `there`.
    pub fn new(round_trip: Span, there: Wall, here: Wall) -> Self {
        let half = i64::try_from(round_trip.as_millis() / 2).unwrap_or(i64::MAX);
        let wall_ahead_ms = there.millis_ahead_of(here).saturating_add(half);
        Self { round_trip, wall_ahead_ms }
    }
}
