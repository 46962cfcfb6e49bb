//! The event log: a bounded ring of recent events, whose readers never block the publisher.
//!
//! The places of events in a replicated log. All nodes carry out the same entries, so a reader of
//! the events of one node can go on at another.

use crate::engine::Event;
use parking_lot::Mutex;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;

/// The maximum number of events kept for readers. A reader further behind learns how many it lost.
/// At 100,000 events a second, more than the kernel of one machine can cause, the ring covers 80
/// ms.
pub const FEED_EVENTS_MAX: usize = 8_192;

/// A reader's callback for new events. It must not block: it runs on the thread that decided a
/// command.
pub type Waker = Arc<dyn Fn() + Send + Sync>;

/// The ring of events, shared by the publisher and all readers.
#[derive(Default)]
pub struct EventLog(Mutex<EventRing>);

#[derive(Default)]
struct EventRing {
    events: VecDeque<Event>,
    /// The number of the next event.
    next: u64,
    /// The number of times that the source of the events was interrupted, and the number of the
    /// next event at the last of them.
    interruptions: u64,
    interrupted_at: u64,
    /// The number that stands for the last gap of an unknown number of events, if there was one.
    uncounted: Option<u64>,
    wakers: Wakers,
    watches: u64,
}

/// The wakers of all readers, to be called once no mutex is held. A change replaces the whole list,
/// so that publishing an event only clones one pointer, or none if there are no readers.
#[derive(Clone, Default)]
#[must_use = "a follower must be woken"]
pub struct Wakers(Option<Arc<Vec<(u64, Waker)>>>);

thread_local! {
    /// The wake-ups that became due while this thread was calling wakers, or `None` if this thread
    /// calls no waker.
    static DUE: RefCell<Option<VecDeque<Wakers>>> = const { RefCell::new(None) };
}

impl Wakers {
    /// Calls all wakers. A waker may read a lock, and the read may apply a deadline and make
    /// another wake-up due. The outermost `wake` on a thread performs all of these wake-ups one
    /// after the other, so that the depth of the stack does not depend on the number of deadlines.
    pub fn wake(self) {
        if self.0.is_none() {
            return;
        }
        let Some(_calling) = Calling::begin(&self) else { return };
        let mut next = Some(self);
        while let Some(wakers) = next {
            wakers.0.iter().flat_map(|wakers| wakers.iter()).for_each(|(_, waker)| waker());
            next = DUE.with_borrow_mut(|due| due.as_mut().and_then(VecDeque::pop_front));
        }
    }

    fn is_same(&self, other: &Self) -> bool {
        matches!((&self.0, &other.0), (Some(a), Some(b)) if Arc::ptr_eq(a, b))
    }

    fn without(&self, id: u64) -> Vec<(u64, Waker)> {
        let all = self.0.iter().flat_map(|wakers| wakers.iter());
        all.filter(|(other, _)| *other != id).cloned().collect()
    }
}

/// A value that marks this thread as calling wakers, until it is dropped.
struct Calling;

impl Calling {
    /// Starts calling wakers on this thread. Returns `None` if a call further up the stack is
    /// already calling wakers: that call will also call `wakers`.
    fn begin(wakers: &Wakers) -> Option<Self> {
        DUE.with_borrow_mut(|due| match due {
            None => {
                *due = Some(VecDeque::new());
                Some(Self)
            }
            Some(due) => {
                // A waker takes all new events in one call, so a second wake-up by the same wakers
                // in a row is not needed.
                if !due.back().is_some_and(|last| last.is_same(wakers)) {
                    due.push_back(wakers.clone());
                }
                None
            }
        })
    }
}

impl Drop for Calling {
    fn drop(&mut self) {
        DUE.take();
    }
}

impl From<Vec<(u64, Waker)>> for Wakers {
    fn from(wakers: Vec<(u64, Waker)>) -> Self {
        Self((!wakers.is_empty()).then(|| Arc::new(wakers)))
    }
}

/// One reader's position in the event log.
pub struct EventWatch {
    feed: Arc<EventLog>,
    id: u64,
    next: u64,
    /// The interruptions that this reader has been told of.
    interruptions: u64,
}

