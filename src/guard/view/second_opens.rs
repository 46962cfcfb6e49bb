//! Second opens. The kernel answers ESTALE by looking the name up once more, and opens what it
//! finds then. It does not try a third time, so what the second lookup finds must be there for the
//! open that follows, whatever other programs do in between.

use super::nodes::NodeName;
use crate::fuse::kernel::file_system::NameIn;
use crate::fuse::kernel::values::Requester;
use crate::time::{Span, Time, boot_now};
use parking_lot::Mutex;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How long a second open is expected. It follows at once, unless its program is killed, or many
/// other programs run.
const EXPECTED_FOR: Span = Span::from_secs(10);
/// The maximum number of second opens that are expected. Beyond it the oldest is forgotten, whose
/// program then may get ESTALE.
const SECOND_OPENS_MAX: usize = 256;

/// The node that an open needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Needs {
    /// Any node of the file.
    Content,
    /// A node that is read by requests.
    Requests,
    /// A node that no other program has open, for a new version of the file.
    NewVersion,
}

impl Needs {
    /// Returns the need of an open with these flags.
    pub(super) const fn of(flags: i32) -> Self {
        if flags & libc::O_TRUNC != 0 {
            Self::NewVersion
        } else if flags & libc::O_ACCMODE != libc::O_RDONLY || flags & libc::O_DIRECT != 0 {
            Self::Requests
        } else {
            Self::Content
        }
    }
}

/// An open that the kernel is going to send.
pub(super) struct SecondOpen {
    thread: u32,
    since: Time,
    needs: Needs,
    /// The name that the thread opens.
    place: NodeName,
    /// The node that the last lookup of the thread found, and its file.
    pub(super) found: Option<FoundFile>,
}

/// A file that a lookup found.
pub(super) struct FoundFile {
    pub(super) ino: u64,
    pub(super) file: OwnedFd,
}

/// The threads of which the kernel is going to send a second open.
#[derive(Default)]
pub(super) struct SecondOpens {
    count: AtomicUsize,
    list: Mutex<Vec<SecondOpen>>,
}

impl SecondOpens {
    /// Expects that a thread opens the name `place` for a second time. Its first open gets ESTALE
    /// for an answer.
    pub(super) fn expect(&self, who: Requester, place: NodeName, needs: Needs) {
        if who.pid == 0 {
            return;
        }
        let now = boot_now();
        let mut list = self.list.lock();
        list.retain(|one| one.thread != who.pid && now.since(one.since) <= EXPECTED_FOR);
        if list.len() >= SECOND_OPENS_MAX {
            list.remove(0);
        }
        list.push(SecondOpen { thread: who.pid, since: now, needs, place, found: None });
        self.count.store(list.len(), Ordering::Release);
    }

    /// Returns the need of the open for which a thread looks a name up, if it is a second one.
    pub(super) fn needs(&self, who: Requester, at: NameIn<'_>) -> Option<Needs> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let (now, list) = (boot_now(), self.list.lock());
        let one = list.iter().find(|one| one.thread == who.pid)?;
        let is_it = (one.place.0, &*one.place.1) == (at.parent, at.name);
        (is_it && now.since(one.since) <= EXPECTED_FOR).then_some(one.needs)
    }

    /// Keeps the file that a lookup of a thread found until the thread opens it.
    pub(super) fn keep(&self, who: Requester, ino: u64, file: OwnedFd) {
        let mut list = self.list.lock();
        if let Some(one) = list.iter_mut().find(|one| one.thread == who.pid) {
            one.found = Some(FoundFile { ino, file });
        }
    }

    /// Whether another thread has looked a node up that it is about to open for a new version. That
    /// open needs the node for itself.
    pub(super) fn is_reserved(&self, ino: u64, who: Requester) -> bool {
        if self.count.load(Ordering::Acquire) == 0 {
            return false;
        }
        let now = boot_now();
        self.list.lock().iter().any(|one| {
            one.thread != who.pid
                && one.needs == Needs::NewVersion
                && one.found.as_ref().is_some_and(|found| found.ino == ino)
                && now.since(one.since) <= EXPECTED_FOR
        })
    }

    /// Ends the expectation at an open of the thread, and returns it. Returns `None` if this is not
    /// a second open.
    pub(super) fn take(&self, who: Requester) -> Option<SecondOpen> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut list = self.list.lock();
        let at = list.iter().position(|one| one.thread == who.pid)?;
        let one = list.remove(at);
        self.count.store(list.len(), Ordering::Release);
        (boot_now().since(one.since) <= EXPECTED_FOR).then_some(one)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_open_is_expected_once_and_of_its_thread_only() {
        let opens = SecondOpens::default();
        let who = |pid| Requester { uid: 0, gid: 0, pid };
        let place = || (1, "a".into());
        let needs = |pid| opens.needs(who(pid), NameIn { parent: 1, name: "a".as_ref() });
        assert!(needs(7).is_none() && opens.take(who(7)).is_none());
        opens.expect(who(7), place(), Needs::of(libc::O_WRONLY | libc::O_TRUNC));
        opens.expect(who(8), place(), Needs::of(libc::O_RDWR));
        assert_eq!(needs(7), Some(Needs::NewVersion));
        let other = NameIn { parent: 1, name: "b".as_ref() };
        assert_eq!(opens.needs(who(7), other), None);
        assert_eq!(needs(8), Some(Needs::Requests));
        let file = || OwnedFd::from(std::fs::File::open("/").expect("there"));
        opens.keep(who(8), 9, file());
        opens.keep(who(7), 6, file());
        assert!(opens.is_reserved(6, who(8)) && !opens.is_reserved(6, who(7)));
        assert!(!opens.is_reserved(9, who(7)), "its program shares the node");
        assert!(opens.take(who(7)).and_then(|one| one.found).is_some_and(|it| it.ino == 6));
        assert!(opens.take(who(8)).and_then(|one| one.found).is_some_and(|it| it.ino == 9));
        assert!(opens.take(who(8)).is_none() && needs(8).is_none());
    }

    #[test]
    fn the_number_of_expected_opens_is_bounded() {
        let opens = SecondOpens::default();
        let who = |pid| Requester { uid: 0, gid: 0, pid };
        for pid in 0..=SECOND_OPENS_MAX as u32 + 1 {
            opens.expect(who(pid), (1, "a".into()), Needs::Content);
        }
        assert_eq!(opens.list.lock().len(), SECOND_OPENS_MAX);
        assert!(opens.take(who(1)).is_none() && opens.take(who(2)).is_some());
    }
}
