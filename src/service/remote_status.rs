//! What is known of the server behind a remote door.

use crate::time::{Span, Wall};
use std::sync::Arc;

/// How it goes with a server, for whoever looks for what is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteStatus {
    /// What people call it.
    pub server: Arc<str>,
    /// What was heard of it last.
    pub heard: Option<RttSample>,
    /// What was wrong when something was wrong last.
    pub trouble: Option<String>,
}

/// What an answer of a server says beside itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RttSample {
    /// How long it took.
    pub round_trip: Span,
    /// How far the server's wall clock is ahead of ours, give or take half of that.
    pub wall_ahead_ms: i64,
}

impl RttSample {
    /// An answer that came when our clock showed `here`, made when the server's showed `there`.
    pub fn new(round_trip: Span, there: Wall, here: Wall) -> Self {
        let half = i64::try_from(round_trip.as_millis() / 2).unwrap_or(i64::MAX);
        let wall_ahead_ms = there.millis_ahead_of(here).saturating_add(half);
        Self { round_trip, wall_ahead_ms }
    }
}
