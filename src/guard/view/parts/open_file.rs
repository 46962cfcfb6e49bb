//! An open file of the view.
//!
//! The flocks that programs hold on files of a view. The kernel keeps them without asking the
//! daemon, and lists them in `/proc/locks`.
//!
//! A request of the kernel that waits, and that a signal to its program ends.
//!
//! The place of an open directory in the folder's own directory, with one page of names, however
//! many names there are.

use super::attributes::node_type;
use super::close_rule::Saving;
use super::control_files::{CONTROL_DIR, ControlHandle};
use super::database_files::ClosedVersion;
use super::record_nodes::RecordHandle;
use crate::guard::disk::acting_as::User;
use crate::guard::view::parts::local_dir::LocalUse;
use barrier::tenure_id::TenureId;
use common::task::{Pending, Promise, pending};
use kernel::file_system::{DirEntry, NodeType, OpenedFlags, Requester};
use kernel::handles::Share;
use kernel::interrupts::{InterruptibleWait, WaitStatus};
use kernel::mountinfo::Device;
use parking_lot::Mutex;
use rustix::fs::Dir;
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

impl From<Requester> for User {
    fn from(who: Requester) -> Self {
        Self::new(who.uid, who.gid)
    }
}

/// The content behind an open file.
pub(in crate::guard::view) enum Content {
    /// A file of the folder, opened for reading or for changes in place.
    InPlace(File),
    /// A file that is, or was, saved as a whole.
    Saving(Arc<Saving>),
    /// A local file, and what it takes.
    Local(File, Arc<LocalUse>),
    /// A file in `.latchfs`.
    Control(ControlHandle),
    /// A file in `.latchfs/locks`.
    Record(RecordHandle),
}

/// For which tenure a file is open for writing.
#[derive(Debug, Clone)]
pub(in crate::guard::view) enum Writing {
    /// Its program may write in this tenure. If the tenure is over, the program must open the file
    /// again.
    In(TenureId),
    /// The tenure is over. The program goes on in the next one if the file is then as it was left.
    Dormant(TenureId, Arc<ClosedVersion>),
    /// The tenure was lost while programs changed the folder: the program must open the file again.
    Over(TenureId, Arc<ClosedVersion>),
}

impl Writing {
    /// Returns the tenure, which may be over.
    pub(in crate::guard::view) const fn tenure(&self) -> TenureId {
        match self {
            Self::In(tenure) | Self::Dormant(tenure, _) | Self::Over(tenure, _) => *tenure,
        }
    }
}

/// Who opens a file, and the part of the open file in this user's share.
pub(in crate::guard::view) struct Opening {
    /// The program that opens the file.
    pub(in crate::guard::view) who: Requester,
    /// The part of the file in the open files of the program's user.
    pub(in crate::guard::view) share: Share,
}

/// An open file of the view.
pub(in crate::guard::view) struct OpenFile {
    /// The node of the file.
    pub(in crate::guard::view) ino: u64,
    /// The content.
    pub(in crate::guard::view) content: Content,
    /// The thread that opened the file.
    pub(in crate::guard::view) opener: u32,
    /// The user who opened the file. The content is written as this user: the write-back of mapped
    /// pages names none.
    pub(in crate::guard::view) user: User,
    /// `None` for a file that is open for reading only.
    writing: Option<Mutex<Writing>>,
    /// Whether a program has changed the content by this open file in place.
    pub(in crate::guard::view) has_changed: AtomicBool,
    /// The number of the list in which a marker names these changes; 0 if they are not logged.
    pub(in crate::guard::view) logged: AtomicU64,
    /// The part of this file in the open files of its user.
    _share: Share,
}

impl OpenFile {
    /// Returns an open file whose content no program has changed by it yet.
    pub(in crate::guard::view) fn new(
        ino: u64,
        content: Content,
        writing: Option<Writing>,
        Opening { who, share }: Opening,
    ) -> Self {
        let (has_changed, logged) = (AtomicBool::new(false), AtomicU64::new(0));
        let (opener, user, writing) = (who.pid, who.into(), writing.map(Mutex::new));
        Self { ino, content, opener, user, writing, has_changed, logged, _share: share }
    }

