//! Locking under one session of the engine: performs the effects that the lock table decides, and
//! passes engine events and answers to the table.
//!
//! Reconciles the lock table of this mount with the engine's leases and queues, after events or
//! answers were lost.
//!
//! Lets the interrupt watcher interrupt programs that wait for a lock in flock(2) or fcntl(2).
//!
//! A table with a queue of effects (the actions that follow from the table's decisions), which one
//! thread at a time performs in the order in which the table decided them.
//!
//! The table decides under its mutex, and its effects are performed without it. If each thread
//! performed its own effects, two threads could overtake each other: a release that was decided
//! first could reach the engine after the next request, and release the lease which that request
//! was granted.

use crate::engine::{
    Answer, Event, EventKind, Lease, LeaseKey, LockName, Op, OpenId, Ownership, SessionId,
    TenureEnd, Token,
};
use crate::fuse::lock_nodes::{LockNodes, ParentChecks};
use crate::fuse::open_files::OpenFiles;
use crate::fuse::posix_locks::table::{Call, Effect, Found, No, Recall, RequestedLease, Table};
use crate::fuse::refusals::{Act, errno_of};
use crate::service::event_log::EventWatch;
use crate::service::{CacheableView, LockService, RequestError, Retry};
use common::task::{Promise, spawn};
use kernel::file_system::Errno;
use kernel::interrupts::{InterruptWatcher, InterruptibleWait, WaitStatus};
use parking_lot::{Condvar, Mutex};
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
        let watch = Mutex::new(parts.nodes.service.subscribe(None));
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
    pub(crate) fn service(&self) -> &Arc<dyn LockService> {
        &self.parts.nodes.service
    }

    /// Enables the handling of events unless the table is empty.
    pub(crate) fn listen(&self, table: &LockTable) {
        self.idle.store(table.is_idle(), Ordering::Release);
    }

    /// Fails the requests of all waiting programs with ETIMEDOUT after the session was lost, since
    /// their queue places are gone. A program that holds a lock learns of the loss by its next
    /// write, which fails because its lease is over.
    pub(crate) fn retire(&self) {
        for promise in self.queue.inspect(Table::retire) {
            self.parts.nodes.refusals.count_errno(Errno::ETIMEDOUT);
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
                    handle_event(table, self.session, event, todo);
                });
                if visit.has_gap {
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
                let of = RequestedLease::of(&ask);
                // A local engine checks, in the same step, whether the caller may create the name.
                // A remote engine would have to be queried before the request, and requests would
                // overtake each other.
                let is_one_step = self.service().answers_at_once();
                let check = is_one_step.then(|| self.parts.parents.check_of_open(&ask)).flatten();
                let own = Arc::clone(self);
                let asked = self.service().clone().submit_checked(Op::Acquire(*ask).into(), check);
                spawn(async move {
                    let answer = asked.await.map_err(RequestError::Unavailable);
                    own.settle(cookie, ino, of, answer);
                });
            }
            Effect::Tell(op, then) => {
                if let Op::Release(release) = &*op {
                    let key = &release.key;
                    self.parts.nodes.users.released(&key.name, key.token);
                }
                match then {
                    None => self.service().give_back(*op),
                    Some(promise) => {
                        let given_back = self.service().give_back_once(*op);
                        spawn(async move {
                            let _ = given_back.await;
                            promise.keep(Ok(()));
                        });
                    }
                }
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
            Effect::Compare => self.compare(),
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
        of: RequestedLease,
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
        self.parts.nodes.refusals.count_errno(errno);
        errno
    }
}

fn is_end_of(session: SessionId, event: &Event) -> bool {
    matches!(event.what, EventKind::SessionOver { session: over, .. } if over == session)
}

