//! Counters and histograms of requests and events since the start, for the metrics.

use crate::engine::{Answer, Event, EventKind, LeaveReason, RefusalKind, TenureEnd};
use crate::time::Span;
use std::sync::atomic::{AtomicU64, Ordering};

/// The counters of the lock service, and the histograms of how long clients wait for locks and how
/// long they hold them.
pub(crate) struct ServiceCounters {
    counters: [AtomicU64; COUNTERS.len()],
    waits: LatencyHistogram<{ BOUNDS_MS.len() }>,
    holds: LatencyHistogram<{ BOUNDS_MS.len() }>,
}

/// A count of events since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Count {
    /// The name of the metric.
    pub name: &'static str,
    /// The help text of the metric.
    pub help: &'static str,
    /// The label that tells counts of one metric apart, with its value.
    pub label: Option<(&'static str, &'static str)>,
    /// The number of events.
    pub value: u64,
}

/// A histogram of durations, with cumulative counts by upper bound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Histogram {
    /// The name of the metric.
    pub name: &'static str,
    /// The help text of the metric.
    pub help: &'static str,
    /// The upper bounds of the buckets, each with the number of durations up to it.
    pub at_most: Vec<(Span, u64)>,
    /// The number of durations.
    pub count: u64,
    /// The sum of the durations.
    pub sum: Span,
}

/// Upper bounds of the histogram buckets in milliseconds, from the hand-over of a lock (1 ms) to a
/// lock that is held overnight (12 h).
const BOUNDS_MS: [u64; 12] =
    [1, 5, 25, 100, 500, 1_000, 5_000, 30_000, 120_000, 600_000, 3_600_000, 43_200_000];

/// A concurrent histogram of durations with its own upper bounds.
pub(crate) struct LatencyHistogram<const N: usize> {
    bounds: [Span; N],
    /// The number of durations up to each bound and above the previous one.
    within: [AtomicU64; N],
    /// The number of durations above the last bound.
    above: AtomicU64,
    nanos: AtomicU64,
}

impl<const N: usize> LatencyHistogram<N> {
    /// Returns an empty histogram. The bounds must rise.
    pub(crate) fn new(bounds: [Span; N]) -> Self {
        let within = std::array::from_fn(|_| AtomicU64::new(0));
        Self { bounds, within, above: AtomicU64::new(0), nanos: AtomicU64::new(0) }
    }

    pub(crate) fn add(&self, span: Span) {
        let index = self.bounds.iter().position(|bound| span <= *bound);
        let count = index.map_or(&self.above, |index| &self.within[index]);
        count.fetch_add(1, Ordering::Relaxed);
        self.nanos.fetch_add(span.as_nanos(), Ordering::Relaxed);
    }

    pub(crate) fn histogram(&self, name: &'static str, help: &'static str) -> Histogram {
        let mut sum = 0;
        let counts = self.within.iter().map(|count| count.load(Ordering::Relaxed));
        let at_most = self.bounds.into_iter().zip(counts).map(|(bound, count)| {
            sum += count;
            (bound, sum)
        });
        let at_most = at_most.collect();
        Histogram {
            name,
            help,
            at_most,
            // Summed up, so that it fits the buckets while others add durations.
            count: sum + self.above.load(Ordering::Relaxed),
            sum: Span::from_nanos(self.nanos.load(Ordering::Relaxed)),
        }
    }
}

