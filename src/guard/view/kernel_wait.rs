//! A request of the kernel that waits, and that a signal to its program ends.

use crate::fuse::kernel::interrupts::{InterruptibleWait, WaitStatus};
use crate::fuse::kernel::task::{Pending, Promise, pending};
use parking_lot::Mutex;
use std::sync::Arc;

/// The promise of an answer to a waiting program.
pub(super) struct KernelWait<T>(Arc<Mutex<Option<Promise<T>>>>);

impl<T> Clone for KernelWait<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> KernelWait<T> {
    /// Returns a promise and its answer. The answer is `None` if a signal ends the wait.
    pub(super) fn new() -> (Self, Pending<T>) {
        let (promise, answer) = pending();
        (Self(Arc::new(Mutex::new(Some(promise)))), answer)
    }

    /// Answers the program, unless a signal has ended its wait.
    pub(super) fn keep(&self, value: T) {
        let promise = self.0.lock().take();
        if let Some(promise) = promise {
            promise.keep(value);
        }
    }

    /// Whether the program still waits.
    pub(super) fn is_open(&self) -> bool {
        self.0.lock().is_some()
    }
}

impl<T: Send> InterruptibleWait for KernelWait<T> {
    fn status(&self) -> WaitStatus {
        if self.is_open() { WaitStatus::Asks } else { WaitStatus::Over }
    }

    fn interrupt(&self) {
        // The waiting operation answers EINTR if the promise is dropped without a value.
        let promise = self.0.lock().take();
        drop(promise);
    }
}
