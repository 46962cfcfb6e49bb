//! Operations on the file of a lock: locking it by flock(2), and waiting for a change of the lock
//! by poll(2).
//!
//! The events of all locks of a mount, in order. [`LockEvents`] reads them, and [`Listener`] calls
//! a function for each of them.

use crate::time::{Span, Time, boot_now};
use serde_json::Value;
use std::collections::VecDeque;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{ErrorKind, PipeReader, PipeWriter, Read as _};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, mpsc};
use std::{io, thread};

/// The mode of a lock: exclusive or shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MutexMode {
    /// The holder shares the lock with nobody.
    Exclusive,
    /// Several holders may share the lock, all in this mode.
    Shared,
}

/// How long to wait for a lock.
#[derive(Debug, Clone, Copy)]
pub(super) enum WaitLimit {
    /// The caller does not wait: if the lock can't be granted at once, it is not taken.
    No,
    /// The caller waits until the lock is granted, but at most until this deadline.
    Until(Time),
    /// The caller waits until the lock is granted, however long that takes.
    Ever,
}

/// Takes the lock by flock on the file at `path`. Returns `None` if the lock was not granted within
/// the limit. Calls `waiting` before it begins to wait for another holder.
pub(super) fn take(
    path: &Path,
    mode: MutexMode,
    wait: WaitLimit,
    waiting: impl FnOnce(),
) -> io::Result<Option<File>> {
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
    let file = file.map_err(|error| cant("can't be opened", path, &error))?;
    if try_lock(path, &file, mode)? {
        return Ok(Some(file));
    }
    if matches!(wait, WaitLimit::No) {
        return Ok(None);
    }
    waiting();
    match wait {
        WaitLimit::Until(deadline) => lock_until(path, file, mode, deadline),
        WaitLimit::No | WaitLimit::Ever => match lock(&file, mode) {
            Ok(()) => Ok(Some(file)),
            Err(error) => Err(cant("can't be locked", path, &error)),
        },
    }
}

/// The ioctl on a lock's file that cancels a waiting flock through the same open file.
const GIVE_UP: libc::c_ulong = 0x4c01;
/// The ioctl on a lock's file that returns the token by which the open file holds the lock.
const TOKEN: libc::c_ulong = 0x8008_4c02;
/// The longest single sleep of a wait with a deadline. A sleep does not count the time for which
/// the machine is suspended, so the deadline is checked at least this often.
const POLL_EVERY: Span = Span::from_secs(1);
/// How long to wait for the flock to end after it was cancelled. The cancellation is then repeated,
/// because the thread may not have been waiting in flock yet.
const SAY_AGAIN: Span = Span::from_millis(10);