/// Passes an engine event to the lock table if the event may concern the table.
fn handle_event(
    table: &mut LockTable,
    session: SessionId,
    event: &Event,
    todo: &mut Vec<LockEffect>,
) {
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

impl LockSession {
    /// Queries the engine, after events or an answer were lost: which lease of the session has the
    /// lease number `asked.number` on the lock `asked.name`, and which waiters that lock has.
    pub(crate) fn recall(self: &Arc<Self>, asked: Recall) {
        let own = Arc::clone(self);
        let view = self.service().view(&asked.name, Retry::UntilAnswered);
        spawn(async move {
            let Ok(CacheableView { view, .. }) = view.await else { return };
            let open = OpenId { session: own.session, number: asked.number };
            let hold = Ownership::OpenFile(open);
            let lease = view.holders.iter().map(|holder| &holder.lease).find(|l| l.hold == hold);
            let lease = lease.map(|lease| key_of(&view.name, lease));
            let tickets = view.waiters.iter().map(|waiter| waiter.ticket).collect();
            let found = Found { lease, tickets };
            own.run(|table, todo| table.recalled(&asked, &found, todo));
        });
    }

    /// Compares the engine's leases that are attached to the session with the leases in the lock
    /// table, page by page. Releases each lease that the table does not know: a grant whose answer
    /// was lost, or a lease whose release was lost.
    pub(crate) fn compare(self: &Arc<Self>) {
        let own = Arc::clone(self);
        spawn(async move {
            let mut after = None;
            loop {
                let Ok(page) = own.service().leases(own.session, after).await else { return };
                let is_unknown = |token| own.queue.inspect(|table| table.holder(token).is_none());
                for (name, _) in page.items.iter().filter(|(_, token)| is_unknown(*token)) {
                    own.give_strays_back(name);
                }
                after = page.next.and_then(|next| LockName::parse(&next).ok());
                if after.is_none() {
                    return;
                }
            }
        });
    }

    /// Releases those leases on the lock `name` that are attached to the session but that the lock
    /// table does not know.
    fn give_strays_back(self: &Arc<Self>, name: &LockName) {
        let own = Arc::clone(self);
        let view = self.service().view(name, Retry::UntilAnswered);
        spawn(async move {
            let Ok(CacheableView { view, .. }) = view.await else { return };
            for lease in view.holders.iter().map(|holder| &holder.lease) {
                let Ownership::OpenFile(open) = lease.hold else { continue };
                if open.session == own.session {
                    let key = key_of(&view.name, lease);
                    own.run(|table, todo| table.found_stray(open.number, key, todo));
                }
            }
        });
    }
}

fn key_of(name: &LockName, lease: &Lease) -> LeaseKey {
    let (name, client) = (name.clone(), lease.holder.clone());
    LeaseKey { name, client, token: Some(lease.token) }
}

/// A program that waits for a lock in a system call such as `F_SETLKW`, as the interrupt watcher
/// sees it. `number` identifies the requested lease within the session.
struct LockWaiter {
    session: Weak<LockSession>,
    number: u64,
}

impl LockSession {
    /// Watches the thread `tid` for signals while it waits for the lease that `number` identifies
    /// within the session.
    pub(crate) fn watch_waiter(self: &Arc<Self>, number: u64, tid: u32) {
        let waiter = LockWaiter { session: Arc::downgrade(self), number };
        self.parts().interrupts.watch(number, tid, waiter);
    }
}

impl InterruptibleWait for LockWaiter {
    fn status(&self) -> WaitStatus {
        let session = self.session.upgrade();
        session.map_or(WaitStatus::Over, |session| {
            session.queue.inspect(|table| table.is_waiting(self.number))
        })
    }

    fn interrupt(&self) {
        if let Some(session) = self.session.upgrade() {
            session.run(|table, todo| table.interrupt(self.number, todo));
        }
    }

    fn expire(&self) {
        if let Some(session) = self.session.upgrade() {
            session.run(|table, todo| table.expire(self.number, todo));
        }
    }
}

/// The number of flock(2) in the 32-bit system calls of x86 and Arm. No native system call with
/// this number waits for a lock.
const FLOCK_OF_32_BITS: libc::c_long = 143;

/// Returns the system call in which the thread waits for a lock. The FUSE request does not tell, so
/// the call is read from `/proc`. If that fails, it is assumed to be fcntl(2), which keeps the old
/// lock until the new mode is granted.
pub(crate) fn call_of(tid: u32) -> Call {
    call_in(&std::fs::read_to_string(format!("/proc/{tid}/syscall")).unwrap_or_default())
}

/// Parses a line of `/proc/TID/syscall`: the number of the call, and its arguments.
fn call_in(line: &str) -> Call {
    let mut words = line.split(' ');
    let number = words.next().and_then(|number| number.parse::<libc::c_long>().ok());
    let command = words.nth(1).and_then(|word| word.strip_prefix("0x"));
    let command = command.and_then(|word| i32::from_str_radix(word, 16).ok());
    match (number, command) {
        (Some(libc::SYS_flock | FLOCK_OF_32_BITS), _) => Call::Flock,
        (_, Some(libc::F_OFD_SETLK | libc::F_OFD_SETLKW)) => Call::Ofd,
        _ => Call::Fcntl,
    }
}

/// A table, and the effects of its decisions that are not performed yet.
#[derive(Debug)]
pub(crate) struct EffectQueue<T, E> {
    inner: Mutex<EffectQueueState<T, E>>,
    /// Notified after each batch of effects that was performed.
    progress: Condvar,
}

#[derive(Debug)]
struct EffectQueueState<T, E> {
    table: T,
    waiting: Vec<E>,
    /// How many batches of waiting effects were taken from the queue to be performed.
    rounds: u64,
    /// How many of the batches that were taken are performed completely.
    done: u64,
    /// The thread that performs the effects, if any.
    performer: Option<Me>,
}

/// The identity of a thread: the address of one of its thread-locals. This is cheaper than std's
/// thread id, which counts references.
type Me = usize;

fn me() -> Me {
    thread_local!(static OWN: u8 = const { 0 });
    OWN.with(|own| std::ptr::from_ref(own).addr())
}

/// Which thread performs the effects of a decision.
#[derive(Debug)]
#[must_use = "a decision must be carried out"]
pub(crate) enum EffectTurn<E> {
    /// No thread performs effects now, so the calling thread does, and begins with these.
    Ours(Vec<E>),
    /// The calling thread has nothing to do: the decision has no effects, or an outer call on this
    /// thread performs effects already, and will perform these as well.
    None,
    /// Another thread performs effects, and will perform these in the batch with this number.
    Theirs(u64),
}

impl<E> EffectTurn<E> {
    /// Returns the value for a caller that must not wait for another thread to perform the effects.
    pub(crate) fn unless_theirs(self) -> Self {
        match self {
            Self::Theirs(_) => Self::None,
            ours => ours,
        }
    }
}

impl<T, E> EffectQueue<T, E> {
    pub(crate) fn new(table: T) -> Self {
        let (waiting, rounds, done, performer) = (Vec::new(), 0, 0, None);
        let inner = Mutex::new(EffectQueueState { table, waiting, rounds, done, performer });
        Self { inner, progress: Condvar::new() }
    }

    /// Calls `query` with the table, for an access that has no effects.
    pub(crate) fn inspect<R>(&self, query: impl FnOnce(&mut T) -> R) -> R {
        query(&mut self.inner.lock().table)
    }

    /// Runs `decide` on the table. Its effects are queued behind all earlier ones, and
    /// [`EffectQueue::clear`] performs them.
    pub(crate) fn decide<R>(
        &self,
        decide: impl FnOnce(&mut T, &mut Vec<E>) -> R,
    ) -> (R, EffectTurn<E>) {
        let mut inner = self.inner.lock();
        let mut effects = Vec::new();
        let decided = decide(&mut inner.table, &mut effects);
        if effects.is_empty() {
            return (decided, EffectTurn::None);
        }
        let me = me();
        let turn = match inner.performer {
            None => {
                inner.performer = Some(me);
                EffectTurn::Ours(effects)
            }
            Some(performer) => {
                inner.waiting.extend(effects);
                if performer == me {
                    EffectTurn::None
                } else {
                    EffectTurn::Theirs(inner.rounds + 1)
                }
            }
        };
        (decided, turn)
    }

    /// Performs the effects of a decision, with no mutex held. The effects are done when the call
    /// returns, so that a program that learns that a lock is free can take it at once. The
    /// exception is a call from within an effect: then the outer call performs the effects later.
    pub(crate) fn clear(&self, turn: EffectTurn<E>, mut perform: impl FnMut(E)) {
        let mut effects = match turn {
            EffectTurn::None => return,
            // Waits only for the batch that contains the effects of this decision: other threads
            // may keep adding more.
            EffectTurn::Theirs(round) => {
                let mut inner = self.inner.lock();
                return self.progress.wait_while(&mut inner, |inner| inner.done < round);
            }
            EffectTurn::Ours(effects) => effects,
        };
        loop {
            effects.into_iter().for_each(&mut perform);
            let next = self.inner.lock().next();
            self.progress.notify_all();
            match next {
                Some(next) => effects = next,
                None => return,
            }
        }
    }
}

impl<T, E> EffectQueueState<T, E> {
    /// Returns the next batch of effects. Returns `None` if no effects wait, and records that no
    /// thread performs effects any more.
    fn next(&mut self) -> Option<Vec<E>> {
        self.done = self.rounds;
        if self.waiting.is_empty() {
            self.performer = None;
            return None;
        }
        self.rounds += 1;
        Some(std::mem::take(&mut self.waiting))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_calls_of_64_and_32_bits_are_recognized() {
        let native = format!("{} 0x3 0x6 0x0 0x0 0x0 0x0 0x7ffd 0x7f0c", libc::SYS_flock);
        assert_eq!(call_in(&native), Call::Flock);
        assert_eq!(call_in("143 0x3 0x6 0x0 0x0 0x0 0x0 0xffd 0xf7f0c"), Call::Flock);
        let fcntl = |command| {
            call_in(&format!("{} 0x3 {command} 0x7ffd 0x0 0x0 0x0 0x7ffd 0x7f0c", libc::SYS_fcntl))
        };
        assert_eq!((fcntl("0x7"), fcntl("0x26")), (Call::Fcntl, Call::Ofd));
        assert_eq!(call_in("221 0x3 0x26 0xffd 0x0 0x0 0x0 0xffd 0xf7f0c"), Call::Ofd);
        assert_eq!((call_in("running\n"), call_in("")), (Call::Fcntl, Call::Fcntl));
    }
}

#[cfg(test)]
mod effect_queue_tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    #[test]
    fn nested_effects_are_performed_after_earlier_ones() {
        let (queue, done) = (EffectQueue::new(()), Mutex::new(Vec::new()));
        let decide = |effects: Vec<i32>| queue.decide(|(), out| *out = effects).1;
        queue.clear(decide(vec![1, 2]), |effect| {
            done.lock().push(effect);
            if effect == 1 {
                // The handler of an engine event makes such a nested call: it calls `clear` while
                // an effect is performed on the same thread.
                queue.clear(decide(vec![3]), |effect| panic!("{effect} would overtake 2"));
            }
        });
        assert_eq!(*done.lock(), [1, 2, 3]);
    }

    #[test]
    fn effects_of_all_threads_are_performed_in_order_before_clear_returns() {
        const EACH: usize = 20_000;
        let (queue, done) = (EffectQueue::new(0), Mutex::new(Vec::new()));
        let busy = AtomicBool::new(false);
        let perform = |effect: usize| {
            assert!(!busy.swap(true, Ordering::AcqRel), "one at a time");
            done.lock().push(effect);
            busy.store(false, Ordering::Release);
        };
        let count = |table: &mut usize| {
            *table += 1;
            *table
        };
        let act = || {
            for _ in 0..EACH {
                let (number, turn) = queue.decide(|table, out| {
                    out.push(count(table));
                    *table
                });
                queue.clear(turn, perform);
                assert!(done.lock().len() >= number, "it is done");
            }
        };
        thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(act))));
        assert_eq!(*done.lock(), (1..=4 * EACH).collect::<Vec<_>>());
    }
}
