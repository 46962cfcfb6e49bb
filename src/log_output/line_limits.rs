//! Limits how many lines of each kind the log has in a second, and counts the others. The place in
//! the source that logs a record is its kind, so there are as many kinds as places.

use crate::time::{Span, Time};
use log::{Level, Record};
use std::collections::HashMap;

/// Maximum number of lines of one kind in a second.
const LINES_MAX: u32 = 100;

/// The time in which lines are counted.
const WINDOW: Span = Span::from_secs(1);

/// The place that logs a record: its file and its line.
type LogPlace = (&'static str, u32);

/// The lines of each kind in its current second.
#[derive(Default)]
pub(super) struct LineLimits(HashMap<LogPlace, KindCount>);

struct KindCount {
    begun: Time,
    count: u32,
    suppressed: Option<SuppressedLines>,
}

/// Lines of one kind that are left out.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SuppressedLines {
    pub(super) level: Level,
    pub(super) count: u64,
    /// The message of the first of them.
    pub(super) message: String,
}

impl LineLimits {
    /// Whether a record has a line; otherwise it is counted.
    pub(super) fn admit(&mut self, record: &Record<'_>, now: Time) -> bool {
        let place = (record.file_static().unwrap_or_default(), record.line().unwrap_or_default());
        let new = || KindCount { begun: now, count: 0, suppressed: None };
        let kind = self.0.entry(place).or_insert_with(new);
        if now.since(kind.begun) >= WINDOW && kind.suppressed.is_none() {
            *kind = new();
        }
        kind.count = kind.count.saturating_add(1);
        if kind.count <= LINES_MAX {
            return true;
        }
        let message = || record.args().to_string().chars().take(200).collect();
        let (level, count) = (record.level(), 0);
        kind.suppressed
            .get_or_insert_with(|| SuppressedLines { level, count, message: message() })
            .count += 1;
        false
    }

    /// Returns the earliest time at which the number of suppressed lines of a kind is due.
    pub(super) fn next_due(&self) -> Option<Time> {
        let full = self.0.values().filter(|kind| kind.suppressed.is_some());
        full.map(|kind| kind.begun + WINDOW).min()
    }

    /// Returns the suppressed lines whose second is over; of all kinds, if the log ends.
    pub(super) fn take_due(&mut self, now: Time, is_end: bool) -> Vec<SuppressedLines> {
        let over = self.0.values_mut().filter(|kind| is_end || now.since(kind.begun) >= WINDOW);
        let due = over.filter_map(|kind| {
            let suppressed = kind.suppressed.take()?;
            (kind.begun, kind.count) = (now, 0);
            Some(suppressed)
        });
        due.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admit(limits: &mut LineLimits, line: u32, now: Time) -> bool {
        let mut record = Record::builder();
        record.file_static(Some("a.rs")).line(Some(line)).level(Level::Info);
        limits.admit(&record.args(format_args!("request refused")).build(), now)
    }

    /// A client that is refused 10,000 times a second has 100 lines a second, and no refusal is
    /// missing in the sum.
    #[test]
    fn flood_of_one_kind_has_100_lines_a_second_and_an_exact_count() {
        let (mut limits, mut written, mut suppressed) = (LineLimits::default(), 0, 0);
        for n in 0..100_000_u64 {
            let now = Time::ZERO + Span::from_millis(n / 10);
            for due in limits.take_due(now, false) {
                assert_eq!((due.level, &*due.message), (Level::Info, "request refused"));
                suppressed += due.count;
            }
            written += u64::from(admit(&mut limits, 1, now));
            // Another kind is not concerned.
            if n % 1_000 == 0 {
                assert!(admit(&mut limits, 2, now));
            }
        }
        let rest = limits.take_due(Time::ZERO + Span::from_secs(10), true);
        suppressed += rest.iter().map(|due| due.count).sum::<u64>();
        assert_eq!(written, 10 * u64::from(LINES_MAX));
        assert_eq!(written + suppressed, 100_000);
        assert_eq!(limits.next_due(), None);
        assert_eq!(limits.0.len(), 2);
    }

    #[test]
    fn slow_lines_are_never_suppressed() {
        let mut limits = LineLimits::default();
        for n in 0..1_000 {
            assert!(admit(&mut limits, 1, Time::ZERO + Span::from_millis(20 * n)));
        }
        assert_eq!(limits.next_due(), None);
    }
}
