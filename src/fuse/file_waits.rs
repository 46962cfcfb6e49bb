//! Waits in lock queues through files of `.latchfs`: the control file `ctl`, or a file of `wait/`.
//! Each wait ends when the lock is granted; closing the file before the grant leaves the queue.
//!
//! Each wait has an identity of its own, an [`OpenId`] on the session of the mount.

use crate::engine::{
    Acquire, LeaseKey, LeaveReason, Op, OpenId, Outcome, Ownership, QueuePolicy, Reason, Refusal,
    Release, Tenure,
};
use crate::fuse::kernel::pending::{Pending, Promise, pending};
use crate::fuse::kernel::user_shares::{Full, Pool, Share};
use crate::fuse::open_files::OpenFiles;
use crate::fuse::posix_locks::PosixLocks;
use crate::fuse::work_signal::WorkSignal;
use crate::service::queue_waits::{Entered, PlaceGuard, QueueWaits, WaitEnd};
use crate::service::{Locks, ParentCheck, RequestError, Unavailable};
use crate::time::Span;
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::sync::Arc;

/// The requests of one mount that wait in a queue through a file of `.latchfs`.
///
/// A dedicated thread answers them: many waits can end at once, and the thread that executed the
/// command which ended them has other requests to serve.
pub(crate) struct FileWaits {
    service: Locks,
    queue: Arc<QueueWaits>,
    posix_locks: Arc<PosixLocks>,
    opens: Arc<OpenFiles>,
    table: Arc<Mutex<FileWaitTable>>,
    signal: Arc<WorkSignal>,
}

#[derive(Default)]
struct FileWaitTable {
    waits: HashMap<u64, FileWait>,
    /// The waits of each open file, as pairs of a file handle and the unique number of a wait.
    by_file: BTreeSet<(u64, u64)>,
    /// Waits that have ended and whose requests are not answered yet, by the unique number of each
    /// wait.
    ended: Vec<u64>,
    /// Whether the thread that answers waits has been started.
    answering: bool,
}

/// One wait in a queue. Its queue place and its end are reported by different threads, in any
/// order.
struct FileWait {
    fh: u64,
    ask: Acquire,
    place: Option<PlaceGuard>,
    end: Option<WaitEnd>,
    promise: Promise<FileWaitEnd>,
    _share: Share,
}

/// The result of a wait in a lock's queue.
#[derive(Debug)]
pub(crate) enum FileWaitEnd {
    /// The lock was granted to the waiter.
    Granted(Tenure),
    /// The request was refused, or got no answer.
    Failed(RequestError),
    /// The request left the queue; `None` if it is not known why.
    Left(Option<LeaveReason>),
    /// The user has reached the limit on queue places.
    NoRoom(Full),
}

impl FileWaits {
    /// Returns the table of waits of one mount, initially empty.
    pub(crate) fn new(
        service: Locks,
        posix_locks: Arc<PosixLocks>,
        opens: Arc<OpenFiles>,
    ) -> Arc<Self> {
        let queue = QueueWaits::new(service.clone());
        let (table, signal) = (Arc::default(), Arc::default());
        Arc::new(Self { service, queue, posix_locks, opens, table, signal })
    }

    /// Takes the lock that `ask` names for the open file `fh`, or waits for it in the queue.
    /// Returns `None` if the file was closed in the meantime.
    pub(crate) async fn join(
        self: &Arc<Self>,
        (fh, uid): (u64, u32),
        patience: Option<Span>,
        ask: Acquire,
        check: Option<ParentCheck>,
    ) -> Option<FileWaitEnd> {
        match self.enqueue((fh, uid), patience, ask, check) {
            Ok(end) => end.await,
            Err(end) => Some(end),
        }
    }

    fn enqueue(
        self: &Arc<Self>,
        (fh, uid): (u64, u32),
        patience: Option<Span>,
        mut ask: Acquire,
        check: Option<ParentCheck>,
    ) -> Result<Pending<FileWaitEnd>, FileWaitEnd> {
        let share = self.opens.shares().take(Pool::Waits, uid, 1).map_err(FileWaitEnd::NoRoom)?;
        let session = self.posix_locks.session().map_err(FileWaitEnd::Failed)?;
        let number = self.opens.number();
        ask.hold = Ownership::Exclusive(Some(OpenId { session, number }));
        ask.line = QueuePolicy::Join(patience);
        let (promise, ended) = pending();
        let (place, end, asked) = (None, None, ask.clone());
        let wait = FileWait { fh, ask, place, end, promise, _share: share };
        let inserted = self.insert(number, wait);
        if let Ok(false) = inserted {
            return Ok(ended);
        }
        if let Err(error) = inserted {
            log::error!(
                "the thread that answers waits can't be started ({error}), so waits are \
                refused"
            );
            let why = "this daemon can't start another thread".into();
            let unavailable = Unavailable::State { full: true, why };
            return Err(FileWaitEnd::Failed(RequestError::Unavailable(unavailable)));
        }
        let (table, signal) = (Arc::clone(&self.table), Arc::clone(&self.signal));
        let on_end = move |end| {
            table.lock().end(number, end);
            signal.ring();
        };
        let own = Arc::clone(self);
        self.queue.enter(asked.clone(), check, on_end, move |answer| match answer {
            Ok(Ok(Entered::Waits(place))) => own.queued(number, place),
            Ok(Ok(Entered::Decided(outcome))) => own.decided(number, asked, &outcome),
            Ok(Err(refusal)) => own.failed(number, RequestError::Refused(refusal)),
            Err(why) => own.failed(number, RequestError::Unavailable(why)),
        });
        Ok(ended)
    }

