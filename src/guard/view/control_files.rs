//! The files in `.latchfs` of a view: the state of the guard, the last refusals, the events, and
//! the requests of `latchfs guard`.

use super::super::event_queue::{EventPosition, EventQueue};
use super::super::guard_request::REQUEST_BYTES_MAX;
use super::super::lock_uses::LockUse;
use super::super::tenure_events::TenureEvent;
use super::attributes::{ROOT, SNAPSHOTS};
use super::kernel_wait::KernelWait;
use super::record_nodes::{is_of_records, locks_entry, record_type};
use crate::auth::FolderAct;
use crate::fuse::kernel::file_system::{
    DirEntry, Errno, FileAttr, INodeNo, NodeAttr, NodeEntry, NodeType, Requester,
};
use crate::fuse::kernel::file_system::{Done, NameIn};
use crate::fuse::kernel::handles::{Full, Share};
use crate::fuse::kernel::own_user::own_uid;
use crate::time::Wall;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// The name of the directory with the files of the guard, in the root of the folder and of the
/// view.
pub(super) const CONTROL_DIR: &str = ".latchfs";
/// The name of the directory in it that shows the complete snapshots.
const SNAPSHOTS_DIR: &str = "snapshots";
/// The inode number of `.latchfs`. Those of its files follow. No file of the folder has one of
/// these numbers, since the numbers of nodes begin above them.
pub(super) const DIR_INO: u64 = 2;

/// A text up to this size is kept even beyond the memory of its user.
const SHORT_TEXT_BYTES: usize = 64 << 10;

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

    pub(super) const fn name(self) -> &'static str {
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

    /// Returns what a reader of the file does; `None` for `ctl`, whose requests are checked one by
    /// one.
    pub(super) const fn act(self) -> Option<FolderAct> {
        match self {
            Self::Status => Some(FolderAct::ShowState),
            Self::Why => Some(FolderAct::ReadRefusals),
            Self::Events => Some(FolderAct::FollowEvents),
            Self::Ready => Some(FolderAct::WaitReady),
            Self::Missing => Some(FolderAct::ShowMissing),
            Self::Control => None,
        }
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
    (ino >= DIR_INO && ino <= DIR_INO + ControlFile::ALL.len() as u64)
        || ino == SNAPSHOTS
        || is_of_records(ino)
}

/// An open file in `.latchfs`.
pub(super) struct ControlHandle {
    pub(super) file: ControlFile,
    pub(super) who: Requester,
    /// The texts that the file keeps in memory.
    pub(super) texts: Mutex<ControlTexts>,
    /// The use of the lock by the program that opened the file, which ends when it is closed.
    pub(super) lock_use: Mutex<Option<LockUse>>,
    /// The position of a reader of the events.
    position: Mutex<EventPosition>,
}

/// The texts that an open file in `.latchfs` keeps in memory.
pub(super) struct ControlTexts {
    /// The text that reads return, once it is known.
    pub(super) text: Option<Arc<[u8]>>,
    /// The request as far as it was written.
    request: Vec<u8>,
    /// A request that the next read carries out, since it may wait: during a write, the kernel
    /// keeps all other requests from the file.
    waiting: Option<Vec<u8>>,
    /// The bytes of these texts, as part of the memory of the user who opened the file.
    share: Share,
}

impl ControlTexts {
    fn recount(&mut self) {
        let text = self.text.as_ref().map_or(0, |text| text.len());
        let waiting = self.waiting.as_ref().map_or(0, Vec::len);
        self.share.set(text + self.request.len() + waiting);
    }

    /// Adds a part of a request. Returns the request if this part makes it complete.
    pub(super) fn add_request(&mut self, data: &[u8]) -> Result<Option<Vec<u8>>, RequestPart> {
        if self.request.len() + data.len() > REQUEST_BYTES_MAX {
            return Err(RequestPart::TooLong);
        }
        self.share.grow(data.len()).map_err(RequestPart::NoMemory)?;
        self.request.extend_from_slice(data);
        let complete = data.ends_with(b"\n").then(|| std::mem::take(&mut self.request));
        self.recount();
        Ok(complete)
    }

    /// Keeps a request for the next read, instead of an older answer.
    pub(super) fn wait(&mut self, request: Vec<u8>) {
        (self.text, self.waiting) = (None, Some(request));
        self.recount();
    }

    /// Returns the request that a read carries out.
    pub(super) fn take_waiting(&mut self) -> Option<Vec<u8>> {
        let request = self.waiting.take();
        self.recount();
        request
    }

    /// Keeps a text for reads. Fails for a long one if the memory of the user is used up: the
    /// outcome of a request is short, and its program must learn it.
    pub(super) fn keep(&mut self, text: Vec<u8>) -> Result<Arc<[u8]>, Full> {
        self.text = None;
        self.recount();
        if text.len() > SHORT_TEXT_BYTES {
            self.share.grow(text.len())?;
        }
        let text: Arc<[u8]> = text.into();
        self.text = Some(Arc::clone(&text));
        self.recount();
        Ok(text)
    }
}

/// Why a part of a request is refused.
pub(super) enum RequestPart {
    /// The request is longer than any that the guard knows.
    TooLong,
    /// The memory of the user is used up.
    NoMemory(Full),
}

/// The events of a view, and the programs that wait for them.
#[derive(Default)]
struct Events {
    queue: EventQueue,
    waiting: Vec<KernelWait<()>>,
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
    pub(super) fn attr(&self, ino: u64) -> FileAttr {
        let file = ControlFile::of(ino);
        let (kind, perm) = record_type(ino).unwrap_or_else(|| {
            file.map_or((NodeType::Directory, 0o755), |file| (NodeType::RegularFile, file.mode()))
        });
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
        if at.name == SNAPSHOTS_DIR {
            return Some(Ok(NodeEntry::uncached(self.attr(SNAPSHOTS))));
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
        let snapshots = DirEntry {
            ino: Some(SNAPSHOTS),
            kind: NodeType::Directory,
            name: std::ffi::OsStr::new(SNAPSHOTS_DIR).into(),
        };
        let dirs = [locks_entry(), snapshots];
        (ino == DIR_INO).then(|| ControlFile::ALL.into_iter().map(entry).chain(dirs).collect())
    }

    /// Returns a new open file, whose reader gets the events from now on.
    /// `share` is the memory of the user who opens it, of which nothing is taken yet.
    pub(super) fn handle(&self, file: ControlFile, who: Requester, share: Share) -> ControlHandle {
        let position = self.events.lock().queue.reader();
        let texts = ControlTexts { text: None, request: Vec::new(), waiting: None, share };
        ControlHandle {
            file,
            who,
            texts: Mutex::new(texts),
            lock_use: Mutex::default(),
            position: Mutex::new(position),
        }
    }

    /// Adds an event, and wakes the programs that wait for one.
    pub(super) fn publish(&self, event: &TenureEvent) {
        let mut events = self.events.lock();
        events.queue.publish(event);
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
        wanted: (bool, usize),
    ) -> Option<Vec<u8>> {
        let mut position = handle.position.lock();
        self.events.lock().queue.next(&mut position, wanted)
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
