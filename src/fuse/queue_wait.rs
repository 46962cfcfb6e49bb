//! Waiting in line through a file of `.latchfs`, the control file or one of `wait/`: the answer is
//! read when the lock is there, and whoever closes the file before leaves the line.
//!
//! Each waiter asks in the name of an attempt of its own (an [`OpenId`]), by which its grant is
//! known among the events.

use crate::fuse::work_signal::Bell;
use crate::fuse::kernel::interrupts::{Waiter, Waiting};
use crate::fuse::open_files::State;
use crate::fuse::shared::{Fs, Shared, flat};
use crate::fuse::kernel::user_shares::{Full, Pool, Share};
use crate::fuse::posix_locks::EVENTS_MAX;
use crate::engine::command::Leave;
use crate::engine::lease::Ticket;
use crate::engine::{
    Acquire, EventKind, Lease, LeaseKey, LeaveReason, LockName, LockView, Op, OpenId, Outcome,
    Ownership, QueuePolicy, Reason, Refusal, Release, SessionId, Tenure,
};
use crate::service::event_log::EventWatch;
use crate::service::{Locks, RequestError, Unavailable};
use crate::time::Span;
use fuser::{Errno, ReplyData};
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Weak};

/// The requests of one mount that wait in a queue through a file of `.latchfs`.
///
/// They are answered by a thread of their own: as many can end at once as may wait, and the thread
/// that happened to decide so has other requests to serve.
#[derive(Default)]
pub(crate) struct Waits {
    inner: Mutex<Inner>,
    bell: Arc<Bell>,
}

#[derive(Default)]
struct Inner {
    waits: HashMap<u64, Wait>,
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
struct Wait {
    fh: u64,
    ask: Acquire,
    ticket: Option<Ticket>,
    /// `None`: the file was closed before the answer came, which is to be undone.
    then: Option<Then>,
    _share: Share,
}

/// How a wait ends.
pub(crate) enum Ended {
    /// The lock is the waiter's.
    Granted(Tenure),
    /// It was refused.
    Failed(RequestError),
    /// Its patience was over.
    TimedOut,
    /// Its user has all the places that one user may have.
    NoRoom(Full),
}

type Then = Box<dyn FnOnce(Ended) + Send>;

/// Whether one who has got a place in line is there still.
enum Stays {
    Yes,
    No(Box<Wait>),
}

/// A read that is answered later.
#[derive(Debug)]
pub(crate) struct Held {
    /// By this number the lookout knows it.
    pub(crate) number: u64,
    /// How much is wanted.
    pub(crate) size: u32,
    /// Where it goes.
    pub(crate) reply: ReplyData,
}

/// Takes the lock that `ask` names for the open file `fh`, or waits for it.
pub(crate) fn join(
    fs: &Fs,
    (fh, uid): (u64, u32),
    patience: Option<Span>,
    mut ask: Acquire,
    then: impl FnOnce(Ended) + Send + 'static,
) {
    let share = match fs.shares.take(Pool::Waits, uid, 1) {
        Ok(share) => share,
        Err(full) => return then(Ended::NoRoom(full)),
    };
    let session = match fs.locking.session(fs) {
        Ok(session) => session,
        Err(failure) => return then(Ended::Failed(failure)),
    };
    let number = fs.opens.number();
    ask.hold = Ownership::Exclusive(Some(OpenId { session, number }));
    ask.line = QueuePolicy::Join(patience);
    let op = Op::Acquire(ask.clone());
    let wait = Wait { fh, ask, ticket: None, then: Some(Box::new(then)), _share: share };
    // Before asking: the grant may be told before the answer.
    if let Err(then) = fs.locking.waits.insert(fs, number, wait) {
        let why = "this daemon can't start another thread".into();
        return then(Ended::Failed(RequestError::Unavailable(Unavailable::State {
            full: true,
            why,
        })));
    }
    let shared = Arc::clone(fs);
    fs.locks.submit(op, move |answer| match flat(answer) {
        Ok(Outcome::Granted(tenure) | Outcome::Renewed(tenure)) => {
            end(&shared, number, Ended::Granted(tenure));
        }
        Ok(Outcome::Waiting { ticket, .. }) => match shared.locking.waits.in_line(number, ticket) {
            // What happened before the ticket was known was not understood.
            Some(Stays::Yes) => look_again(&shared, number),
            Some(Stays::No(wait)) => leave(&shared, *wait),
            None => {}
        },
        Ok(_) => {}
        Err(failure) => end(&shared, number, Ended::Failed(failure)),
    });
}

/// An open file is gone, and with it its places in line.
pub(crate) fn closed(fs: &Fs, fh: u64) {
    for wait in fs.locking.waits.of_file(fh) {
        leave(fs, wait);
    }
}

fn leave(fs: &Fs, wait: Wait) {
    let Wait { ask, ticket: Some(ticket), .. } = wait else { return };
    let shared = Arc::clone(fs);
    let op = Leave { name: ask.name.clone(), ticket, why: LeaveReason::Gone };
    fs.locks.submit_until_answered(Op::Leave(op), move |answer| {
        if flat(answer).is_ok() {
            return;
        }
        // Served at the last moment, and nobody there to take it.
        let door = shared.locks.clone();
        shared.locks.view_until_answered(&ask.name.clone(), move |view| {
            if let Some(tenure) = view.ok().and_then(|view| granted(&view, ask.hold)) {
                give_back(&door, ask, tenure);
            }
        });
    });
}

/// Who reads, and waits for the answer, as the lookout knows it.
struct Reader {
    fs: Weak<Shared>,
    fh: u64,
    number: u64,
}

impl Reader {
    /// Where it stands among those who read this file and wait.
    fn place(&self, state: &State) -> Option<usize> {
        state.held.iter().position(|held| held.number == self.number)
    }
}

impl Waiter for Reader {
    fn waiting(&self) -> Waiting {
        let open = self.fs.upgrade().and_then(|fs| fs.opens.get(self.fh));
        let waits = open.is_some_and(|open| self.place(&open.state.lock()).is_some());
        if waits { Waiting::Asks } else { Waiting::Over }
    }