    /// Records the queue place of a wait, or gives the queue place up if the file was closed.
    fn queued(&self, number: u64, place: PlaceGuard) {
        let unwanted = self.table.lock().queued(number, place);
        // Dropping a queue place sends a request to leave the queue, so `unwanted` is dropped with
        // no mutex held.
        drop(unwanted);
        self.signal.ring();
    }

    /// Completes a wait whose lock was granted at once, or releases the lock if the file was
    /// closed.
    fn decided(&self, number: u64, ask: Acquire, outcome: &Outcome) {
        let (Outcome::Granted(tenure) | Outcome::Renewed(tenure)) = outcome else { return };
        if let Some(wait) = self.take(number) {
            wait.promise.keep(FileWaitEnd::Granted(tenure.clone()));
        } else {
            let key = LeaseKey { name: ask.name, client: ask.client, token: Some(tenure.token) };
            self.service.give_back(Op::Release(Release::of(key)));
        }
    }

    fn failed(&self, number: u64, failure: RequestError) {
        if let Some(wait) = self.take(number) {
            wait.promise.keep(FileWaitEnd::Failed(failure));
        }
    }

    /// Leaves all queues in which a closed file has waits.
    pub(crate) fn closed(&self, fh: u64) {
        let numbers: Vec<u64> = {
            let table = self.table.lock();
            table.by_file.range((fh, 0)..=(fh, u64::MAX)).map(|(_, number)| *number).collect()
        };
        // Each wait is dropped with no mutex held: dropping its promise resumes the waiting task.
        for number in numbers {
            drop(self.take(number));
        }
    }

    /// Sends the results of all waits that have ended to their tasks.
    fn answer_ended(&self) {
        let ended = std::mem::take(&mut self.table.lock().ended);
        for number in ended {
            let Some(FileWait { ask, place, end: Some(end), promise, .. }) = self.take(number)
            else {
                continue;
            };
            place.inspect(PlaceGuard::claim);
            promise.keep(self.end_of(&ask, end));
        }
    }

    fn end_of(&self, ask: &Acquire, end: WaitEnd) -> FileWaitEnd {
        match end {
            WaitEnd::Granted(grant) => FileWaitEnd::Granted(Tenure {
                token: grant.token,
                life: ask.term.begin(grant.at),
                acquired_at: grant.at,
                acquisition: 0,
                previous: None,
            }),
            WaitEnd::Left(LeaveReason::SessionOver) => match ask.hold.open() {
                Some(open) => {
                    let reason = Box::new(Reason::NoSession(open.session));
                    let refusal = Refusal { at: self.service.now(), reason };
                    FileWaitEnd::Failed(RequestError::Refused(refusal))
                }
                None => FileWaitEnd::Left(Some(LeaveReason::SessionOver)),
            },
            WaitEnd::Left(why) => FileWaitEnd::Left(Some(why)),
            WaitEnd::Unknown => FileWaitEnd::Left(None),
        }
    }

    /// Starts the thread that answers waits. It ends with the mount.
    fn start_answering(self: &Arc<Self>) -> io::Result<()> {
        let (signal, own) = (Arc::clone(&self.signal), Arc::downgrade(self));
        let answer = move || {
            while signal.wait() {
                let Some(own) = own.upgrade() else { return };
                own.answer_ended();
            }
        };
        std::thread::Builder::new().name("waits".to_owned()).spawn(answer).map(drop)
    }

    /// Adds a wait to the table. Returns false if its file was closed: the request may have queried
    /// the lock first. Fails if the thread that answers waits can't be started.
    fn insert(self: &Arc<Self>, number: u64, wait: FileWait) -> io::Result<bool> {
        let mut table = self.table.lock();
        if !table.answering {
            self.start_answering()?;
            table.answering = true;
        }
        // A file is removed from the open files before its waits are given up.
        if self.opens.get(wait.fh).is_none() {
            return Ok(false);
        }
        table.by_file.insert((wait.fh, number));
        table.waits.insert(number, wait);
        Ok(true)
    }

    fn take(&self, number: u64) -> Option<FileWait> {
        let mut table = self.table.lock();
        let wait = table.waits.remove(&number)?;
        table.by_file.remove(&(wait.fh, number));
        Some(wait)
    }
}

impl FileWaitTable {
    /// Records how a wait has ended. The waiting request is answered when both the end of the wait
    /// and its queue place are known, in whichever order they are reported.
    fn end(&mut self, number: u64, end: WaitEnd) {
        let Some(wait) = self.waits.get_mut(&number) else { return };
        wait.end = Some(end);
        if wait.place.is_some() {
            self.ended.push(number);
        }
    }

    /// Records the queue place of a wait. Returns the place if the file was closed: the caller must
    /// drop it, which leaves the queue.
    fn queued(&mut self, number: u64, place: PlaceGuard) -> Option<PlaceGuard> {
        let Some(wait) = self.waits.get_mut(&number) else { return Some(place) };
        wait.place = Some(place);
        if wait.end.is_some() {
            self.ended.push(number);
        }
        None
    }
}

impl Drop for FileWaits {
    fn drop(&mut self) {
        self.signal.stop();
    }
}
