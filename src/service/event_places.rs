//! The places of events in a replicated log. All nodes carry out the same entries, so a reader of
//! the events of one node can go on at another.

use super::event_log::FEED_EVENTS_MAX;
use parking_lot::Mutex;
use std::collections::VecDeque;

/// The place of an event in the replicated log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct EventPlace {
    /// The index of the entry that has caused the event.
    pub entry: u64,
    /// The number of the event among those of its entry, from 0 on.
    pub number: u64,
}

/// The number that the first event after a place has at a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventStart {
    /// This number.
    At(u64),
    /// The node has not applied the entry yet.
    NotYet,
    /// The node has no record of the place, and cannot say how many events have followed it.
    Forgotten,
}

/// For how many times as many events as are kept their places are known: a reader that is further
/// behind than the events is told how many it has lost.
const PLACES_PER_EVENT: u64 = 8;

/// The places of the last events of a node.
#[derive(Debug, Default)]
pub(crate) struct EventPlaces(Mutex<VecDeque<EntryEvents>>);

/// The events of one entry.
#[derive(Debug, Clone, Copy)]
struct EntryEvents {
    entry: u64,
    /// The number of the first event at this node.
    first: u64,
    count: u64,
}

impl EventPlaces {
    /// Records that the events of an entry have `count` numbers from `first` on.
    pub(crate) fn add(&self, entry: u64, first: u64, count: usize) {
        let mut entries = self.0.lock();
        entries.push_back(EntryEvents { entry, first, count: count as u64 });
        let end = first + count as u64;
        let kept = FEED_EVENTS_MAX as u64 * PLACES_PER_EVENT;
        let is_gone = |known: &EntryEvents| known.first + known.count + kept < end;
        while entries.front().is_some_and(is_gone) {
            entries.pop_front();
        }
    }

    /// Forgets all places, since this node has missed events.
    pub(crate) fn clear(&self) {
        self.0.lock().clear();
    }

    /// Returns the place of the event with this number, if it is known.
    pub(crate) fn place_of(&self, number: u64) -> Option<EventPlace> {
        let entries = self.0.lock();
        let after = entries.partition_point(|known| known.first <= number);
        let known = entries.get(after.checked_sub(1)?)?;
        let place = EventPlace { entry: known.entry, number: number - known.first };
        (place.number < known.count).then_some(place)
    }

    /// Returns the number of the first event after `place`, at a node that has applied the entries
    /// up to `applied`.
    pub(crate) fn after(&self, place: EventPlace, applied: u64) -> EventStart {
        let entries = self.0.lock();
        let at = entries.partition_point(|known| known.entry < place.entry);
        match entries.get(at) {
            Some(known) if known.entry == place.entry => {
                EventStart::At(known.first + known.count.min(place.number.saturating_add(1)))
            }
            _ if place.entry > applied => EventStart::NotYet,
            _ => EventStart::Forgotten,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(entry: u64, number: u64) -> EventPlace {
        EventPlace { entry, number }
    }

    #[test]
    fn a_place_is_found_again_at_a_node_with_other_numbers() {
        let places = EventPlaces::default();
        places.add(5, 100, 2);
        places.add(9, 102, 1);
        let found: Vec<_> = (99..104).map(|number| places.place_of(number)).collect();
        assert_eq!(found, [None, Some(place(5, 0)), Some(place(5, 1)), Some(place(9, 0)), None]);
        assert_eq!(places.after(place(5, 0), 9), EventStart::At(101));
        assert_eq!(places.after(place(5, 1), 9), EventStart::At(102));
        assert_eq!(places.after(place(9, 0), 9), EventStart::At(103));
        assert_eq!(places.after(place(9, u64::MAX), 9), EventStart::At(103));
        assert_eq!(places.after(place(10, 0), 9), EventStart::NotYet);
        assert_eq!(places.after(place(4, 0), 9), EventStart::Forgotten);
        assert_eq!(places.after(place(7, 0), 9), EventStart::Forgotten, "it caused no event here");
        places.clear();
        assert_eq!(places.after(place(9, 0), 9), EventStart::Forgotten);
    }

    #[test]
    fn places_are_kept_for_longer_than_events_and_have_a_bound() {
        let places = EventPlaces::default();
        let kept = FEED_EVENTS_MAX as u64 * PLACES_PER_EVENT;
        for number in 0..2 * kept {
            places.add(number, number, 1);
        }
        assert!(places.0.lock().len() as u64 <= kept + 1);
        assert_eq!(places.place_of(kept), Some(place(kept, 0)));
        assert_eq!(places.place_of(kept - 2), None);
    }
}
