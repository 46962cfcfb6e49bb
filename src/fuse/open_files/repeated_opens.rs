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

/// The threads whose opens the kernel repeats.
#[derive(Debug, Default)]
pub(crate) struct RepeatedOpens {
    threads: Mutex<VecDeque<u32>>,
}

impl RepeatedOpens {
    /// Whether the kernel is to repeat an open by the thread `tid` of a name that has vanished. If
    /// so, the next open of that thread is not repeated again.
    pub(crate) fn repeats(&self, tid: u32) -> bool {
        // Threads of foreign pid namespaces can't be told apart.
        if tid == 0 || self.done(tid) {
            return false;
        }
        let mut threads = self.threads.lock();
        if threads.len() >= THREADS_MAX {
            threads.pop_front();
        }
        threads.push_back(tid);
        true
    }

    /// Records that the thread `tid` has opened a file or made one. Returns whether its open was a
    /// repeated one.
    pub(crate) fn done(&self, tid: u32) -> bool {
        let mut threads = self.threads.lock();
        let at = threads.iter().position(|thread| *thread == tid);
        at.is_some_and(|at| threads.remove(at).is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_is_repeated_once() {
        let opens = RepeatedOpens::default();
        assert!(opens.repeats(7) && opens.repeats(8));
        assert!(!opens.repeats(7));
        assert!(opens.repeats(7) && opens.done(7) && !opens.done(7));
        assert!(opens.repeats(7), "the repeated open has made the file");
        assert!(!opens.repeats(0));
        for tid in 1_000..3_000 {
            assert!(opens.repeats(tid));
        }
        assert_eq!(opens.threads.lock().len(), THREADS_MAX);
    }
}
