//! The files in `.latchfs` of a view: the state of the guard, the last refusals, the events, and
//! the requests of `latchfs guard`.
//!
//! The last refusals of changes, which programs read in `.latchfs/why`. Each names the class of the
//! error, as the table of errors in the chapter on commands has them.

use super::attributes::{ROOT, SNAPSHOTS};
use super::record_nodes::{is_of_records, locks_entry, record_type};
use crate::auth::FolderAct;
use crate::engine::RefusalKind;
use crate::guard::guard_request::REQUEST_BYTES_MAX;
use crate::guard::lock::asking::LockUse;
use crate::guard::tenures::tenure_events::{EventPosition, EventQueue, TenureEvent};
use crate::guard::view::parts::open_file::KernelWait;
use crate::holder_id::LoginSession;
use crate::time::Wall;
use kernel::file_system::{
    DirEntry, Done, Errno, FileAttr, INodeNo, NameIn, NodeAttr, NodeEntry, NodeType, Requester,
};
use kernel::handles::{Full, Share};
use kernel::machine_facts::own_uid;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// The name of the directory with the files of the guard, in the root of the folder and of the
/// view.
pub(in crate::guard::view) const CONTROL_DIR: &str = ".latchfs";
/// The name of the directory in it that shows the complete snapshots.
const SNAPSHOTS_DIR: &str = "snapshots";
/// The inode number of `.latchfs`. Those of its files follow. No file of the folder has one of
/// these numbers, since the numbers of nodes begin above them.
pub(in crate::guard::view) const DIR_INO: u64 = 2;

/// A text up to this size is kept even beyond the memory of its user.
const SHORT_TEXT_BYTES: usize = 64 << 10;

/// A file in `.latchfs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::guard::view) enum ViewControlFile {
    /// The state of the guard as JSON.
    Status,
    /// The last refused change of the reader's user, or login session.
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

impl ViewControlFile {
    const ALL: [Self; 6] =
        [Self::Status, Self::Why, Self::Events, Self::Ready, Self::Missing, Self::Control];

    pub(in crate::guard::view) const fn name(self) -> &'static str {
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
    pub(in crate::guard::view) const fn act(self) -> Option<FolderAct> {
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

    pub(in crate::guard::view) fn of(ino: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|file| file.ino() == ino)
    }
}

/// Whether a node is `.latchfs` or a file in it.
pub(in crate::guard::view) const fn is_control(ino: u64) -> bool {
    (ino >= DIR_INO && ino <= DIR_INO + ViewControlFile::ALL.len() as u64)
        || ino == SNAPSHOTS
        || is_of_records(ino)
}

/// An open file in `.latchfs`.
pub(in crate::guard::view) struct ControlHandle {
    pub(in crate::guard::view) file: ViewControlFile,
    pub(in crate::guard::view) who: Requester,
    /// The texts that the file keeps in memory.
    pub(in crate::guard::view) texts: Mutex<ControlTexts>,
    /// The use of the lock by the program that opened the file, which ends when it is closed.
    pub(in crate::guard::view) lock_use: Mutex<Option<LockUse>>,
    /// The position of a reader of the events.
    position: Mutex<EventPosition>,
}

