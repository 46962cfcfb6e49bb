//! The events of a guard without a view, and the threads that wait for them.

use super::super::event_queue::{EventPosition, EventQueue};
use super::super::tenure_events::TenureEvent;
use super::connection::Presence;
use parking_lot::{Condvar, Mutex};

/// The maximum number of bytes of an event that are written at a time.
const PIECE_BYTES: usize = 1 << 16;

/// The events.
#[derive(Default)]
pub(super) struct EventBoard {
    queue: Mutex<EventQueue>,
    news: Condvar,
}

impl EventBoard {
    /// Adds an event, and wakes the threads that wait.
    pub(super) fn publish(&self, event: &TenureEvent) {
        self.queue.lock().publish(event);
        self.news.notify_all();
    }

    /// Wakes the threads that wait, for example because a client is gone.
    pub(super) fn wake(&self) {
        // Under the lock, so that no thread is between its look and its wait.
        let _queue = self.queue.lock();
        self.news.notify_all();
    }

    /// Returns the position of a reader who gets the events from now on.
    pub(super) fn reader(&self) -> EventPosition {
        self.queue.lock().reader()
    }

    /// Waits for the next event of a reader. Returns `None` if its client is gone.
    pub(super) fn next(
        &self,
        position: &mut EventPosition,
        may_see_names: bool,
        presence: &Presence,
    ) -> Option<Vec<u8>> {
        let mut queue = self.queue.lock();
        loop {
            if presence.is_gone() {
                return None;
            }
            if let Some(line) = queue.next(position, (may_see_names, PIECE_BYTES)) {
                return Some(line);
            }
            self.news.wait(&mut queue);
        }
    }
}
