//! flock(2), fcntl(2) and OFD locks: what the kernel asks becomes requests to the engine, and
//! its events become answers.
//!
//! [`table`] decides, purely, what is to be done; here it is done, with no mutex held: asking the
//! engine, answering programs, having those that wait looked after. Byte ranges are in [`ranges`].

mod effect_queue;
pub(crate) mod byte_ranges;
mod table;
pub(crate) mod ioctls;
mod fast_path;
mod reconcile;
mod lock_waiter;

use crate::fuse::errno::{Act, errno_of};
use crate::fuse::ops::create::looks;
use crate::fuse::open_files::{Open, Target};
use crate::fuse::credentials::{Caller, descends_from};
use crate::fuse::shared::{Fs, Shared, flat};
use crate::fuse::kernel::user_shares::Pool;
use crate::engine::{
    Answer, ClientId, Command, EndSession, Event, EventKind, FileType, GRACE_OF_PROCESS, LeaseKey,
    LockName, Mode, Op, OpenId, OpenSession, Outcome, Ownership, Patch, SessionEnd, SessionId,
    TenureEnd, Token,
};
use crate::holder_id::Maker;
use crate::service::event_log::EventWatch;
use crate::service::{RequestError, SessionOwner, Unavailable};
use lock_waiter::{Asker, call_of};
use effect_queue::{Desk, Turn};
use fast_path::Direct;
use fuser::{Errno, ReplyEmpty, ReplyLock};
use parking_lot::Mutex;
use byte_ranges::{Owner, Span};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use table::{Ask, Effect, No, Table, Waits};

/// Events taken at once: a bound on how long the table is held.
const EVENTS_MAX: usize = 256;

/// The permission bits of a lock that was free, and is locked through a file that was open still.
const MODE_OF_NEW: u32 = 0o644;

/// The locking of one mount. Nothing of it exists until a program locks.
#[derive(Default)]
pub(crate) struct Locking {
    /// Where what decides is in this process: one session as long as the mount, found without a
    /// mutex by each request.
    own: OnceLock<Arc<Running>>,
    /// Elsewhere: on the session that the door keeps, until that is over.
    kept: Mutex<Option<Arc<Running>>>,
    waits: waiting::Waits,
}

/// Locking, once a program has.
struct Running {
    session: SessionId,
    desk: Desk<Table<ReplyEmpty>, Effect<ReplyEmpty>>,
    watch: Mutex<EventWatch>,
    /// Whether the table is empty, so that no event can mean anything to it: then none is heard,
    /// for most programs never lock by open files, and each of their acts would pay for it. What
    /// is heard late speaks of tenures that are over.
    idle: Arc<AtomicBool>,
}

/// What the kernel tells of a request to lock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request {
    pub(crate) ino: u64,
    pub(crate) fh: u64,
    /// The kernel's number for the process or the open file.
    pub(crate) owner: u64,
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// `F_RDLCK`, `F_WRLCK` or `F_UNLCK`.
    pub(crate) kind: i32,
    /// The process.
    pub(crate) pid: u32,
}

impl Request {
    const fn span(&self) -> Span {
        Span { start: self.start, end: self.end }
    }

    const fn mode(&self) -> Option<Mode> {
        match self.kind {
            libc::F_RDLCK => Some(Mode::Shared),
            libc::F_WRLCK => Some(Mode::Exclusive),
            _ => None,
        }
    }
}

/// `flock`, `F_SETLK`, `F_OFD_SETLK`, and the forms that wait.
pub(crate) fn set(fs: &Fs, caller: &Caller, asked: &Request, sleep: bool, reply: ReplyEmpty) {
    let Some(mode) = asked.mode() else {
        // Answered at once, whatever comes of it: the kernel has let go already.
        unlock(fs, asked);
        return reply.ok();
    };
    let Some((open, name, client)) = lock_of(fs, asked.fh) else {
        let sentence = "only the file of a lock can be locked; those in .latchfs are not";
        return reply.error(fs.refuse_own(caller, Act::Lock, None, Errno::EINVAL, sentence));
    };
    let ask = ask_of(fs, caller, asked, (name, client), (mode, sleep));
    let direct = match fs.locking.own.get() {
        Some(own) => direct::lock(fs, own, ask),
        None => Direct::Unusual(ask),
    };
    let ask = match direct {
        Direct::Had(token) => {
            open.state.lock().tenure = Some(token);
            return reply.ok();
        }
        Direct::Not(no) => return reply_to(fs, reply, Err(no)),
        Direct::Unusual(ask) => ask,
    };
    if sleep && let Err(full) = fs.shares.room(Pool::Threads, caller.uid) {
        return reply.error(fs.refuse_full(caller, Act::Lock, Some(&ask.name), full));
    }
    match fs.locking.start(fs) {
        Ok(running) => run(fs, &running, |table, todo| table.lock(ask, reply, todo)),
        Err(failure) => reply.error(fs.refuse(caller, Act::Lock, Some(&ask.name), failure)),
    }
}

