//! Open files and directories: their state, the tenure to which each file of a lock is bound, and
//! their waiting reads. A tenure is the time for which a client holds a lock, from the grant to the
//! release or loss.
//!
//! An open file of the mount: what it refers to, its opener, and the tenure of a lock to which it
//! is bound. A tenure is the time for which a client holds a lock, from the grant to the release or
//! loss.
//!
//! A summary of a lock's state, as a program last saw it through an open file. poll(2) detects a
//! change of the lock by comparing this summary with the lock's current state.
//!
//! The state of an open file of `.latchfs/wait`.
//!
//! The open files and directories of one mount, by file handle.
//!
//! Opens that the kernel repeats because their name had vanished.
//!
//! A lock's name vanishes when the lock is released. If the kernel has not heard of that yet, it
//! sends OPEN for the name, and leaves out `O_CREAT`, since it takes the file to exist. After an
//! answer of ESTALE the kernel looks the name up again and, with `O_CREAT`, makes the lock. It does
//! so only once: a second ESTALE would fail the program's open, and under contention the name may
//! have been made and vanished again.
//!
//! The read position of an open directory. Directories are read page by page, so that neither the
//! time of one request nor the memory of an open directory depends on the number of locks.
//!
//! Names come in order, and a page begins after the last name of the previous one. A name that
//! exists all the time is listed once; one that is created or removed meanwhile may be listed or
//! not.
//!
//! `.latchfs/events`: a stream of lock events, each a line of JSON, as they happen.
//!
//! An open file is a position in the event log. A read waits until there are events, and continues
//! where the last read ended, whatever its offset. A slow reader does not delay other readers or
//! the lock service: if events were dropped from the log before it read them, it gets their number.
//!
//! Reads of control files that wait for data, and their interruption by signals.
//!
//! A read of a control file that waits for data and is answered later.
//!
//! The answers in the control file `.latchfs/ctl` that were not read yet.

use crate::engine::{
    ClientId, Holder, Lease, LeaseKey, Lifetime, LockName, LockView, Phase, SessionId, Token,
};
use crate::fuse::control_names::{ControlFile, ControlPage, LockReport};
use crate::fuse::credentials::Caller;
use crate::fuse::refusals::Refusals;
use crate::service::event_log::EventWatch;
use crate::service::{LockService, SessionOwner};
use crate::status::{event_of, lost};
use common::shares::{Identity, SharedQueue};
use common::task::{Pending, Promise, pending};
use kernel::file_system::{DirEntry, Done, Errno, PollEvents, ReadBytes, ReadRequest};
use kernel::handles::{Full, HandleNumbers, Handles, Pool, Share, Shares};
use kernel::interrupts::{InterruptWatcher, InterruptibleWait, WaitStatus};
use kernel::notifications::PollWaker;
use parking_lot::{Mutex, MutexGuard};
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Weak};

/// One open file of the mount.
#[derive(Debug)]
pub(crate) struct OpenFile {
    /// The lock or control file to which this open file refers.
    pub(crate) target: OpenTarget,
    /// The client that opened the file; all operations through the file act on behalf of this
    /// client.
    pub(crate) client: ClientId,
    /// The user who opened the file.
    pub(crate) uid: u32,
    /// The id of the thread that opened the file, or 0 if the thread lives in a foreign pid
    /// namespace.
    pub(crate) pid: u32,
    /// Whether the file was opened for reading, writing or both.
    pub(crate) access: OpenAccess,
    /// Whether the file was opened with `O_APPEND`.
    pub(crate) append: bool,
    /// Whether the lock was created by this very open, with `O_CREAT` and `O_EXCL`.
    pub(crate) made_new: bool,
    /// The state that changes while the file is open.
    state: Mutex<OpenFileState>,
    /// The count of this open file against its user's limit; set when the file enters the table of
    /// open files.
    pub(crate) share: Option<Share>,
}

/// The object to which an open file refers.
#[derive(Debug, Clone)]
pub(crate) enum OpenTarget {
    /// A lock, with its inode and the name under which it was opened.
    Lock(u64, LockName),
    /// A file in `.latchfs`, or a file that shows one fact about a lock in the lock's directory.
    Control(ControlFile),
}

