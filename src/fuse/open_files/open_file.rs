//! An open file of the mount: what it refers to, its opener, and the tenure of a lock to which it
//! is bound. A tenure is the time for which a client holds a lock, from the grant to the release or
//! loss.

use crate::engine::{ClientId, Lease, Lifetime, LockName, LockView, SessionId, Token};
use crate::fuse::control_names::{ControlFile, ControlPage, LockReport};
use crate::fuse::credentials::Caller;
use crate::fuse::kernel::user_shares::{Full, Pool, Share, Shares};
use crate::fuse::kernel::values::{ReadBytes, ReadRequest};
use crate::fuse::open_files::answers::UnreadAnswers;
use crate::fuse::open_files::event_stream::EventStream;
use crate::fuse::open_files::held_read::HeldRead;
use crate::fuse::open_files::last_seen::LastSeen;
use crate::fuse::open_files::wait_state::WaitState;
use crate::service::{Locks, SessionOwner};
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;

/// One open file of the mount.
#[derive(Debug)]
pub(crate) struct OpenFile {
    /// The lock or control file to which this open file refers.
    pub(crate) target: OpenTarget,
    /// The client that opened the file; all operations through the file act on behalf of this
    /// client.
    pub(crate) client: ClientId,
    /// The user who opened the file.
    pub(crate) uid: u32,
    /// The id of the thread that opened the file, or 0 if the thread lives in a foreign pid
    /// namespace.
    pub(crate) pid: u32,
    /// Whether the file was opened for reading, writing or both.
    pub(crate) access: OpenAccess,
    /// Whether the file was opened with `O_APPEND`.
    pub(crate) append: bool,
    /// Whether the lock was created by this very open, with `O_CREAT` and `O_EXCL`.
    pub(crate) made_new: bool,
    /// The state that changes while the file is open.
    state: Mutex<OpenFileState>,
    /// The count of this open file against its user's limit; set when the file enters the table of
    /// open files.
    pub(crate) share: Option<Share>,
}

/// The object to which an open file refers.
#[derive(Debug, Clone)]
pub(crate) enum OpenTarget {
    /// A lock, with its inode and the name under which it was opened.
    Lock(u64, LockName),
    /// A file in `.latchfs`, or a file that shows one fact about a lock in the lock's directory.
    Control(ControlFile),
}

/// The access of an open file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OpenAccess {
    /// The file is open for reading only.
    Read,
    /// The file is open for writing only.
    Write,
    /// The file is open for reading and writing. Programs that open a file in this way expect to
    /// read back what they wrote.
    Both,
}

/// The state that changes while a file is open.
#[derive(Debug, Default)]
pub(crate) struct OpenFileState {
    /// The tenure (one client's hold of the lock) to which the file is bound: the one that began
    /// with this open file, or the one that the opener had at the open or at the first write.
    /// Identified by its token.
    pub(crate) tenure: Option<Token>,
    /// The session to which the file's lease is attached, if it is a session of this mount. If the
    /// session is lost, the lock is lost for this file, although the server may keep the lease in
    /// grace for its client.
    pub(crate) session: Option<SessionId>,
    /// Whether a program has tried to write through this open file, successfully or not.
    pub(crate) wrote: bool,
    /// The lease that a program has made with `O_EXCL` through this open file, or to which it has
    /// written a text, a ttl, a grace or a process, so that no other open file may take the lease
    /// over; `None` after this file was locked. Identified as `tenure` is.
    pub(crate) own_lease: Option<Token>,
    /// Whether a program has tried to lock through this open file, successfully or not.
    pub(crate) locked: bool,
    /// The end of the last message that a program has written to the lock's file through this open
    /// file.
    pub(crate) end: Option<MessageEnd>,
    /// The renewal that the truncation by the open of this file requests, if the file is closed and
    /// no program has tried to lock it or to write to it.
    pub(crate) truncated: Option<TruncatedLease>,
    /// The number of requests to `.latchfs/ctl` that wait in a queue and have no answer yet.
    pub(crate) pending: usize,
    /// The reads of this file that wait for data.
    pub(crate) held: Vec<HeldRead>,
    /// The state of the wait for a lock, if this is a file in `.latchfs/wait`.
    pub(crate) wait: WaitState,
    /// The state of the lock that a program has last seen by a read or a poll through this open
    /// file.
    pub(crate) seen: Option<LastSeen>,
    /// The event stream, if this is the file `.latchfs/events`.
    pub(crate) stream: Option<Arc<EventStream>>,
    /// The snapshot of the content that reads return, with its count against the user's limit.
    pub(crate) bytes: (Arc<[u8]>, Option<Share>),
    /// The answers in `.latchfs/ctl` that were not read yet.
    pub(crate) answers: UnreadAnswers,
}

/// The lease of a lock whose file was truncated by an open.
#[derive(Debug)]
pub(crate) struct TruncatedLease {
    /// The fencing token of the lease.
    pub(crate) token: Token,
    /// The `holder_id` of the process that opened the file.
    pub(crate) by: Arc<str>,
}

/// The end of a message that was written to a lock's file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MessageEnd {
    /// The offset of the message's end in the file.
    pub(crate) at: u64,
    /// Whether the message was text, which a write at this offset continues.
    pub(crate) is_text: bool,
}

impl OpenAccess {
    /// Returns the access that the flags of open(2) request.
    pub(crate) const fn of_flags(flags: i32) -> Self {
        match flags & libc::O_ACCMODE {
            libc::O_WRONLY => Self::Write,
            libc::O_RDWR => Self::Both,
            _ => Self::Read,
        }
    }

