//! The lock requests of programs: flock, fcntl and OFD locks, unlock, close, and queries of the
//! conflicting lock.
//!
//! The ioctl(2) commands on the file of a lock, for programs that know latchfs.

use crate::engine::{
    ClientId, EndSession, FileType, GRACE_OF_PROCESS, LeaseKey, LockName, Mode, Obstacle, Op,
    OpenId, OpenSession, Outcome, Ownership, Patch, SessionEnd, SessionId, Token,
};
use crate::fuse::credentials::{Caller, Callers, descends_from};
use crate::fuse::file_attrs::attrs_of_new;
use crate::fuse::lock_nodes::LockNodes;
use crate::fuse::open_files::OpenFile;
use crate::fuse::posix_locks::byte_ranges::{ByteRange, PosixOwner, TO_END};
use crate::fuse::posix_locks::lock_session::{LockSession, LockingParts, SessionSlot, call_of};
use crate::fuse::posix_locks::table::{Ask, Table, Waits};
use crate::fuse::refusals::Act;
use crate::holder_id::Maker;
use crate::service::{RequestError, Retry, SessionOwner, Unavailable};
use common::task::{Pending, block_on, pending};
use kernel::file_system::{Errno, LockFound, LockRequest};
use kernel::handles::Pool;
use std::sync::{Arc, OnceLock};

/// The permission bits that a lock gets if it is free when a program locks it through a file that
/// was opened earlier.
const MODE_OF_NEW: u32 = 0o644;

/// Returns the byte range of a request.
const fn span_of(asked: &LockRequest) -> ByteRange {
    ByteRange { start: asked.start, end: asked.end }
}

/// Returns the lock owner of a request.
const fn owner_of(asked: &LockRequest) -> PosixOwner {
    PosixOwner { id: asked.owner, fh: asked.fh, pid: asked.pid }
}

/// The flock(2), fcntl(2) and OFD locks of one mount. Their session with the engine is opened when
/// a program first locks a file.
pub(crate) struct PosixLocks {
    parts: LockingParts,
    callers: Arc<Callers>,
    /// The client in whose name the mount opens its own session.
    client: ClientId,
    /// The session if the engine is in this process: one for the lifetime of the mount. Requests
    /// read it without a mutex.
    own: OnceLock<Arc<LockSession>>,
    /// The session if the engine is remote: the one that the lock service keeps alive, until that
    /// session is over.
    kept: Arc<SessionSlot>,
}

const fn mode_of(kind: i32) -> Option<Mode> {
    match kind {
        libc::F_RDLCK => Some(Mode::Shared),
        libc::F_WRLCK => Some(Mode::Exclusive),
        _ => None,
    }
}

const fn kind_of(mode: Mode) -> i32 {
    match mode {
        Mode::Shared => libc::F_RDLCK,
        // A holder of one of several seats excludes readers and writers alike.
        Mode::Exclusive | Mode::Seats(_) => libc::F_WRLCK,
    }
}

impl PosixLocks {
    /// Returns the lock handling of a mount whose own client is `client`. Opens no session yet.
    pub(crate) fn new(parts: LockingParts, callers: Arc<Callers>, client: ClientId) -> Self {
        Self { parts, callers, client, own: OnceLock::new(), kept: Arc::default() }
    }

    /// Takes or releases a lock (flock, `F_SETLK`, `F_OFD_SETLK`). With `sleep`, waits until a lock
    /// that is not free is granted (`F_SETLKW`).
    pub(crate) async fn set(
        &self,
        caller: &Caller,
        asked: &LockRequest,
        sleep: bool,
    ) -> Result<(), Errno> {
        let Some(mode) = mode_of(asked.kind) else {
            // An unlock succeeds whatever its outcome: the kernel has released the lock already.
            if let Some(decided) = self.unlock(asked) {
                decided.await;
            }
            return Ok(());
        };
        let refusals = &self.parts.nodes.refusals;
        let Some((open, name)) = self.lock_of(asked.fh) else {
            let sentence = "files in .latchfs can't be locked; lock the file of a lock";
            return Err(refusals.refused(caller, Act::Lock, None, Errno::EINVAL, sentence));
        };
        let mut ask = self.ask_of(caller, asked, name, open.client.clone(), mode, sleep);
        let waits = sleep.then(|| self.parts.opens.shares().room(Pool::Threads, caller.uid));
        if let Some(Err(full)) = waits {
            return Err(refusals.full(caller, Act::Lock, Some(&ask.name), &full));
        }
        if let Some((name, token)) = self.own_lease(&open, ask.ino, &ask.name) {
            (ask.name, ask.takes_over) = (name, Some(token));
        }
        // The promise of the result is dropped without a value only when the mount is gone.
        self.submit(caller, ask)?.await.unwrap_or(Err(Errno::EIO))?;
        open.state().own_lease = None;
        Ok(())
    }

