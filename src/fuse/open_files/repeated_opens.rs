//! Opens that the kernel repeats because their name had vanished.
//!
//! A lock's name vanishes when the lock is released. If the kernel has not heard of that yet, it
//! sends OPEN for the name, and leaves out `O_CREAT`, since it takes the file to exist. After an
//! answer of ESTALE the kernel looks the name up again and, with `O_CREAT`, makes the lock. It does
//! so only once: a second ESTALE would fail the program's open, and under contention the name may
//! have been made and vanished again.

use parking_lot::Mutex;
use std::collections::VecDeque;

/// The maximum number of threads that are remembered, more than open files at the same moment. A
/// program whose thread is forgotten too early may get ESTALE.
const THREADS_MAX: usize = 1_024;
/// The maximum number of remembered threads of one user: half of all, so that the others keep
/// theirs.
const THREADS_OF_ONE_MAX: usize = THREADS_MAX / 2;

/// The threads whose opens the kernel repeats.
#[derive(Debug, Default)]
pub(crate) struct RepeatedOpens {
    /// The threads with their users, oldest first.
    threads: Mutex<VecDeque<(u32, u32)>>,
}

impl RepeatedOpens {
    /// Whether the kernel is to repeat an open, by the thread `tid` of the user `uid`, of a name
    /// that has vanished. If so, the next open of that thread is not repeated again.
    pub(crate) fn repeats(&self, uid: u32, tid: u32) -> bool {
        // Threads of foreign pid namespaces can't be told apart.
        if tid == 0 || self.done(tid) {
            return false;
        }
        let mut threads = self.threads.lock();
        let is_own = |(user, _): &(u32, u32)| *user == uid;
        if threads.iter().filter(|thread| is_own(thread)).count() >= THREADS_OF_ONE_MAX {
            let oldest = threads.iter().position(is_own);
            oldest.and_then(|oldest| threads.remove(oldest));
        } else if threads.len() >= THREADS_MAX {
            threads.pop_front();
        }
        threads.push_back((uid, tid));
        true
    }

    /// Records that the thread `tid` has opened a file or made one. Returns whether its open was a
    /// repeated one.
    pub(crate) fn done(&self, tid: u32) -> bool {
        let mut threads = self.threads.lock();
        let at = threads.iter().position(|(_, thread)| *thread == tid);
        at.is_some_and(|at| threads.remove(at).is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_is_repeated_once() {
        let opens = RepeatedOpens::default();
        let repeats = |tid| opens.repeats(0, tid);
        assert!(repeats(7) && repeats(8));
        assert!(!repeats(7));
        assert!(repeats(7) && opens.done(7) && !opens.done(7));
        assert!(repeats(7), "the repeated open has made the file");
        assert!(!repeats(0));
    }

    #[test]
    fn one_user_leaves_half_of_the_repeated_opens_to_others() {
        let opens = RepeatedOpens::default();
        let threads = |uid: u32| (uid * 10_000..).take(THREADS_OF_ONE_MAX);
        let remembered = |uid| threads(uid).filter(|tid| opens.done(*tid)).count();
        for uid in [1, 2] {
            assert!(threads(uid).all(|tid| opens.repeats(uid, tid)));
        }
        let more = 30_000..;
        assert!(more.take(THREADS_MAX).all(|tid| opens.repeats(2, tid)));
        assert_eq!(opens.threads.lock().len(), THREADS_MAX);
        assert_eq!((remembered(1), remembered(2)), (THREADS_OF_ONE_MAX, 0));
        assert!(threads(1).chain(threads(4)).all(|tid| opens.repeats(tid / 10_000, tid)));
        assert_eq!(opens.threads.lock().len(), THREADS_MAX, "three users share the table");
    }
}