/// The names, help texts and labels of the metrics, by the index of their counters.
const COUNTERS: [(&str, &str, Option<&str>); 16] = [
    ("latchfs_grants_total", "Tenures that began.", None),
    ("latchfs_renewals_total", "Renewals of leases, without those of sessions.", None),
    ("latchfs_releases_total", "Tenures that their holders ended.", None),
    ("latchfs_expiries_total", "Leases that came into their grace.", None),
    ("latchfs_lapses_total", "Tenures that ended because their leases were not renewed.", None),
    ("latchfs_steals_total", "Tenures that another client took away.", None),
    ("latchfs_moves_total", "Tenures that went to another name.", None),
    ("latchfs_waits_total", "Requests that joined a queue.", None),
    ("latchfs_waits_abandoned_total", "Waiters that left a queue without the lock.", None),
    ("latchfs_sessions_opened_total", "Sessions that were opened.", None),
    ("latchfs_sessions_expired_total", "Sessions that were not kept alive.", None),
    ("latchfs_refusals_total", REFUSALS, Some("E_LOCK_CONFLICT")),
    ("latchfs_refusals_total", REFUSALS, Some("E_LOCK_NOT_HELD")),
    ("latchfs_refusals_total", REFUSALS, Some("E_LOCK_EXPIRED")),
    ("latchfs_refusals_total", REFUSALS, Some("E_FENCING_MISMATCH")),
    ("latchfs_refusals_total", REFUSALS, Some("other")),
];

const REFUSALS: &str = "Refused commands, by the kind of refusal.";

impl Default for ServiceCounters {
    fn default() -> Self {
        let counters = <[AtomicU64; COUNTERS.len()]>::default();
        let bounds = BOUNDS_MS.map(Span::from_millis);
        Self {
            counters,
            waits: LatencyHistogram::new(bounds),
            holds: LatencyHistogram::new(bounds),
        }
    }
}

impl ServiceCounters {
    pub(crate) fn count_event(&self, event: &Event) {
        use crate::engine::SessionEnd::Expired;
        match &event.what {
            EventKind::Granted { waited: Some((_, span)), .. } => self.waits.add(*span),
            EventKind::Ended { held, .. } => self.holds.add(*held),
            _ => {}
        }
        let index = match &event.what {
            EventKind::Granted { .. } => 0,
            EventKind::Renewed { .. } => 1,
            EventKind::Ended { end: TenureEnd::Released | TenureEnd::Replaced, .. } => 2,
            EventKind::Expired { .. } => 3,
            EventKind::Ended { end: TenureEnd::Lapsed, .. } => 4,
            EventKind::Ended { end: TenureEnd::Stolen { .. }, .. } => 5,
            EventKind::Ended { end: TenureEnd::Moved { .. }, .. } => 6,
            EventKind::Joined { .. } => 7,
            EventKind::Left {
                why:
                    LeaveReason::Asked
                    | LeaveReason::Gone
                    | LeaveReason::TimedOut
                    | LeaveReason::SessionOver
                    | LeaveReason::Reset,
                ..
            } => 8,
            EventKind::SessionOpened { .. } => 9,
            EventKind::SessionOver { end: Expired, .. } => 10,
            EventKind::SessionOver { .. }
            | EventKind::SessionKept { .. }
            | EventKind::Annotated { .. }
            | EventKind::HoldOffEnded { .. } => return,
        };
        self.add(index);
    }

    pub(crate) fn count_answer(&self, answer: &Answer) {
        let Err(refusal) = answer else { return };
        self.add(match refusal.kind() {
            RefusalKind::LockConflict => 11,
            RefusalKind::LockNotHeld => 12,
            RefusalKind::LockExpired => 13,
            RefusalKind::FencingMismatch => 14,
            RefusalKind::ClockSkewExceeded
            | RefusalKind::ConsistencyUnavailable
            | RefusalKind::Invalid
            | RefusalKind::Limit
            | RefusalKind::Denied => 15,
        });
    }

    fn add(&self, index: usize) {
        self.counters[index].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the counters.
    pub(crate) fn counts(&self) -> Vec<Count> {
        let values = self.counters.iter().map(|counter| counter.load(Ordering::Relaxed));
        let named = COUNTERS.into_iter().zip(values);
        named
            .map(|((name, help, kind), value)| Count {
                name,
                help,
                label: kind.map(|kind| ("kind", kind)),
                value,
            })
            .collect()
    }

    /// Returns the histograms of how long clients waited for locks, and how long they held them.
    pub(crate) fn histograms(&self) -> Vec<Histogram> {
        vec![
            self.waits.histogram("latchfs_wait_seconds", "How long served waiters had waited."),
            self.holds.histogram("latchfs_hold_seconds", "Duration of ended tenures."),
        ]
    }
}