    /// It gets an errno, and keeps its place, for it may read again; if it does not, it closes the
    /// file.
    fn interrupt(&self) {
        let Some(fs) = self.fs.upgrade() else { return };
        let Some(open) = fs.opens.get(self.fh) else { return };
        let mut state = open.state.lock();
        let held = self.place(&state).map(|place| state.held.remove(place));
        drop(state);
        if let Some(held) = held {
            fs.counters.errno(Errno::EINTR);
            held.reply.error(Errno::EINTR);
        }
    }
}

/// Keeps a read that waits for what will be read through the open file `fh`, for the thread `tid`.
pub(crate) fn hold(
    fs: &Fs,
    fh: u64,
    mut state: MutexGuard<'_, State>,
    (size, tid): (u32, u32),
    reply: ReplyData,
) {
    let number = fs.opens.number();
    state.held.push(Held { number, size, reply });
    drop(state);
    fs.lookout.watch(number, tid, Reader { fs: Arc::downgrade(fs), fh, number });
}

fn end(fs: &Shared, number: u64, how: Ended) {
    let Some(Wait { ask, then, .. }) = fs.locking.waits.take(number) else { return };
    match (then, how) {
        (Some(then), how) => then(how),
        (None, Ended::Granted(tenure)) => give_back(&fs.locks, ask, tenure),
        (None, Ended::Failed(_) | Ended::TimedOut | Ended::NoRoom(_)) => {}
    }
}

/// What was granted to who is not there any more.
fn give_back(locks: &Locks, ask: Acquire, tenure: Tenure) {
    let (name, client) = (ask.name, ask.client);
    let key = LeaseKey { name, client, token: Some(tenure.token) };
    locks.give_back(Op::Release(Release::of(key)));
}

/// The tenure that was granted to this attempt, if one was.
fn granted(view: &LockView, hold: Ownership) -> Option<Tenure> {
    let lease = view.holders.iter().map(|holder| &holder.lease).find(|l| l.hold == hold)?;
    let Lease { token, life, acquired_at, acquisition, .. } = *lease;
    Some(Tenure { token, life, acquired_at, acquisition })
}

/// Sees what has become of a waiter, as soon as that can be seen.
fn look_again(fs: &Fs, number: u64) {
    let Some((name, hold, ticket)) = fs.locking.waits.asked(number) else { return };
    let shared = Arc::clone(fs);
    fs.locks.view_until_answered(&name, move |view| {
        let Ok(view) = view else { return };
        if let Some(tenure) = granted(&view, hold) {
            end(&shared, number, Ended::Granted(tenure));
        } else if !view.waiters.iter().any(|waiter| Some(waiter.ticket) == ticket) {
            end(&shared, number, Ended::TimedOut);
        }
    });
}

/// Answers the waits that the latest events concern.
fn on_events(fs: &Fs) {
    loop {
        let News { numbers, left, over, more } = fs.locking.waits.concerned();
        for (number, session) in over {
            let reason = Box::new(Reason::NoSession(session));
            let refusal = Refusal { at: fs.locks.now(), reason };
            end(fs, number, Ended::Failed(RequestError::Refused(refusal)));
        }
        for number in left {
            end(fs, number, Ended::TimedOut);
        }
        for number in numbers {
            look_again(fs, number);
        }
        if !more {
            return;
        }
    }
}

/// What the latest events say about waits.
#[derive(Default)]
struct News {
    /// They may have been served.
    numbers: Vec<u64>,
    /// They have left the queue without.
    left: Vec<u64>,
    /// Their session is over.
    over: Vec<(u64, SessionId)>,
    /// Whether there are more events.
    more: bool,
}

/// Starts the thread that answers waits. It ends with the mount.
fn start_answering(fs: &Fs) -> std::io::Result<()> {
    let (bell, fs) = (Arc::clone(&fs.locking.waits.bell), Arc::downgrade(fs));
    let answer = move || {
        while bell.wait() {
            let Some(fs) = fs.upgrade() else { return };
            on_events(&fs);
        }
    };
    std::thread::Builder::new().name("waits".to_owned()).spawn(answer).map(drop)
}

impl Drop for Waits {
    fn drop(&mut self) {
        self.bell.stop();
    }
}

impl Waits {
    /// Keeps a wait, or gives back how it ends where there is no thread to answer it.
    fn insert(&self, fs: &Fs, number: u64, mut wait: Wait) -> Result<(), Then> {
        let mut inner = self.inner.lock();
        if !inner.answering {
            if let Err(error) = start_answering(fs) {
                log::error!("no thread to answer waits ({error}), so they are refused");
                return wait.then.take().map_or(Ok(()), Err);
            }
            inner.answering = true;
        }
        if inner.watch.is_none() {
            let mut watch = fs.locks.watch(None);
            let bell = Arc::clone(&self.bell);
            watch.wake_by(Arc::new(move || bell.ring()));
            inner.watch = Some(watch);
        }
        inner.by_file.insert((wait.fh, number));
        inner.waits.insert(number, wait);
        Ok(())
    }

