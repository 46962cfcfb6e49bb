//! Maps the event numbers of the server to local ones: the server's numbers begin anew when it
//! restarts, and those of the local event log must not.

use std::collections::VecDeque;

/// Runs of events that are remembered: a view that is older than the last thousand is not kept.
const RUNS_MAX: usize = 1_024;

/// The events that have come from the server, and their local numbers.
#[derive(Debug, Default)]
pub(super) struct SequenceMapping {
    /// The start of the server that numbered them; 0 while the stream is interrupted.
    start: u64,
    /// The first number of each run there, and here.
    runs: VecDeque<(u64, u64)>,
    /// The server's number of the event that is to come next.
    next: u64,
    /// That event's number here.
    next_here: u64,
}

impl SequenceMapping {
    /// The stream goes on, or begins, at the event `next` of this start of the server.
    pub(super) fn begin(&mut self, start: u64, next: u64, next_here: u64) {
        *self = Self { start, runs: VecDeque::new(), next, next_here };
    }

    /// The stream is interrupted: no events come.
    pub(super) fn cut(&mut self) {
        self.start = 0;
    }

    /// Events up to `next` have come, as those from `first_here` to `next_here`.
    pub(super) fn came(&mut self, next: u64, first_here: u64, next_here: u64) {
        self.runs.push_back((self.next, first_here));
        if self.runs.len() > RUNS_MAX {
            self.runs.pop_front();
        }
        (self.next, self.next_here) = (next, next_here);
    }

    /// A number here such that all events before the server's `number` have smaller ones.
    pub(super) fn here(&self, start: u64, number: u64) -> Option<u64> {
        if start != self.start || self.start == 0 {
            return None;
        }
        if number >= self.next {
            return Some(self.next_here);
        }
        // Within a run the first is as good as any: what is older than that is not kept.
        let after = self.runs.partition_point(|(first, _)| *first <= number);
        after.checked_sub(1).map(|run| self.runs[run].1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_there_has_one_here() {
        let mut numbers = SequenceMapping::default();
        assert_eq!(numbers.here(0, 0), None, "nothing is followed yet");
        numbers.begin(5, 100, 7);
        assert_eq!(numbers.here(5, 100), Some(7));
        assert_eq!(numbers.here(6, 100), None, "of another start");
        numbers.came(103, 7, 10);
        numbers.came(104, 12, 13);
        assert_eq!(numbers.here(5, 99), None, "before all that is remembered");
        assert_eq!(numbers.here(5, 102), Some(7));
        assert_eq!(numbers.here(5, 103), Some(12));
        assert_eq!(numbers.here(5, 110), Some(13), "the stream is behind the view");
        numbers.cut();
        assert_eq!(numbers.here(5, 110), None);
    }
}