/// The access of an open file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OpenAccess {
    /// The file is open for reading only.
    Read,
    /// The file is open for writing only.
    Write,
    /// The file is open for reading and writing. Programs that open a file in this way expect to
    /// read back what they wrote.
    Both,
}

/// The state that changes while a file is open.
#[derive(Debug, Default)]
pub(crate) struct OpenFileState {
    /// The tenure (one client's hold of the lock) to which the file is bound: the one that began
    /// with this open file, or the one that the opener had at the open or at the first write.
    /// Identified by its token.
    pub(crate) tenure: Option<Token>,
    /// The session to which the file's lease is attached, if it is a session of this mount. If the
    /// session is lost, the lock is lost for this file, although the server may keep the lease in
    /// grace for its client.
    pub(crate) session: Option<SessionId>,
    /// Whether a program has tried to write through this open file, successfully or not.
    pub(crate) wrote: bool,
    /// The lease that a program has made with `O_EXCL` through this open file, or to which it has
    /// written a text, a ttl, a grace or a process, so that no other open file may take the lease
    /// over; `None` after this file was locked. Identified as `tenure` is.
    pub(crate) own_lease: Option<Token>,
    /// Whether a program has tried to lock through this open file, successfully or not.
    pub(crate) locked: bool,
    /// The end of the last message that a program has written to the lock's file through this open
    /// file.
    pub(crate) end: Option<MessageEnd>,
    /// The renewal that the truncation by the open of this file requests, if the file is closed and
    /// no program has tried to lock it or to write to it.
    pub(crate) truncated: Option<TruncatedLease>,
    /// The number of requests to `.latchfs/ctl` that wait in a queue and have no answer yet.
    pub(crate) pending: usize,
    /// The reads of this file that wait for data.
    pub(crate) held: Vec<HeldRead>,
    /// The state of the wait for a lock, if this is a file in `.latchfs/wait`.
    pub(crate) wait: WaitState,
    /// The state of the lock that a program has last seen by a read or a poll through this open
    /// file.
    pub(crate) seen: Option<LastSeen>,
    /// The event stream, if this is the file `.latchfs/events`.
    pub(crate) stream: Option<Arc<EventStream>>,
    /// The snapshot of the content that reads return, with its count against the user's limit.
    pub(crate) bytes: (Arc<[u8]>, Option<Share>),
    /// The answers in `.latchfs/ctl` that were not read yet.
    pub(crate) answers: UnreadAnswers,
}

/// The lease of a lock whose file was truncated by an open.
#[derive(Debug)]
pub(crate) struct TruncatedLease {
    /// The fencing token of the lease.
    pub(crate) token: Token,
    /// The `holder_id` of the process that opened the file.
    pub(crate) by: Arc<str>,
}

/// The end of a message that was written to a lock's file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MessageEnd {
    /// The offset of the message's end in the file.
    pub(crate) at: u64,
    /// Whether the message was text, which a write at this offset continues.
    pub(crate) is_text: bool,
}

impl OpenAccess {
    /// Returns the access that the flags of open(2) request.
    pub(crate) const fn of_flags(flags: i32) -> Self {
        match flags & libc::O_ACCMODE {
            libc::O_WRONLY => Self::Write,
            libc::O_RDWR => Self::Both,
            _ => Self::Read,
        }
    }

    /// Whether the access includes writing.
    pub(crate) const fn writes(self) -> bool {
        matches!(self, Self::Write | Self::Both)
    }
}

impl OpenFile {
    /// Returns an open file that refers to a lock. The file is not bound to a lease yet.
    pub(crate) fn of_lock(caller: &Caller, ino: u64, name: LockName, flags: i32) -> Self {
        let append = flags & libc::O_APPEND != 0;
        Self { append, ..Self::new(caller, OpenTarget::Lock(ino, name), flags) }
    }

    /// Returns an open file that refers to a control file.
    pub(crate) fn of_control(
        caller: &Caller,
        control: ControlFile,
        flags: i32,
        stream: Option<Arc<EventStream>>,
    ) -> Self {
        let open = Self::new(caller, OpenTarget::Control(control), flags);
        open.state().stream = stream;
        open
    }