    /// Returns the name and the token of the lease that a program has made or written through an
    /// open file, and which that file takes over when it is locked: the lease under the name `name`
    /// if the file has several names. Whether the client still has the lease, the engine decides.
    fn own_lease(&self, open: &OpenFile, ino: u64, name: &LockName) -> Option<(LockName, Token)> {
        let own = open.state().own_lease?;
        let mut links = self.parts.nodes.lock_node(ino)?.links_of(Some(own));
        let place = links.iter().position(|link| link.name == *name).unwrap_or_default();
        let link = links.swap_remove(place);
        Some((link.name, link.token?))
    }

    /// Passes a lock request to the lock table. Returns the future of the result.
    fn submit(&self, caller: &Caller, ask: Ask) -> Result<Pending<Result<(), Errno>>, Errno> {
        let session = self.start_for(caller, &ask.name)?;
        let (promise, decided) = pending();
        session.run(|table, todo| table.lock(ask, promise, todo));
        Ok(decided)
    }

    fn start_for(&self, caller: &Caller, name: &LockName) -> Result<Arc<LockSession>, Errno> {
        let refusals = &self.parts.nodes.refusals;
        let started = self.start();
        started.map_err(|failure| refusals.failed(caller, Act::Lock, Some(name), failure))
    }

    /// Releases a lock. Returns a future that is ready once the engine has decided the release, or
    /// `None` if the engine is in this process and has decided already.
    fn unlock(&self, asked: &LockRequest) -> Option<Pending<Result<(), Errno>>> {
        let session = self.started()?;
        let (ino, id, span) = (asked.ino, asked.owner, span_of(asked));
        if session.service().answers_at_once() {
            session.run(|table, todo| table.unlock(ino, id, span, todo));
            return None;
        }
        let (promise, decided) = pending();
        session.run(|table, todo| table.unlock_and_reply(ino, id, span, promise, todo));
        Some(decided)
    }

    fn ask_of(
        &self,
        caller: &Caller,
        asked: &LockRequest,
        name: LockName,
        client: ClientId,
        mode: Mode,
        sleep: bool,
    ) -> Ask {
        let attrs = Some(attrs_of_new(caller, FileType::File, MODE_OF_NEW));
        let holder_id = Some(self.callers.holder_id(caller));
        Ask {
            ino: asked.ino,
            owner: owner_of(asked),
            tid: caller.pid,
            span: span_of(asked),
            mode,
            name,
            client,
            patch: Patch { holder_id, attrs, ..Patch::default() },
            takes_over: None,
            line: if sleep { Waits::Yes } else { Waits::No },
            call: call_of,
        }
    }

