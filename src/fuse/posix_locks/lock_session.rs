//! Locking under one session of the engine: performs the effects that the lock table decides, and
//! passes engine events and answers to the table.

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

/// The maximum number of engine events handled at once, which bounds how long the lock table's
/// mutex is held.
const EVENTS_MAX: usize = 256;

/// The promise that is fulfilled with the result of a program's lock request.
pub(crate) type LockPromise = Promise<Result<(), Errno>>;
/// The lock table of a session.
pub(crate) type LockTable = Table<LockPromise>;
/// An action that the lock table has decided, and that [`LockSession`] performs.
pub(crate) type LockEffect = Effect<LockPromise>;

/// The current session if the engine is remote; empty after that session is over.
pub(crate) type SessionSlot = Mutex<Option<Arc<LockSession>>>;

/// The parts of a mount that the lock requests of programs use.
#[derive(Clone)]
pub(crate) struct LockingParts {
    /// The inodes of the locks.
    pub(crate) nodes: Arc<LockNodes>,
    /// The open files of the mount.
    pub(crate) opens: Arc<OpenFiles>,
    /// The watcher that notices signals to threads that wait for a lock.
    pub(crate) interrupts: Arc<InterruptWatcher>,
    /// Decides who may create names below a held lock.
    pub(crate) parents: Arc<ParentChecks>,
}

/// The flock(2), fcntl(2) and OFD locks of a mount, whose leases are attached to one session of the
/// engine. Created when a program first locks a file.
pub(crate) struct LockSession {
    /// The session to which the leases of the locks are attached.
    pub(crate) session: SessionId,
    /// The lock table, and the queue of the actions that it has decided.
    pub(crate) queue: EffectQueue<LockTable, LockEffect>,
    /// The slot of the mount's current session, from which this value is removed when its session
    /// is over; `None` if the engine is in this process.
    slot: Option<Weak<SessionSlot>>,
    parts: LockingParts,
    watch: Mutex<EventWatch>,
    /// Whether the lock table is empty, so that no event can concern it. Then the arrival of events
    /// is ignored: most programs never lock open files, and handling events would slow down each of
    /// their operations. Events from that time are handled later, after the table got its first
    /// lock; they concern only leases that are over.
    idle: Arc<AtomicBool>,
}

impl LockSession {
    /// Starts locking under the session of `table`, and follows engine events from now on.
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

    /// Returns the parts of the mount that the lock requests use.
    pub(crate) const fn parts(&self) -> &LockingParts {
        &self.parts
    }

    /// Returns the lock service, to which requests for the engine are sent.
    pub(crate) fn service(&self) -> &Locks {
        self.parts.nodes.locks.service()
    }

    /// Enables the handling of events unless the table is empty.
    pub(crate) fn listen(&self, table: &LockTable) {
        self.idle.store(table.is_idle(), Ordering::Release);
    }

    /// Fails the requests of all waiting programs with ETIMEDOUT after the session was lost, since
    /// their queue places are gone. A program that holds a lock learns of the loss by its next
    /// write, which fails because its lease is over.
    pub(crate) fn retire(&self) {
        for promise in self.queue.look(Table::retire) {
            self.parts.nodes.locks.refusals().count_errno(Errno::ETIMEDOUT);
            promise.keep(Err(Errno::ETIMEDOUT));
        }
    }

    /// Handles new engine events. Called on the thread that executed the command which caused them,
    /// with no mutex held.
    pub(crate) fn on_events(self: &Arc<Self>) {
        loop {
            let mut over = false;
            // The mutex of the event reader is locked before that of the table, so that two threads
            // can't pass events to the table in the wrong order.
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
            // A thread that delivers events never waits for another one to perform effects: the
            // other thread may at this moment be delivering events to another mount of this daemon,
            // and wait for effects that this thread performs.
            self.queue.clear(turn.unless_theirs(), |effect| self.perform(effect));
            if over {
                return self.over();
            }
            if !more {
                return;
            }
        }
    }

    /// Removes this value from the slot of the mount's current session, and fails its waiting
    /// requests, after its session is over.
    fn over(self: &Arc<Self>) {
        let Some(slot) = self.slot.as_ref().and_then(Weak::upgrade) else { return };
        let taken = slot.lock().take_if(|current| Arc::ptr_eq(current, self));
        if taken.is_some() {
            self.retire();
        }
    }