    fn new(caller: &Caller, target: OpenTarget, flags: i32) -> Self {
        Self {
            target,
            client: caller.client.clone(),
            uid: caller.uid,
            pid: caller.pid,
            access: OpenAccess::of_flags(flags),
            append: false,
            made_new: false,
            state: Mutex::default(),
            share: None,
        }
    }

    /// Returns the state that changes while the file is open.
    pub(crate) fn state(&self) -> MutexGuard<'_, OpenFileState> {
        self.state.lock()
    }

    /// Returns the caller with the user and client of the file's opener: operations act on behalf
    /// of the opener, even if the descriptor was passed to another process.
    pub(crate) fn opener(&self, caller: &Caller) -> Caller {
        Caller { client: self.client.clone(), uid: self.uid, ..caller.clone() }
    }

    /// Returns the lock for which reads of this file wait, if it is a file in `.latchfs/wait`.
    pub(crate) fn waits_for(&self) -> Option<&LockName> {
        match &self.target {
            OpenTarget::Control(ControlFile::Report(LockReport::Wait, name)) => Some(name),
            OpenTarget::Control(_) | OpenTarget::Lock(..) => None,
        }
    }

    /// Returns the name under which the lock was opened, if this is the file of a lock.
    pub(crate) const fn lock(&self) -> Option<&LockName> {
        match &self.target {
            OpenTarget::Lock(_, name) => Some(name),
            OpenTarget::Control(_) => None,
        }
    }

    /// Returns the inode number of the lock, if this is the file of a lock.
    pub(crate) const fn lock_ino(&self) -> Option<u64> {
        match &self.target {
            OpenTarget::Lock(ino, _) => Some(*ino),
            OpenTarget::Control(_) => None,
        }
    }

    /// Returns the lease to which the file is bound, by the token that stays the same when `mv` or
    /// an upgrade gives the lease a new token.
    pub(crate) fn tenure(&self) -> Option<Token> {
        self.state().tenure
    }

    /// Binds the file to the lease that its opener holds according to the lock's state `view`, if
    /// it holds one. `origin_of` maps the lease's token to the token that stays the same when `mv`
    /// or an upgrade gives the lease a new one.
    pub(crate) fn bind_to_held(
        &self,
        service: &Arc<dyn LockService>,
        view: &LockView,
        origin_of: impl FnOnce(Token) -> Token,
    ) {
        let Some(held) = view.held_by(&self.client) else { return };
        let Lease { token, life, .. } = held.lease;
        let session = match (life, service.own_session()) {
            (Lifetime::Session(session), Ok(SessionOwner::Kept(own))) if session == own => {
                Some(own)
            }
            _ => None,
        };
        let origin = origin_of(token);
        let mut state = self.state();
        (state.tenure, state.session) = (Some(origin), session);
    }

    /// Records the state of the lock that a program has seen through this file.
    pub(crate) fn saw(&self, view: &LockView) {
        self.state().seen = Some(LastSeen::of(view));
    }

    /// Returns the part of the file's snapshot that a read requests, or `None` if the read needs a
    /// new snapshot: at offset 0, and if nothing was read through this file before.
    pub(crate) fn kept_window(&self, asked: ReadRequest) -> Option<ReadBytes> {
        let state = self.state();
        let is_kept = asked.offset > 0 && state.bytes.1.is_some();
        is_kept.then(|| ReadBytes::window(Arc::clone(&state.bytes.0), asked.offset, asked.size))
    }

    /// Stores a snapshot of the content for later reads, if the user's limit on buffered bytes
    /// allows it.
    pub(crate) fn keep(&self, shares: &Shares, bytes: Arc<[u8]>) -> Result<Arc<[u8]>, Full> {
        // The previous snapshot of the content is dropped first, so that it does not count against
        // the user's limit.
        self.state().bytes = Default::default();
        let share = match &self.target {
            // The file `.latchfs/why` can be read even beyond the limit on buffered bytes, because
            // it reports the refusals, also those by this limit.
            OpenTarget::Control(ControlFile::Page(ControlPage::Why)) => {
                shares.take_always(Pool::Bytes, self.uid, bytes.len())
            }
            _ => shares.take(Pool::Bytes, self.uid, bytes.len())?,
        };
        self.state().bytes = (Arc::clone(&bytes), Some(share));
        Ok(bytes)
    }
}

