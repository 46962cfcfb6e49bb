//! Locking by one session: carries out what the table decides, and tells the table of events and
//! answers.

use crate::engine::{
    Answer, ClientId, Event, EventKind, LeaseKey, LockName, Op, Ownership, SessionId, TenureEnd,
    Token,
};
use crate::fuse::errno::{Act, errno_of};
use crate::fuse::kernel::interrupts::InterruptWatcher;
use crate::fuse::kernel::pending::Promise;
use crate::fuse::kernel::values::Errno;
use crate::fuse::lock_nodes::LockNodes;
use crate::fuse::open_files::OpenFiles;
use crate::fuse::parent_checks::ParentChecks;
use crate::fuse::posix_locks::effect_queue::EffectQueue;
use crate::fuse::posix_locks::table::{Effect, No, Table};
use crate::service::event_log::EventWatch;
use crate::service::{Locks, RequestError};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

/// Events taken at once: a bound on how long the table is held.
const EVENTS_MAX: usize = 256;

/// How a program that locks is answered.
pub(crate) type LockPromise = Promise<Result<(), Errno>>;
/// The table of a session.
pub(crate) type LockTable = Table<LockPromise>;
/// An effect of a decision of the table.
pub(crate) type LockEffect = Effect<LockPromise>;

/// The session on which locks hang where the engine is elsewhere, until it is over.
pub(crate) type SessionSlot = Mutex<Option<Arc<LockSession>>>;

/// The parts of a mount that locking uses.
#[derive(Clone)]
pub(crate) struct LockingParts {
    /// The locks as inodes.
    pub(crate) nodes: Arc<LockNodes>,
    /// The open files.
    pub(crate) opens: Arc<OpenFiles>,
    /// Watches threads that wait.
    pub(crate) interrupts: Arc<InterruptWatcher>,
    /// The conditions on names below locks.
    pub(crate) parents: Arc<ParentChecks>,
}

/// Locking, once a program has locked.
pub(crate) struct LockSession {
    /// The session on which the locks hang.
    pub(crate) session: SessionId,
    /// The table, and the effects of its decisions.
    pub(crate) queue: EffectQueue<LockTable, LockEffect>,
    /// Where it is kept; none where the engine is in this process.
    slot: Option<Weak<SessionSlot>>,
    parts: LockingParts,
    watch: Mutex<EventWatch>,
    /// Whether the table is empty, so that no event can mean anything to it: then none is heard,
    /// for most programs never lock by open files, and each of their acts would pay for it. An
    /// event that is heard late speaks of tenures that are over.
    idle: Arc<AtomicBool>,
}

impl LockSession {
    /// Locking by the session of `table`: events are heard from now on.
    pub(crate) fn begin(
        parts: &LockingParts,
        table: LockTable,
        slot: Option<Weak<SessionSlot>>,
    ) -> Arc<Self> {
        let session = table.session();
        let watch = Mutex::new(parts.nodes.locks.service().subscribe(None));
        let idle = Arc::new(AtomicBool::new(false));
        let unheard = Arc::clone(&idle);
        let (queue, parts) = (EffectQueue::new(table), parts.clone());
        let started = Arc::new(Self { session, queue, slot, parts, watch, idle });
        let of = Arc::downgrade(&started);
        started.watch.lock().wake_by(Arc::new(move || {
            if !unheard.load(Ordering::Acquire)
                && let Some(started) = of.upgrade()
            {
                started.on_events();
            }
        }));
        started
    }

    /// Returns the parts of the mount.
    pub(crate) const fn parts(&self) -> &LockingParts {
        &self.parts
    }

    /// Returns the lock service.
    pub(crate) fn service(&self) -> &Locks {
        self.parts.nodes.locks.service()
    }

    /// Has events heard while the table is not empty.
    pub(crate) fn listen(&self, table: &LockTable) {
        self.idle.store(table.is_idle(), Ordering::Release);
    }

    /// All that hung on the session is lost. A program that holds finds out by its next write, for
    /// its tenure is over; one that waits is told now: its place in the queue is gone.
    pub(crate) fn retire(&self) {
        for promise in self.queue.look(Table::retire) {
            self.parts.nodes.locks.refusals().count_errno(Errno::ETIMEDOUT);
            promise.keep(Err(Errno::ETIMEDOUT));
        }
    }

    /// Called on the thread that decided a command, with no lock held.
    pub(crate) fn on_events(self: &Arc<Self>) {
        loop {
            let mut over = false;
            // The watch first, so that two threads can't tell the table in the wrong order.
            let mut watch = self.watch.lock();
            let (more, turn) = self.queue.decide(|table, todo| {
                let visit = watch.visit(EVENTS_MAX, |_, event| {
                    over |= is_end_of(self.session, event);
                    hear(table, self.session, event, todo);
                });
                if visit.lost > 0 {
                    table.missed(todo);
                }
                self.listen(table);
                visit.more
            });
            drop(watch);
            // A thread that is told of events never waits for another: that one may be telling a
            // mount of this daemon, whose turn is this thread's, at this very moment.
            self.queue.clear(turn.unless_theirs(), |effect| self.perform(effect));
            if over {
                return self.over();
            }
            if !more {
                return;
            }
        }
    }