    /// Says that another user than the one who makes the request has opened the file.
    pub(in crate::guard::view) const fn of_user(mut self, user: User) -> Self {
        self.user = user;
        self
    }

    /// Whether the file is open for writing.
    pub(in crate::guard::view) const fn is_for_writing(&self) -> bool {
        self.writing.is_some()
    }

    /// Returns for which tenure the file is open for writing.
    pub(in crate::guard::view) fn writing(&self) -> Option<Writing> {
        Some(self.writing.as_ref()?.lock().clone())
    }

    /// Returns the last tenure in which the file was open for writing.
    pub(in crate::guard::view) fn tenure(&self) -> Option<TenureId> {
        Some(self.writing.as_ref()?.lock().tenure())
    }

    /// Whether the tenure of the file is over and its program may go on in the next one.
    pub(in crate::guard::view) fn is_dormant(&self) -> bool {
        matches!(self.writing(), Some(Writing::Dormant(..)))
    }

    /// Changes for which tenure the file is open for writing.
    pub(in crate::guard::view) fn set_writing(&self, to: Writing) {
        if let Some(writing) = &self.writing {
            *writing.lock() = to;
        }
    }

    /// Returns the lock record or its temporary file, if this is one.
    pub(in crate::guard::view) const fn record(&self) -> Option<&RecordHandle> {
        match &self.content {
            Content::Record(handle) => Some(handle),
            Content::InPlace(_) | Content::Saving(_) | Content::Local(..) | Content::Control(_) => {
                None
            }
        }
    }

    /// Returns the file of the operating system, unless this is a control file.
    pub(in crate::guard::view) fn file(&self) -> Option<&File> {
        match &self.content {
            Content::InPlace(file) | Content::Local(file, _) => Some(file),
            Content::Saving(saving) => Some(&saving.staged.file),
            Content::Control(_) | Content::Record(_) => None,
        }
    }

    /// Returns how the kernel makes requests: it keeps cached pages between opens, and tells of a
    /// close if something may have to be published then.
    pub(in crate::guard::view) fn flags(&self) -> OpenedFlags {
        let needs_flush = self.is_for_writing();
        OpenedFlags::FOPEN_KEEP_CACHE
            | if needs_flush { OpenedFlags::empty() } else { OpenedFlags::FOPEN_NOFLUSH }
    }

    /// Returns the save of the file, if it was opened to be saved as a whole.
    pub(in crate::guard::view) fn saving(&self) -> Option<&Arc<Saving>> {
        match &self.content {
            Content::Saving(saving) => Some(saving),
            Content::InPlace(_) | Content::Local(..) | Content::Control(_) | Content::Record(_) => {
                None
            }
        }
    }
}

/// Whether a program holds a flock on a file of the file system with this device number. In another
/// pid namespace than the first one only the locks of its own programs are seen.
pub(in crate::guard::view) fn are_held(device: Device) -> bool {
    let Ok(locks) = File::open("/proc/locks") else { return false };
    BufReader::new(locks).lines().map_while(Result::ok).any(|line| is_flock_of(&line, device))
}

/// Whether a line of `/proc/locks` tells of a flock that is held on this file system, such as
/// `1: FLOCK  ADVISORY  WRITE 4711 00:2f:123 0 EOF`. One that waits has an arrow.
fn is_flock_of(line: &str, device: Device) -> bool {
    let mut words = line.split_ascii_whitespace().skip(1);
    let (kind, place) = (words.next(), words.nth(3));
    let (Some("FLOCK"), Some(place)) = (kind, place) else { return false };
    let mut numbers = place.split(':').map(|number| u32::from_str_radix(number, 16).ok());
    let (major, minor) = (numbers.next().flatten(), numbers.next().flatten());
    (major, minor) == (Some(device.major), Some(device.minor))
}