fn unlock(fs: &Fs, asked: &Request) {
    if fs.locking.own.get().is_some_and(|own| direct::unlock(fs, own, asked)) {
        return;
    }
    if let Some(running) = fs.locking.running() {
        run(fs, &running, |table, todo| {
            table.unlock(asked.ino, asked.owner, asked.span(), todo);
        });
    }
}

fn ask_of(
    fs: &Fs,
    caller: &Caller,
    asked: &Request,
    (name, client): (LockName, ClientId),
    (mode, sleep): (Mode, bool),
) -> Ask {
    let looks = Some(looks(caller, FileType::File, MODE_OF_NEW));
    let holder_id = Some(fs.owners.holder_id(caller));
    Ask {
        ino: asked.ino,
        owner: Owner { id: asked.owner, fh: asked.fh, pid: asked.pid },
        tid: caller.pid,
        span: asked.span(),
        mode,
        name,
        client,
        patch: Patch { holder_id, looks, ..Patch::default() },
        line: if sleep { Waits::Yes } else { Waits::No },
        call: call_of,
    }
}

/// `F_GETLK`, `F_OFD_GETLK`.
pub(crate) fn get(fs: &Fs, caller: &Caller, asked: &Request, reply: ReplyLock) {
    let (Some(mode), Some((_, name, client))) = (asked.mode(), lock_of(fs, asked.fh)) else {
        return reply.error(Errno::EINVAL);
    };
    let running = match fs.locking.start(fs) {
        Ok(running) => running,
        Err(failure) => return reply.error(fs.refuse(caller, Act::Lock, Some(&name), failure)),
    };
    let asked = *asked;
    let (own, number) = running.desk.look(|table| {
        let own = table.conflict(asked.ino, asked.owner, asked.span(), mode);
        (own, table.number_of(asked.ino, asked.owner).unwrap_or(asked.fh))
    });
    if let Some((span, mode, pid)) = own {
        return reply.locked(span.start, span.end, kind_of(mode), pid);
    }
    // Nothing of this mount's open files is in the way; what else is, the engine says.
    let hold = Ownership::OpenFile(OpenId { session: running.session, number });
    fs.view(caller, Act::Lock, &name, move |_, _, view| {
        let view = match view {
            Ok(view) => view,
            Err(errno) => return reply.error(errno),
        };
        match view.in_the_way(&client, hold, mode) {
            Some((holder, _)) => {
                let maker = holder.lease.details.holder_id().and_then(|id| Maker::parse(id));
                let pid = maker.map_or(0, |maker| maker.process.pid);
                reply.locked(0, ranges::TO_END, kind_of(view.mode), pid);
            }
            None => reply.locked(asked.start, asked.end, libc::F_UNLCK, 0),
        }
    });
}

/// A descriptor was closed: what its process holds by fcntl goes.
pub(crate) fn flushed(fs: &Fs, ino: u64, owner: u64) {
    if let Some(running) = fs.locking.running() {
        run(fs, &running, |table, todo| table.flushed(ino, owner, todo));
    }
}

/// An open file is gone: what was locked through it goes, whoever locked it.
pub(crate) fn closed(fs: &Fs, ino: u64, fh: u64) {
    waiting::closed(fs, fh);
    if let Some(running) = fs.locking.running() {
        run(fs, &running, |table, todo| table.closed(ino, fh, todo));
    }
}

/// Whether the caller may take away what an open file holds under `token`: it opened or locked
/// that file, or a process above it did.
pub(crate) fn may_end(fs: &Fs, caller: &Caller, token: Token) -> bool {
    let Some(running) = fs.locking.running() else { return false };
    let Some(holder) = running.desk.look(|table| table.holder(token)) else { return false };
    let opener = fs.opens.get(holder.fh).map_or(0, |open| open.pid);
    descends_from(caller.pid, &[holder.pid, opener])
}

/// The mount is gone: what its open files hold is free.
pub(crate) fn ended(fs: &Shared) {
    fs.locking.kept.lock().take();
    if let Some(running) = fs.locking.own.get() {
        let end = EndSession { session: running.session, end: SessionEnd::Closed };
        fs.locks.submit(Op::EndSession(end), |_| {});
    }
}