    /// The session is over.
    fn over(self: &Arc<Self>) {
        let Some(slot) = self.slot.as_ref().and_then(Weak::upgrade) else { return };
        let taken = slot.lock().take_if(|current| Arc::ptr_eq(current, self));
        if taken.is_some() {
            self.retire();
        }
    }

    /// Has the table decide, and does what it says.
    pub(crate) fn run(self: &Arc<Self>, decide: impl FnOnce(&mut LockTable, &mut Vec<LockEffect>)) {
        let ((), turn) = self.queue.decide(|table, todo| {
            decide(table, todo);
            // Before anything is asked of the engine: what comes of it is heard.
            self.listen(table);
        });
        self.queue.clear(turn, |effect| self.perform(effect));
    }

    /// Does what the table says.
    pub(crate) fn perform(self: &Arc<Self>, effect: LockEffect) {
        match effect {
            Effect::Submit { cookie, ino, ask } => {
                let of = (ask.name.clone(), ask.client.clone());
                // Elsewhere the condition would have to be checked before, and requests would
                // overtake each other.
                let is_one_step = self.service().answers_at_once();
                let check = is_one_step.then(|| self.parts.parents.check_of_open(&ask)).flatten();
                let own = Arc::clone(self);
                self.service().submit_checked(Op::Acquire(*ask), check, move |answer| {
                    own.settle(cookie, ino, of, answer.map_err(RequestError::Unavailable));
                });
            }
            Effect::Tell(op) => self.service().give_back(*op),
            Effect::Reply(promise, result) => {
                promise.keep(result.map_err(|no| self.errno_of_no(no)));
            }
            Effect::Speaks(fh, token) => self.speaks(fh, token),
            Effect::Continues(name, token) => {
                self.parts.nodes.inodes().continued(&name, token);
            }
            Effect::Watch(number, tid) => self.watch_waiter(number, tid),
            Effect::Recall(asked) => self.recall(asked),
            // Where the engine is in this process no answer is ever unknown.
            Effect::Compare if self.slot.is_none() => {}
            Effect::Compare => self.compare(None),
        }
    }

    /// The open file speaks for a tenure from now on.
    fn speaks(&self, fh: u64, token: Token) {
        let Some(open) = self.parts.opens.get(fh) else { return };
        let token = open.lock_ino().map_or(token, |ino| self.parts.nodes.origin_of(ino, token));
        let mut state = open.state();
        (state.tenure, state.session) = (Some(token), Some(self.session));
    }

    /// The answer to an acquire is here.
    fn settle(
        self: &Arc<Self>,
        cookie: u64,
        ino: u64,
        of: (LockName, ClientId),
        answer: Result<Answer, RequestError>,
    ) {
        match answer {
            Ok(answer) => {
                self.run(|table, todo| table.answered(cookie, ino, of, answer, todo));
            }
            Err(failure) => {
                let mut promise = None;
                self.run(|table, todo| promise = table.unanswered(cookie, ino, todo));
                if let Some(promise) = promise {
                    promise.keep(Err(errno_of(&failure, Act::Lock)));
                }
            }
        }
    }

    /// Returns the errno of a lock that is not to be had, which is counted.
    pub(crate) fn errno_of_no(&self, no: No) -> Errno {
        let errno = match no {
            No::Busy(_) => Errno::EAGAIN,
            No::Interrupted => Errno::EINTR,
            No::Deadlock => Errno::EDEADLK,
            No::Full => Errno::ENOLCK,
            No::Refused(refusal) => errno_of(&RequestError::Refused(*refusal), Act::Lock),
        };
        self.parts.nodes.locks.refusals().count_errno(errno);
        errno
    }
}

fn is_end_of(session: SessionId, event: &Event) -> bool {
    matches!(event.what, EventKind::SessionOver { session: over, .. } if over == session)
}

/// Tells the table of an event, if it is one for it.
fn hear(table: &mut LockTable, session: SessionId, event: &Event, todo: &mut Vec<LockEffect>) {
    match &event.what {
        EventKind::Granted {
            hold: Ownership::OpenFile(open), token, name, holder, waited, ..
        } if open.session == session => {
            let (name, client) = (name.clone(), holder.clone());
            let key = LeaseKey { name, client, token: Some(*token) };
            table.granted(open.number, waited.map(|(ticket, _)| ticket), key, todo);
        }
        EventKind::Ended { end: TenureEnd::Moved { .. }, name, token, .. } => {
            table.moved(*token, name, todo);
        }
        EventKind::Ended { end: TenureEnd::Replaced, name, token, .. }
            if table.is_known(*token) =>
        {
            table.moved(*token, name, todo);
        }
        EventKind::Left { ticket, name, .. } => table.left(*ticket, name, todo),
        EventKind::Ended { token, name, .. } => {
            table.ended(*token, todo);
            table.changed(name, todo);
        }
        _ => {}
    }
}
