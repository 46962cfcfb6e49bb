//! Second opens. The kernel answers ESTALE by looking the name up once more, and opens what it
//! finds then. It does not try a third time, so what the second lookup finds must be there for the
//! open that follows, whatever other programs do in between.
//!
//! An open fails so whose file has lost its name since the kernel looked it up, and one that begins
//! a new version of a file that other programs have open: the new version needs a node of its own.

use super::nodes::NodeName;
use crate::time::{Span, Time, boot_now};
use kernel::file_system::NameIn;
use kernel::file_system::Requester;
use parking_lot::Mutex;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How long a second open is expected. It follows at once, unless its program is killed, or has to
/// wait for a processor on a busy machine.
const EXPECTED_FOR: Span = Span::from_secs(10);
/// The maximum number of second opens that are expected. Beyond it the oldest is forgotten, whose
/// program then may get ESTALE. One user has half of them at most.
const SECOND_OPENS_MAX: usize = 256;

/// The node that an open needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::guard::view) enum Needs {
    /// Any node of the file.
    Content,
    /// A node that no other program has open, for a new version of the file.
    NewVersion,
}

impl Needs {
    /// Returns the need of an open with these flags.
    pub(in crate::guard::view) const fn of(flags: i32) -> Self {
        if flags & libc::O_TRUNC != 0 { Self::NewVersion } else { Self::Content }
    }
}

/// An open that the kernel is going to send.
struct SecondOpen {
    thread: u32,
    uid: u32,
    since: Time,
    needs: Needs,
    /// The name that the thread opens.
    place: NodeName,
    /// The node that the thread's last lookup of the name found, and its file.
    found: Option<(u64, Arc<OwnedFd>)>,
}

impl SecondOpen {
    fn is_of(&self, at: NameIn<'_>) -> bool {
        (self.place.0, &*self.place.1) == (at.parent, at.name)
    }

    fn is_expected(&self, now: Time) -> bool {
        now.since(self.since) <= EXPECTED_FOR
    }
}

/// The threads of which the kernel is going to send a second open.
#[derive(Default)]
pub(in crate::guard::view) struct SecondOpens {
    count: AtomicUsize,
    list: Mutex<Vec<SecondOpen>>,
}

impl SecondOpens {
    /// Records that an open of a thread gets ESTALE for an answer, or another request on the way to
    /// one, and expects the second open of the name `place`. The kernel does not come back if this
    /// was the second one, of the same name and with the same need.
    pub(in crate::guard::view) fn failed(&self, who: Requester, place: NodeName, needs: Needs) {
        if who.pid == 0 {
            return;
        }
        let (now, mut list) = (boot_now(), self.list.lock());
        list.retain(|one| one.is_expected(now));
        let own = list.iter().position(|one| one.thread == who.pid).map(|own| list.remove(own));
        if own.is_none_or(|own| own.needs < needs || own.place != place) {
            let is_own = |one: &SecondOpen| one.uid == who.uid;
            if list.iter().filter(|one| is_own(one)).count() >= SECOND_OPENS_MAX / 2 {
                list.iter().position(is_own).map(|oldest| list.remove(oldest));
            } else if list.len() >= SECOND_OPENS_MAX {
                list.remove(0);
            }
            let (thread, uid) = (who.pid, who.uid);
            list.push(SecondOpen { thread, uid, since: now, needs, place, found: None });
        }
        self.count.store(list.len(), Ordering::Release);
    }