    /// Runs `decide` on the lock table, and performs the actions that the table has decided.
    pub(crate) fn run(self: &Arc<Self>, decide: impl FnOnce(&mut LockTable, &mut Vec<LockEffect>)) {
        let ((), turn) = self.queue.decide(|table, todo| {
            decide(table, todo);
            // Events are enabled before any request of the table reaches the engine, so that the
            // events which the request causes are handled.
            self.listen(table);
        });
        self.queue.clear(turn, |effect| self.perform(effect));
    }

    /// Performs one action that the lock table has decided.
    pub(crate) fn perform(self: &Arc<Self>, effect: LockEffect) {
        match effect {
            Effect::Submit { cookie, ino, ask } => {
                let of = (ask.hold, ask.name.clone(), ask.client.clone());
                // A local engine checks, in the same step, whether the caller may create the name.
                // A remote engine would have to be queried before the request, and requests would
                // overtake each other.
                let is_one_step = self.service().answers_at_once();
                let check = is_one_step.then(|| self.parts.parents.check_of_open(&ask)).flatten();
                let own = Arc::clone(self);
                self.service().submit_checked(Op::Acquire(*ask), check, move |answer| {
                    own.settle(cookie, ino, of, answer.map_err(RequestError::Unavailable));
                });
            }
            Effect::Tell(op, None) => self.service().give_back(*op),
            Effect::Tell(op, Some(promise)) => {
                self.service().give_back_and_tell(*op, move || promise.keep(Ok(())));
            }
            Effect::Reply(promise, result) => {
                promise.keep(result.map_err(|no| self.errno_of_no(no)));
            }
            Effect::Speaks(fh, token) => self.speaks(fh, token),
            Effect::Continues(name, token) => {
                self.parts.nodes.inodes().continued(&name, token);
            }
            Effect::Watch(number, tid) => self.watch_waiter(number, tid),
            Effect::Recall(asked) => self.recall(asked),
            // If the engine is in this process, no answer is ever lost, so no lease can be unknown
            // to the table.
            Effect::Compare if self.slot.is_none() => {}
            Effect::Compare => self.compare(None),
        }
    }

    /// Records in the open file `fh` that its program now holds the lock under `token`, so that
    /// later writes count as writes by the holder of that token.
    fn speaks(&self, fh: u64, token: Token) {
        let Some(open) = self.parts.opens.get(fh) else { return };
        let token = open.lock_ino().map_or(token, |ino| self.parts.nodes.origin_of(ino, token));
        let mut state = open.state();
        (state.tenure, state.session) = (Some(token), Some(self.session));
    }

    /// Passes the answer to an acquire request to the table.
    fn settle(
        self: &Arc<Self>,
        cookie: u64,
        ino: u64,
        of: (Ownership, LockName, ClientId),
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

    /// Returns the errno for a lock that was not granted, and counts it in the metrics.
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

/// Passes an engine event to the lock table if the event may concern the table.
fn hear(table: &mut LockTable, session: SessionId, event: &Event, todo: &mut Vec<LockEffect>) {
    match &event.what {
        EventKind::Granted {
            hold: Ownership::OpenFile(open), token, name, holder, waited, ..
        } if open.session == session => {
            let (name, client) = (name.clone(), holder.clone());
            let key = LeaseKey { name, client, token: Some(*token) };
            table.granted(open.number, waited.map(|(ticket, _)| ticket), key, todo);
        }
        EventKind::Granted { waited: None, name, token, .. } => table.link_moved(name, *token),
        EventKind::Ended { end: TenureEnd::Moved { .. }, name, token, .. } => {
            table.moved(*token, name, todo);
        }
        EventKind::Ended { end: TenureEnd::Replaced, name, .. } => {
            table.changed(name, todo);
        }
        EventKind::Left { ticket, name, .. } => table.left(*ticket, name, todo),
        EventKind::Ended { token, name, .. } => {
            table.ended(*token, todo);
            table.changed(name, todo);
        }
        _ => {}
    }
}
