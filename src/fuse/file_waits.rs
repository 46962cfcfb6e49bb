//! Waits in lock queues through files of `.latchfs`: the control file `ctl`, or a file of `wait/`.
//! Each wait ends when the lock is granted; closing the file before the grant leaves the queue.
//!
//! Each wait has an identity of its own, an [`OpenId`] on the session of the mount.
//!
//! A wake-up signal for one thread: several signals before the thread wakes count as one.
//!
//! poll(2) on the file of a lock. Like any file it is always readable and writable. A change of the
//! lock's phase (held, grace or free) or holder is reported by POLLPRI, until the file is read
//! again from its beginning, as in sysfs.
//!
//! Between the open or the last read and the first poll, [`LastSeen`] detects a change; after that
//! poll, lock events do.

use crate::engine::{
    Acquire, Event, EventKind, LeaseKey, LeaveReason, LockName, Op, OpenId, Outcome, Ownership,
    Phase, QueuePolicy, Reason, Refusal, Release, Tenure,
};
use crate::fuse::control_names::ControlFile;
use crate::fuse::lock_nodes::LockNodes;
use crate::fuse::open_files::{LastSeen, OpenFile, OpenFiles, OpenTarget};
use crate::fuse::posix_locks::PosixLocks;
use crate::service::event_log::EventWatch;
use crate::service::queue_waits::{Entered, PlaceGuard, QueueWaits, WaitEnd};
use crate::service::{CacheableView, LockService, ParentCheck, RequestError, Retry, Unavailable};
use crate::time::Span;
use common::task::spawn;
use common::task::{Pending, Promise, pending};
use kernel::file_system::PollEvents;
use kernel::handles::{Full, Pool, Share};
use kernel::notifications::PollWaker;
use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::sync::Arc;