/// The lock that an open file speaks of, and in whose name.
fn lock_of(fs: &Shared, fh: u64) -> Option<(Arc<Open>, LockName, ClientId)> {
    let open = fs.opens.get(fh)?;
    let Target::Lock(_, name) = &open.target else { return None };
    open.state.lock().locked = true;
    let (name, client) = (name.clone(), open.client.clone());
    Some((open, name, client))
}

const fn kind_of(mode: Mode) -> i32 {
    match mode {
        Mode::Shared => libc::F_RDLCK,
        Mode::Exclusive => libc::F_WRLCK,
    }
}

impl Locking {
    fn running(&self) -> Option<Arc<Running>> {
        self.own.get().cloned().or_else(|| self.kept.lock().clone())
    }

    /// The session on which the holds of this mount hang, for whoever makes a lock through an
    /// open file.
    pub(crate) fn session(&self, fs: &Fs) -> Result<SessionId, RequestError> {
        self.start(fs).map(|running| running.session)
    }

    /// Opens the session, and follows events from now on. Behind a door
    /// that keeps a session of its own: begins anew when that is another one.
    fn start(&self, fs: &Fs) -> Result<Arc<Running>, RequestError> {
        if let Some(own) = self.own.get() {
            return Ok(Arc::clone(own));
        }
        let bond = fs.locks.bond().map_err(RequestError::Unavailable)?;
        let mut kept = self.kept.lock();
        match (bond, &*kept) {
            // Under the mutex, so that there is only one.
            (SessionOwner::Own, _) => {
                if self.own.get().is_none() {
                    let _set = self.own.set(Running::begin(fs, Table::new(open_session(fs)?)));
                }
                self.own.get().cloned().ok_or(RequestError::Unavailable(Unavailable::Closing))
            }
            (SessionOwner::Kept(session), Some(running)) if running.session == session => {
                Ok(Arc::clone(running))
            }
            (SessionOwner::Kept(session), _) => {
                let started = Running::begin(fs, Table::remote(session));
                let before = kept.replace(Arc::clone(&started));
                drop(kept);
                if let Some(before) = before {
                    retire(fs, &before);
                }
                Ok(started)
            }
        }
    }

    /// The session is over.
    fn over(&self, fs: &Fs, of: &Arc<Running>) {
        let taken = self.kept.lock().take_if(|running| Arc::ptr_eq(running, of));
        if let Some(taken) = taken {
            retire(fs, &taken);
        }
    }
}

impl Running {
    /// Locking by this session: events are heard from now on.
    fn begin(fs: &Fs, table: Table<ReplyEmpty>) -> Arc<Self> {
        let session = table.session();
        let (desk, watch) = (Desk::new(table), Mutex::new(fs.locks.watch(None)));
        let idle = Arc::new(AtomicBool::new(false));
        let unheard = Arc::clone(&idle);
        let started = Arc::new(Self { session, desk, watch, idle });
        let (fs2, of) = (Arc::downgrade(fs), Arc::downgrade(&started));
        started.watch.lock().wake_by(Arc::new(move || {
            if !unheard.load(Ordering::Acquire)
                && !direct::is_deaf(session)
                && let Some(running) = of.upgrade()
            {
                on_events(&fs2, &running);
            }
        }));
        started
    }
}

/// All that hung on a session is lost. Who holds finds out by its next write, for its tenure is
/// over; who waits is told now: its place in line is gone.
fn retire(fs: &Fs, running: &Running) {
    let waiting = running.desk.look(Table::retire);
    for reply in waiting {
        fs.counters.errno(Errno::ETIMEDOUT);
        reply.error(Errno::ETIMEDOUT);
    }
}

/// The session of this mount lasts as long as the mount: while this machine sleeps, so does the
/// engine, and nobody else is served.
fn open_session(fs: &Fs) -> Result<SessionId, RequestError> {
    let client = fs.config.client.clone();
    let op = Op::OpenSession(OpenSession { client, ttl: None, grace: GRACE_OF_PROCESS });
    let (send, receive) = std::sync::mpsc::channel();
    fs.locks.submit(Command::from(op), move |answer| {
        send.send(flat::<Outcome>(answer)).ok();
    });
    match receive.recv() {
        Ok(Ok(Outcome::SessionOpened(session))) => Ok(session),
        Ok(Ok(_)) | Err(_) => Err(RequestError::Unavailable(Unavailable::Closing)),
        Ok(Err(failure)) => Err(failure),
    }
}

