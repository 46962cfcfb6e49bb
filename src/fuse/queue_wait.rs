//! Waiting in a queue through a file of `.latchfs`, the control file or one of `wait/`: the answer
//! is read when the lock is there, and closing the file before leaves the queue.
//!
//! Each waiter asks in the name of an attempt of its own (an [`OpenId`]), by which its grant is
//! known among the events.

use crate::engine::command::Leave;
use crate::engine::lease::Ticket;
use crate::engine::{
    Acquire, EventKind, Lease, LeaseKey, LeaveReason, LockName, LockView, Op, OpenId, Outcome,
    Ownership, QueuePolicy, Reason, Refusal, Release, SessionId, Tenure,
};
use crate::fuse::kernel::pending::{Pending, Promise, pending};
use crate::fuse::kernel::user_shares::{Full, Pool, Share};
use crate::fuse::lock_access::flat;
use crate::fuse::open_files::OpenFiles;
use crate::fuse::posix_locks::PosixLocks;
use crate::fuse::work_signal::WorkSignal;
use crate::service::event_log::EventWatch;
use crate::service::{Locks, ParentCheck, RequestError, Unavailable};
use crate::time::Span;
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::sync::Arc;

/// Events taken at once: a bound on how long the mutex is held.
const EVENTS_MAX: usize = 256;

/// The requests of one mount that wait in a queue through a file of `.latchfs`.
///
/// They are answered by a thread of their own: as many can end at once as may wait, and the thread
/// that happened to decide so has other requests to serve.
pub(crate) struct QueueWaits {
    service: Locks,
    posix_locks: Arc<PosixLocks>,
    opens: Arc<OpenFiles>,
    waits: Mutex<WaitTable>,
    signal: Arc<WorkSignal>,
}

#[derive(Default)]
struct WaitTable {
    waits: HashMap<u64, QueuedRequest>,
    /// The numbers of the waits, by ticket.
    by_ticket: HashMap<Ticket, u64>,
    /// The numbers of the waits, behind that of their file.
    by_file: BTreeSet<(u64, u64)>,
    /// Followed while anybody waits.
    watch: Option<EventWatch>,
    /// Whether the thread runs that answers.
    answering: bool,
}

/// One waiter.
struct QueuedRequest {
    fh: u64,
    ask: Acquire,
    ticket: Option<Ticket>,
    /// `None`: the file was closed before the answer came, which is to be undone.
    promise: Option<Promise<WaitEnd>>,
    _share: Share,
}

/// How a wait ends.
#[derive(Debug)]
pub(crate) enum WaitEnd {
    /// The lock is the waiter's.
    Granted(Tenure),
    /// It was refused.
    Failed(RequestError),
    /// Its patience was over.
    TimedOut,
    /// Its user has all the places that one user may have.
    NoRoom(Full),
}

/// Whether a waiter that has got a place in the queue is there still.
enum Stays {
    Yes,
    No(Box<QueuedRequest>),
}

impl QueueWaits {
    /// The waits of one mount, of which there are none yet.
    pub(crate) fn new(
        service: Locks,
        posix_locks: Arc<PosixLocks>,
        opens: Arc<OpenFiles>,
    ) -> Arc<Self> {
        let (waits, signal) = (Mutex::default(), Arc::default());
        Arc::new(Self { service, posix_locks, opens, waits, signal })
    }

    /// Takes the lock that `ask` names for the open file `fh`, or waits for it. `None`: the file
    /// was closed, and nobody waits any more.
    pub(crate) async fn join(
        self: &Arc<Self>,
        (fh, uid): (u64, u32),
        patience: Option<Span>,
        ask: Acquire,
        check: Option<ParentCheck>,
    ) -> Option<WaitEnd> {
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
    ) -> Result<Pending<WaitEnd>, WaitEnd> {
        let share = self.opens.shares().take(Pool::Waits, uid, 1).map_err(WaitEnd::NoRoom)?;
        let session = self.posix_locks.session().map_err(WaitEnd::Failed)?;
        let number = self.opens.number();
        ask.hold = Ownership::Exclusive(Some(OpenId { session, number }));
        ask.line = QueuePolicy::Join(patience);
        let op = Op::Acquire(ask.clone());
        let (promise, end) = pending();
        let promise = Some(promise);
        let wait = QueuedRequest { fh, ask, ticket: None, promise, _share: share };
        // Before asking: the grant may be told before the answer.
        if let Err(error) = self.insert(number, wait) {
            log::error!("no thread to answer waits ({error}), so they are refused");
            let why = "this daemon can't start another thread".into();
            let unavailable = Unavailable::State { full: true, why };
            return Err(WaitEnd::Failed(RequestError::Unavailable(unavailable)));
        }
        let own = Arc::clone(self);
        let then = move |answer| own.answered(number, flat(answer));
        self.service.submit_checked(op, check, then);
        Ok(end)
    }