    /// Whether the access includes writing.
    pub(crate) const fn writes(self) -> bool {
        matches!(self, Self::Write | Self::Both)
    }
}

impl OpenFile {
    /// Returns an open file that refers to a lock. The file is not bound to a lease yet.
    pub(crate) fn of_lock(caller: &Caller, ino: u64, name: LockName, flags: i32) -> Self {
        let append = flags & libc::O_APPEND != 0;
        Self { append, ..Self::new(caller, OpenTarget::Lock(ino, name), flags) }
    }

    /// Returns an open file that refers to a control file.
    pub(crate) fn of_control(
        caller: &Caller,
        control: ControlFile,
        flags: i32,
        stream: Option<Arc<EventStream>>,
    ) -> Self {
        let open = Self::new(caller, OpenTarget::Control(control), flags);
        open.state().stream = stream;
        open
    }

    fn new(caller: &Caller, target: OpenTarget, flags: i32) -> Self {
        Self {
            target,
            client: caller.client.clone(),
            uid: caller.uid,
            pid: caller.pid,
            access: OpenAccess::of_flags(flags),
            append: false,
            made_new: false,
            state: Mutex::default(),
            share: None,
        }
    }

    /// Returns the state that changes while the file is open.
    pub(crate) fn state(&self) -> MutexGuard<'_, OpenFileState> {
        self.state.lock()
    }

    /// Returns the caller with the user and client of the file's opener: operations act on behalf
    /// of the opener, even if the descriptor was passed to another process.
    pub(crate) fn opener(&self, caller: &Caller) -> Caller {
        Caller { client: self.client.clone(), uid: self.uid, ..caller.clone() }
    }

    /// Returns the lock for which reads of this file wait, if it is a file in `.latchfs/wait`.
    pub(crate) fn waits_for(&self) -> Option<&LockName> {
        match &self.target {
            OpenTarget::Control(ControlFile::Report(LockReport::Wait, name)) => Some(name),
            OpenTarget::Control(_) | OpenTarget::Lock(..) => None,
        }
    }

    /// Returns the name under which the lock was opened, if this is the file of a lock.
    pub(crate) const fn lock(&self) -> Option<&LockName> {
        match &self.target {
            OpenTarget::Lock(_, name) => Some(name),
            OpenTarget::Control(_) => None,
        }
    }

    /// Returns the inode number of the lock, if this is the file of a lock.
    pub(crate) const fn lock_ino(&self) -> Option<u64> {
        match &self.target {
            OpenTarget::Lock(ino, _) => Some(*ino),
            OpenTarget::Control(_) => None,
        }
    }

    /// Returns the lease to which the file is bound, by the token that stays the same when `mv` or
    /// an upgrade gives the lease a new token.
    pub(crate) fn tenure(&self) -> Option<Token> {
        self.state().tenure
    }

    /// Binds the file to the lease that its opener holds according to the lock's state `view`, if
    /// it holds one. `origin_of` maps the lease's token to the token that stays the same when `mv`
    /// or an upgrade gives the lease a new one.
    pub(crate) fn bind_to_held(
        &self,
        service: &Locks,
        view: &LockView,
        origin_of: impl FnOnce(Token) -> Token,
    ) {
        let Some(held) = view.held_by(&self.client) else { return };
        let Lease { token, life, .. } = held.lease;
        let session = match (life, service.own_session()) {
            (Lifetime::Session(session), Ok(SessionOwner::Kept(own))) if session == own => {
                Some(own)
            }
            _ => None,
        };
        let origin = origin_of(token);
        let mut state = self.state();
        (state.tenure, state.session) = (Some(origin), session);
    }

    /// Records the state of the lock that a program has seen through this file.
    pub(crate) fn saw(&self, view: &LockView) {
        self.state().seen = Some(LastSeen::of(view));
    }

    /// Returns the part of the file's snapshot that a read requests, or `None` if the read needs a
    /// new snapshot: at offset 0, and if nothing was read through this file before.
    pub(crate) fn kept_window(&self, asked: ReadRequest) -> Option<ReadBytes> {
        let state = self.state();
        let is_kept = asked.offset > 0 && state.bytes.1.is_some();
        is_kept.then(|| ReadBytes::window(Arc::clone(&state.bytes.0), asked.offset, asked.size))
    }

    /// Stores a snapshot of the content for later reads, if the user's limit on buffered bytes
    /// allows it.
    pub(crate) fn keep(&self, shares: &Shares, bytes: Arc<[u8]>) -> Result<Arc<[u8]>, Full> {
        // The previous snapshot of the content is dropped first, so that it does not count against
        // the user's limit.
        self.state().bytes = Default::default();
        let share = match &self.target {
            // The file `.latchfs/why` can be read even beyond the limit on buffered bytes, because
            // it reports the refusals, also those by this limit.
            OpenTarget::Control(ControlFile::Page(ControlPage::Why)) => {
                shares.take_always(Pool::Bytes, self.uid, bytes.len())
            }
            _ => shares.take(Pool::Bytes, self.uid, bytes.len())?,
        };
        self.state().bytes = (Arc::clone(&bytes), Some(share));
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_follows_the_open_flags() {
        assert_eq!(OpenAccess::of_flags(libc::O_RDONLY | libc::O_APPEND), OpenAccess::Read);
        assert!(OpenAccess::of_flags(libc::O_WRONLY | libc::O_TRUNC).writes());
        assert_eq!(OpenAccess::of_flags(libc::O_RDWR), OpenAccess::Both);
    }
}
