//! The last events of a guard, for readers that follow them.

use super::tenure_events::TenureEvent;
use serde_json::{Value, json};
use std::collections::VecDeque;

/// The maximum number of events that a reader may be behind.
const EVENTS_MAX: usize = 1_024;

/// The position of a reader of the events.
#[derive(Debug, Default)]
pub(crate) struct EventPosition {
    /// The number of the next event.
    next: u64,
    /// The rest of an event that did not fit the last read.
    rest: Vec<u8>,
}

/// An event as a line of JSON.
struct EventLine {
    /// The line for users who may know the names of all files.
    full: Vec<u8>,
    /// The line for other users.
    public: Vec<u8>,
}

/// The last events.
#[derive(Default)]
pub(crate) struct EventQueue {
    lines: VecDeque<EventLine>,
    /// The number of the first event in `lines`.
    first: u64,
}

/// Returns the line for a reader that was too slow for `count` events.
fn missed(count: u64) -> Value {
    json!({ "event": "missed", "count": count })
}

impl EventQueue {
    /// Returns the position of a new reader, who gets the events from now on.
    pub(crate) fn reader(&self) -> EventPosition {
        EventPosition { next: self.first + self.lines.len() as u64, rest: Vec::new() }
    }

    /// Adds an event.
    pub(crate) fn publish(&mut self, event: &TenureEvent) {
        let line = |event: &Value| format!("{event}\n").into_bytes();
        self.lines.push_back(EventLine { full: line(&event.full), public: line(&event.public) });
        if self.lines.len() > EVENTS_MAX {
            self.lines.pop_front();
            self.first += 1;
        }
    }

    /// Returns at most `size` bytes of the next event of a reader, if there is one. If events were
    /// dropped before the reader took them, it gets their number first.
    pub(crate) fn next(
        &self,
        position: &mut EventPosition,
        (may_see_names, size): (bool, usize),
    ) -> Option<Vec<u8>> {
        if position.rest.is_empty() {
            if position.next < self.first {
                let dropped = self.first - std::mem::replace(&mut position.next, self.first);
                position.rest = format!("{}\n", missed(dropped)).into_bytes();
            } else {
                let at = usize::try_from(position.next - self.first).ok()?;
                let line = self.lines.get(at)?;
                position.rest = if may_see_names { line.full.clone() } else { line.public.clone() };
                position.next += 1;
            }
        }
        let length = size.min(position.rest.len());
        let rest = position.rest.split_off(length);
        Some(std::mem::replace(&mut position.rest, rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn publish(queue: &mut EventQueue, event: &Value) {
        queue.publish(&TenureEvent::new(event.clone()));
    }

    #[test]
    fn a_slow_reader_of_events_is_told_the_number_of_missed_ones() {
        let mut queue = EventQueue::default();
        publish(&mut queue, &json!("before the open"));
        let mut slow = queue.reader();
        assert_eq!(queue.next(&mut slow, (true, 4_096)), None);
        (0..=EVENTS_MAX + 1).for_each(|number| publish(&mut queue, &json!(number)));
        let mut next = || {
            let line = queue.next(&mut slow, (true, 4_096));
            line.map(|line| String::from_utf8(line).expect("text"))
        };
        assert_eq!(next(), Some("{\"event\":\"missed\",\"count\":2}\n".to_owned()));
        for number in 2..=EVENTS_MAX + 1 {
            assert_eq!(next(), Some(format!("{number}\n")));
        }
        assert_eq!(next(), None);
    }

    #[test]
    fn an_event_is_read_in_parts_and_names_no_files_to_other_users() {
        let mut queue = EventQueue::default();
        let mut reader = queue.reader();
        let event = json!({"event": "lost", "more": 1, "put_aside": [{"path": "p"}],
            "not_kept": ["q"]});
        publish(&mut queue, &event);
        publish(&mut queue, &json!({"event": "foreign", "path": "p"}));
        publish(&mut queue, &event);
        let mut read = |trust| {
            let mut line = Vec::new();
            while !line.ends_with(b"\n") {
                line.extend(queue.next(&mut reader, (trust, 3)).expect("an event"));
            }
            String::from_utf8(line).expect("text")
        };
        assert_eq!(read(false), "{\"event\":\"lost\",\"put_aside\":3}\n");
        assert_eq!(read(false), "{\"event\":\"foreign\"}\n");
        assert_eq!(read(true), format!("{event}\n"));
    }
}