    /// Returns the lock that conflicts with a request (`F_GETLK`, `F_OFD_GETLK`).
    pub(crate) async fn get(
        &self,
        caller: &Caller,
        asked: &LockRequest,
    ) -> Result<LockFound, Errno> {
        let Some((open, name)) = self.lock_of(asked.fh) else { return Err(Errno::EINVAL) };
        let session = self.start_for(caller, &name)?;
        let (ino, id, span) = (asked.ino, asked.owner, span_of(asked));
        let mode = mode_of(asked.kind);
        let here = session.queue.inspect(|table| match mode {
            Some(mode) => table.conflict(ino, id, span, mode),
            // `F_OFD_GETLK` with `F_UNLCK` asks for the locks of the open file itself.
            None => table.own_lock(ino, id, span),
        });
        if let Some((span, mode, pid)) = here {
            let (start, end) = (span.start, span.end);
            return Ok(LockFound { start, end, kind: kind_of(mode), pid });
        }
        let (start, end) = (asked.start, asked.end);
        let nothing = LockFound { start, end, kind: libc::F_UNLCK, pid: 0 };
        let Some(mode) = mode else { return Ok(nothing) };
        // No open file of this mount conflicts; the engine knows all other holders. A waiter is no
        // conflict for `F_GETLK`.
        let mut view = self.parts.nodes.view(caller, Act::Lock, &name).await?;
        view.waiters.clear();
        let own =
            |hold| matches!(hold, Ownership::OpenFile(open) if open.session == session.session);
        view.holders.retain(|holder| !own(holder.lease.hold));
        let taken_over = self.own_lease(&open, asked.ino, &name).map(|(_, token)| token);
        let hold = Ownership::OpenFile(OpenId { session: session.session, number: asked.fh });
        let holder = match view.in_the_way(&open.client, hold, mode, taken_over) {
            None => return Ok(nothing),
            Some(Obstacle::Lease(holder, _)) => holder,
            Some(Obstacle::HoldOff(_)) => {
                return Ok(LockFound { start: 0, end: TO_END, kind: libc::F_WRLCK, pid: 0 });
            }
        };
        let maker = holder.lease.details.holder_id().and_then(|id| Maker::parse(id));
        // A pid of another machine means nothing here.
        let maker = maker.filter(|maker| maker.is_of_this_boot());
        let pid = maker.map_or(0, |maker| maker.process.pid);
        Ok(LockFound { start: 0, end: TO_END, kind: kind_of(view.mode), pid })
    }

    /// Releases the fcntl locks that a process has on a file after it closed one of its
    /// descriptors.
    pub(crate) fn flushed(&self, ino: u64, owner: u64) {
        if let Some(session) = self.started() {
            session.run(|table, todo| table.flushed(ino, owner, todo));
        }
    }

    /// Releases all that was locked through the open file `fh` after it was closed, whichever
    /// process locked it.
    pub(crate) fn closed(&self, ino: u64, fh: u64) {
        if let Some(session) = self.started() {
            session.run(|table, todo| table.closed(ino, fh, todo));
        }
    }

    /// Whether the caller may release the lock that an open file holds under `token`: the calling
    /// process or one of its ancestors must have opened or locked that file.
    pub(crate) fn may_end(&self, caller: &Caller, token: Token) -> bool {
        let Some(session) = self.started() else { return false };
        let Some(holder) = session.queue.inspect(|table| table.holder(token)) else { return false };
        let opener = self.parts.opens.get(holder.fh).map_or(0, |open| open.pid);
        descends_from(caller.pid, &[holder.pid, opener])
    }

    /// Records that `ln` of a file has made the lease `key`. Returns the session whose open file
    /// holds the lock of that file under `token`, and releases the lease with the lock; `None` if
    /// no open file of this mount holds that lock any more.
    pub(crate) fn linked(&self, token: Token, key: LeaseKey) -> Option<SessionId> {
        let session = self.started()?;
        session.queue.inspect(|table| table.linked(token, key)).then_some(session.session)
    }

    /// Releases all locks of open files when the mount is gone.
    pub(crate) fn end(&self) {
        let kept = self.kept.lock().take();
        drop(kept);
        if let Some(own) = self.own.get() {
            let end = EndSession { session: own.session, end: SessionEnd::Closed };
            self.parts.nodes.service.submit(Op::EndSession(end).into(), Retry::Never).detach();
        }
    }

    /// Returns an open file that a program locks, and the name of its lock.
    fn lock_of(&self, fh: u64) -> Option<(Arc<OpenFile>, LockName)> {
        let open = self.parts.opens.get(fh)?;
        let name = open.lock()?.clone();
        open.state().locked = true;
        Some((open, name))
    }

    /// Returns the current session; `None` if no program has locked a file yet.
    pub(crate) fn started(&self) -> Option<Arc<LockSession>> {
        self.own.get().cloned().or_else(|| self.kept.lock().clone())
    }