/// The requests of one mount that wait in a queue through a file of `.latchfs`.
///
/// A dedicated thread answers them: many waits can end at once, and the thread that executed the
/// command which ended them has other requests to serve.
pub(crate) struct FileWaits {
    service: Arc<dyn LockService>,
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
        service: Arc<dyn LockService>,
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
        fh: u64,
        uid: u32,
        patience: Option<Span>,
        ask: Acquire,
        check: Option<ParentCheck>,
    ) -> Option<FileWaitEnd> {
        match self.enqueue(fh, uid, patience, ask, check) {
            Ok(end) => end.await,
            Err(end) => Some(end),
        }
    }

    fn enqueue(
        self: &Arc<Self>,
        fh: u64,
        uid: u32,
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
        let entered = self.queue.enter(asked.clone(), check, on_end);
        spawn(async move {
            match entered.await {
                Ok(Ok(Entered::Waits(place))) => own.queued(number, place),
                Ok(Ok(Entered::Decided(outcome))) => own.decided(number, asked, &outcome),
                Ok(Err(refusal)) => own.failed(number, RequestError::Refused(refusal)),
                Err(why) => own.failed(number, RequestError::Unavailable(why)),
            }
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
            WaitEnd::Granted(grant) => FileWaitEnd::Granted(grant.tenure(ask.term)),
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

/// The signal that wakes one thread when there is work for it.
#[derive(Default)]
pub(crate) struct WorkSignal {
    state: Mutex<SignalState>,
    rung: Condvar,
}

#[derive(Default)]
struct SignalState {
    is_due: bool,
    is_over: bool,
}

impl WorkSignal {
    /// Signals that there is work. The call never blocks for long, so any thread may make it.
    pub(crate) fn ring(&self) {
        let before = std::mem::replace(&mut self.state.lock().is_due, true);
        if !before {
            self.rung.notify_one();
        }
    }

    /// Makes [`WorkSignal::wait`] return false, so that the thread ends.
    pub(crate) fn stop(&self) {
        self.state.lock().is_over = true;
        self.rung.notify_one();
    }

    /// Sleeps until there is work. Returns false after [`WorkSignal::stop`].
    pub(crate) fn wait(&self) -> bool {
        let mut state = self.state.lock();
        self.rung.wait_while(&mut state, |state| !state.is_due && !state.is_over);
        state.is_due = false;
        !state.is_over
    }
}

/// The maximum number of events handled in one batch, which bounds how long the mutex is held.
const EVENTS_MAX: usize = 256;

/// The poll events that are always ready on the file of a lock.
const ALWAYS: PollEvents = PollEvents::POLLIN
    .union(PollEvents::POLLOUT)
    .union(PollEvents::POLLRDNORM)
    .union(PollEvents::POLLWRNORM);

/// The open files of one mount on which programs wait by poll(2).
pub(crate) struct Polls {
    nodes: Arc<LockNodes>,
    opens: Arc<OpenFiles>,
    polled: Mutex<PollTable<PollWaker>>,
}

/// The open files on which programs wait by poll(2). `N` is the waker of all pollers of one open
/// file.
struct PollTable<N> {
    files: HashMap<u64, PolledFile<N>>,
    /// The file handles of the polled files of each lock.
    of_lock: HashMap<LockName, Vec<u64>>,
    /// The subscription to lock events, while any file is polled.
    watch: Option<EventWatch>,
}

struct PolledFile<N> {
    name: LockName,
    /// Whether the lock has changed since the file was last read.
    changed: bool,
    /// Whether the lock was in grace at the last poll. If so, a renewal changes the lock's phase
    /// from grace to held.
    in_grace: bool,
    /// The waker of the latest poll. It wakes all pollers, because the kernel has one queue of
    /// pollers per open file.
    waker: Option<N>,
}

impl<N> Default for PollTable<N> {
    fn default() -> Self {
        Self { files: HashMap::new(), of_lock: HashMap::new(), watch: None }
    }
}

impl<N> PollTable<N> {
    /// Registers a polled file and its waker. Returns whether the lock has changed since the last
    /// read.
    fn register(&mut self, fh: u64, name: &LockName, waker: Option<N>) -> bool {
        if self.files.get(&fh).is_some_and(|file| file.name != *name) {
            self.remove(fh);
        }
        let file = self.files.entry(fh).or_insert_with(|| {
            self.of_lock.entry(name.clone()).or_default().push(fh);
            PolledFile { name: name.clone(), changed: false, in_grace: false, waker: None }
        });
        if waker.is_some() {
            file.waker = waker;
        }
        file.changed
    }

    fn remove(&mut self, fh: u64) {
        let Some(file) = self.files.remove(&fh) else { return };
        if let Some(files) = self.of_lock.get_mut(&file.name) {
            files.retain(|other| *other != fh);
            if files.is_empty() {
                self.of_lock.remove(&file.name);
            }
        }
    }

    /// Handles one lock event: appends the wakers of the files whose lock it changes to `due`.
    fn handle_event(&mut self, event: &Event, due: &mut Vec<N>) {
        match &event.what {
            EventKind::Granted { name, .. }
            | EventKind::Expired { name, .. }
            | EventKind::Ended { name, .. } => {
                for fh in self.of_lock.get(name).into_iter().flatten() {
                    if let Some(file) = self.files.get_mut(fh) {
                        file.changed = true;
                        due.extend(file.waker.take());
                    }
                }
            }
            // A renewal changes the phase of the lock only if the lock is in grace. The poller is
            // then woken, and its next poll compares the state of the lock with the one that it
            // saw.
            EventKind::Renewed { name, .. } => {
                for fh in self.of_lock.get(name).into_iter().flatten() {
                    if let Some(file) = self.files.get_mut(fh).filter(|file| file.in_grace) {
                        due.extend(file.waker.take());
                    }
                }
            }
            EventKind::SessionKept { .. } => {
                let in_grace = self.files.values_mut().filter(|file| file.in_grace);
                due.extend(in_grace.filter_map(|file| file.waker.take()));
            }
            _ => {}
        }
    }

    /// Handles the loss of events: any lock may have changed, so all pollers are woken.
    fn handle_loss(&mut self, due: &mut Vec<N>) {
        for file in self.files.values_mut() {
            file.changed = true;
            due.extend(file.waker.take());
        }
    }
}

impl Polls {
    /// Returns the table of polled files of one mount, initially empty.
    pub(crate) fn new(nodes: Arc<LockNodes>, opens: Arc<OpenFiles>) -> Arc<Self> {
        Arc::new(Self { nodes, opens, polled: Mutex::default() })
    }

    /// Returns the ready poll events of an open file (poll(2), select(2), epoll(7)). With a
    /// `waker`, the program may sleep until the waker is called.
    pub(crate) async fn poll(
        self: &Arc<Self>,
        fh: u64,
        events: PollEvents,
        waker: Option<PollWaker>,
    ) -> PollEvents {
        let Some(open) = self.opens.get(fh) else { return PollEvents::POLLERR };
        let stream = open.state().stream.clone();
        if let Some(stream) = stream {
            return stream.poll(events, waker);
        }
        let always = events & ALWAYS;
        let (true, Some(name)) = (events.contains(PollEvents::POLLPRI), self.lock_of(&open)) else {
            return always;
        };
        // The file is registered before the state of the lock is read, so that no change between
        // the two is missed.
        if self.register(fh, &name, waker) {
            return always | PollEvents::POLLPRI;
        }
        let seen = self.nodes.service.view(&name, Retry::Never).await;
        let Ok(CacheableView { view, .. }) = seen else { return always };
        let now = LastSeen::of(&view);
        let seen = *open.state().seen.get_or_insert(now);
        let changed = self.record_poll(fh, now.phase, seen != now);
        if changed { always | PollEvents::POLLPRI } else { always }
    }

    /// Returns the lock whose changes a poll of this file reports.
    fn lock_of(&self, open: &OpenFile) -> Option<LockName> {
        match &open.target {
            OpenTarget::Lock(ino, name) => Some(self.nodes.spoken_of(*ino, name, open.tenure())),
            OpenTarget::Control(ControlFile::Report(_, name) | ControlFile::Fact(_, name)) => {
                Some(name.clone())
            }
            OpenTarget::Control(_) => None,
        }
    }

    fn register(self: &Arc<Self>, fh: u64, name: &LockName, waker: Option<PollWaker>) -> bool {
        let mut polled = self.polled.lock();
        if polled.watch.is_none() {
            let mut watch = self.nodes.service.subscribe(None);
            let events_of = Arc::downgrade(self);
            watch.wake_by(Arc::new(move || {
                if let Some(polls) = events_of.upgrade() {
                    polls.on_events();
                }
            }));
            polled.watch = Some(watch);
        }
        polled.register(fh, name, waker)
    }

    /// Records what a poll has found: the lock's phase, and whether the lock has changed. Returns
    /// whether there is a change that the poll must report.
    fn record_poll(&self, fh: u64, phase: Phase, changed: bool) -> bool {
        let mut polled = self.polled.lock();
        let Some(file) = polled.files.get_mut(&fh) else { return changed };
        file.in_grace = phase == Phase::Grace;
        file.changed |= changed;
        file.changed
    }

    /// Clears the change flag when the file is read, so that only later changes are reported.
    pub(crate) fn reads(&self, fh: u64) {
        if let Some(file) = self.polled.lock().files.get_mut(&fh) {
            file.changed = false;
        }
    }

    /// Removes a file from the table of polled files after its last descriptor was closed.
    pub(crate) fn closed(&self, fh: u64) {
        let mut polled = self.polled.lock();
        polled.remove(fh);
        let unused = if polled.files.is_empty() { polled.watch.take() } else { None };
        drop(polled);
        drop(unused);
    }

    /// Handles new lock events. Called on the thread that delivered them, with no mutex held.
    fn on_events(&self) {
        loop {
            let mut due = Vec::new();
            let more = {
                let mut polled = self.polled.lock();
                let Some(watch) = &mut polled.watch else { return };
                let batch = watch.take(EVENTS_MAX);
                for (_, event) in &batch.events {
                    polled.handle_event(event, &mut due);
                }
                if batch.has_gap() {
                    polled.handle_loss(&mut due);
                }
                batch.events.len() == EVENTS_MAX
            };
            due.into_iter().for_each(PollWaker::wake);
            if !more {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{ClientId, TenureEnd, Token};
    use crate::time::{Span, Time};

    fn name(text: &str) -> LockName {
        LockName::parse(text).expect("valid")
    }

    fn event(what: EventKind) -> Event {
        Event { at: Time::ZERO, what }
    }

    fn ended(text: &str) -> Event {
        let holder = ClientId::parse("a").expect("valid");
        let (token, held, end) = (Token::named(1), Span::ZERO, TenureEnd::Released);
        event(EventKind::Ended { name: name(text), holder, token, held, end })
    }

    fn renewed(text: &str) -> Event {
        let holder = ClientId::parse("a").expect("valid");
        event(EventKind::Renewed { name: name(text), holder, token: Token::named(1) })
    }

    /// Returns the test wakers that an event wakes.
    fn woken(inner: &mut PollTable<u64>, event: &Event) -> Vec<u64> {
        let mut due = Vec::new();
        inner.handle_event(event, &mut due);
        due.sort_unstable();
        due
    }

    #[test]
    fn a_change_wakes_the_pollers_of_its_lock_once() {
        let mut inner = PollTable::default();
        assert!(!inner.register(1, &name("a"), Some(10)));
        assert!(!inner.register(2, &name("a"), Some(20)));
        assert!(!inner.register(3, &name("b"), Some(30)));
        assert!(!inner.register(3, &name("b"), None), "asking again changes nothing");
        assert_eq!(woken(&mut inner, &ended("a")), [10, 20]);
        assert_eq!(woken(&mut inner, &ended("a")), [0; 0]);
        assert!(inner.register(1, &name("a"), Some(11)), "reported until it is read");
        assert_eq!(woken(&mut inner, &ended("b")), [30]);
    }

    #[test]
    fn a_renewal_wakes_only_in_grace_and_is_no_change_by_itself() {
        let mut inner = PollTable::default();
        inner.register(1, &name("a"), Some(10));
        assert_eq!(woken(&mut inner, &renewed("a")), [0; 0]);
        inner.files.get_mut(&1).expect("registered").in_grace = true;
        assert_eq!(woken(&mut inner, &renewed("a")), [10]);
        assert!(!inner.register(1, &name("a"), None));
    }

    #[test]
    fn loss_of_events_wakes_all_pollers() {
        let mut inner = PollTable::default();
        inner.register(1, &name("a"), Some(10));
        inner.register(2, &name("b"), Some(20));
        let mut due = Vec::new();
        inner.handle_loss(&mut due);
        due.sort_unstable();
        assert_eq!(due, [10, 20]);
        assert!(inner.register(2, &name("b"), None));
    }

    #[test]
    fn a_file_follows_its_lock_and_leaves_nothing_behind() {
        let mut inner = PollTable::default();
        inner.register(1, &name("a"), Some(10));
        inner.register(1, &name("b"), Some(11));
        assert_eq!(woken(&mut inner, &ended("a")), [0; 0]);
        assert_eq!(woken(&mut inner, &ended("b")), [11]);
        inner.remove(1);
        assert!(inner.files.is_empty() && inner.of_lock.is_empty());
    }
}
