//! Counts of what happened since the start, for the metrics. Fed by events and answers.

use crate::engine::{Answer, End, Event, Kind, What, Why};
use std::sync::atomic::{AtomicU64, Ordering};

/// One counter a metric.
#[derive(Default)]
pub(super) struct Tally([AtomicU64; COUNTERS.len()]);

/// The metrics, by the index of their counter.
const COUNTERS: [&str; 16] = [
    "grants_total",
    "renewals_total",
    "releases_total",
    "expiries_total",
    "lapses_total",
    "steals_total",
    "moves_total",
    "waits_total",
    "waits_abandoned_total",
    "sessions_opened_total",
    "sessions_expired_total",
    "refusals_total{kind=\"E_LOCK_CONFLICT\"}",
    "refusals_total{kind=\"E_LOCK_NOT_HELD\"}",
    "refusals_total{kind=\"E_LOCK_EXPIRED\"}",
    "refusals_total{kind=\"E_FENCING_MISMATCH\"}",
    "refusals_total{kind=\"other\"}",
];

impl Tally {
    pub(super) fn count_event(&self, event: &Event) {
        use crate::engine::SessionEnd::Expired;
        let index = match &event.what {
            What::Granted { .. } => 0,
            What::Renewed { .. } => 1,
            What::Ended { end: End::Released | End::Replaced, .. } => 2,
            What::Expired { .. } => 3,
            What::Ended { end: End::Lapsed, .. } => 4,
            What::Ended { end: End::Stolen { .. }, .. } => 5,
            What::Ended { end: End::Moved { .. }, .. } => 6,
            What::Joined { .. } => 7,
            What::Left {
                why: Why::Asked | Why::Gone | Why::TimedOut | Why::SessionOver, ..
            } => 8,
            What::SessionOpened { .. } => 9,
            What::SessionOver { end: Expired, .. } => 10,
            What::SessionOver { .. } | What::SessionKept { .. } | What::Annotated { .. } => return,
        };
        self.add(index);
    }

    pub(super) fn count_answer(&self, answer: &Answer) {
        let Err(refusal) = answer else { return };
        self.add(match refusal.kind() {
            Kind::LockConflict => 11,
            Kind::LockNotHeld => 12,
            Kind::LockExpired => 13,
            Kind::FencingMismatch => 14,
            Kind::ClockSkewExceeded
            | Kind::ConsistencyUnavailable
            | Kind::Invalid
            | Kind::Limit
            | Kind::Denied => 15,
        });
    }

    fn add(&self, index: usize) {
        self.0[index].fetch_add(1, Ordering::Relaxed);
    }

    /// Each metric's name and count.
    pub(super) fn counts(&self) -> Vec<(&'static str, u64)> {
        let counts = self.0.iter().map(|counter| counter.load(Ordering::Relaxed));
        COUNTERS.into_iter().zip(counts).collect()
    }
}
