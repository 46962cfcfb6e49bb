//! `.latchfs/events`: a stream of lock events, each a line of JSON, as they happen.
//!
//! An open file is a position in the event log. A read waits until there are events, and continues
//! where the last read ended, whatever its offset. A slow reader does not delay other readers or
//! the lock service: if events were dropped from the log before it read them, it gets their number.

use crate::event_json::{event_of, lost};
use crate::fuse::kernel::file_system::Done;
use crate::fuse::kernel::interrupts::{InterruptWatcher, InterruptibleWait, WaitStatus};
use crate::fuse::kernel::pending::Pending;
use crate::fuse::kernel::poll_waker::PollWaker;
use crate::fuse::kernel::values::{Errno, PollEvents, ReadBytes};
use crate::fuse::open_files::held_read::HeldRead;
use crate::service::Locks;
use crate::service::event_log::EventWatch;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Weak};

/// The maximum number of bytes that one read of the stream returns: some 300 events.
const READ_BYTES_MAX: usize = 64 << 10;
/// The number of events taken from the event log at once. Lines that do not fit the read are kept
/// for the next one.
const EVENTS_MAX: usize = 64;

/// The poll events that are reported while the event stream has unread events.
const READABLE: PollEvents = PollEvents::POLLIN.union(PollEvents::POLLRDNORM);

/// The position of a reader in the event log.
pub(crate) struct EventStream {
    locks: Locks,
    state: Mutex<StreamState>,
}

struct StreamState {
    watch: EventWatch,
    /// Formatted lines that were read in part, or did not fit the last read: a few at most.
    unread: Vec<u8>,
    /// The reads that wait for events, in order.
    readers: VecDeque<HeldRead>,
    waker: Option<PollWaker>,
}

impl fmt::Debug for EventStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventStream").finish_non_exhaustive()
    }
}

impl EventStream {
    /// Opens a stream from event `since` on, or from now on.
    pub(crate) fn open(locks: &Locks, since: Option<u64>) -> Arc<Self> {
        Arc::new_cyclic(|stream: &Weak<Self>| {
            let mut watch = locks.subscribe(since);
            let stream = stream.clone();
            watch.wake_by(Arc::new(move || {
                if let Some(stream) = stream.upgrade() {
                    stream.serve();
                }
            }));
            let (unread, readers, waker) = (Vec::new(), VecDeque::new(), None);
            let state = Mutex::new(StreamState { watch, unread, readers, waker });
            Self { locks: locks.clone(), state }
        })
    }

    /// Answers waiting reads after new events. Called on the thread that delivered the events, with
    /// no mutex held.
    fn serve(&self) {
        let mut served = Vec::new();
        let waker = {
            let mut state = self.state.lock();
            while let Some(size) = state.readers.front().map(|reader| reader.size) {
                let bytes = state.take(&self.locks, size);
                if bytes.is_empty() {
                    break;
                }
                served.extend(state.readers.pop_front().map(|reader| (reader.promise, bytes)));
            }
            state.waker.take()
        };
        for (promise, bytes) in served {
            promise.keep(Ok(bytes.into()));
        }
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Returns the events that can be read at once, or `None` if there are none.
    pub(crate) fn read_now(&self, size: u32) -> Option<Vec<u8>> {
        let bytes = self.state.lock().take(&self.locks, size);
        (!bytes.is_empty()).then_some(bytes)
    }

    /// Returns the future of the next events for a read by the thread `tid`. `number` identifies
    /// the read.
    pub(crate) fn read_later(
        self: &Arc<Self>,
        interrupts: &InterruptWatcher,
        number: u64,
        size: u32,
        tid: u32,
    ) -> Pending<Done<ReadBytes>> {
        let (held, answer) = HeldRead::new(number, size);
        self.state.lock().readers.push_back(held);
        interrupts.watch(number, tid, WaitingReader { stream: Arc::downgrade(self), number });
        // An event that came before the read was queued has woken no read, so its delivery starts
        // now.
        self.serve();
        answer
    }

    /// Returns the poll events of the stream: readable if there are unread events.
    pub(crate) fn poll(&self, events: PollEvents, waker: Option<PollWaker>) -> PollEvents {
        let mut state = self.state.lock();
        if waker.is_some() {
            state.waker = waker;
        }
        let more = !state.unread.is_empty() || state.watch.has_more();
        if more { events & READABLE } else { PollEvents::empty() }
    }
}

impl StreamState {
    /// Removes and returns at most `size` bytes of events, in whole lines if at least one line
    /// fits.
    fn take(&mut self, locks: &Locks, size: u32) -> Vec<u8> {
        let size = (size as usize).min(READ_BYTES_MAX);
        while self.unread.len() < size {
            let batch = self.watch.take(EVENTS_MAX);
            if batch.lost > 0 {
                self.unread.extend_from_slice(format!("{}\n", lost(batch.lost)).as_bytes());
            }
            for (number, event) in &batch.events {
                let line = event_of(*number, event, |at| locks.wall(at));
                self.unread.extend_from_slice(format!("{line}\n").as_bytes());
            }
            if batch.events.is_empty() {
                break;
            }
        }
        let rest = self.unread.split_off(cut(&self.unread, size));
        std::mem::replace(&mut self.unread, rest)
    }
}

/// Returns the number of bytes that a read of `size` bytes takes from `unread`: whole lines that
/// fit, or a part of the first line.
fn cut(unread: &[u8], size: usize) -> usize {
    let size = size.min(unread.len());
    unread[..size].iter().rposition(|byte| *byte == b'\n').map_or(size, |newline| newline + 1)
}

/// A waiting read of the event stream, as the interrupt watcher sees it.
struct WaitingReader {
    stream: Weak<EventStream>,
    number: u64,
}

impl WaitingReader {
    /// Returns the index of this read among the waiting reads of the stream.
    fn place(&self, state: &StreamState) -> Option<usize> {
        state.readers.iter().position(|reader| reader.number == self.number)
    }
}

impl InterruptibleWait for WaitingReader {
    fn status(&self) -> WaitStatus {
        let stream = self.stream.upgrade();
        let waits = stream.is_some_and(|stream| self.place(&stream.state.lock()).is_some());
        if waits { WaitStatus::Asks } else { WaitStatus::Over }
    }

    fn interrupt(&self) {
        let Some(stream) = self.stream.upgrade() else { return };
        let mut state = stream.state.lock();
        let reader = self.place(&state).and_then(|place| state.readers.remove(place));
        drop(state);
        if let Some(reader) = reader {
            reader.promise.keep(Err(Errno::EINTR));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_ends_at_a_line_end_if_a_line_fits() {
        assert_eq!(cut(b"ab\ncd\nef\n", 100), 9);
        assert_eq!(cut(b"ab\ncd\nef\n", 7), 6);
        assert_eq!(cut(b"ab\ncd\n", 3), 3);
        assert_eq!(cut(b"abcdef\n", 3), 3, "a line longer than the buffer comes in parts");
        assert_eq!(cut(b"", 10), 0);
    }
}