    fn take(&self, number: u64) -> Option<Wait> {
        let mut inner = self.inner.lock();
        let wait = inner.waits.remove(&number);
        if let Some(wait) = &wait {
            inner.by_file.remove(&(wait.fh, number));
            if let Some(ticket) = wait.ticket {
                inner.by_ticket.remove(&ticket);
            }
        }
        let watch = if inner.waits.is_empty() { inner.watch.take() } else { None };
        drop(inner);
        drop(watch);
        wait
    }

    fn in_line(&self, number: u64, ticket: Ticket) -> Option<Stays> {
        let mut inner = self.inner.lock();
        let wait = inner.waits.get_mut(&number)?;
        wait.ticket = Some(ticket);
        let stays = wait.then.is_some();
        inner.by_ticket.insert(ticket, number);
        if stays {
            return Some(Stays::Yes);
        }
        drop(inner);
        self.take(number).map(|wait| Stays::No(Box::new(wait)))
    }

    fn asked(&self, number: u64) -> Option<(LockName, Ownership, Option<Ticket>)> {
        let inner = self.inner.lock();
        let wait = inner.waits.get(&number)?;
        Some((wait.ask.name.clone(), wait.ask.hold, wait.ticket))
    }

    /// The waits of a file that is closed. What was asked and is not answered yet stays, to be
    /// undone when it is.
    fn of_file(&self, fh: u64) -> Vec<Wait> {
        let mut left = Vec::new();
        {
            let mut inner = self.inner.lock();
            let Inner { waits, by_file, .. } = &mut *inner;
            for (_, number) in by_file.range((fh, 0)..=(fh, u64::MAX)) {
                match waits.get_mut(number) {
                    Some(wait) if wait.ticket.is_none() => wait.then = None,
                    _ => left.push(*number),
                }
            }
        }
        left.into_iter().filter_map(|number| self.take(number)).collect()
    }

    /// Which waits the latest events concern.
    fn concerned(&self) -> News {
        let mut inner = self.inner.lock();
        let Inner { waits, by_ticket, watch, .. } = &mut *inner;
        let Some(watch) = watch else { return News::default() };
        let batch = watch.take(EVENTS_MAX);
        let mut news = News { more: batch.events.len() == EVENTS_MAX, ..News::default() };
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
                    let of = |wait: &Wait| wait.ask.hold.open().map(|open| open.session);
                    let of_session = waits.iter().filter(|(_, wait)| of(wait) == Some(*session));
                    news.over.extend(of_session.map(|(number, _)| (*number, *session)));
                }
                _ => {}
            }
        }
        news
    }
}
