//! `.latchfs/events`: what happens, one line of JSON each, as it happens.
//!
//! An open file is a place in the feed. A READ is held until there is something to read; what is
//! read follows from where the last reading ended, whatever the offset. Nobody waits for a reader:
//! one that is too slow is told how many events it lost.

use super::errno::Act;
use super::lookout::{Waiter, Waiting};
use super::opens::Open;
use super::owner::Caller;
use super::shared::Fs;
use super::shares::Pool;
use crate::event_json::{event_of, lost};
use crate::service::Locks;
use crate::service::event_log::EventWatch;
use fuser::{Errno, PollEvents, PollFlags, PollNotifier, ReplyData, ReplyPoll};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Weak};

/// What one READ gets at most: some 300 events.
const READ_BYTES_MAX: usize = 64 << 10;
/// Events taken from the feed at once: what is made into lines beyond a READ's size is kept.
const EVENTS_MAX: usize = 64;

/// What a stream is ready for when there is something to read.
const READABLE: PollEvents = PollEvents::POLLIN.union(PollEvents::POLLRDNORM);

/// A reader's place in the feed.
pub(super) struct Stream {
    locks: Locks,
    inner: Mutex<Inner>,
}

struct Inner {
    watch: EventWatch,
    /// Lines that were begun to be read, or did not fit: a few at most.
    unread: Vec<u8>,
    /// READs that wait for more, first served first.
    readers: VecDeque<Reader>,
    notifier: Option<PollNotifier>,
}

struct Reader {
    number: u64,
    size: u32,
    reply: ReplyData,
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").finish_non_exhaustive()
    }
}

impl Stream {
    /// A place in the feed: from event `since` on, or from now on.
    pub(super) fn open(fs: &Fs, since: Option<u64>) -> Arc<Self> {
        Arc::new_cyclic(|stream: &Weak<Self>| {
            let mut watch = fs.locks.watch(since);
            let stream = stream.clone();
            watch.wake_by(Arc::new(move || {
                if let Some(stream) = stream.upgrade() {
                    stream.serve();
                }
            }));
            let (unread, readers, notifier) = (Vec::new(), VecDeque::new(), None);
            let inner = Mutex::new(Inner { watch, unread, readers, notifier });
            Self { locks: fs.locks.clone(), inner }
        })
    }

    /// There is more. Called on the thread that decided a command, with no lock held.
    fn serve(&self) {
        let mut served = Vec::new();
        let notifier = {
            let mut inner = self.inner.lock();
            while let Some(size) = inner.readers.front().map(|reader| reader.size) {
                let bytes = inner.take(&self.locks, size);
                if bytes.is_empty() {
                    break;
                }
                served.extend(inner.readers.pop_front().map(|reader| (reader.reply, bytes)));
            }
            inner.notifier.take()
        };
        for (reply, bytes) in served {
            reply.data(&bytes);
        }
        if let Some(notifier) = notifier
            && let Err(error) = notifier.notify()
        {
            log::debug!("a reader of events was not woken: {error}");
        }
    }
}

impl Inner {
    /// Takes what there is to read, in whole lines where one fits.
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

/// Where a reading of `size` bytes ends: behind the last line that fits, or within the first.
fn cut(unread: &[u8], size: usize) -> usize {
    let size = size.min(unread.len());
    unread[..size].iter().rposition(|byte| *byte == b'\n').map_or(size, |newline| newline + 1)
}

/// A READ that waits, as the lookout knows it.
struct Follower {
    stream: Weak<Stream>,
    number: u64,
}

impl Follower {
    /// Where it stands among those who wait for more.
    fn place(&self, inner: &Inner) -> Option<usize> {
        inner.readers.iter().position(|reader| reader.number == self.number)
    }
}

impl Waiter for Follower {
    fn waiting(&self) -> Waiting {
        let stream = self.stream.upgrade();
        let waits = stream.is_some_and(|stream| self.place(&stream.inner.lock()).is_some());
        if waits { Waiting::Asks } else { Waiting::Over }
    }

    fn interrupt(&self) {
        let Some(stream) = self.stream.upgrade() else { return };
        let mut inner = stream.inner.lock();
        let reader = self.place(&inner).and_then(|place| inner.readers.remove(place));
        drop(inner);
        if let Some(reader) = reader {
            reader.reply.error(Errno::EINTR);
        }
    }
}

/// The stream that an open file is, if it is one.
pub(super) fn of(open: &Open) -> Option<Arc<Stream>> {
    open.state.lock().stream.clone()
}

/// read: what there is, or else when there is something.
pub(super) fn read(
    fs: &Fs,
    stream: &Arc<Stream>,
    caller: &Caller,
    (size, flags): (u32, i32),
    reply: ReplyData,
) {
    let mut inner = stream.inner.lock();
    let bytes = inner.take(&stream.locks, size);
    if !bytes.is_empty() {
        drop(inner);
        return reply.data(&bytes);
    }
    if flags & libc::O_NONBLOCK != 0 {
        drop(inner);
        return reply.error(Errno::EAGAIN);
    }
    if let Err(full) = fs.shares.room(Pool::Threads, caller.uid) {
        drop(inner);
        return reply.error(fs.refuse_full(caller, Act::Read, None, full));
    }
    let number = fs.opens.number();
    inner.readers.push_back(Reader { number, size, reply });
    drop(inner);
    fs.lookout.watch(number, caller.pid, Follower { stream: Arc::downgrade(stream), number });
}

/// poll: readable when there is more.
pub(super) fn poll(
    stream: &Stream,
    notifier: PollNotifier,
    (events, flags): (PollEvents, PollFlags),
    reply: ReplyPoll,
) {
    let mut inner = stream.inner.lock();
    if flags.contains(PollFlags::FUSE_POLL_SCHEDULE_NOTIFY) {
        inner.notifier = Some(notifier);
    }
    let more = !inner.unread.is_empty() || inner.watch.has_more();
    drop(inner);
    reply.poll(if more { events & READABLE } else { PollEvents::empty() });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reading_ends_with_a_line_where_one_fits() {
        assert_eq!(cut(b"ab\ncd\nef\n", 100), 9);
        assert_eq!(cut(b"ab\ncd\nef\n", 7), 6);
        assert_eq!(cut(b"ab\ncd\n", 3), 3);
        assert_eq!(cut(b"abcdef\n", 3), 3, "a line longer than the buffer comes in parts");
        assert_eq!(cut(b"", 10), 0);
    }
}