    /// The answer to a request is here.
    fn answered(self: &Arc<Self>, number: u64, answer: Result<Outcome, RequestError>) {
        match answer {
            Ok(Outcome::Granted(tenure) | Outcome::Renewed(tenure)) => {
                self.end_wait(number, WaitEnd::Granted(tenure));
            }
            Ok(Outcome::Waiting { ticket, .. }) => match self.in_line(number, ticket) {
                // Events that came before the ticket was known were not understood.
                Some(Stays::Yes) => self.look_again(number),
                Some(Stays::No(wait)) => self.leave(*wait),
                None => {}
            },
            Ok(_) => {}
            Err(failure) => self.end_wait(number, WaitEnd::Failed(failure)),
        }
    }

    /// An open file is gone, and with it its places in queues.
    pub(crate) fn closed(&self, fh: u64) {
        for wait in self.of_file(fh) {
            self.leave(wait);
        }
    }

    fn leave(&self, wait: QueuedRequest) {
        let QueuedRequest { ask, ticket: Some(ticket), .. } = wait else { return };
        let service = self.service.clone();
        let op = Leave { name: ask.name.clone(), ticket, why: LeaveReason::Gone };
        self.service.submit_until_answered(Op::Leave(op), move |answer| {
            if flat(answer).is_ok() {
                return;
            }
            // Served at the last moment, and nobody there to take it.
            let name = ask.name.clone();
            service.clone().view_until_answered(&name, move |view| {
                if let Some(tenure) = view.ok().and_then(|view| granted(&view, ask.hold)) {
                    give_back(&service, ask, tenure);
                }
            });
        });
    }

    fn end_wait(&self, number: u64, how: WaitEnd) {
        let Some(QueuedRequest { ask, promise, .. }) = self.take(number) else { return };
        match (promise, how) {
            (Some(promise), how) => promise.keep(how),
            (None, WaitEnd::Granted(tenure)) => give_back(&self.service, ask, tenure),
            (None, WaitEnd::Failed(_) | WaitEnd::TimedOut | WaitEnd::NoRoom(_)) => {}
        }
    }

    /// Sees what has become of a waiter, as soon as that can be seen.
    fn look_again(self: &Arc<Self>, number: u64) {
        let Some((name, hold, ticket)) = self.asked(number) else { return };
        let own = Arc::clone(self);
        self.service.view_until_answered(&name, move |view| {
            let Ok(view) = view else { return };
            if let Some(tenure) = granted(&view, hold) {
                own.end_wait(number, WaitEnd::Granted(tenure));
            } else if !view.waiters.iter().any(|waiter| Some(waiter.ticket) == ticket) {
                own.end_wait(number, WaitEnd::TimedOut);
            }
        });
    }

    /// Answers the waits that the latest events concern.
    fn on_events(self: &Arc<Self>) {
        loop {
            let WaitNews { numbers, left, over, more } = self.concerned();
            for (number, session) in over {
                let reason = Box::new(Reason::NoSession(session));
                let refusal = Refusal { at: self.service.now(), reason };
                self.end_wait(number, WaitEnd::Failed(RequestError::Refused(refusal)));
            }
            for number in left {
                self.end_wait(number, WaitEnd::TimedOut);
            }
            for number in numbers {
                self.look_again(number);
            }
            if !more {
                return;
            }
        }
    }

    /// Starts the thread that answers waits. It ends with the mount.
    fn start_answering(self: &Arc<Self>) -> io::Result<()> {
        let (signal, own) = (Arc::clone(&self.signal), Arc::downgrade(self));
        let answer = move || {
            while signal.wait() {
                let Some(own) = own.upgrade() else { return };
                own.on_events();
            }
        };
        std::thread::Builder::new().name("waits".to_owned()).spawn(answer).map(drop)
    }

    /// Keeps a wait, unless there is no thread to answer it.
    fn insert(self: &Arc<Self>, number: u64, wait: QueuedRequest) -> io::Result<()> {
        let mut table = self.waits.lock();
        if !table.answering {
            self.start_answering()?;
            table.answering = true;
        }
        if table.watch.is_none() {
            let mut watch = self.service.subscribe(None);
            let signal = Arc::clone(&self.signal);
            watch.wake_by(Arc::new(move || signal.ring()));
            table.watch = Some(watch);
        }
        table.by_file.insert((wait.fh, number));
        table.waits.insert(number, wait);
        Ok(())
    }