/// The promise of an answer to a waiting program.
pub(in crate::guard::view) struct KernelWait<T>(Arc<Mutex<Option<Promise<T>>>>);

impl<T> Clone for KernelWait<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> KernelWait<T> {
    /// Returns a promise and its answer. The answer is `None` if a signal ends the wait.
    pub(in crate::guard::view) fn new() -> (Self, Pending<T>) {
        let (promise, answer) = pending();
        (Self(Arc::new(Mutex::new(Some(promise)))), answer)
    }

    /// Answers the program, unless a signal has ended its wait.
    pub(in crate::guard::view) fn keep(&self, value: T) {
        let promise = self.0.lock().take();
        if let Some(promise) = promise {
            promise.keep(value);
        }
    }

    /// Whether the program still waits.
    pub(in crate::guard::view) fn is_open(&self) -> bool {
        self.0.lock().is_some()
    }
}

impl<T: Send> InterruptibleWait for KernelWait<T> {
    fn status(&self) -> WaitStatus {
        if self.is_open() { WaitStatus::Asks } else { WaitStatus::Over }
    }

    fn interrupt(&self) {
        // The waiting operation answers EINTR if the promise is dropped without a value.
        let promise = self.0.lock().take();
        drop(promise);
    }
}

/// The number of entries in one page of an open directory: more than a reply to the kernel holds.
const PAGE_ENTRIES_MAX: usize = 1_024;

/// The place of an open directory in the folder's own directory.
pub(in crate::guard::view) struct ViewDirReading {
    stream: Dir,
    /// Whether the directory is the root of the view, which hides the guard's own directory.
    is_root: bool,
    /// The files that were not published yet when the program began to read, and the local files.
    /// They come last, and names of the folder that are the same are left out.
    added: Vec<Added>,
    added_names: HashSet<OsString>,
    /// The offset in the folder's directory at which each page begins, as far as it was read.
    starts: Vec<i64>,
    /// The number of the page that is read next from the stream.
    next: usize,
    /// The number of the last page, once it was read.
    last: Option<usize>,
    page: (usize, Arc<Vec<DirEntry>>),
}

/// An entry that the folder's directory does not have: a name with its type, and the node of a file
/// that is not published yet.
pub(in crate::guard::view) type Added = (OsString, NodeType, Option<u64>);

impl ViewDirReading {
    /// Returns the place before the first name of an open directory.
    pub(in crate::guard::view) fn new(dir: File, is_root: bool) -> io::Result<Self> {
        let stream = Dir::new(dir)?;
        let page = (usize::MAX, Arc::default());
        let (added, added_names, starts) = (Vec::new(), HashSet::new(), vec![0]);
        Ok(Self { stream, is_root, added, added_names, starts, next: 0, last: None, page })
    }

    /// Begins again at the first name.
    pub(in crate::guard::view) fn begin(&mut self, added: Vec<Added>) -> io::Result<()> {
        self.stream.seek(0)?;
        self.added_names = added.iter().map(|(name, ..)| name.clone()).collect();
        self.added = added;
        self.starts.truncate(1);
        (self.next, self.last, self.page.0) = (0, None, usize::MAX);
        Ok(())
    }

    /// Returns the page with the entry `index`, and the index of its first entry. The page is empty
    /// if there is no such entry.
    pub(in crate::guard::view) fn page_of(
        &mut self,
        index: usize,
    ) -> io::Result<(usize, Arc<Vec<DirEntry>>)> {
        let wanted = index / PAGE_ENTRIES_MAX;
        let wanted = self.last.map_or(wanted, |last| wanted.min(last));
        if self.page.0 != wanted {
            if wanted < self.next {
                self.stream.seek(self.starts[wanted])?;
                self.next = wanted;
            }
            while self.next <= wanted && self.last.is_none_or(|last| self.next <= last) {
                let entries = Arc::new(self.read_next()?);
                self.page = (self.next - 1, entries);
            }
        }
        Ok((self.page.0.saturating_mul(PAGE_ENTRIES_MAX), Arc::clone(&self.page.1)))
    }