/// A summary of a lock's state. It differs after every change of the lock's phase (held, grace or
/// free) or holders, because no fencing token is used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LastSeen {
    pub(crate) phase: Phase,
    holders: usize,
    first: Option<Token>,
    last: Option<Token>,
}

impl LastSeen {
    /// Returns the summary of the lock's state `view`.
    pub(crate) fn of(view: &LockView) -> Self {
        let token = |holder: &Holder| holder.lease.token;
        Self {
            phase: view.phase(),
            holders: view.holders.len(),
            first: view.holders.first().map(token),
            last: view.holders.last().map(token),
        }
    }
}

/// The state of a wait for a lock through an open file.
#[derive(Debug, Default)]
pub(crate) enum WaitState {
    /// No wait has started, or a read has reported the result of the last one.
    #[default]
    Idle,
    /// The file waits in the queue of the lock.
    Queued,
    /// The lock was granted, and no read has reported the grant yet.
    Unread(LeaseKey),
    /// The file was closed, so that no wait may start.
    Closed,
}

/// The open files and directories of one mount.
#[derive(Debug, Default)]
pub(crate) struct OpenFiles {
    numbers: HandleNumbers,
    shares: Shares,
    files: Handles<OpenFile>,
    dirs: Handles<OpenDir>,
    /// The opens that the kernel repeats.
    pub(crate) repeated: RepeatedOpens,
}

impl OpenFiles {
    /// Returns an empty table. Each open file that is added to it counts against the per-user
    /// limits `shares`.
    pub(crate) fn new(shares: Shares) -> Self {
        Self { shares, ..Self::default() }
    }

    /// Returns the per-user limits against which open files count.
    pub(crate) const fn shares(&self) -> &Shares {
        &self.shares
    }

    /// Returns a number that was never returned before, as a file handle or for a waiting read.
    pub(crate) fn number(&self) -> u64 {
        self.numbers.next()
    }

    /// Adds an open file to the table under a new file handle, and returns the handle.
    pub(crate) fn insert(&self, open: OpenFile) -> u64 {
        let fh = self.number();
        self.insert_as(fh, open);
        fh
    }

    /// Adds an open file to the table under a file handle that was reserved for it.
    pub(crate) fn insert_as(&self, fh: u64, mut open: OpenFile) {
        open.share = Some(self.shares.take_always(Pool::Files, open.uid, 1));
        self.files.insert(fh, open);
    }

    /// Returns the open file with this file handle.
    pub(crate) fn get(&self, fh: u64) -> Option<Arc<OpenFile>> {
        self.files.get(fh)
    }

    /// Removes and returns an open file after its last descriptor was closed.
    pub(crate) fn remove(&self, fh: u64) -> Option<Arc<OpenFile>> {
        self.files.remove(fh)
    }

    /// Adds an open directory of a user to the table, and returns its new file handle.
    pub(crate) fn insert_dir(&self, uid: u32) -> Result<u64, Full> {
        let dir = OpenDir::new(self.shares.take(Pool::Directories, uid, 1)?);
        let fh = self.number();
        self.dirs.insert(fh, dir);
        Ok(fh)
    }

    /// Returns the open directory with this file handle.
    pub(crate) fn dir(&self, fh: u64) -> Option<Arc<OpenDir>> {
        self.dirs.get(fh)
    }

    /// Removes an open directory that was closed.
    pub(crate) fn remove_dir(&self, fh: u64) {
        drop(self.dirs.remove(fh));
    }

    /// Returns the number of open files.
    pub(crate) fn count(&self) -> usize {
        self.files.count()
    }
}