/// The events that a reader has not seen yet.
#[derive(Debug, Default)]
pub struct EventBatch {
    /// The number of events that were dropped before this reader could read them.
    pub lost: u64,
    /// Whether an unknown number of events is among the lost ones, which counts as 1 there.
    pub is_uncounted: bool,
    /// The number from which the events certainly arrive at once again, if their source was
    /// interrupted since the last call. Events that happened meanwhile arrive late, or are lost.
    pub interrupted_at: Option<u64>,
    /// The events with their numbers, in order.
    pub events: Vec<(u64, Event)>,
}

impl EventBatch {
    /// Whether something may have changed of which this reader has not been told in time, so that
    /// it must look for itself.
    pub const fn has_gap(&self) -> bool {
        self.lost > 0 || self.interrupted_at.is_some()
    }

    /// Returns how many events are missing before those of this batch, if any are: 0 stands for an
    /// unknown number.
    pub fn missing(&self) -> Option<u64> {
        (self.lost > 0).then_some(if self.is_uncounted { 0 } else { self.lost })
    }
}

/// How a call of [`EventWatch::visit`] went: what the reader has missed, and whether to call again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Visit {
    /// Whether this reader has missed events, or may have been told of them late.
    pub has_gap: bool,
    /// Whether more events are available.
    pub more: bool,
}

impl EventLog {
    /// Adds `events` in order and leaves the vector empty. Returns the wakers: call them with no
    /// mutex held.
    pub fn publish(&self, events: &mut Vec<Event>) -> Wakers {
        let mut ring = self.0.lock();
        ring.next += events.len() as u64;
        // A reset can cause more events than the ring has room for.
        let skipped = events.len().saturating_sub(FEED_EVENTS_MAX);
        let before = (ring.events.len() + events.len() - skipped).saturating_sub(FEED_EVENTS_MAX);
        ring.events.drain(..before);
        ring.events.extend(events.drain(..).skip(skipped));
        events.shrink_to(FEED_EVENTS_MAX);
        ring.wakers.clone()
    }

    /// Returns the number of the next event.
    pub fn next(&self) -> u64 {
        self.0.lock().next
    }

    /// Skips `count` event numbers, for events that happened without being added to this log, and
    /// drops the older events. Returns the wakers.
    pub fn skip(&self, count: u64) -> Wakers {
        let mut ring = self.0.lock();
        ring.events.clear();
        ring.next += count;
        ring.wakers.clone()
    }

    /// Skips a number that stands for an unknown number of events, and drops the older events.
    /// Returns the wakers.
    pub fn skip_unknown(&self) -> Wakers {
        let mut ring = self.0.lock();
        ring.uncounted = Some(ring.next);
        ring.events.clear();
        ring.next += 1;
        ring.wakers.clone()
    }

    /// Tells each reader that the source of the events is interrupted. Returns the wakers.
    pub fn interrupt(&self) -> Wakers {
        let mut ring = self.0.lock();
        ring.interruptions += 1;
        ring.interrupted_at = ring.next;
        ring.wakers.clone()
    }

    /// Returns the wakers of all readers, for a change that adds no event but that readers must
    /// notice.
    pub fn wakers(&self) -> Wakers {
        self.0.lock().wakers.clone()
    }

    /// Returns a reader that starts at event `since`, or at the next event.
    pub fn watch(self: &Arc<Self>, since: Option<u64>) -> EventWatch {
        let mut ring = self.0.lock();
        ring.watches += 1;
        let next = since.map_or(ring.next, |since| since.min(ring.next));
        // A reader that starts at an event from before the last interruption is told of it.
        let is_before = ring.interruptions > 0 && next <= ring.interrupted_at && since.is_some();
        let interruptions = ring.interruptions - u64::from(is_before);
        EventWatch { feed: Arc::clone(self), id: ring.watches, next, interruptions }
    }
}

