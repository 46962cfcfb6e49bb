//! The files in `.latchfs` of a view: the state of the guard, the last refusals, the events, and
//! the requests of `latchfs guard`.

use super::attributes::ROOT;
use super::kernel_wait::KernelWait;
use crate::fuse::kernel::file_system::{Done, NameIn};
use crate::fuse::kernel::own_user::own_uid;
use crate::fuse::kernel::values::{
    DirEntry, Errno, FileAttr, INodeNo, NodeAttr, NodeEntry, NodeType, Requester,
};
use crate::time::Wall;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// The name of the directory with the files of the guard, in the root of the folder and of the
/// view.
pub(super) const CONTROL_DIR: &str = ".latchfs";
/// The inode number of `.latchfs`. Those of its files follow. No file of the folder has one of
/// these numbers, since the numbers of nodes begin above them.
const DIR_INO: u64 = 2;
/// The maximum number of bytes of a request to the guard.
pub(super) const REQUEST_BYTES_MAX: usize = 4_096;
/// The maximum number of events that a reader may be behind.
const EVENTS_MAX: usize = 1_024;

/// A file in `.latchfs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ControlFile {
    /// The state of the guard as JSON.
    Status,
    /// The last refused change of the reader's user.
    Why,
    /// The events of the guard, as they happen, as lines of JSON.
    Events,
    /// A read returns when this machine holds the lock and everything is here.
    Ready,
    /// Why the folder is not ready, and the paths that are missing.
    Missing,
    /// Takes a request as JSON, and gives the answer.
    Control,
}

impl ControlFile {
    const ALL: [Self; 6] =
        [Self::Status, Self::Why, Self::Events, Self::Ready, Self::Missing, Self::Control];

    const fn name(self) -> &'static str {
        match self {
            Self::Status => "status",
            Self::Why => "why",
            Self::Events => "events",
            Self::Ready => "ready",
            Self::Missing => "missing",
            Self::Control => "ctl",
        }
    }

    const fn ino(self) -> u64 {
        DIR_INO + 1 + self as u64
    }

    const fn mode(self) -> u16 {
        match self {
            Self::Control => 0o666,
            _ => 0o444,
        }
    }

    pub(super) fn of(ino: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|file| file.ino() == ino)
    }
}

/// Whether a node is `.latchfs` or a file in it.
pub(super) const fn is_control(ino: u64) -> bool {
    ino >= DIR_INO && ino <= DIR_INO + ControlFile::ALL.len() as u64
}

/// An open file in `.latchfs`.
pub(super) struct ControlHandle {
    pub(super) file: ControlFile,
    pub(super) who: Requester,
    /// The text that reads return, once it is known.
    pub(super) text: Mutex<Option<Arc<[u8]>>>,
    /// The request as far as it was written.
    pub(super) request: Mutex<Vec<u8>>,
    /// A request that the next read carries out, since it may wait: during a write, the kernel
    /// keeps all other requests from the file.
    pub(super) waiting: Mutex<Option<Vec<u8>>>,
    /// The position of a reader of the events.
    position: Mutex<EventPosition>,
}

/// The position of a reader of the events.
struct EventPosition {
    /// The number of the next event.
    next: u64,
    /// The rest of an event that did not fit the last read.
    rest: Vec<u8>,
}

/// An event as a line of JSON.
struct EventLine {
    /// The line for users who may know the names of all files.
    full: Vec<u8>,
    /// The line for other users: it names no files, since they may not know them.
    public: Vec<u8>,
}

/// The events of a view, and the programs that wait for them.
#[derive(Default)]
struct Events {
    lines: VecDeque<EventLine>,
    /// The number of the first event in `lines`.
    first: u64,
    waiting: Vec<KernelWait<()>>,
}

/// The files in `.latchfs` of one view.
pub(super) struct ControlFiles {
    events: Mutex<Events>,
    made: SystemTime,
}

/// Returns the line for a reader that was too slow for `count` events.
fn missed(count: u64) -> Value {
    json!({ "event": "missed", "count": count })
}

/// Returns an event without the paths in it.
fn without_paths(event: &Value) -> Value {
    let mut public = event.clone();
    if let Some(fields) = public.as_object_mut() {
        fields.remove("path");
        let mut count = fields.remove("more").and_then(|more| more.as_u64()).unwrap_or(0);
        for field in ["put_aside", "not_kept"] {
            if let Some(files) = fields.get(field).and_then(Value::as_array) {
                count += files.len() as u64;
                fields.remove(field);
                fields.insert("put_aside".to_owned(), count.into());
            }
        }
    }
    public
}

/// Returns the wall clock as the attributes of a file take it.
fn now() -> SystemTime {
    let Wall { secs, nanos } = Wall::now();
    let since = Duration::new(u64::try_from(secs).unwrap_or(0), nanos);
    SystemTime::UNIX_EPOCH + since
}

impl Default for ControlFiles {
    fn default() -> Self {
        Self { events: Mutex::default(), made: now() }
    }
}

impl ControlFiles {
    fn attr(&self, ino: u64) -> FileAttr {
        let file = ControlFile::of(ino);
        let (kind, perm) =
            file.map_or((NodeType::Directory, 0o755), |file| (NodeType::RegularFile, file.mode()));
        FileAttr {
            ino: INodeNo(ino),
            size: 0,
            blocks: 0,
            atime: self.made,
            mtime: self.made,
            ctime: self.made,
            crtime: self.made,
            kind,
            perm,
            nlink: 1,
            uid: own_uid(),
            gid: 0,
            rdev: 0,
            blksize: 4_096,
            flags: 0,
        }
    }

