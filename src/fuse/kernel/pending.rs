//! A one-shot channel: a promise that is fulfilled once, and a future of its value.

use parking_lot::Mutex;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// The sending half of the channel. Dropping it without a value tells the receiving half that no
/// value will come.
#[derive(Debug)]
pub(crate) struct Promise<T>(Arc<Mutex<Slot<T>>>);

/// The receiving half of the channel. It yields `None` if the promise was dropped without a value.
#[derive(Debug)]
pub(crate) struct Pending<T>(Arc<Mutex<Slot<T>>>);

#[derive(Debug)]
enum Slot<T> {
    Empty(Option<Waker>),
    Kept(T),
    Over,
}

/// Returns a promise and the future of its value.
pub(crate) fn pending<T>() -> (Promise<T>, Pending<T>) {
    let slot = Arc::new(Mutex::new(Slot::Empty(None)));
    (Promise(Arc::clone(&slot)), Pending(slot))
}

impl<T> Promise<T> {
    /// Delivers the value. The task that waits for it resumes on this thread, before the call
    /// returns.
    pub(crate) fn keep(self, value: T) {
        self.settle(Slot::Kept(value));
    }

    fn settle(&self, settled: Slot<T>) {
        let mut slot = self.0.lock();
        let Slot::Empty(waker) = &mut *slot else { return };
        let waker = waker.take();
        *slot = settled;
        drop(slot);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> Drop for Promise<T> {
    fn drop(&mut self) {
        self.settle(Slot::Over);
    }
}

impl<T> Future for Pending<T> {
    type Output = Option<T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        let mut slot = self.0.lock();
        if let Slot::Empty(waker) = &mut *slot {
            *waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        match std::mem::replace(&mut *slot, Slot::Over) {
            Slot::Kept(value) => Poll::Ready(Some(value)),
            Slot::Empty(_) | Slot::Over => Poll::Ready(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuse::kernel::task::block_on;

    #[test]
    fn a_fulfilled_promise_yields_its_value() {
        let (promise, value) = pending();
        promise.keep(7);
        assert_eq!(block_on(value), Some(7));
    }

    #[test]
    fn a_dropped_promise_yields_nothing() {
        let (promise, value) = pending::<u32>();
        drop(promise);
        assert_eq!(block_on(value), None);
    }

    #[test]
    fn a_value_may_come_from_another_thread() {
        let (promise, value) = pending();
        let keeper = std::thread::spawn(move || promise.keep(7));
        assert_eq!(block_on(value), Some(7));
        keeper.join().expect("no panic");
    }
}