impl EventWatch {
    /// Returns the events since the last call, at most `max`.
    pub fn take(&mut self, max: usize) -> EventBatch {
        let ring = self.feed.0.lock();
        let (lost, start, skip) = self.place_in(&ring);
        let events = ring.events.iter().skip(skip).take(max);
        let events: Vec<_> = (start..).zip(events.cloned()).collect();
        let is_uncounted = ring.uncounted.is_some_and(|gap| (self.next..start).contains(&gap));
        let is_interrupted = self.interruptions != ring.interruptions;
        let interrupted_at = is_interrupted.then_some(ring.interrupted_at);
        self.interruptions = ring.interruptions;
        self.next = start + events.len() as u64;
        EventBatch { lost, is_uncounted, interrupted_at, events }
    }

    /// Continues at the event with this number.
    pub fn seek(&mut self, next: u64) {
        self.next = next;
    }

    /// Calls `each` for each event since the last call, at most `max`, and returns whether there is
    /// a gap before those. Copies nothing, which suits a reader that keeps few of the events. The
    /// log is locked meanwhile, so `each` must be fast and must not call the log.
    pub fn visit(&mut self, max: usize, mut each: impl FnMut(u64, &Event)) -> Visit {
        let ring = self.feed.0.lock();
        let (lost, start, skip) = self.place_in(&ring);
        let mut next = start;
        for event in ring.events.iter().skip(skip).take(max) {
            each(next, event);
            next += 1;
        }
        self.next = next;
        let has_gap = lost > 0 || self.interruptions != ring.interruptions;
        self.interruptions = ring.interruptions;
        Visit { has_gap, more: next < ring.next }
    }

    /// Returns how many events were dropped before this reader could read them, and the number and
    /// ring index of the next one.
    fn place_in(&self, ring: &EventRing) -> (u64, u64, usize) {
        let oldest = ring.next - ring.events.len() as u64;
        let start = self.next.max(oldest);
        (oldest.saturating_sub(self.next), start, (start - oldest) as usize)
    }

    /// Returns the number of the next event that this reader has not read.
    pub const fn next(&self) -> u64 {
        self.next
    }

    /// Whether there are new events since the last call of [`take`](Self::take).
    pub fn has_more(&self) -> bool {
        self.next < self.feed.0.lock().next
    }

    /// Calls `waker` whenever there are new events, until this watch is dropped.
    pub fn wake_by(&mut self, waker: Waker) {
        let mut ring = self.feed.0.lock();
        let mut wakers = ring.wakers.without(self.id);
        wakers.push((self.id, waker));
        ring.wakers = wakers.into();
    }
}

impl Drop for EventWatch {
    fn drop(&mut self) {
        let mut ring = self.feed.0.lock();
        ring.wakers = ring.wakers.without(self.id).into();
    }
}

/// The place of an event in the replicated log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct EventPlace {
    /// The index of the entry that has caused the event.
    pub entry: u64,
    /// The number of the event among those of its entry, from 0 on.
    pub number: u64,
}

impl EventPlace {
    /// Returns the id of the event at this place of a cluster, which each node gives it.
    pub fn id_in(self, cluster: u64) -> String {
        format!("{cluster:x}.{}.{}", self.entry, self.number)
    }

    /// Returns the place in an id that [`id_in`](Self::id_in) returned for an event of this
    /// cluster.
    pub fn parse(id: &str, cluster: u64) -> Option<Self> {
        let mut parts = id.split('.');
        let (of, entry, number) = (parts.next()?, parts.next()?, parts.next()?);
        let is_ours = u64::from_str_radix(of, 16) == Ok(cluster) && parts.next().is_none();
        let place = Self { entry: entry.parse().ok()?, number: number.parse().ok()? };
        is_ours.then_some(place)
    }
}

/// The number that the first event after a place has at a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventStart {
    /// The first event has this number.
    At(u64),
    /// The node has not applied the entry of the place yet.
    NotYet,
    /// The node has no record of the place, and cannot say how many events have followed it.
    Forgotten,
}