/// Waits in the lock's queue until the lock is granted, or until `deadline`. flock has no timeout,
/// so a separate thread waits in it, and its wait is cancelled at the deadline.
fn lock_until(
    path: &Path,
    file: File,
    mode: MutexMode,
    deadline: Time,
) -> io::Result<Option<File>> {
    let locked = |error| cant("can't be locked", path, &error);
    // This first cancellation only tests whether the mount supports cancelling a flock. If it does
    // not, the lock request fails here; otherwise the thread below could wait for ever in a flock
    // that can't be cancelled.
    give_up(&file).map_err(locked)?;
    let (file, (say, said)) = (Arc::new(file), mpsc::channel());
    let waiting = Arc::clone(&file);
    let wait = move || {
        leave_signals_to_others();
        let result = lock(&waiting, mode);
        drop(waiting);
        // The send can't fail, because the loop below does not end before it has received a result.
        let _ = say.send(result);
    };
    let thread = thread::Builder::new().name("latchfs-mutex".to_owned()).spawn(wait)?;
    let result = loop {
        let left = deadline.since(boot_now());
        let patience = if left == Span::ZERO { SAY_AGAIN } else { left.min(POLL_EVERY) };
        match said.recv_timeout(patience.as_duration()) {
            Ok(result) => break result,
            Err(RecvTimeoutError::Timeout) if left == Span::ZERO => {
                // The cancellation fails only if the mount is gone, and then the flock of the
                // thread fails as well.
                let _ = give_up(&file);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break Err(io::Error::other("its thread ended")),
        }
    };
    // The join does not block, because the thread ends after it has sent its result.
    let _ = thread.join();
    match result {
        Ok(()) => Arc::into_inner(file).map_or(Err(ErrorKind::Other.into()), |file| Ok(Some(file))),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(locked(error)),
    }
}

/// Cancels a flock that waits through this open file.
#[allow(unsafe_code)]
fn give_up(file: &File) -> io::Result<()> {
    // SAFETY: the file is open, and this ioctl takes no argument.
    match unsafe { libc::ioctl(file.as_raw_fd(), GIVE_UP as _) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns the token by which this open file holds its lock; fails if the file does not hold the
/// lock.
#[allow(unsafe_code)]
pub(super) fn token_of(file: &File) -> io::Result<u64> {
    let mut token = 0_u64;
    // SAFETY: the file is open, and this ioctl writes the eight bytes of `token`.
    match unsafe { libc::ioctl(file.as_raw_fd(), TOKEN as _, &raw mut token) } {
        0 => Ok(token),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Blocks all signals in the current thread, which the mutex has started, so that the program's own
/// threads receive them.
#[allow(unsafe_code)]
fn leave_signals_to_others() {
    // SAFETY: all zeros is a valid set, which sigfillset fills; the set outlives both calls.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, std::ptr::null_mut());
    }
}

fn try_lock(path: &Path, file: &File, mode: MutexMode) -> io::Result<bool> {
    loop {
        let tried = match mode {
            MutexMode::Exclusive => file.try_lock(),
            MutexMode::Shared => file.try_lock_shared(),
        };
        match tried {
            Ok(()) => return Ok(true),
            Err(TryLockError::WouldBlock) => return Ok(false),
            Err(TryLockError::Error(error)) if error.kind() == ErrorKind::Interrupted => {}
            Err(TryLockError::Error(error)) => return Err(cant("can't be locked", path, &error)),
        }
    }
}

/// Waits in the lock's queue until the lock is granted. A signal whose handler returns does not end
/// the wait.
fn lock(file: &File, mode: MutexMode) -> io::Result<()> {
    loop {
        let locked = match mode {
            MutexMode::Exclusive => file.lock(),
            MutexMode::Shared => file.lock_shared(),
        };
        match locked {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// Marks all changes of the lock so far as seen, so that a poll reports only later ones.
pub(super) fn see(file: &File) -> io::Result<()> {
    file.read_at(&mut [0], 0).map(|_| ())
}

/// Waits until the lock has changed, or the other end of the pipe `stop` was closed.
#[allow(unsafe_code)]
pub(super) fn await_change(file: &File, stop: &PipeReader) -> io::Result<()> {
    let mut files = [
        libc::pollfd { fd: file.as_raw_fd(), events: libc::POLLPRI, revents: 0 },
        libc::pollfd { fd: stop.as_raw_fd(), events: 0, revents: 0 },
    ];
    // SAFETY: the array has two valid pollfds that live until the call returns.
    let found = unsafe { libc::poll(files.as_mut_ptr(), 2, -1) };
    match io::Error::last_os_error() {
        error if found < 0 && error.kind() != ErrorKind::Interrupted => Err(error),
        _ => Ok(()),
    }
}

/// Whether the other end of the pipe `stop` was closed.
#[allow(unsafe_code)]
pub(super) fn is_stopped(stop: &PipeReader) -> bool {
    let mut end = libc::pollfd { fd: stop.as_raw_fd(), events: 0, revents: 0 };
    // SAFETY: `end` is one valid pollfd that lives until the call returns.
    let found = unsafe { libc::poll(&raw mut end, 1, 0) };
    found > 0
}

fn cant(what: &str, path: &Path, error: &io::Error) -> io::Error {
    let path = path.display();
    let next = match error.kind() {
        ErrorKind::NotFound => "; of a name with parts the first must be held, as a directory",
        _ => "; see .latchfs/why in the mount",
    };
    io::Error::new(error.kind(), format!("the lock {path} {what}: {error}{next}"))
}

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