/// The texts that an open file in `.latchfs` keeps in memory.
pub(in crate::guard::view) struct ControlTexts {
    /// The text that reads return, once it is known.
    pub(in crate::guard::view) text: Option<Arc<[u8]>>,
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
    pub(in crate::guard::view) fn add_request(
        &mut self,
        data: &[u8],
    ) -> Result<Option<Vec<u8>>, RequestPart> {
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
    pub(in crate::guard::view) fn wait(&mut self, request: Vec<u8>) {
        (self.text, self.waiting) = (None, Some(request));
        self.recount();
    }

    /// Returns the request that a read carries out.
    pub(in crate::guard::view) fn take_waiting(&mut self) -> Option<Vec<u8>> {
        let request = self.waiting.take();
        self.recount();
        request
    }

    /// Keeps a text for reads. Fails for a long one if the memory of the user is used up: the
    /// outcome of a request is short, and its program must learn it.
    pub(in crate::guard::view) fn keep(&mut self, text: Vec<u8>) -> Result<Arc<[u8]>, Full> {
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
pub(in crate::guard::view) enum RequestPart {
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
pub(in crate::guard::view) struct ViewControlFiles {
    events: Mutex<Events>,
    made: SystemTime,
}

/// Returns the wall clock as the attributes of a file take it.
fn now() -> SystemTime {
    let Wall { secs, nanos } = Wall::now();
    let since = Duration::new(u64::try_from(secs).unwrap_or(0), nanos);
    SystemTime::UNIX_EPOCH + since
}

impl Default for ViewControlFiles {
    fn default() -> Self {
        Self { events: Mutex::default(), made: now() }
    }
}

impl ViewControlFiles {
    pub(in crate::guard::view) fn attr(&self, ino: u64) -> FileAttr {
        let file = ViewControlFile::of(ino);
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
    pub(in crate::guard::view) fn look_up(&self, at: NameIn<'_>) -> Option<Done<NodeEntry>> {
        if at.parent == ROOT && at.name == CONTROL_DIR {
            return Some(Ok(NodeEntry::uncached(self.attr(DIR_INO))));
        }
        if at.parent != DIR_INO {
            return None;
        }
        if at.name == SNAPSHOTS_DIR {
            return Some(Ok(NodeEntry::uncached(self.attr(SNAPSHOTS))));
        }
        let file = ViewControlFile::ALL.into_iter().find(|file| at.name == file.name());
        Some(file.map_or(Err(Errno::ENOENT), |file| Ok(NodeEntry::uncached(self.attr(file.ino())))))
    }

    pub(in crate::guard::view) fn attributes_of(&self, ino: u64) -> Option<Done<NodeAttr>> {
        is_control(ino).then(|| Ok(NodeAttr::uncached(self.attr(ino))))
    }

    pub(in crate::guard::view) fn entries(ino: u64) -> Option<Vec<DirEntry>> {
        let entry = |file: ViewControlFile| DirEntry {
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
        (ino == DIR_INO).then(|| ViewControlFile::ALL.into_iter().map(entry).chain(dirs).collect())
    }

    /// Returns a new open file, whose reader gets the events from now on.
    /// `share` is the memory of the user who opens it, of which nothing is taken yet.
    pub(in crate::guard::view) fn handle(
        &self,
        file: ViewControlFile,
        who: Requester,
        share: Share,
    ) -> ControlHandle {
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
    pub(in crate::guard::view) fn publish(&self, event: &TenureEvent) {
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
    pub(in crate::guard::view) fn next_event(
        &self,
        handle: &ControlHandle,
        may_see_names: bool,
        size: usize,
    ) -> Option<Vec<u8>> {
        let mut position = handle.position.lock();
        self.events.lock().queue.next(&mut position, may_see_names, size)
    }

    /// Adds a program that waits for the next event.
    pub(in crate::guard::view) fn add_wait(&self, wait: KernelWait<()>) {
        let mut events = self.events.lock();
        events.waiting.retain(KernelWait::is_open);
        events.waiting.push(wait);
    }

    /// Ends the waits of all readers of events.
    pub(in crate::guard::view) fn end(&self) {
        self.events.lock().waiting.clear();
    }
}

/// The maximum number of users and login sessions whose last refusal is kept.
const REFUSED_MAX: usize = 1_024;

/// The programs that share a last refusal: those of a user, or of one login session where a tenure
/// is held for one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::guard::view) struct Refused {
    pub(in crate::guard::view) uid: u32,
    pub(in crate::guard::view) session: Option<LoginSession>,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.session {
            Some(session) => session.fmt(f),
            None => write!(f, "uid {}", self.uid),
        }
    }
}

/// The last refusal of each user, or of each login session.
#[derive(Debug, Default)]
pub(in crate::guard::view) struct RefusedChanges(Mutex<HashMap<Refused, LastRefusal>>);

#[derive(Debug, Default)]
struct LastRefusal {
    sentence: Option<String>,
    /// The results of later lookups whose names the kernel itself refuses to make again, so that
    /// the guard does not see the refusal.
    met: Option<String>,
}

/// Returns a sentence with the class of the error at its end, unless it names one.
pub(in crate::guard::view) fn classed(errno: Errno, sentence: &str) -> String {
    if sentence.contains("(E_") {
        return sentence.to_owned();
    }
    format!("{sentence} ({})", class_of(errno.code()).as_str())
}

const fn class_of(errno: i32) -> RefusalKind {
    match errno {
        libc::EROFS => RefusalKind::LockNotHeld,
        libc::ESTALE => RefusalKind::FencingMismatch,
        libc::EEXIST | libc::EBUSY | libc::EAGAIN | libc::ETXTBSY => RefusalKind::LockConflict,
        libc::EPERM | libc::EACCES => RefusalKind::Denied,
        libc::ETIME => RefusalKind::ClockSkewExceeded,
        libc::ETIMEDOUT | libc::EIO => RefusalKind::ConsistencyUnavailable,
        libc::ENOSPC | libc::EDQUOT | libc::EFBIG | libc::ENFILE | libc::EMFILE | libc::EMLINK => {
            RefusalKind::Limit
        }
        _ => RefusalKind::Invalid,
    }
}

impl RefusedChanges {
    /// Records why a change was refused.
    pub(in crate::guard::view) fn record(&self, who: Refused, sentence: String) {
        log::info!("refused for {who}: {sentence}");
        self.update(who, |last| {
            *last = LastRefusal { sentence: Some(sentence), met: None };
        });
    }

    /// Records what a lookup has found.
    pub(in crate::guard::view) fn met(&self, who: Refused, sentence: String) {
        self.update(who, |last| last.met = Some(sentence));
    }

    fn update(&self, who: Refused, change: impl FnOnce(&mut LastRefusal)) {
        let mut last = self.0.lock();
        if last.len() >= REFUSED_MAX && !last.contains_key(&who) {
            // The sessions of one user make room for each other first.
            last.retain(|other, _| other.uid != who.uid);
        }
        if last.len() >= REFUSED_MAX {
            last.retain(|other, _| *other == who);
        }
        change(last.entry(who).or_default());
    }

    /// Returns the last refusal as a sentence.
    pub(in crate::guard::view) fn last(&self, who: Refused) -> String {
        let last = self.0.lock();
        last.get(&who).and_then(|last| last.sentence.clone()).unwrap_or_default()
    }

    /// Returns the last refusal as a line, then those of the user's other login sessions, and those
    /// of all others if the user sees all. Each line of others begins with the one who was refused.
    pub(in crate::guard::view) fn text(&self, who: Refused, sees_all: bool) -> String {
        let last = self.0.lock();
        let lines = |last: &LastRefusal| {
            let lines = last.sentence.iter().chain(&last.met);
            lines.flat_map(|sentence| [sentence.as_str(), "\n"]).collect::<String>()
        };
        let own = last.get(&who).map(lines).unwrap_or_default();
        let is_shown = |other: Refused| other != who && (sees_all || other.uid == who.uid);
        let mut others: Vec<_> = last.iter().filter(|(other, _)| is_shown(**other)).collect();
        others
            .sort_unstable_by_key(|(other, _)| (other.uid, other.session.map(|it| it.leader.pid)));
        let sentences = others.into_iter().filter_map(|(other, last)| {
            last.sentence.as_ref().map(|sentence| format!("{other}: {sentence}\n"))
        });
        own + &sentences.collect::<String>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::holder_id::ProcessStart;

    #[test]
    fn each_user_reads_its_own_refusal_and_root_all() {
        let refused = RefusedChanges::default();
        let of = |uid| Refused { uid, session: None };
        refused.record(of(5), "a".to_owned());
        refused.record(of(6), "b".to_owned());
        let own = |uid| refused.text(of(uid), false);
        assert_eq!((own(5), own(7)), ("a\n".to_owned(), String::new()));
        assert_eq!((refused.last(of(5)), refused.last(of(7))), ("a".to_owned(), String::new()));
        assert_eq!(refused.text(of(0), true), "uid 5: a\nuid 6: b\n");
        refused.met(of(5), "met".to_owned());
        assert_eq!(own(5), "a\nmet\n");
        refused.record(of(5), "b".to_owned());
        assert_eq!(own(5), "b\n", "a lookup before the refusal says nothing");
        (10..5_000).for_each(|uid| refused.record(of(uid), "c".to_owned()));
        assert!(refused.0.lock().len() <= REFUSED_MAX);
    }

    #[test]
    fn each_session_reads_its_own_refusal_first_and_those_of_its_user() {
        let refused = RefusedChanges::default();
        let of = |pid, uid| {
            let leader = ProcessStart { pid, at: 1 };
            Refused { uid, session: Some(LoginSession { leader, uid }) }
        };
        refused.record(of(70, 5), "a".to_owned());
        refused.record(of(71, 5), "b".to_owned());
        refused.record(of(72, 6), "c".to_owned());
        assert_eq!(refused.text(of(71, 5), false), "b\nsession 70 of user 5: a\n");
        assert_eq!(refused.last(of(73, 5)), "");
        assert_eq!(refused.text(of(72, 6), false), "c\n", "not those of another user");
        (100..5_000).for_each(|pid| refused.record(of(pid, 5), "d".to_owned()));
        assert!(refused.0.lock().len() <= REFUSED_MAX);
        assert_eq!(refused.last(of(72, 6)), "c", "the sessions of one user displace nobody else's");
    }

    #[test]
    fn each_refusal_names_its_class() {
        let class = |errno: i32, sentence: &str| classed(Errno::from_i32(errno), sentence);
        assert_eq!(class(libc::EROFS, "no"), "no (E_LOCK_NOT_HELD)");
        assert_eq!(class(libc::ESTALE, "no"), "no (E_FENCING_MISMATCH)");
        assert_eq!(class(libc::ESTALE, "no (E_LOCK_EXPIRED)"), "no (E_LOCK_EXPIRED)");
    }
}
