//! The tables of open files and directories by file handle. Handles are never reused, so a late
//! request can't reach another program's file.

use crate::fuse::kernel::hash_maps::Numbered;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A source of unique file handles.
#[derive(Debug, Default)]
pub(crate) struct HandleNumbers(AtomicU64);

impl HandleNumbers {
    /// Returns a file handle that was never returned before.
    pub(crate) fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed) + 1
    }
}

/// A table of open files or directories by file handle.
#[derive(Debug)]
pub(crate) struct Handles<T>(Mutex<Numbered<Arc<T>>>);

impl<T> Default for Handles<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Handles<T> {
    /// Records an open file or directory under the handle `number`.
    pub(crate) fn insert(&self, number: u64, opened: T) {
        self.insert_shared(number, Arc::new(opened));
    }

    /// Records an open file or directory to which the caller has another reference.
    pub(crate) fn insert_shared(&self, number: u64, opened: Arc<T>) {
        self.0.lock().insert(number, opened);
    }

    /// Returns the open file or directory with the handle `number`.
    pub(crate) fn get(&self, number: u64) -> Option<Arc<T>> {
        self.0.lock().get(&number).cloned()
    }

    /// Removes an open file or directory and returns it, so that the caller drops it after the
    /// mutex is released.
    pub(crate) fn remove(&self, number: u64) -> Option<Arc<T>> {
        self.0.lock().remove(&number)
    }

    /// Returns the number of open files or directories in the table.
    pub(crate) fn count(&self) -> usize {
        self.0.lock().len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_are_never_reused() {
        let (numbers, handles) = (HandleNumbers::default(), Handles::default());
        let first = numbers.next();
        handles.insert(first, "a");
        assert_eq!(handles.remove(first).as_deref(), Some(&"a"));
        assert!(handles.get(first).is_none());
        assert_ne!(numbers.next(), first);
        assert_eq!(handles.count(), 0);
    }
}