/// Called on the thread that decided a command, with no lock held.
fn on_events(fs: &Weak<Shared>, running: &Arc<Running>) {
    loop {
        let mut over = false;
        // The watch first, so that two threads can't tell the table in the wrong order.
        let mut watch = running.watch.lock();
        let (more, turn) = running.desk.decide(|table, todo| {
            let visit = watch.visit(EVENTS_MAX, |_, event| {
                over |= is_end_of(running.session, event);
                hear(table, running.session, event, todo);
            });
            if visit.lost > 0 {
                table.missed(todo);
            }
            running.idle.store(table.is_idle(), Ordering::Release);
            visit.more
        });
        drop(watch);
        // Who is told of events never waits for another thread: that one may be telling a mount of
        // this daemon, whose turn is this thread's, at this very moment.
        let turn = turn.unless_theirs();
        if over || !matches!(turn, Turn::None) {
            let Some(fs) = fs.upgrade() else { return };
            running.desk.clear(turn, |effect| perform(&fs, running, effect));
            if over {
                return fs.locking.over(&fs, running);
            }
        }
        if !more {
            return;
        }
    }
}

fn is_end_of(session: SessionId, event: &Event) -> bool {
    matches!(event.what, EventKind::SessionOver { session: over, .. } if over == session)
}

/// Tells the table of an event, if it is one for it.
fn hear(
    table: &mut Table<ReplyEmpty>,
    session: SessionId,
    event: &Event,
    todo: &mut Vec<Effect<ReplyEmpty>>,
) {
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

/// Has the table decide, and does what it says.
fn run(
    fs: &Fs,
    running: &Arc<Running>,
    decide: impl FnOnce(&mut Table<ReplyEmpty>, &mut Vec<Effect<ReplyEmpty>>),
) {
    let ((), turn) = running.desk.decide(|table, todo| {
        decide(table, todo);
        // Before anything is asked of the engine: what comes of it is heard.
        running.idle.store(table.is_idle(), Ordering::Release);
    });
    running.desk.clear(turn, |effect| perform(fs, running, effect));
}

fn perform(fs: &Fs, running: &Arc<Running>, effect: Effect<ReplyEmpty>) {
    match effect {
        Effect::Submit { cookie, ino, ask } => {
            let of = (ask.name.clone(), ask.client.clone());
            let command = Op::Acquire(*ask).into();
            if let Some(answer) = fs.locks.submit_here(&command) {
                let answer = answer.map_err(RequestError::Unavailable);
                return settle(fs, running, cookie, ino, of, answer);
            }
            let (fs2, running) = (Arc::clone(fs), Arc::clone(running));
            fs.locks.submit(command, move |answer| {
                let answer = answer.map_err(RequestError::Unavailable);
                settle(&fs2, &running, cookie, ino, of, answer);
            });
        }
        Effect::Tell(op) => fs.locks.give_back(*op),
        Effect::Reply(reply, result) => reply_to(fs, reply, result),
        Effect::Speaks(fh, token) => {
            if let Some(open) = fs.opens.get(fh) {
                let token = fs.origin_of(&open, token);
                let mut state = open.state.lock();
                (state.tenure, state.session) = (Some(token), Some(running.session));
            }
        }
        Effect::Continues(name, token) => fs.tree.lock().continued(&name, token),
        Effect::Watch(number, tid) => {
            fs.lookout.watch(number, tid, Asker { fs: Arc::downgrade(fs), number });
        }
        Effect::Recall(asked) => compare::recall(fs, running, asked),
        // Where the engine is in this process no answer is ever unknown.
        Effect::Compare if fs.locking.own.get().is_some() => {}
        Effect::Compare => compare::compare(fs, running, None),
    }
}

/// The answer to an acquire is here.
fn settle(
    fs: &Fs,
    running: &Arc<Running>,
    cookie: u64,
    ino: u64,
    of: (LockName, ClientId),
    answer: Result<Answer, RequestError>,
) {
    match answer {
        Ok(answer) => {
            run(fs, running, |table, todo| table.answered(cookie, ino, of, answer, todo));
        }
        Err(failure) => {
            let mut reply = None;
            run(fs, running, |table, todo| reply = table.unanswered(cookie, ino, todo));
            if let Some(reply) = reply {
                reply.error(errno_of(&failure, Act::Lock));
            }
        }
    }
}

fn reply_to(fs: &Shared, reply: ReplyEmpty, result: Result<(), No>) {
    let errno = match result {
        Ok(()) => return reply.ok(),
        Err(No::Busy(_)) => Errno::EAGAIN,
        Err(No::Interrupted) => Errno::EINTR,
        Err(No::Deadlock) => Errno::EDEADLK,
        Err(No::Full) => Errno::ENOLCK,
        Err(No::Refused(refusal)) => errno_of(&RequestError::Refused(*refusal), Act::Lock),
    };
    fs.counters.errno(errno);
    reply.error(errno);
}