/// For how many times as many events as are kept their places are known: a reader that is further
/// behind than the events learns how many it has lost.
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
    use crate::engine::{ClientId, EventKind, SessionId};
    use crate::time::Time;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn event(n: u64) -> Event {
        let client = ClientId::parse("c").expect("valid");
        let what = EventKind::SessionOpened { session: SessionId::named(n), client };
        Event { at: Time::from_secs(n), what }
    }

    #[test]
    fn a_reader_sees_the_events_after_its_start() {
        let feed = Arc::new(EventLog::default());
        feed.publish(&mut vec![event(0)]).wake();
        let mut watch = feed.watch(None);
        let mut early = feed.watch(Some(0));
        feed.publish(&mut vec![event(1), event(2)]).wake();
        let numbers = |batch: EventBatch| batch.events.iter().map(|(n, _)| *n).collect::<Vec<_>>();
        assert!(watch.has_more());
        assert_eq!(numbers(watch.take(10)), [1, 2]);
        assert!(!watch.has_more());
        assert_eq!(numbers(watch.take(10)), [0; 0]);
        assert_eq!(numbers(early.take(2)), [0, 1]);
        assert_eq!(numbers(early.take(2)), [2]);
        let (mut visitor, mut visited) = (feed.watch(Some(0)), Vec::new());
        assert!(visitor.visit(2, |n, _| visited.push(n)).more);
        assert!(!visitor.visit(2, |n, _| visited.push(n)).more);
        assert_eq!(visited, [0, 1, 2]);
    }

    #[test]
    fn a_reader_learns_that_an_unknown_number_is_missing() {
        let feed = Arc::new(EventLog::default());
        let mut watch = feed.watch(None);
        feed.publish(&mut vec![event(1)]).wake();
        drop(feed.skip_unknown());
        feed.publish(&mut vec![event(2)]).wake();
        let batch = watch.take(9);
        assert_eq!((batch.missing(), batch.events.len(), batch.has_gap()), (Some(0), 1, true));
        drop(feed.skip(3));
        assert_eq!(watch.take(9).missing(), Some(3));
        assert!(watch.take(9).missing().is_none());
    }

    #[test]
    fn an_interruption_is_a_gap_and_loses_nothing() {
        let feed = Arc::new(EventLog::default());
        let (mut watch, mut visitor) = (feed.watch(None), feed.watch(None));
        feed.publish(&mut vec![event(1)]).wake();
        drop(feed.interrupt());
        feed.publish(&mut vec![event(2)]).wake();
        let batch = watch.take(9);
        assert_eq!((batch.missing(), batch.events.len()), (None, 2));
        assert_eq!((batch.has_gap(), batch.interrupted_at), (true, Some(1)));
        assert!(!watch.take(9).has_gap());
        let visit = visitor.visit(9, |_, _| {});
        assert_eq!((visit.has_gap, visitor.visit(9, |_, _| {}).has_gap), (true, false));
        // A reader that begins before the interruption is notified of it, and one that begins later
        // is not.
        assert!(feed.watch(Some(1)).take(9).has_gap() && !feed.watch(Some(2)).take(9).has_gap());
        assert!(!feed.watch(None).take(9).has_gap());
    }

    #[test]
    fn a_slow_reader_learns_how_many_events_it_lost() {
        let feed = Arc::new(EventLog::default());
        let mut watch = feed.watch(None);
        let count = FEED_EVENTS_MAX as u64 + 5;
        feed.publish(&mut (0..count).map(event).collect()).wake();
        let batch = watch.take(usize::MAX);
        assert_eq!((batch.lost, batch.events.len(), batch.events[0].0), (5, FEED_EVENTS_MAX, 5));
        assert_eq!(watch.take(1).lost, 0);
        let mut visited = 0;
        let visit = feed.watch(Some(0)).visit(usize::MAX, |_, _| visited += 1);
        assert_eq!((visit.has_gap, visited), (true, FEED_EVENTS_MAX));
    }

    #[test]
    fn a_waker_lives_as_long_as_its_watch() {
        let feed = Arc::new(EventLog::default());
        let calls = Arc::new(AtomicUsize::new(0));
        let mut watch = feed.watch(None);
        let counter = Arc::clone(&calls);
        watch.wake_by(Arc::new(move || {
            counter.fetch_add(1, Ordering::Relaxed);
        }));
        let wake_all = |feed: &EventLog| {
            feed.publish(&mut vec![event(1)]).wake();
        };
        wake_all(&feed);
        drop(watch);
        wake_all(&feed);
        assert_eq!(calls.load(Ordering::Relaxed), 1);
    }
}

#[cfg(test)]
mod event_places_tests {
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