    /// Returns the entry of a name in `.latchfs`, or of `.latchfs` itself; `None` for other names.
    pub(super) fn look_up(&self, at: NameIn<'_>) -> Option<Done<NodeEntry>> {
        if at.parent == ROOT && at.name == CONTROL_DIR {
            return Some(Ok(NodeEntry::uncached(self.attr(DIR_INO))));
        }
        if at.parent != DIR_INO {
            return None;
        }
        let file = ControlFile::ALL.into_iter().find(|file| at.name == file.name());
        Some(file.map_or(Err(Errno::ENOENT), |file| Ok(NodeEntry::uncached(self.attr(file.ino())))))
    }

    pub(super) fn attributes_of(&self, ino: u64) -> Option<Done<NodeAttr>> {
        is_control(ino).then(|| Ok(NodeAttr::uncached(self.attr(ino))))
    }

    pub(super) fn entries(ino: u64) -> Option<Vec<DirEntry>> {
        let entry = |file: ControlFile| DirEntry {
            ino: Some(file.ino()),
            kind: NodeType::RegularFile,
            name: std::ffi::OsStr::new(file.name()).into(),
        };
        (ino == DIR_INO).then(|| ControlFile::ALL.into_iter().map(entry).collect())
    }

    /// Returns a new open file, whose reader gets the events from now on.
    pub(super) fn handle(&self, file: ControlFile, who: Requester) -> ControlHandle {
        let events = self.events.lock();
        let next_event = events.first + events.lines.len() as u64;
        drop(events);
        let position = EventPosition { next: next_event, rest: Vec::new() };
        ControlHandle {
            file,
            who,
            text: Mutex::default(),
            request: Mutex::default(),
            waiting: Mutex::default(),
            position: Mutex::new(position),
        }
    }

    /// Adds an event, and wakes the programs that wait for one.
    pub(super) fn publish_event(&self, event: &Value) {
        self.publish_lines(event, &without_paths(event));
    }

    /// Adds an event of which other users read `public`.
    pub(super) fn publish_lines(&self, event: &Value, public: &Value) {
        let line = |event: &Value| format!("{event}\n").into_bytes();
        let line = EventLine { full: line(event), public: line(public) };
        let mut events = self.events.lock();
        events.lines.push_back(line);
        if events.lines.len() > EVENTS_MAX {
            events.lines.pop_front();
            events.first += 1;
        }
        let waiting = std::mem::take(&mut events.waiting);
        drop(events);
        for wait in waiting {
            wait.keep(());
        }
    }

    /// Returns at most `size` bytes of the next event of a reader, if there is one. If events were
    /// dropped before the reader took them, it gets their number first. Readers that are not
    /// trusted get no paths.
    pub(super) fn next_event(
        &self,
        handle: &ControlHandle,
        (is_trusted, size): (bool, usize),
    ) -> Option<Vec<u8>> {
        let mut position = handle.position.lock();
        if position.rest.is_empty() {
            let events = self.events.lock();
            if position.next < events.first {
                let dropped = events.first - std::mem::replace(&mut position.next, events.first);
                position.rest = format!("{}\n", missed(dropped)).into_bytes();
            } else {
                let at = usize::try_from(position.next - events.first).ok()?;
                let line = events.lines.get(at)?;
                position.rest = if is_trusted { line.full.clone() } else { line.public.clone() };
                position.next += 1;
            }
        }
        let length = size.min(position.rest.len());
        let rest = position.rest.split_off(length);
        Some(std::mem::replace(&mut position.rest, rest))
    }

    /// Adds a program that waits for the next event.
    pub(super) fn add_wait(&self, wait: KernelWait<()>) {
        let mut events = self.events.lock();
        events.waiting.retain(KernelWait::is_open);
        events.waiting.push(wait);
    }

    /// Ends the waits of all readers of events.
    pub(super) fn end(&self) {
        self.events.lock().waiting.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_reader_of_events_is_told_the_number_of_missed_ones() {
        let files = ControlFiles::default();
        let who = Requester { uid: 0, gid: 0, pid: 0 };
        files.publish_event(&json!("before the open"));
        let slow = files.handle(ControlFile::Events, who);
        assert_eq!(files.next_event(&slow, (true, 4_096)), None);
        (0..=EVENTS_MAX + 1).for_each(|number| files.publish_event(&json!(number)));
        let next = || {
            files
                .next_event(&slow, (true, 4_096))
                .map(|line| String::from_utf8(line).expect("text"))
        };
        assert_eq!(next(), Some("{\"event\":\"missed\",\"count\":2}\n".to_owned()));
        for number in 2..=EVENTS_MAX + 1 {
            assert_eq!(next(), Some(format!("{number}\n")));
        }
        assert_eq!(next(), None);
    }

    #[test]
    fn an_event_is_read_in_parts_and_names_no_files_to_other_users() {
        let files = ControlFiles::default();
        let who = Requester { uid: 5, gid: 5, pid: 0 };
        let handle = files.handle(ControlFile::Events, who);
        let event = json!({"event": "lost", "more": 1, "put_aside": [{"path": "p"}],
            "not_kept": ["q"]});
        files.publish_event(&event);
        files.publish_event(&json!({"event": "foreign", "path": "p"}));
        let read = |trust| {
            let mut line = Vec::new();
            while !line.ends_with(b"\n") {
                line.extend(files.next_event(&handle, (trust, 3)).expect("an event"));
            }
            String::from_utf8(line).expect("text")
        };
        assert_eq!(read(false), "{\"event\":\"lost\",\"put_aside\":3}\n");
        assert_eq!(read(false), "{\"event\":\"foreign\"}\n");
        files.publish_event(&event);
        assert_eq!(read(true), format!("{event}\n"));
    }
}
