//! Second opens. The kernel answers ESTALE by looking the name up once more, and opens what it
//! finds then. It does not try a third time, so what the second lookup finds must be there for the
//! open that follows, whatever other programs do in between.

use super::nodes::NodeName;
use crate::fuse::kernel::file_system::NameIn;
use crate::fuse::kernel::file_system::Requester;
use crate::time::{Span, Time, boot_now};
use parking_lot::Mutex;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How long a second open is expected. It follows at once, unless its program is killed, or has to
/// wait for a processor on a busy machine.
const EXPECTED_FOR: Span = Span::from_secs(10);
/// The maximum number of files that are kept for one of them.
const FOUND_MAX: usize = 4;
/// The maximum number of second opens that are expected. Beyond it the oldest is forgotten, whose
/// program then may get ESTALE.
const SECOND_OPENS_MAX: usize = 256;

/// The node that an open needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::guard::view) enum Needs {
    /// Any node of the file.
    Content,
    /// A node that is read by requests.
    Requests,
    /// A node that no other program has open, for a new version of the file.
    NewVersion,
}

impl Needs {
    /// Returns the need of an open with these flags.
    pub(in crate::guard::view) const fn of(flags: i32) -> Self {
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
pub(in crate::guard::view) struct SecondOpen {
    thread: u32,
    since: Time,
    needs: Needs,
    /// The name that the thread opens.
    place: NodeName,
    /// The nodes that the last lookups of the name found, and their files. When several threads
    /// look one name up, the kernel takes the answer to one of them for all.
    found: Vec<FoundNode>,
}

impl SecondOpen {
    fn is_of(&self, at: NameIn<'_>) -> bool {
        (self.place.0, &*self.place.1) == (at.parent, at.name)
    }

    /// Returns the file of a node that a lookup found.
    pub(in crate::guard::view) fn into_found(self, ino: u64) -> Option<FoundNode> {
        self.found.into_iter().rfind(|found| found.ino == ino)
    }
}

/// A file that a lookup found.
#[derive(Clone)]
pub(in crate::guard::view) struct FoundNode {
    pub(in crate::guard::view) ino: u64,
    pub(in crate::guard::view) file: Arc<OwnedFd>,
}

/// The second opens of a name that is looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::guard::view) struct ExpectedOpens {
    /// The need of the open for which the thread looks the name up, if it is a second one.
    pub(in crate::guard::view) own: Option<Needs>,
    /// The greatest need of all.
    pub(in crate::guard::view) greatest: Needs,
}

/// The threads of which the kernel is going to send a second open.
#[derive(Default)]
pub(in crate::guard::view) struct SecondOpens {
    count: AtomicUsize,
    list: Mutex<Vec<SecondOpen>>,
}

impl SecondOpens {
    /// Expects that a thread opens the name `place` for a second time. Its first open gets ESTALE
    /// for an answer.
    pub(in crate::guard::view) fn expect(&self, who: Requester, place: NodeName, needs: Needs) {
        if who.pid == 0 {
            return;
        }
        let now = boot_now();
        let mut list = self.list.lock();
        list.retain(|one| one.thread != who.pid && now.since(one.since) <= EXPECTED_FOR);
        if list.len() >= SECOND_OPENS_MAX {
            list.remove(0);
        }
        list.push(SecondOpen { thread: who.pid, since: now, needs, place, found: Vec::new() });
        self.count.store(list.len(), Ordering::Release);
    }

    /// Returns the second opens of a name that a thread looks up; `None` if there are none.
    pub(in crate::guard::view) fn of(
        &self,
        who: Requester,
        at: NameIn<'_>,
    ) -> Option<ExpectedOpens> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let (now, list) = (boot_now(), self.list.lock());
        let all = list.iter().filter(|one| one.is_of(at) && now.since(one.since) <= EXPECTED_FOR);
        let own = all.clone().find(|one| one.thread == who.pid).map(|one| one.needs);
        all.map(|one| one.needs).max().map(|greatest| ExpectedOpens { own, greatest })
    }