    fn take(&self, number: u64) -> Option<QueuedRequest> {
        let mut table = self.waits.lock();
        let wait = table.waits.remove(&number);
        if let Some(wait) = &wait {
            table.by_file.remove(&(wait.fh, number));
            if let Some(ticket) = wait.ticket {
                table.by_ticket.remove(&ticket);
            }
        }
        let watch = if table.waits.is_empty() { table.watch.take() } else { None };
        drop(table);
        drop(watch);
        wait
    }

    fn in_line(&self, number: u64, ticket: Ticket) -> Option<Stays> {
        let mut table = self.waits.lock();
        let wait = table.waits.get_mut(&number)?;
        wait.ticket = Some(ticket);
        let stays = wait.promise.is_some();
        table.by_ticket.insert(ticket, number);
        if stays {
            return Some(Stays::Yes);
        }
        drop(table);
        self.take(number).map(|wait| Stays::No(Box::new(wait)))
    }

    fn asked(&self, number: u64) -> Option<(LockName, Ownership, Option<Ticket>)> {
        let table = self.waits.lock();
        let wait = table.waits.get(&number)?;
        Some((wait.ask.name.clone(), wait.ask.hold, wait.ticket))
    }

    /// Returns the waits of a file that is closed. A request that is not answered yet stays, to be
    /// undone when it is.
    fn of_file(&self, fh: u64) -> Vec<QueuedRequest> {
        let (mut left, mut unwanted) = (Vec::new(), Vec::new());
        {
            let mut table = self.waits.lock();
            let WaitTable { waits, by_file, .. } = &mut *table;
            for (_, number) in by_file.range((fh, 0)..=(fh, u64::MAX)) {
                match waits.get_mut(number) {
                    Some(wait) if wait.ticket.is_none() => unwanted.extend(wait.promise.take()),
                    _ => left.push(*number),
                }
            }
        }
        // After the mutex: the task of a promise goes on when that is dropped.
        drop(unwanted);
        left.into_iter().filter_map(|number| self.take(number)).collect()
    }

    /// Returns which waits the latest events concern.
    fn concerned(&self) -> WaitNews {
        let mut table = self.waits.lock();
        let WaitTable { waits, by_ticket, watch, .. } = &mut *table;
        let Some(watch) = watch else { return WaitNews::default() };
        let batch = watch.take(EVENTS_MAX);
        let mut news = WaitNews { more: batch.events.len() == EVENTS_MAX, ..WaitNews::default() };
        let known = |number: &u64| waits.get(number).is_some_and(|wait| wait.ticket.is_some());
        if batch.lost > 0 {
            news.numbers.extend(waits.keys().filter(|number| known(number)));
        }
        for (_, event) in &batch.events {
            match &event.what {
                EventKind::Granted {
                    hold: Ownership::Exclusive(Some(open)),
                    waited: Some(_),
                    ..
                } => {
                    news.numbers.extend(Some(open.number).filter(known));
                }
                EventKind::Left { ticket, .. } => news.left.extend(by_ticket.get(ticket)),
                EventKind::SessionOver { session, .. } => {
                    let of = |wait: &QueuedRequest| wait.ask.hold.open().map(|open| open.session);
                    let of_session = waits.iter().filter(|(_, wait)| of(wait) == Some(*session));
                    news.over.extend(of_session.map(|(number, _)| (*number, *session)));
                }
                _ => {}
            }
        }
        news
    }
}

impl Drop for QueueWaits {
    fn drop(&mut self) {
        self.signal.stop();
    }
}

/// The news about waits in the latest events.
#[derive(Default)]
struct WaitNews {
    /// They may have been served.
    numbers: Vec<u64>,
    /// They have left the queue without.
    left: Vec<u64>,
    /// Their session is over.
    over: Vec<(u64, SessionId)>,
    /// Whether there are more events.
    more: bool,
}

/// Gives back a lock that was granted to a waiter that is not there any more.
fn give_back(service: &Locks, ask: Acquire, tenure: Tenure) {
    let (name, client) = (ask.name, ask.client);
    let key = LeaseKey { name, client, token: Some(tenure.token) };
    service.give_back(Op::Release(Release::of(key)));
}

/// Returns the tenure that was granted to this attempt, if one was.
fn granted(view: &LockView, hold: Ownership) -> Option<Tenure> {
    let lease = view.holders.iter().map(|holder| &holder.lease).find(|l| l.hold == hold)?;
    let Lease { token, life, acquired_at, acquisition, .. } = *lease;
    Some(Tenure { token, life, acquired_at, acquisition })
}
