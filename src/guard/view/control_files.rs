//! The files in `.latchfs` of a view: the state of the guard, the last refusals, the events, and
//! the requests of `latchfs guard`.

use super::folder_view::FolderView;
use super::lookup::CONTROL_DIR;
use super::nodes::ROOT;
use crate::fuse::kernel::file_system::{Done, NameIn};
use crate::fuse::kernel::own_user::own_uid;
use crate::fuse::kernel::pending::{Promise, pending};
use crate::fuse::kernel::values::{
    DirEntry, Errno, FileAttr, INodeNo, NodeAttr, NodeEntry, NodeType, Opened, OpenedFlags,
    ReadBytes, ReadRequest, Requester,
};
use crate::time::Wall;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// The inode number of `.latchfs`. Those of its files follow. No file of the folder has one of
/// these numbers, since the numbers of nodes begin above them.
const DIR_INO: u64 = 2;
/// The maximum number of bytes of a request to the guard.
const REQUEST_BYTES_MAX: usize = 4_096;
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
    /// A read returns when this machine holds the lock.
    Ready,
    /// Takes a request as JSON, and gives the answer.
    Control,
}

impl ControlFile {
    const ALL: [Self; 5] = [Self::Status, Self::Why, Self::Events, Self::Ready, Self::Control];

    const fn name(self) -> &'static str {
        match self {
            Self::Status => "status",
            Self::Why => "why",
            Self::Events => "events",
            Self::Ready => "ready",
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

    fn of(ino: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|file| file.ino() == ino)
    }
}

/// Whether a node is `.latchfs` or a file in it.
pub(super) const fn is_control(ino: u64) -> bool {
    ino >= DIR_INO && ino <= DIR_INO + ControlFile::ALL.len() as u64
}

/// An open file in `.latchfs`.
pub(super) struct ControlHandle {
    file: ControlFile,
    who: Requester,
    /// The text that reads return, once it is known.
    text: Mutex<Option<Arc<[u8]>>>,
    /// The request as far as it was written.
    request: Mutex<Vec<u8>>,
    /// The number of the next event for a reader of the events, and how much was read.
    next_event: Mutex<u64>,
}

/// The events of a view, and the programs that wait for them.
#[derive(Default)]
struct Events {
    lines: VecDeque<Arc<[u8]>>,
    /// The number of the first event in `lines`.
    first: u64,
    waiting: Vec<Promise<()>>,
}

/// The files in `.latchfs` of one view.
pub(super) struct ControlFiles {
    events: Mutex<Events>,
    made: SystemTime,
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

    pub(super) fn open(
        &self,
        view: &FolderView,
        who: Requester,
        ino: u64,
        flags: i32,
    ) -> Option<Done<Opened>> {
        if !is_control(ino) {
            return None;
        }
        let Some(file) = ControlFile::of(ino) else { return Some(Err(Errno::EISDIR)) };
        if super::open::writes(flags) && file != ControlFile::Control {
            return Some(Err(Errno::EACCES));
        }
        let events = self.events.lock();
        let next_event = events.first + events.lines.len() as u64;
        drop(events);
        let handle = ControlHandle {
            file,
            who,
            text: Mutex::default(),
            request: Mutex::default(),
            next_event: Mutex::new(next_event),
        };
        let fh = view.numbers.next();
        let content = super::open_file::Content::Control(handle);
        view.files.insert(fh, super::open_file::OpenFile { ino, content, tenure: None });
        let flags = OpenedFlags::FOPEN_DIRECT_IO | OpenedFlags::FOPEN_NOFLUSH;
        Some(Ok(Opened { fh, flags }))
    }

    /// Adds an event, and wakes the programs that wait for one.
    pub(super) fn publish_event(&self, event: &serde_json::Value) {
        let line = format!("{event}\n").into_bytes();
        let mut events = self.events.lock();
        events.lines.push_back(line.into());
        if events.lines.len() > EVENTS_MAX {
            events.lines.pop_front();
            events.first += 1;
        }
        let waiting = std::mem::take(&mut events.waiting);
        drop(events);
        for promise in waiting {
            promise.keep(());
        }
    }

    /// Returns the next event of a reader, and waits for it.
    async fn next_event(&self, handle: &ControlHandle) -> Done<ReadBytes> {
        loop {
            let wait = {
                let mut events = self.events.lock();
                let mut next = handle.next_event.lock();
                *next = (*next).max(events.first);
                let at = usize::try_from(*next - events.first).unwrap_or(usize::MAX);
                if let Some(line) = events.lines.get(at) {
                    *next += 1;
                    return Ok(ReadBytes::from(line.to_vec()));
                }
                let (promise, wait) = pending();
                events.waiting.push(promise);
                wait
            };
            if wait.await.is_none() {
                return Err(Errno::EINTR);
            }
        }
    }

    /// Ends the waits of all readers of events.
    pub(super) fn end(&self) {
        self.events.lock().waiting.clear();
    }

    pub(super) async fn read(
        &self,
        view: &FolderView,
        handle: &ControlHandle,
        asked: ReadRequest,
    ) -> Done<ReadBytes> {
        if handle.file == ControlFile::Events {
            return self.next_event(handle).await;
        }
        let known = handle.text.lock().clone();
        let text = if let Some(text) = known {
            text
        } else {
            let text: Arc<[u8]> = view.control_text(handle.file, handle.who).await?.into();
            *handle.text.lock() = Some(Arc::clone(&text));
            text
        };
        Ok(ReadBytes::window(text, asked.offset, asked.size))
    }

    /// Takes a part of a request. A line makes it complete.
    pub(super) async fn write(
        &self,
        view: &FolderView,
        handle: &ControlHandle,
        data: &[u8],
    ) -> Done<u32> {
        let complete = {
            let mut request = handle.request.lock();
            if request.len() + data.len() > REQUEST_BYTES_MAX {
                return Err(Errno::EFBIG);
            }
            request.extend_from_slice(data);
            data.ends_with(b"\n").then(|| std::mem::take(&mut *request))
        };
        if let Some(request) = complete {
            let answer = view.control_request(handle.who, &request).await;
            *handle.text.lock() = Some(format!("{answer}\n").into_bytes().into());
        }
        Ok(data.len() as u32)
    }
}

impl FolderView {
    async fn control_text(&self, file: ControlFile, who: Requester) -> Done<Vec<u8>> {
        match file {
            ControlFile::Status => {
                let status = serde_json::to_string_pretty(&self.status()).unwrap_or_default();
                Ok(format!("{status}\n").into_bytes())
            }
            ControlFile::Why => Ok(self.refused.text(who.uid).into_bytes()),
            ControlFile::Ready => {
                let owner = self.policy.owner.of(who.uid, || crate::holder_id::session_of(who.pid));
                while !self.is_held_for(owner) {
                    let (promise, wait) = pending();
                    self.control.events.lock().waiting.push(promise);
                    if self.is_held_for(owner) {
                        break;
                    }
                    wait.await.ok_or(Errno::EINTR)?;
                }
                Ok(b"ready\n".to_vec())
            }
            ControlFile::Control | ControlFile::Events => Ok(Vec::new()),
        }
    }

    fn is_held_for(&self, owner: super::super::tenure::Owner) -> bool {
        self.guard.gate().tenure().is_some_and(|open| open.owner == owner)
    }
}