/// The maximum number of threads that are remembered, more than open files at the same moment. A
/// program whose thread is forgotten too early may get ESTALE.
const THREADS_MAX: usize = 1_024;
/// The maximum number of remembered threads of one user: half of all, so that the others keep
/// theirs.
const THREADS_OF_ONE_MAX: usize = THREADS_MAX / 2;

/// The threads whose opens the kernel repeats.
#[derive(Debug)]
pub(crate) struct RepeatedOpens(Mutex<SharedQueue<u32>>);

impl Default for RepeatedOpens {
    fn default() -> Self {
        Self(Mutex::new(SharedQueue::new("repeated opens", THREADS_MAX, THREADS_OF_ONE_MAX)))
    }
}

impl RepeatedOpens {
    /// Whether the kernel is to repeat an open, by the thread `tid` of the user `uid`, of a name
    /// that has vanished. If so, the next open of that thread is not repeated again.
    pub(crate) fn repeats(&self, uid: u32, tid: u32) -> bool {
        // Threads of foreign pid namespaces can't be distinguished.
        if tid == 0 || self.done(tid) {
            return false;
        }
        self.0.lock().push(&Identity::User(uid), tid);
        true
    }

    /// Records that the thread `tid` has opened a file or made one. Returns whether its open was a
    /// repeated one.
    pub(crate) fn done(&self, tid: u32) -> bool {
        self.0.lock().remove(|thread| *thread == tid).is_some()
    }
}

/// The number of names on a page: twice as many as a usual readdir reply of 4 KiB holds.
pub(crate) const PAGE: usize = 256;
/// The maximum number of marks: positions in the directory from which reading can continue without
/// starting over.
const MARKS_MAX: usize = 64;

#[derive(Debug)]
pub(crate) struct OpenDir {
    pub(crate) reading: Mutex<DirReading>,
    _share: Share,
}

/// The read position in a directory, with the page of names that was read last, and with marks,
/// which are remembered earlier positions.
#[derive(Debug)]
pub(crate) struct DirReading {
    /// The names of the page that was read last, and the index of its first name.
    entries: Arc<Vec<DirEntry>>,
    first: u64,
    /// The beginning of the next page; `None` at the end of the directory.
    next: Option<DirMark>,
    /// The number of names read so far. The kernel knows no directory offset beyond it.
    reached: u64,
    /// Remembered positions in the directory, in order, from which reading can go on without
    /// starting over.
    marks: Vec<DirMark>,
    /// The minimum distance between two remembered positions, in names.
    stride: u64,
}

/// A position in a directory.
#[derive(Debug, Clone, Default)]
pub(crate) struct DirMark {
    /// The index of the name that comes next.
    pub(crate) index: u64,
    /// The engine's list cursor for the position; `None` at the beginning of the directory.
    pub(crate) cursor: Option<String>,
}

/// The page that contains a requested entry of the directory.
pub(crate) enum PageFound {
    /// The page that was read last contains the entry. Holds the names of that page, and the index
    /// of its first name.
    Here(Arc<Vec<DirEntry>>, u64),
    /// The entry is on the page that begins at the contained position, or on a later page.
    From(DirMark),
    /// No page contains the entry: its index is beyond the end of the directory.
    End,
}

impl OpenDir {
    /// Returns an open directory whose reading starts at the beginning.
    pub(crate) fn new(share: Share) -> Self {
        Self { reading: Mutex::new(DirReading::new()), _share: share }
    }
}

impl DirReading {
    /// Returns the position at the beginning of a directory.
    pub(crate) fn new() -> Self {
        let (next, marks) = (Some(DirMark::default()), vec![DirMark::default()]);
        Self { entries: Arc::default(), first: 0, next, reached: 0, marks, stride: PAGE as u64 }
    }

    /// Finds the page of the directory with the entry number `index`.
    pub(crate) fn find(&self, index: u64) -> PageFound {
        let end = self.first + self.entries.len() as u64;
        if (self.first..end).contains(&index) {
            return PageFound::Here(Arc::clone(&self.entries), self.first);
        }
        if index > self.reached || (self.next.is_none() && index >= end) {
            return PageFound::End;
        }
        let places = self.marks.iter().chain(&self.next).filter(|mark| mark.index <= index);
        PageFound::From(places.max_by_key(|mark| mark.index).cloned().unwrap_or_default())
    }

