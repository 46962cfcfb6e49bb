//! Open files: one number for every open and create, and what each of them may speak for.

use super::answers::Answers;
use super::control::{Control, Page, Report};
use super::listing::Listing;
use super::locking::waiting::Held;
use super::numbered::Numbered;
use super::poll::Seen;
use super::shares::{Full, Pool, Share, Shares};
use super::stream::Stream;
use super::wait::Place;
use crate::engine::{ClientId, LockName, SessionId, Token};
use fuser::FileType;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The open files and directories of one mount.
#[derive(Debug, Default)]
pub(super) struct Opens {
    last: AtomicU64,
    shares: Shares,
    files: Mutex<Numbered<Arc<Open>>>,
    listings: Mutex<Numbered<Arc<Listing>>>,
}

/// One open file.
#[derive(Debug)]
pub(super) struct Open {
    /// What was opened.
    pub(super) target: Target,
    /// Who opened it: what is done through it is done in this name.
    pub(super) client: ClientId,
    /// The user who opened it.
    pub(super) uid: u32,
    /// The thread that opened it, or 0.
    pub(super) pid: u32,
    /// For reading, writing or both.
    pub(super) access: Access,
    /// Whether every write goes to the end.
    pub(super) append: bool,
    /// Whether this open file made the lock, and only could because nobody had it.
    pub(super) made_new: bool,
    /// What changes while it is open.
    pub(super) state: Mutex<State>,
    /// What it takes of its user's share; set when it is kept.
    pub(super) share: Option<Share>,
}

/// What an open file is of.
#[derive(Debug, Clone)]
pub(super) enum Target {
    /// A lock: the inode, and the name under which it was opened.
    Lock(u64, LockName),
    /// Something in `.latchfs`, or a fact in a directory that is a lock.
    Control(Control),
}

/// What an open file may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    /// Only read.
    Read,
    /// Only write.
    Write,
    /// Both. Such programs expect to read what they wrote.
    Both,
}

/// What changes while a file is open.
#[derive(Debug, Default)]
pub(super) struct State {
    /// The tenure that it speaks for: the one that it began, or that its owner held when it was
    /// opened, or had come to hold at its first write.
    pub(super) tenure: Option<Token>,
    /// The session of this mount on which that tenure hangs, where it hangs on one. When the
    /// session is lost, so is the tenure: the server may still have it in grace, for its client.
    pub(super) session: Option<SessionId>,
    /// Whether something was written, in vain or not.
    pub(super) wrote: bool,
    /// Whether it was ever locked, in vain or not.
    pub(super) locked: bool,
    /// Where the last message that was written through it ended.
    pub(super) end: Option<End>,
    /// Answers that will come: requests that wait in line.
    pub(super) pending: usize,
    /// Reads that wait for them.
    pub(super) held: Vec<Held>,
    /// How it stands with who reads to wait in line.
    pub(super) place: Place,
    /// What was last seen of its lock, by whoever polls it.
    pub(super) seen: Option<Seen>,
    /// The place in the feed, for a reader of events.
    pub(super) stream: Option<Arc<Stream>>,
    /// What is being read, and what it takes of its user's share.
    pub(super) bytes: (Arc<[u8]>, Option<Share>),
    /// The answers of a control file that were not read yet.
    pub(super) answers: Answers,
}

/// The end of a message.
#[derive(Debug, Clone, Copy)]
pub(super) struct End {
    /// The offset in the file.
    pub(super) at: u64,
    /// Whether it was a text, which another may follow.
    pub(super) is_text: bool,
}

/// One entry of a directory.
#[derive(Debug)]
pub(super) struct Entry {
    /// Its number, if the kernel knows it.
    pub(super) ino: Option<u64>,
    /// Its kind.
    pub(super) kind: FileType,
    /// Its name within the directory.
    pub(super) name: Box<str>,
}

impl Opens {
    /// None yet; they will take of `shares`.
    pub(super) fn new(shares: Shares) -> Self {
        Self { shares, ..Self::default() }
    }

    /// Keeps an open file under a new number.
    pub(super) fn insert(&self, open: Open) -> u64 {
        let fh = self.number();
        self.insert_as(fh, open);
        fh
    }

    /// Keeps an open file under a number that was taken for it.
    pub(super) fn insert_as(&self, fh: u64, mut open: Open) {
        open.share = Some(self.shares.take_always(Pool::Files, open.uid, 1));
        self.files.lock().insert(fh, Arc::new(open));
    }

