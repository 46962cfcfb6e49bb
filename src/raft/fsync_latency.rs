//! Measures the fsync latency of the log: a histogram since the start of the node, and the median
//! and maximum of recent syncs.

use crate::service::cluster_status::Syncing;
use crate::service::counters::{Histogram, LatencyHistogram};
use crate::time::Span;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Upper bounds of the histogram buckets in microseconds. They range from tmpfs over SSDs and
/// rotating disks to a failing disk.
const BOUNDS_US: [u64; 12] =
    [50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 1_000_000];

/// The number of syncs that count as recent: less than a second's worth under load, some minutes'
/// worth on a quiet node.
const RECENT: usize = 256;

/// The latencies of all syncs. Recording one takes no mutex, because each append to the log records
/// one.
pub(super) struct FsyncLatency {
    times: LatencyHistogram<{ BOUNDS_US.len() }>,
    /// A ring buffer of the recent latencies in microseconds; 0 marks an unused slot.
    recent: [AtomicU32; RECENT],
    next: AtomicUsize,
}

impl Default for FsyncLatency {
    fn default() -> Self {
        let bounds = BOUNDS_US.map(|bound| Span::from_nanos(bound * 1_000));
        let recent = std::array::from_fn(|_| AtomicU32::new(0));
        Self { times: LatencyHistogram::new(bounds), recent, next: AtomicUsize::new(0) }
    }
}

impl FsyncLatency {
    /// Records the duration of a sync.
    pub(super) fn add(&self, took: Span) {
        self.times.add(took);
        let micros = u32::try_from(took.as_nanos().div_ceil(1_000)).unwrap_or(u32::MAX);
        let at = self.next.fetch_add(1, Ordering::Relaxed) % RECENT;
        self.recent[at].store(micros.max(1), Ordering::Relaxed);
    }

    /// Returns the median and maximum of the recent syncs, or `None` before the first sync.
    pub(super) fn recent(&self) -> Option<Syncing> {
        let all = self.recent.iter().map(|micros| micros.load(Ordering::Relaxed));
        let mut known: Vec<_> = all.filter(|micros| *micros > 0).collect();
        known.sort_unstable();
        let span = |micros: &u32| Span::from_nanos(u64::from(*micros) * 1_000);
        let median = known.get(known.len() / 2).map(span)?;
        known.last().map(span).map(|worst| Syncing { median, worst })
    }

    /// Returns the histogram of all syncs, for the metrics endpoint.
    pub(super) fn histogram(&self) -> Histogram {
        self.times.show("latchfs_log_sync_seconds", "How long the disk took until it had an entry.")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn micros(count: u64) -> Span {
        Span::from_nanos(count * 1_000)
    }

    #[test]
    fn recent_latency_covers_only_the_last_syncs() {
        let syncs = FsyncLatency::default();
        assert_eq!(syncs.recent(), None);
        syncs.add(Span::from_nanos(40));
        assert_eq!(syncs.recent(), Some(Syncing { median: micros(1), worst: micros(1) }));
        (1..=100).for_each(|count| syncs.add(micros(count)));
        assert_eq!(syncs.recent(), Some(Syncing { median: micros(50), worst: micros(100) }));
        // After `RECENT` more syncs, the older ones no longer count.
        (0..RECENT).for_each(|_| syncs.add(micros(7)));
        assert_eq!(syncs.recent(), Some(Syncing { median: micros(7), worst: micros(7) }));
        let all = syncs.histogram();
        assert_eq!(all.count, 357);
        assert_eq!(all.at_most[0], (micros(50), 1 + 50 + 256));
        assert_eq!(all.at_most[11], (Span::from_secs(1), 357));
    }
}
