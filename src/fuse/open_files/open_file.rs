//! One open file: what was opened, by whom, and the tenure that it speaks for.

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

/// One open file.
#[derive(Debug)]
pub(crate) struct OpenFile {
    /// The object that was opened.
    pub(crate) target: OpenTarget,
    /// The client that opened it: all operations through it are done in this name.
    pub(crate) client: ClientId,
    /// The user who opened it.
    pub(crate) uid: u32,
    /// The thread that opened it, or 0.
    pub(crate) pid: u32,
    /// For reading, writing or both.
    pub(crate) access: OpenAccess,
    /// Whether every write goes to the end.
    pub(crate) append: bool,
    /// Whether this open file made the lock, and only could because nobody had it.
    pub(crate) made_new: bool,
    /// The state that changes while it is open.
    state: Mutex<OpenFileState>,
    /// Its part of its user's share; set when it is kept.
    pub(crate) share: Option<Share>,
}

/// The object that an open file is of.
#[derive(Debug, Clone)]
pub(crate) enum OpenTarget {
    /// A lock: the inode, and the name under which it was opened.
    Lock(u64, LockName),
    /// Something in `.latchfs`, or a fact in a directory that is a lock.
    Control(ControlFile),
}

/// The access of an open file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OpenAccess {
    /// Only read.
    Read,
    /// Only write.
    Write,
    /// Both. Such programs expect to read what they wrote.
    Both,
}

/// The state that changes while a file is open.
#[derive(Debug, Default)]
pub(crate) struct OpenFileState {
    /// The tenure that it speaks for: the one that it began, or that its owner held when it was
    /// opened, or had come to hold at its first write.
    pub(crate) tenure: Option<Token>,
    /// The session of this mount on which that tenure hangs, where it hangs on one. When the
    /// session is lost, so is the tenure: the server may still have it in grace, for its client.
    pub(crate) session: Option<SessionId>,
    /// Whether something was written, in vain or not.
    pub(crate) wrote: bool,
    /// Whether it was ever locked, in vain or not.
    pub(crate) locked: bool,
    /// Where the last message that was written through it ended.
    pub(crate) end: Option<MessageEnd>,
    /// Answers that will come: requests that wait in a queue.
    pub(crate) pending: usize,
    /// Reads that wait for them.
    pub(crate) held: Vec<HeldRead>,
    /// The state of the wait of a file in `wait/`.
    pub(crate) wait: WaitState,
    /// The state of its lock that was last seen by a program that polls it.
    pub(crate) seen: Option<LastSeen>,
    /// The events, for a reader of them.
    pub(crate) stream: Option<Arc<EventStream>>,
    /// The bytes that are being read, and their part of the user's share.
    pub(crate) bytes: (Arc<[u8]>, Option<Share>),
    /// The answers of a control file that were not read yet.
    pub(crate) answers: UnreadAnswers,
}

/// The end of a message.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MessageEnd {
    /// The offset in the file.
    pub(crate) at: u64,
    /// Whether it was a text, which another may follow.
    pub(crate) is_text: bool,
}

impl OpenAccess {
    /// Returns what the flags of open(2) ask for.
    pub(crate) const fn of_flags(flags: i32) -> Self {
        match flags & libc::O_ACCMODE {
            libc::O_WRONLY => Self::Write,
            libc::O_RDWR => Self::Both,
            _ => Self::Read,
        }
    }

    /// Whether it includes writing.
    pub(crate) const fn writes(self) -> bool {
        matches!(self, Self::Write | Self::Both)
    }
}

impl OpenFile {
    /// An open file of a lock that speaks for no tenure yet.
    pub(crate) fn of_lock(caller: &Caller, ino: u64, name: LockName, flags: i32) -> Self {
        let append = flags & libc::O_APPEND != 0;
        Self { append, ..Self::new(caller, OpenTarget::Lock(ino, name), flags) }
    }

    /// An open control file.
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

    /// Returns what changes while it is open.
    pub(crate) fn state(&self) -> MutexGuard<'_, OpenFileState> {
        self.state.lock()
    }

    /// Returns the caller as the one who opened the file: a file that is handed on speaks for its
    /// opener.
    pub(crate) fn opener(&self, caller: &Caller) -> Caller {
        Caller { client: self.client.clone(), uid: self.uid, ..caller.clone() }
    }

    /// Returns the lock that is waited for by reading this file.
    pub(crate) fn waits_for(&self) -> Option<&LockName> {
        match &self.target {
            OpenTarget::Control(ControlFile::Report(LockReport::Wait, name)) => Some(name),
            OpenTarget::Control(_) | OpenTarget::Lock(..) => None,
        }
    }

    /// Returns the lock that it is of.
    pub(crate) const fn lock(&self) -> Option<&LockName> {
        match &self.target {
            OpenTarget::Lock(_, name) => Some(name),
            OpenTarget::Control(_) => None,
        }
    }

    /// Returns the inode of the lock that it is of.
    pub(crate) const fn lock_ino(&self) -> Option<u64> {
        match &self.target {
            OpenTarget::Lock(ino, _) => Some(*ino),
            OpenTarget::Control(_) => None,
        }
    }

    /// Returns the tenure that it speaks for, if it does.
    pub(crate) fn tenure(&self) -> Option<Token> {
        self.state().tenure
    }

    /// Binds the file to the tenure that its opener has in `view`, if there is one. `origin_of`
    /// returns the tenure that open files of the inode are bound to.
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

    /// Notes what is shown of its lock through it.
    pub(crate) fn saw(&self, view: &LockView) {
        self.state().seen = Some(LastSeen::of(view));
    }

    /// Returns the part that a read gets of what an earlier one has kept.
    pub(crate) fn kept_window(&self, asked: ReadRequest) -> ReadBytes {
        let bytes = Arc::clone(&self.state().bytes.0);
        ReadBytes::window(bytes, asked.offset, asked.size)
    }

    /// Keeps what is read for the reads that follow, if its user has room for it.
    pub(crate) fn keep(&self, shares: &Shares, bytes: Arc<[u8]>) -> Result<Arc<[u8]>, Full> {
        // The bytes that were kept before go first.
        self.state().bytes = Default::default();
        let share = match &self.target {
            // It tells what was refused, this as well.
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
    fn flags_say_what_may_be_done() {
        assert_eq!(OpenAccess::of_flags(libc::O_RDONLY | libc::O_APPEND), OpenAccess::Read);
        assert!(OpenAccess::of_flags(libc::O_WRONLY | libc::O_TRUNC).writes());
        assert_eq!(OpenAccess::of_flags(libc::O_RDWR), OpenAccess::Both);
    }
}