    /// The open file of this number.
    pub(super) fn get(&self, fh: u64) -> Option<Arc<Open>> {
        self.files.lock().get(&fh).cloned()
    }

    /// The last descriptor of it is closed.
    pub(super) fn remove(&self, fh: u64) -> Option<Arc<Open>> {
        // Not dropped under the mutex: its bytes are freed then.
        self.files.lock().remove(&fh)
    }

    /// Keeps a directory that a user opens under a new number.
    pub(super) fn insert_listing(&self, uid: u32) -> Result<u64, Full> {
        let listing = Listing::new(self.shares.take(Pool::Directories, uid, 1)?);
        let fh = self.number();
        self.listings.lock().insert(fh, Arc::new(listing));
        Ok(fh)
    }

    /// The open directory of this number.
    pub(super) fn listing(&self, fh: u64) -> Option<Arc<Listing>> {
        self.listings.lock().get(&fh).cloned()
    }

    /// The directory is closed.
    pub(super) fn remove_listing(&self, fh: u64) {
        let listing = self.listings.lock().remove(&fh);
        drop(listing); // After the mutex: this frees a page of names.
    }

    /// How many files are open.
    pub(super) fn count(&self) -> usize {
        self.files.lock().len()
    }

    /// No number is used twice: late requests must not hit another's file.
    pub(super) fn number(&self) -> u64 {
        self.last.fetch_add(1, Ordering::Relaxed) + 1
    }
}

impl Access {
    /// What the flags of open(2) ask for.
    pub(super) const fn of_flags(flags: i32) -> Self {
        match flags & libc::O_ACCMODE {
            libc::O_WRONLY => Self::Write,
            libc::O_RDWR => Self::Both,
            _ => Self::Read,
        }
    }

    /// Whether it includes writing.
    pub(super) const fn writes(self) -> bool {
        matches!(self, Self::Write | Self::Both)
    }
}

impl Open {
    /// The lock that is waited for by reading this file.
    pub(super) fn waits_for(&self) -> Option<&LockName> {
        match &self.target {
            Target::Control(Control::Report(Report::Wait, name)) => Some(name),
            Target::Control(_) | Target::Lock(..) => None,
        }
    }

    /// The lock that it is of.
    pub(super) const fn lock(&self) -> Option<&LockName> {
        match &self.target {
            Target::Lock(_, name) => Some(name),
            Target::Control(_) => None,
        }
    }

    /// The tenure that it speaks for, if it does.
    pub(super) fn tenure(&self) -> Option<Token> {
        self.state.lock().tenure
    }

    /// Keeps what is read for the reads that follow, if its user has room for it.
    pub(super) fn keep(&self, shares: &Shares, bytes: Arc<[u8]>) -> Result<Arc<[u8]>, Full> {
        // What was kept before goes first.
        self.state.lock().bytes = Default::default();
        let share = match &self.target {
            // It tells what was refused, this as well.
            Target::Control(Control::Page(Page::Why)) => {
                shares.take_always(Pool::Bytes, self.uid, bytes.len())
            }
            _ => shares.take(Pool::Bytes, self.uid, bytes.len())?,
        };
        self.state.lock().bytes = (Arc::clone(&bytes), Some(share));
        Ok(bytes)
    }
}

/// The part of `bytes` that a read of `size` at `offset` gets.
pub(super) fn window(bytes: &[u8], offset: u64, size: u32) -> &[u8] {
    let start = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
    let end = start.saturating_add(size as usize).min(bytes.len());
    &bytes[start..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_gets_what_is_there() {
        assert_eq!(window(b"hello", 0, 3), b"hel");
        assert_eq!(window(b"hello", 3, 100), b"lo");
        assert_eq!(window(b"hello", 5, 1), b"");
        assert_eq!(window(b"hello", u64::MAX, u32::MAX), b"");
    }

    #[test]
    fn numbers_are_never_used_twice() {
        let opens = Opens::default();
        let first = opens.insert_listing(0).expect("room");
        opens.remove_listing(first);
        assert_ne!(opens.insert_listing(0).expect("room"), first);
    }

    #[test]
    fn flags_say_what_may_be_done() {
        assert_eq!(Access::of_flags(libc::O_RDONLY | libc::O_APPEND), Access::Read);
        assert!(Access::of_flags(libc::O_WRONLY | libc::O_TRUNC).writes());
        assert_eq!(Access::of_flags(libc::O_RDWR), Access::Both);
    }
}
