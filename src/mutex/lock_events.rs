//! The events of all locks of a mount, in order. [`LockEvents`] reads them, and [`Listener`] calls
//! a function for each of them.

use super::lock_file::is_stopped;
use serde_json::Value;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, ErrorKind, PipeReader, PipeWriter, Read as _};
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::thread;

/// The size of the buffer for one read of the event stream.
const BUFFER_BYTES: usize = 64 << 10;

/// Maximum length of one event in bytes. An event has a few names and a reason.
const EVENT_BYTES_MAX: usize = 64 << 10;

/// One change of a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockEvent {
    /// The number of the event: the next one has the next number. To go on after this event, open
    /// the events from the number after it.
    pub number: u64,
    /// The kind of the event, as `latchfs events --json` shows it: `granted`, `renewed`, `expired`,
    /// `released`, `lapsed`, `stolen`, `joined`, `left` and others. `lost` says that the reader was
    /// so slow that `count` events are missing here.
    pub kind: String,
    /// The name of the lock; empty for an event that concerns no lock.
    pub name: String,
    /// The client that holds the lock or waits for it; empty if the event names none.
    pub client: String,
    /// The fencing token of the tenure.
    pub token: Option<u64>,
    /// The number of events that are missing here, for the kind `lost`.
    pub count: u64,
}

/// An iterator over the events of all locks of a mount. It waits for the next event, and ends when
/// the mount is gone.
#[derive(Debug)]
pub struct LockEvents {
    stream: File,
    stop: Option<PipeReader>,
    next: u64,
    unfinished: Vec<u8>,
    ready: VecDeque<LockEvent>,
}

/// Calls a function for each event, on a thread of its own, until it is dropped.
#[derive(Debug)]
pub struct Listener {
    /// The pipe whose closing ends the thread.
    _stop: PipeWriter,
}

impl LockEvents {
    /// Opens the events of the mount at `dir`, from event `since` on if the mount keeps it still,
    /// or from now on.
    pub fn open(dir: impl AsRef<Path>, since: Option<u64>) -> io::Result<Self> {
        let from = since.map_or_else(String::new, |since| format!("@{since}"));
        let path = dir.as_ref().join(format!(".latchfs/events{from}"));
        let stream = File::open(&path).map_err(|error| {
            let path = path.display();
            io::Error::new(error.kind(), format!("{path} can't be read: {error}; is it mounted?"))
        })?;
        let (next, unfinished) = (since.unwrap_or_default(), Vec::new());
        Ok(Self { stream, stop: None, next, unfinished, ready: VecDeque::new() })
    }

    /// Returns the number from which a new reader must be opened to read on where this one is. `0`
    /// before the first event.
    pub const fn resume_at(&self) -> u64 {
        self.next
    }

    /// Reads the next lines of the stream. Returns whether there may be more.
    fn fill(&mut self) -> io::Result<bool> {
        if self.stop.as_ref().is_some_and(|stop| !await_events(&self.stream, stop)) {
            return Ok(false);
        }
        let mut buffer = vec![0; BUFFER_BYTES];
        let count = match self.stream.read(&mut buffer) {
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(true),
            Err(error) => return Err(error),
        };
        self.unfinished.extend_from_slice(&buffer[..count]);
        let end =
            self.unfinished.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        let rest = self.unfinished.split_off(end);
        let lines = std::mem::replace(&mut self.unfinished, rest);
        let lines = lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        self.ready.extend(lines.filter_map(event_of));
        if self.unfinished.len() > EVENT_BYTES_MAX {
            return Err(io::Error::other("an event of the mount is too long to be one"));
        }
        Ok(count > 0)
    }
}

impl Iterator for LockEvents {
    type Item = io::Result<LockEvent>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                // The message about missing events has no number.
                self.next = if event.kind == "lost" { self.next } else { event.number + 1 };
                return Some(Ok(event));
            }
            match self.fill() {
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

impl Listener {
    /// Calls `listener` for each event of a lock whose name begins with `prefix`, in order, from
    /// event `since` on or from now on. The thread ends when the listener is dropped or the mount
    /// is gone.
    pub fn start(
        dir: impl AsRef<Path>,
        prefix: &str,
        since: Option<u64>,
        mut listener: impl FnMut(LockEvent) + Send + 'static,
    ) -> io::Result<Self> {
        let mut events = LockEvents::open(dir, since)?;
        let (stop, end) = io::pipe()?;
        events.stop = Some(stop);
        let prefix = prefix.to_owned();
        let listen = move || {
            for event in events.map_while(Result::ok) {
                if event.kind == "lost" || event.name.starts_with(&prefix) {
                    listener(event);
                }
            }
        };
        thread::Builder::new().name("latchfs-listener".to_owned()).spawn(listen)?;
        Ok(Self { _stop: end })
    }
}

/// Returns the event that a line of the stream describes; `None` if it is no event.
fn event_of(line: &[u8]) -> Option<LockEvent> {
    let event: Value = serde_json::from_slice(line).ok()?;
    let text = |field: &str| event[field].as_str().unwrap_or_default().to_owned();
    let holder = text("holder");
    Some(LockEvent {
        number: event["n"].as_u64().unwrap_or_default(),
        kind: event["event"].as_str()?.to_owned(),
        name: text("name"),
        client: if holder.is_empty() { text("client") } else { holder },
        token: event["token"].as_u64(),
        count: event["count"].as_u64().unwrap_or_default(),
    })
}

/// Waits until the stream has events. Returns `false` if the other end of the pipe `stop` was
/// closed.
#[allow(unsafe_code)]
fn await_events(stream: &File, stop: &PipeReader) -> bool {
    let mut files = [
        libc::pollfd { fd: stream.as_raw_fd(), events: libc::POLLIN, revents: 0 },
        libc::pollfd { fd: stop.as_raw_fd(), events: 0, revents: 0 },
    ];
    // SAFETY: the array has two valid pollfds that live until the call returns. After an error,
    // which only a signal causes, the caller polls again.
    let found = unsafe { libc::poll(files.as_mut_ptr(), 2, -1) };
    found < 0 || !is_stopped(stop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_events() {
        let line = br#"{"n":4,"at":"T","event":"granted","name":"a","holder":"x","token":7}"#;
        let event = event_of(line).expect("an event");
        assert_eq!((event.number, event.kind.as_str(), event.token), (4, "granted", Some(7)));
        assert_eq!((event.name.as_str(), event.client.as_str()), ("a", "x"));
        let lost = event_of(br#"{"event":"lost","count":9}"#).expect("an event");
        assert_eq!((lost.kind.as_str(), lost.count), ("lost", 9));
        assert_eq!(event_of(b"{}"), None);
        assert_eq!(event_of(b"nonsense"), None);
    }

    #[test]
    fn an_event_has_a_longest_length() {
        let dir = std::env::temp_dir().join(format!("latchfs-events-{}", std::process::id()));
        std::fs::create_dir_all(dir.join(".latchfs")).expect("the directory can be written");
        for (length, is_read) in [(EVENT_BYTES_MAX, true), (EVENT_BYTES_MAX + 1, false)] {
            let file = dir.join(".latchfs/events");
            std::fs::write(file, "x".repeat(length)).expect("the directory can be written");
            let events: io::Result<Vec<_>> = LockEvents::open(&dir, None).expect("there").collect();
            assert_eq!(events.is_ok(), is_read, "{length} bytes without the end of a line");
        }
        let _ = std::fs::remove_dir_all(&dir);
    }
}
