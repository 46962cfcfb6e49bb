//! Limits how many lines of each kind the log has in a second, and counts the others. The place in
//! the source that logs a record is its kind, so there are as many kinds as places. At most half of
//! the lines of a kind name the same client, or none, so that a flood of one client leaves room for
//! the others.

use crate::time::{Span, Time};
use log::kv::{Key, Value};
use log::{Level, Record};
use std::collections::HashMap;

/// Maximum number of lines of one kind in a second.
const LINES_MAX: u32 = 100;

/// Maximum number of lines of one kind in a second that name the same client, or none.
const CLIENT_LINES_MAX: u32 = LINES_MAX / 2;

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
    /// The number of lines that name each client, and under an empty name those without one. There
    /// are at most [`LINES_MAX`] names, since only a line that is written adds one.
    by_client: HashMap<String, u32>,
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

impl KindCount {
    fn new(begun: Time) -> Self {
        Self { begun, count: 0, by_client: HashMap::new(), suppressed: None }
    }

    /// Whether one more line about a client is within the limits. If so, it is counted.
    fn has_room_for(&mut self, client: &str) -> bool {
        let of_client = self.by_client.get(client).copied().unwrap_or_default();
        if self.count >= LINES_MAX || of_client >= CLIENT_LINES_MAX {
            return false;
        }
        self.count += 1;
        self.by_client.insert(client.to_owned(), of_client + 1);
        true
    }
}

impl LineLimits {
    /// Whether a record has a line; otherwise it is counted.
    pub(super) fn admit(&mut self, record: &Record<'_>, now: Time) -> bool {
        let place = (record.file_static().unwrap_or_default(), record.line().unwrap_or_default());
        let kind = self.0.entry(place).or_insert_with(|| KindCount::new(now));
        if now.since(kind.begun) >= WINDOW && kind.suppressed.is_none() {
            *kind = KindCount::new(now);
        }
        let client = record.key_values().get(Key::from("client"));
        let client = client.as_ref().and_then(Value::to_borrowed_str).unwrap_or_default();
        if kind.has_room_for(client) {
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
            *kind = KindCount::new(now);
            Some(suppressed)
        });
        due.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use log::kv::ToValue as _;

    fn admit_of(limits: &mut LineLimits, client: Option<&str>, line: u32, now: Time) -> bool {
        let fields: &[(&str, Value<'_>)] = &[("lock", "x".into()), ("client", client.to_value())];
        let mut record = Record::builder();
        record.file_static(Some("a.rs")).line(Some(line)).level(Level::Info).key_values(&fields);
        limits.admit(&record.args(format_args!("request refused")).build(), now)
    }

    fn admit(limits: &mut LineLimits, line: u32, now: Time) -> bool {
        admit_of(limits, None, line, now)
    }

    /// A client that floods the log has half of the lines; the others have the rest, and those that
    /// come in time are all there.
    #[test]
    fn flood_of_one_client_leaves_half_of_the_lines_to_others() {
        let (mut limits, now) = (LineLimits::default(), Time::ZERO);
        let flood = (0..10_000).filter(|_| admit_of(&mut limits, Some("loud"), 1, now)).count();
        let quiet = |n: u32| format!("quiet{n}");
        let others = (0..1_000).filter(|n| admit_of(&mut limits, Some(&quiet(*n)), 1, now)).count();
        assert_eq!((flood, others), (50, 50));
        assert_eq!(
            limits.0[&("a.rs", 1)].by_client.len(),
            51,
            "names beyond the limit take no memory"
        );
        let due = limits.take_due(now + WINDOW, false);
        assert_eq!(due.iter().map(|due| due.count).sum::<u64>(), 11_000 - 100);
    }

    /// A client that is refused 10,000 times a second has 50 lines a second, and no refusal is
    /// missing in the sum.
    #[test]
    fn flood_of_one_kind_has_few_lines_a_second_and_an_exact_count() {
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
        assert_eq!(written, 10 * u64::from(CLIENT_LINES_MAX));
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