    /// Returns the session to which the lease of a lock is attached that is created through an open
    /// file.
    pub(crate) fn session(&self) -> Result<SessionId, RequestError> {
        self.start().map(|session| session.session)
    }

    /// Returns the current session for locks, and opens one if needed. If the lock service keeps
    /// sessions alive and has opened a new one, the value for the old session is replaced.
    fn start(&self) -> Result<Arc<LockSession>, RequestError> {
        if let Some(own) = self.own.get() {
            return Ok(Arc::clone(own));
        }
        let bond = self.parts.nodes.service.own_session().map_err(RequestError::Unavailable)?;
        let mut kept = self.kept.lock();
        match (bond, &*kept) {
            // Whether a session exists is checked again under the mutex, so that only one is
            // opened.
            (SessionOwner::Own, _) => {
                if self.own.get().is_none() {
                    let table = Table::new(self.open_session()?);
                    let _set = self.own.set(LockSession::begin(&self.parts, table, None));
                }
                self.own.get().cloned().ok_or(RequestError::Unavailable(Unavailable::Closing))
            }
            (SessionOwner::Kept(session), Some(current)) if current.session == session => {
                Ok(Arc::clone(current))
            }
            (SessionOwner::Kept(session), _) => {
                let slot = Some(Arc::downgrade(&self.kept));
                let started = LockSession::begin(&self.parts, Table::new(session), slot);
                let before = kept.replace(Arc::clone(&started));
                drop(kept);
                if let Some(before) = before {
                    before.retire();
                }
                Ok(started)
            }
        }
    }

    /// Opens a session without a ttl, which lasts as long as the mount: while this machine sleeps,
    /// the engine in it sleeps too, and no other client is served.
    fn open_session(&self) -> Result<SessionId, RequestError> {
        let client = self.client.clone();
        let op = Op::OpenSession(OpenSession { client, ttl: None, grace: GRACE_OF_PROCESS });
        let opened = self.parts.nodes.service.submit(op.into(), Retry::Never);
        match block_on(opened.outcome())? {
            Outcome::SessionOpened(session) => Ok(session),
            _ => Err(RequestError::Unavailable(Unavailable::Closing)),
        }
    }
}

/// The ioctl by which a program cancels a wait on an open file, `_IO('L', 1)`. With it, a program
/// that waits in a thread of its own can wait for a limited time and keep its queue place until
/// then. A signal would do as well, but signals belong to the whole process.
pub(crate) const GIVE_UP: u32 = 0x4c01;

/// The ioctl by which a program reads the fencing token of the lock that its own open file holds,
/// `_IOR('L', 2, __u64)`; it fails with ESTALE if the file holds none. The JSON status that a read
/// of the lock file returns may show the token of another holder.
pub(crate) const TOKEN: u32 = 0x8008_4c02;

/// Returns the fencing token by which an open file holds its lock, or the error ESTALE if it holds
/// none.
pub(crate) async fn token(
    posix_locks: &PosixLocks,
    nodes: &LockNodes,
    caller: &Caller,
    ino: u64,
    fh: u64,
) -> Result<Vec<u8>, Errno> {
    let lost = |name: Option<&LockName>| {
        let sentence = "this open file holds no lock, or has lost it; lock it by flock first";
        nodes.refusals.refused(caller, Act::Lock, name, Errno::ESTALE, sentence)
    };
    let session = posix_locks.started();
    let held =
        session.and_then(|session| session.queue.inspect(|table| table.held_through(ino, fh)));
    let Some((name, token)) = held else { return Err(lost(None)) };
    let view = nodes.view(caller, Act::Lock, &name).await?;
    if view.holders.iter().any(|holder| holder.lease.token == token) {
        return Ok(token.as_u64().to_ne_bytes().to_vec());
    }
    Err(lost(Some(&name)))
}

/// Cancels the wait of a program on an open file: its call fails with EAGAIN.
pub(crate) fn give_up(posix_locks: &PosixLocks, ino: u64, fh: u64) {
    if let Some(session) = posix_locks.started() {
        session.run(|table, todo| table.give_up(ino, fh, todo));
    }
}