    /// Records a page of the directory, which was read from the position `mark` on.
    pub(crate) fn turn_to(
        &mut self,
        mark: &DirMark,
        entries: Vec<DirEntry>,
        cursor: Option<String>,
    ) {
        let index = mark.index + entries.len() as u64;
        self.first = mark.index;
        self.reached = self.reached.max(index);
        self.entries = Arc::new(entries);
        self.next = cursor.map(|cursor| DirMark { index, cursor: Some(cursor) });
        let last = self.marks.last().map_or(0, |last| last.index);
        if mark.index < last + self.stride {
            return;
        }
        if self.marks.len() == MARKS_MAX {
            let mut keep = false;
            self.marks.retain(|_| {
                keep = !keep;
                keep
            });
            self.stride *= 2;
        }
        self.marks.push(mark.clone());
    }
}

/// The maximum number of bytes that one read of the stream returns: some 300 events.
const READ_BYTES_MAX: usize = 64 << 10;
/// The number of events taken from the event log at once. Lines that do not fit the read are kept
/// for the next one.
const EVENTS_MAX: usize = 64;

/// The poll events that are reported while the event stream has unread events.
const READABLE: PollEvents = PollEvents::POLLIN.union(PollEvents::POLLRDNORM);

/// The position of a reader in the event log.
pub(crate) struct EventStream {
    locks: Arc<dyn LockService>,
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
    pub(crate) fn open(locks: &Arc<dyn LockService>, since: Option<u64>) -> Arc<Self> {
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
    fn take(&mut self, locks: &Arc<dyn LockService>, size: u32) -> Vec<u8> {
        let size = (size as usize).min(READ_BYTES_MAX);
        while self.unread.len() < size {
            let batch = self.watch.take(EVENTS_MAX);
            if let Some(count) = batch.missing() {
                self.unread.extend_from_slice(format!("{}\n", lost(count)).as_bytes());
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

/// Registers waiting reads, and ends them when their threads get a signal.
pub(crate) struct WaitingReads {
    opens: Arc<OpenFiles>,
    interrupts: Arc<InterruptWatcher>,
    refusals: Arc<Refusals>,
}

impl WaitingReads {
    /// Returns the registry of waiting reads of the open files `opens`. `interrupts` checks the
    /// threads that wait in these reads for signals.
    pub(crate) const fn new(
        opens: Arc<OpenFiles>,
        interrupts: Arc<InterruptWatcher>,
        refusals: Arc<Refusals>,
    ) -> Self {
        Self { opens, interrupts, refusals }
    }

    /// Returns a number for a new read, which no other read has had.
    pub(crate) fn number(&self) -> u64 {
        self.opens.number()
    }

    /// Returns the per-user limits against which waiting threads count.
    pub(crate) fn shares(&self) -> &Shares {
        self.opens.shares()
    }

    /// Registers a read of the open file `fh` by the thread `tid`. Returns the future of its
    /// answer.
    pub(crate) fn hold(
        &self,
        fh: u64,
        mut state: MutexGuard<'_, OpenFileState>,
        size: u32,
        tid: u32,
    ) -> Pending<Done<ReadBytes>> {
        let (held, answer) = HeldRead::new(self.opens.number(), size);
        let number = held.number;
        state.held.push(held);
        drop(state);
        self.watch(fh, number, tid);
        answer
    }

    /// Lets the interrupt watcher watch the thread of a waiting read that is registered already.
    pub(crate) fn watch(&self, fh: u64, number: u64, tid: u32) {
        let (opens, refusals) = (Arc::downgrade(&self.opens), Arc::clone(&self.refusals));
        self.interrupts.watch(number, tid, WaitingRead { opens, refusals, fh, number });
    }
}

/// A waiting read, as the interrupt watcher sees it.
struct WaitingRead {
    opens: Weak<OpenFiles>,
    refusals: Arc<Refusals>,
    fh: u64,
    number: u64,
}

impl WaitingRead {
    /// Returns the index of this read among the waiting reads of its file.
    fn place(&self, state: &OpenFileState) -> Option<usize> {
        state.held.iter().position(|held| held.number == self.number)
    }
}

impl InterruptibleWait for WaitingRead {
    fn status(&self) -> WaitStatus {
        let open = self.opens.upgrade().and_then(|opens| opens.get(self.fh));
        let waits = open.is_some_and(|open| self.place(&open.state()).is_some());
        if waits { WaitStatus::Asks } else { WaitStatus::Over }
    }

    /// Fails the waiting read with EINTR. The file keeps its place in the lock's queue, because the
    /// program may read again; if it does not, closing the file gives the place up.
    fn interrupt(&self) {
        let Some(open) = self.opens.upgrade().and_then(|opens| opens.get(self.fh)) else { return };
        let mut state = open.state();
        let held = self.place(&state).map(|place| state.held.remove(place));
        drop(state);
        if let Some(held) = held {
            self.refusals.count_errno(Errno::EINTR);
            held.promise.keep(Err(Errno::EINTR));
        }
    }
}

/// A read of a control file that waits for data.
#[derive(Debug)]
pub(crate) struct HeldRead {
    /// The number under which the interrupt watcher knows the read.
    pub(crate) number: u64,
    /// The maximum number of bytes to return.
    pub(crate) size: u32,
    /// The promise by which the waiting read gets its answer.
    pub(crate) promise: Promise<Done<ReadBytes>>,
}

impl HeldRead {
    /// Returns a waiting read of up to `size` bytes, and the future of its answer.
    pub(crate) fn new(number: u64, size: u32) -> (Self, Pending<Done<ReadBytes>>) {
        let (promise, answer) = pending();
        (Self { number, size, promise }, answer)
    }
}

/// Unread answers in order, counted against the limit of their user.
#[derive(Debug, Default)]
pub(crate) struct UnreadAnswers {
    bytes: VecDeque<u8>,
    share: Option<Share>,
}

impl UnreadAnswers {
    /// Appends an answer, which is one line, if the user's limit on unread bytes allows it.
    pub(crate) fn add(&mut self, shares: &Shares, uid: u32, line: &str) -> Result<(), Full> {
        match &mut self.share {
            Some(share) => share.grow(line.len())?,
            share => *share = Some(shares.take(Pool::Bytes, uid, line.len())?),
        }
        self.bytes.extend(line.as_bytes());
        Ok(())
    }

    /// Appends an answer, which is one short line, even beyond the user's limit on unread bytes.
    pub(crate) fn add_always(&mut self, shares: &Shares, uid: u32, line: &str) {
        let share = &mut self.share;
        share
            .get_or_insert_with(|| shares.take_always(Pool::Bytes, uid, 0))
            .grow_always(line.len());
        self.bytes.extend(line.as_bytes());
    }

    /// Removes and returns at most `size` bytes of the unread answers.
    pub(crate) fn take(&mut self, size: u32) -> Vec<u8> {
        let size = self.bytes.len().min(size as usize);
        if let Some(share) = &mut self.share {
            share.shrink(size);
        }
        let taken = self.bytes.drain(..size).collect();
        if self.bytes.is_empty() {
            // Replacing the buffer frees its memory, of which one long list may have taken much.
            self.bytes = VecDeque::new();
        }
        taken
    }

    /// Whether the program has read all answers.
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_follows_the_open_flags() {
        assert_eq!(OpenAccess::of_flags(libc::O_RDONLY | libc::O_APPEND), OpenAccess::Read);
        assert!(OpenAccess::of_flags(libc::O_WRONLY | libc::O_TRUNC).writes());
        assert_eq!(OpenAccess::of_flags(libc::O_RDWR), OpenAccess::Both);
    }
}

#[cfg(test)]
mod open_table_tests {
    use super::*;

    #[test]
    fn file_handles_are_never_reused() {
        let opens = OpenFiles::default();
        let first = opens.insert_dir(0).expect("room");
        opens.remove_dir(first);
        assert_ne!(opens.insert_dir(0).expect("room"), first);
    }
}

#[cfg(test)]
mod repeated_opens_tests {
    use super::*;

    #[test]
    fn an_open_is_repeated_once() {
        let opens = RepeatedOpens::default();
        let repeats = |tid| opens.repeats(0, tid);
        assert!(repeats(7) && repeats(8));
        assert!(!repeats(7));
        assert!(repeats(7) && opens.done(7) && !opens.done(7));
        assert!(repeats(7), "the repeated open has made the file");
        assert!(!repeats(0));
    }

    #[test]
    fn one_user_leaves_half_of_the_repeated_opens_to_others() {
        let opens = RepeatedOpens::default();
        let threads = |uid: u32| (uid * 10_000..).take(THREADS_OF_ONE_MAX);
        let remembered = |uid| threads(uid).filter(|tid| opens.done(*tid)).count();
        for uid in [1, 2] {
            assert!(threads(uid).all(|tid| opens.repeats(uid, tid)));
        }
        let more = 30_000..;
        assert!(more.take(THREADS_MAX).all(|tid| opens.repeats(2, tid)));
        assert_eq!(opens.0.lock().count(), THREADS_MAX);
        assert_eq!((remembered(1), remembered(2)), (THREADS_OF_ONE_MAX, 0));
        assert!(threads(1).chain(threads(4)).all(|tid| opens.repeats(tid / 10_000, tid)));
        assert_eq!(opens.0.lock().count(), THREADS_MAX, "three users share the table");
    }
}

#[cfg(test)]
mod dir_reading_tests {
    use super::*;
    use kernel::file_system::NodeType;
    use std::ffi::OsString;

    /// Reads pages in a test until one contains `index`, as if the engine had `count` names.
    /// Returns the number of pages read.
    fn turn(reading: &mut DirReading, index: u64, count: u64) -> usize {
        let mut pages = 0;
        while let PageFound::From(mark) = reading.find(index) {
            let end = count.min(mark.index + PAGE as u64);
            let entry = |n: u64| DirEntry {
                ino: None,
                kind: NodeType::Directory,
                name: OsString::from(n.to_string()).into(),
            };
            let next = (end < count).then(|| end.to_string());
            assert_eq!(mark.cursor.as_deref().unwrap_or("0"), mark.index.to_string());
            reading.turn_to(&mark, (mark.index..end).map(entry).collect(), next);
            pages += 1;
        }
        pages
    }

    fn name_at(reading: &mut DirReading, index: u64, count: u64) -> Option<String> {
        turn(reading, index, count);
        match reading.find(index) {
            PageFound::Here(entries, first) => {
                Some(entries[(index - first) as usize].name.display().to_string())
            }
            _ => None,
        }
    }

    #[test]
    fn every_name_is_found_in_any_order() {
        const COUNT: u64 = 100_000;
        let mut reading = DirReading::new();
        for index in (0..COUNT).chain([5, COUNT - 1, 70_000, 0, 256, 255]) {
            assert_eq!(name_at(&mut reading, index, COUNT), Some(index.to_string()));
        }
        assert_eq!(name_at(&mut reading, COUNT, COUNT), None);
        assert_eq!(name_at(&mut reading, u64::MAX, COUNT), None);
        assert_eq!(name_at(&mut DirReading::new(), 0, 0), None);
        assert_eq!(turn(&mut DirReading::new(), COUNT, COUNT), 0, "no place that was given out");
    }

    #[test]
    fn seeking_back_reads_few_pages_and_keeps_few_marks() {
        const COUNT: u64 = 1 << 20;
        let mut reading = DirReading::new();
        for index in (0..COUNT).step_by(PAGE) {
            assert_eq!(turn(&mut reading, index, COUNT), 1);
        }
        for index in [0, 1_000, COUNT / 3, COUNT / 2, COUNT - 70_000] {
            // Reading backwards visits all pages between two marks (remembered positions in the
            // directory). When there are too many marks, every second one is dropped.
            assert!(turn(&mut reading, index, COUNT) <= 4 * COUNT as usize / PAGE / MARKS_MAX);
            assert!(reading.marks.len() <= MARKS_MAX && reading.entries.len() <= PAGE);
        }
    }
}

#[cfg(test)]
mod event_stream_tests {
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
