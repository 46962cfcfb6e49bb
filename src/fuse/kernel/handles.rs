//! Open files and directories by number. No number is used twice, so a late request can't reach
//! another program's file.

use crate::fuse::kernel::hash_maps::Numbered;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Gives out numbers.
#[derive(Debug, Default)]
pub(crate) struct HandleNumbers(AtomicU64);

impl HandleNumbers {
    /// Returns a number that was never given out before.
    pub(crate) fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed) + 1
    }
}

/// The open files or directories, by number.
#[derive(Debug)]
pub(crate) struct Handles<T>(Mutex<Numbered<Arc<T>>>);

impl<T> Default for Handles<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Handles<T> {
    /// Keeps what was opened as `number`.
    pub(crate) fn insert(&self, number: u64, opened: T) {
        self.0.lock().insert(number, Arc::new(opened));
    }

    /// Returns what is open under this number.
    pub(crate) fn get(&self, number: u64) -> Option<Arc<T>> {
        self.0.lock().get(&number).cloned()
    }

    /// Forgets what was closed, and returns it: so it is never freed under the mutex.
    pub(crate) fn remove(&self, number: u64) -> Option<Arc<T>> {
        self.0.lock().remove(&number)
    }

    /// Returns how many are open.
    pub(crate) fn count(&self) -> usize {
        self.0.lock().len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_never_used_twice() {
        let (numbers, handles) = (HandleNumbers::default(), Handles::default());
        let first = numbers.next();
        handles.insert(first, "a");
        assert_eq!(handles.remove(first).as_deref(), Some(&"a"));
        assert!(handles.get(first).is_none());
        assert_ne!(numbers.next(), first);
        assert_eq!(handles.count(), 0);
    }
}
