//! Maps the event numbers of the server to local ones: the server's numbers restart with it, and
//! those of the local event log must not.

use std::collections::VecDeque;

/// The maximum number of runs that are remembered; a run is a sequence of events that arrived
/// together. A lock's state that is older than the oldest run is not cached.
const RUNS_MAX: usize = 1_024;

/// Maps the numbers of the events received from the server to their numbers in the local event log.
#[derive(Debug, Default)]
pub(super) struct SequenceMapping {
    /// The id of the server's start that numbered the events; 0 while the stream is interrupted.
    start: u64,
    /// For each run of events that arrived together, the number of its first event at the server
    /// and in the local event log.
    runs: VecDeque<(u64, u64)>,
    /// The server's number of the next event to arrive.
    next: u64,
    /// The local number of the next event to arrive.
    next_here: u64,
}

impl SequenceMapping {
    /// Records that the event stream of the server with the start id `start` begins or continues at
    /// its event `next`, which gets the local number `next_here`.
    pub(super) fn begin(&mut self, start: u64, next: u64, next_here: u64) {
        *self = Self { start, runs: VecDeque::new(), next, next_here };
    }

    /// Records that the event stream is interrupted.
    pub(super) fn cut(&mut self) {
        self.start = 0;
    }

    /// Records that the next run of events (events that arrived together), up to the server's event
    /// number `next`, was published in the local event log under the numbers from `first_here` to
    /// `next_here`.
    pub(super) fn came(&mut self, next: u64, first_here: u64, next_here: u64) {
        self.runs.push_back((self.next, first_here));
        if self.runs.len() > RUNS_MAX {
            self.runs.pop_front();
        }
        (self.next, self.next_here) = (next, next_here);
    }

    /// Returns a local number such that every event before it also comes before the server's event
    /// `number`. `None` if the mapping does not know that event number.
    pub(super) fn here(&self, start: u64, number: u64) -> Option<u64> {
        if start != self.start || self.start == 0 {
            return None;
        }
        if number >= self.next {
            return Some(self.next_here);
        }
        // Returning the number of the first event that arrived in the same run is safe: a number
        // that is too small only prevents the caching of a state that could have been cached.
        let after = self.runs.partition_point(|(first, _)| *first <= number);
        after.checked_sub(1).map(|run| self.runs[run].1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_numbers_map_to_local_ones() {
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

    #[test]
    fn the_oldest_run_is_forgotten() {
        let mut numbers = SequenceMapping::default();
        numbers.begin(5, 0, 0);
        for run in 0..=RUNS_MAX as u64 {
            numbers.came(run + 1, run, run + 1);
        }
        assert_eq!(numbers.runs.len(), RUNS_MAX);
        assert_eq!((numbers.here(5, 0), numbers.here(5, 1)), (None, Some(1)));
    }
}