    fn read_next(&mut self) -> io::Result<Vec<DirEntry>> {
        let mut entries = Vec::new();
        let mut offset = 0;
        while entries.len() < PAGE_ENTRIES_MAX {
            let Some(entry) = self.stream.read() else {
                let added = self.added.iter().map(|(name, kind, ino)| DirEntry {
                    ino: *ino,
                    kind: *kind,
                    name: name.clone().into(),
                });
                entries.extend(added);
                self.last = Some(self.next);
                break;
            };
            let entry = entry?;
            offset = entry.offset();
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            let is_hidden = name == "." || name == ".." || self.is_root && name == CONTROL_DIR;
            if !is_hidden && !self.added_names.contains(name) {
                let kind = node_type(entry.file_type());
                entries.push(DirEntry { ino: None, kind, name: name.into() });
            }
        }
        self.next += 1;
        if self.last.is_none() && self.starts.len() == self.next {
            self.starts.push(offset);
        }
        Ok(entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_flocks_that_are_held_in_the_view_count() {
        let device = Device { major: 0, minor: 0x2f };
        let is_held = |line| is_flock_of(line, device);
        assert!(is_held("1: FLOCK  ADVISORY  WRITE 4711 00:2f:123 0 EOF"));
        assert!(is_held("12: FLOCK  ADVISORY  READ 1 00:2f:7 0 EOF"));
        assert!(!is_held("1: FLOCK  ADVISORY  WRITE 4711 00:30:123 0 EOF"));
        assert!(!is_held("1: -> FLOCK  ADVISORY  WRITE 4711 00:2f:123 0 EOF"));
        assert!(!is_held("1: POSIX  ADVISORY  WRITE 4711 00:2f:123 0 EOF"));
        assert!(!is_held("") && !is_held("1: FLOCK"));
    }
}

#[cfg(test)]
mod dir_reading_tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::fs;

    #[test]
    fn an_open_directory_keeps_one_page_and_finds_each_name_once() {
        let dir = std::env::temp_dir().join(format!("latchfs-names-{}", std::process::id()));
        fs::create_dir(&dir).expect("a fresh directory");
        let count = 3 * PAGE_ENTRIES_MAX + 10;
        for number in 0..count {
            fs::write(dir.join(format!("file{number}")), "").expect("written");
        }
        let opened = File::open(&dir).expect("there");
        let mut reading = ViewDirReading::new(opened, false).expect("readable");
        let staged = |name: &str, ino| (name.into(), NodeType::RegularFile, Some(ino));
        reading.begin(vec![staged("file7", 7), staged("staged", 8)]).expect("readable");
        let read = |reading: &mut ViewDirReading| {
            let (mut names, mut index) = (Vec::new(), 0);
            loop {
                let (first, page) = reading.page_of(index).expect("readable");
                assert!(page.len() <= PAGE_ENTRIES_MAX + 2, "{}", page.len());
                let Some(rest) = page.get(index - first..).filter(|rest| !rest.is_empty()) else {
                    return names;
                };
                names.extend(rest.iter().map(|entry| entry.name.clone()));
                index += rest.len();
            }
        };
        let names = read(&mut reading);
        assert_eq!(names.len(), count + 1);
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), count + 1);
        // A program that seeks back reads the same names.
        for index in [2 * PAGE_ENTRIES_MAX + 5, 5, PAGE_ENTRIES_MAX, count, 0] {
            let (first, page) = reading.page_of(index).expect("readable");
            assert_eq!(page[index - first].name, names[index], "{index}");
        }
        assert!(reading.page_of(count + 1).expect("readable").1.len() <= PAGE_ENTRIES_MAX + 2);
        fs::remove_dir_all(&dir).expect("it is there");
    }
}
