//! Waiting in line through a file of `.latchfs`, the control file or one of `wait/`: the answer is
//! read when the lock is there, and whoever closes the file before leaves the line.
//!
//! Each waiter asks in the name of an attempt of its own (an [`OpenId`]), by which its grant is
//! known among the events.

use super::super::lookout::{Waiter, Waiting};
use super::super::opens::State;
use super::super::shared::{Fs, Shared, flat};
use super::EVENTS_MAX;
use crate::engine::command::Leave;
use crate::engine::lease::Ticket;
use crate::engine::{
    Acquire, Hold, LeaseKey, Line, LockName, LockView, Op, OpenId, Outcome, Reason, Refusal,
    Release, SessionId, Tenure, What, Why,
};
use crate::locks::feed::Watch;
use crate::locks::{Failure, Locks};
use crate::time::Span;
use fuser::{Errno, ReplyData};
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::{Arc, Weak};

/// Who waits through files of one mount.
#[derive(Default)]
pub(super) struct Waits(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    waits: HashMap<u64, Wait>,
    /// Followed while anybody waits.
    watch: Option<Watch>,
}

/// One waiter.
struct Wait {
    fh: u64,
    ask: Acquire,
    ticket: Option<Ticket>,
    /// `None`: the file was closed before the answer came, which is to be undone.
    then: Option<Then>,
}

/// How a wait ends.
pub(in super::super) enum Ended {
    /// The lock is the waiter's.
    Granted(Tenure),
    /// It was refused.
    Failed(Failure),
    /// Its patience was over.
    TimedOut,
}

type Then = Box<dyn FnOnce(Ended) + Send>;

/// Whether one who has got a place in line is there still.
enum Stays {
    Yes,
    No(Box<Wait>),
}

/// A read that is answered later.
#[derive(Debug)]
pub(in super::super) struct Held {
    /// By this number the lookout knows it.
    pub(in super::super) number: u64,
    /// How much is wanted.
    pub(in super::super) size: u32,
    /// Where it goes.
    pub(in super::super) reply: ReplyData,
}