    /// Keeps the file that a lookup found for the second opens of the name.
    pub(in crate::guard::view) fn keep(&self, at: NameIn<'_>, ino: u64, file: OwnedFd) {
        let found = FoundNode { ino, file: Arc::new(file) };
        for one in self.list.lock().iter_mut().filter(|one| one.is_of(at)) {
            if one.found.len() >= FOUND_MAX {
                one.found.remove(0);
            }
            one.found.push(found.clone());
        }
    }

    /// Whether another thread has looked a node up that it is about to open for a new version. That
    /// open needs the node for itself.
    pub(in crate::guard::view) fn is_reserved(&self, ino: u64, who: Requester) -> bool {
        if self.count.load(Ordering::Acquire) == 0 {
            return false;
        }
        let now = boot_now();
        self.list.lock().iter().any(|one| {
            one.thread != who.pid
                && one.needs == Needs::NewVersion
                && one.found.iter().any(|found| found.ino == ino)
                && now.since(one.since) <= EXPECTED_FOR
        })
    }

    /// Ends the expectation at an open of the thread, and returns it. Returns `None` if this is not
    /// a second open.
    pub(in crate::guard::view) fn take(&self, who: Requester) -> Option<SecondOpen> {
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

    fn who(pid: u32) -> Requester {
        Requester { uid: 0, gid: 0, pid }
    }

    const AT: fn(&str) -> NameIn<'_> = |name| NameIn { parent: 1, name: name.as_ref() };

    fn file() -> OwnedFd {
        OwnedFd::from(std::fs::File::open("/").expect("there"))
    }

    #[test]
    fn a_second_open_is_expected_once_and_of_its_thread_only() {
        let opens = SecondOpens::default();
        let of = |pid, name| opens.of(who(pid), AT(name));
        let found = |pid, ino| opens.take(who(pid)).and_then(|one| one.into_found(ino));
        assert!(of(7, "a").is_none() && opens.take(who(7)).is_none());
        opens.expect(who(7), (1, "a".into()), Needs::of(libc::O_WRONLY | libc::O_TRUNC));
        opens.expect(who(8), (1, "b".into()), Needs::of(libc::O_RDWR));
        let only = |needs| Some(ExpectedOpens { own: Some(needs), greatest: needs });
        assert_eq!(of(7, "a"), only(Needs::NewVersion));
        assert_eq!(of(8, "b"), only(Needs::Requests));
        assert_eq!(of(8, "a"), Some(ExpectedOpens { own: None, greatest: Needs::NewVersion }));
        assert_eq!(of(7, "c"), None);
        opens.keep(AT("b"), 9, file());
        opens.keep(AT("a"), 6, file());
        assert!(opens.is_reserved(6, who(8)) && !opens.is_reserved(6, who(7)));
        assert!(!opens.is_reserved(9, who(7)), "its program shares the node");
        assert!(found(7, 6).is_some() && found(8, 9).is_some());
        assert!(opens.take(who(8)).is_none() && of(8, "b").is_none());
    }

    /// The kernel takes the answer to one of several lookups of a name for all.
    #[test]
    fn the_lookups_of_other_threads_are_kept_too_up_to_a_bound() {
        let opens = SecondOpens::default();
        let found = |ino| {
            opens.expect(who(7), (1, "a".into()), Needs::Content);
            (0..=FOUND_MAX as u64).for_each(|ino| opens.keep(AT("a"), ino, file()));
            assert_eq!(opens.list.lock()[0].found.len(), FOUND_MAX);
            opens.take(who(7)).and_then(|one| one.into_found(ino)).map(|found| found.ino)
        };
        assert_eq!((found(0), found(1), found(4), found(5)), (None, Some(1), Some(4), None));
    }

    #[test]
    fn the_number_of_expected_opens_is_bounded() {
        let opens = SecondOpens::default();
        for pid in 0..=SECOND_OPENS_MAX as u32 + 1 {
            opens.expect(who(pid), (1, "a".into()), Needs::Content);
        }
        assert_eq!(opens.list.lock().len(), SECOND_OPENS_MAX);
        assert!(opens.take(who(1)).is_none() && opens.take(who(2)).is_some());
    }
}