    /// Returns what one of the expected opens has.
    fn find<T>(&self, of: impl Fn(&SecondOpen) -> Option<T>) -> Option<T> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let (now, list) = (boot_now(), self.list.lock());
        list.iter().filter(|one| one.is_expected(now)).find_map(of)
    }

    /// Returns the need of the open for which a thread looks a name up for the second time.
    pub(in crate::guard::view) fn needs(&self, who: Requester, at: NameIn<'_>) -> Option<Needs> {
        self.find(|one| (one.thread == who.pid && one.is_of(at)).then_some(one.needs))
    }

    /// Whether a program is about to open a new version of the file with this name.
    pub(in crate::guard::view) fn awaits_version(&self, at: NameIn<'_>) -> bool {
        self.find(|one| (one.needs == Needs::NewVersion && one.is_of(at)).then_some(())).is_some()
    }

    /// Keeps the file that a thread's lookup found for its second open.
    pub(in crate::guard::view) fn keep(&self, who: Requester, ino: u64, file: OwnedFd) {
        if let Some(one) = self.list.lock().iter_mut().find(|one| one.thread == who.pid) {
            one.found = Some((ino, Arc::new(file)));
        }
    }

    /// Returns the file of a node that a thread's lookup found for its second open.
    pub(in crate::guard::view) fn found(&self, who: Requester, ino: u64) -> Option<Arc<OwnedFd>> {
        self.find(|one| {
            let found = one.found.as_ref().filter(|(found, _)| *found == ino);
            found.filter(|_| one.thread == who.pid).map(|(_, file)| Arc::clone(file))
        })
    }

    /// Ends the expectation after an open of the thread.
    pub(in crate::guard::view) fn opened(&self, who: Requester) {
        if self.count.load(Ordering::Acquire) > 0 {
            let mut list = self.list.lock();
            list.retain(|one| one.thread != who.pid);
            self.count.store(list.len(), Ordering::Release);
        }
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
        let needs = |pid, name| opens.needs(who(pid), AT(name));
        assert!(needs(7, "a").is_none() && opens.found(who(7), 6).is_none());
        opens.failed(who(7), (1, "a".into()), Needs::of(libc::O_WRONLY | libc::O_TRUNC));
        opens.failed(who(8), (1, "b".into()), Needs::of(libc::O_RDWR));
        assert_eq!(needs(7, "a"), Some(Needs::NewVersion));
        assert_eq!(needs(8, "b"), Some(Needs::Content));
        assert_eq!((needs(8, "a"), needs(7, "c")), (None, None));
        assert!(opens.awaits_version(AT("a")) && !opens.awaits_version(AT("b")));
        opens.keep(who(8), 9, file());
        opens.keep(who(7), 5, file());
        opens.keep(who(7), 6, file());
        let found = |pid, ino| opens.found(who(pid), ino).is_some();
        assert!(found(7, 6) && !found(7, 5) && found(8, 9) && !found(8, 6) && !found(7, 9));
        opens.opened(who(8));
        assert!(needs(8, "b").is_none() && !found(8, 9) && found(7, 6));
    }

    /// A thread that has looked a name up may then begin a new version of the file.
    #[test]
    fn the_kernel_comes_back_once_unless_the_open_needs_more_than_the_one_before() {
        let opens = SecondOpens::default();
        let fails = |needs| {
            opens.failed(who(7), (1, "a".into()), needs);
            opens.needs(who(7), AT("a"))
        };
        assert_eq!(fails(Needs::Content), Some(Needs::Content));
        assert_eq!(fails(Needs::NewVersion), Some(Needs::NewVersion));
        assert_eq!(fails(Needs::NewVersion), None);
        assert_eq!(fails(Needs::NewVersion), Some(Needs::NewVersion));
        assert_eq!(fails(Needs::Content), None);
        opens.failed(who(7), (1, "b".into()), Needs::NewVersion);
        assert_eq!(fails(Needs::Content), Some(Needs::Content), "the second open of another name");
    }

    #[test]
    fn the_number_of_expected_opens_is_bounded() {
        let opens = SecondOpens::default();
        let fails = |uid, pid| {
            opens.failed(Requester { uid, ..who(pid) }, (1, "a".into()), Needs::Content);
        };
        let is_expected = |pid| opens.needs(who(pid), AT("a")).is_some();
        let half = SECOND_OPENS_MAX as u32 / 2;
        // One user takes half of them, however many threads it has.
        fails(1, 1);
        (2..=2 * half).for_each(|pid| fails(2, pid));
        assert_eq!(opens.list.lock().len() as u32, half + 1);
        assert!(is_expected(1) && !is_expected(half) && is_expected(half + 1));
        (3..=half + 2).for_each(|uid| fails(uid, uid << 10));
        assert_eq!(opens.list.lock().len(), SECOND_OPENS_MAX);
        assert!(!is_expected(1) && is_expected(half + 1) && is_expected((half + 2) << 10));
    }
}