/// Takes the lock that `ask` names for the open file `fh`, or waits for it.
pub(in super::super) fn join(
    fs: &Fs,
    fh: u64,
    patience: Option<Span>,
    mut ask: Acquire,
    then: impl FnOnce(Ended) + Send + 'static,
) {
    let session = match fs.locking.session(fs) {
        Ok(session) => session,
        Err(failure) => return then(Ended::Failed(failure)),
    };
    let number = fs.opens.number();
    ask.hold = Hold::Firm(Some(OpenId { session, number }));
    ask.line = Line::Join(patience);
    let op = Op::Acquire(ask.clone());
    let wait = Wait { fh, ask, ticket: None, then: Some(Box::new(then)) };
    // Before asking: the grant may be told before the answer.
    fs.locking.waits.insert(fs, number, wait);
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
pub(super) fn closed(fs: &Fs, fh: u64) {
    for wait in fs.locking.waits.of_file(fh) {
        leave(fs, wait);
    }
}

fn leave(fs: &Fs, wait: Wait) {
    let Wait { ask, ticket: Some(ticket), .. } = wait else { return };
    let shared = Arc::clone(fs);
    let op = Leave { name: ask.name.clone(), ticket, why: Why::Gone };
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
pub(in super::super) fn hold(
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
        (None, Ended::Failed(_) | Ended::TimedOut) => {}
    }
}

/// What was granted to who is not there any more.
fn give_back(locks: &Locks, ask: Acquire, tenure: Tenure) {
    let (name, client) = (ask.name, ask.client);
    let key = LeaseKey { name, client, token: Some(tenure.token) };
    locks.give_back(Op::Release(Release { key }));
}

/// The tenure that was granted to this attempt, if one was.
fn granted(view: &LockView, hold: Hold) -> Option<Tenure> {
    let lease = view.holders.iter().map(|holder| &holder.lease).find(|l| l.hold == hold)?;
    let (token, life, acquired_at) = (lease.token, lease.life, lease.acquired_at);
    Some(Tenure { token, life, acquired_at })
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

/// Called on the thread that decided a command, with no lock held.
fn on_events(fs: &Weak<Shared>) {
    let Some(fs) = fs.upgrade() else { return };
    loop {
        let (numbers, over, more) = fs.locking.waits.concerned();
        for (number, session) in over {
            let reason = Box::new(Reason::NoSession(session));
            let refusal = Refusal { at: fs.locks.now(), reason };
            end(&fs, number, Ended::Failed(Failure::Refused(refusal)));
        }
        for number in numbers {
            look_again(&fs, number);
        }
        if !more {
            return;
        }
    }
}

impl Waits {
    fn insert(&self, fs: &Fs, number: u64, wait: Wait) {
        let mut inner = self.0.lock();
        if inner.watch.is_none() {
            let mut watch = fs.locks.watch(None);
            let events_of = Arc::downgrade(fs);
            watch.wake_by(Arc::new(move || on_events(&events_of)));
            inner.watch = Some(watch);
        }
        inner.waits.insert(number, wait);
    }

    fn take(&self, number: u64) -> Option<Wait> {
        let mut inner = self.0.lock();
        let wait = inner.waits.remove(&number);
        let watch = if inner.waits.is_empty() { inner.watch.take() } else { None };
        drop(inner);
        drop(watch);
        wait
    }

    fn in_line(&self, number: u64, ticket: Ticket) -> Option<Stays> {
        let mut inner = self.0.lock();
        let wait = inner.waits.get_mut(&number)?;
        wait.ticket = Some(ticket);
        if wait.then.is_some() {
            return Some(Stays::Yes);
        }
        drop(inner);
        self.take(number).map(|wait| Stays::No(Box::new(wait)))
    }

    fn asked(&self, number: u64) -> Option<(LockName, Hold, Option<Ticket>)> {
        let inner = self.0.lock();
        let wait = inner.waits.get(&number)?;
        Some((wait.ask.name.clone(), wait.ask.hold, wait.ticket))
    }

    /// The waits of a file that is closed. What was asked and is not answered yet stays, to be
    /// undone when it is.
    fn of_file(&self, fh: u64) -> Vec<Wait> {
        let mut left = Vec::new();
        {
            let mut inner = self.0.lock();
            for (number, wait) in inner.waits.iter_mut().filter(|(_, wait)| wait.fh == fh) {
                if wait.ticket.is_some() {
                    left.push(*number);
                } else {
                    wait.then = None;
                }
            }
        }
        left.into_iter().filter_map(|number| self.take(number)).collect()
    }

    /// Whom the latest events concern, and whether there are more.
    fn concerned(&self) -> (Vec<u64>, Vec<(u64, SessionId)>, bool) {
        let mut inner = self.0.lock();
        let Inner { waits, watch } = &mut *inner;
        let Some(watch) = watch else { return (Vec::new(), Vec::new(), false) };
        let batch = watch.take(EVENTS_MAX);
        let known = |number: &u64| waits.get(number).is_some_and(|wait| wait.ticket.is_some());
        let of_ticket = |ticket| {
            let mut all = waits.iter();
            all.find(|(_, wait)| wait.ticket == Some(ticket)).map(|(number, _)| *number)
        };
        let numbers = if batch.lost > 0 {
            waits.keys().copied().filter(known).collect()
        } else {
            let concerned = batch.events.iter().filter_map(|(_, event)| match &event.what {
                What::Granted { hold: Hold::Firm(Some(open)), waited: Some(_), .. } => {
                    Some(open.number).filter(known)
                }
                What::Left { ticket, .. } => of_ticket(*ticket),
                _ => None,
            });
            concerned.collect()
        };
        let sessions = batch.events.iter().filter_map(|(_, event)| match event.what {
            What::SessionOver { session, .. } => Some(session),
            _ => None,
        });
        let of_session = |session: SessionId| {
            let of = move |wait: &Wait| wait.ask.hold.open().is_some_and(|o| o.session == session);
            waits
                .iter()
                .filter(move |(_, wait)| of(wait))
                .map(move |(number, _)| (*number, session))
        };
        let over = sessions.flat_map(of_session).collect();
        (numbers, over, batch.events.len() == EVENTS_MAX)
    }
}
