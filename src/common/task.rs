//! Runs work as futures: each on the thread that began it until it first waits, and then on the
//! threads that complete the values it waits for. There is no thread pool and no run queue.
//!
//! A promise that is kept once, and the future of its value: a one-shot channel whose sender does
//! not care whether anybody still waits.

use parking_lot::Mutex;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use tokio::sync::oneshot;

/// The sending half of the channel. Dropping it without a value tells the receiving half that no
/// value will come.
#[derive(Debug)]
pub struct Promise<T>(oneshot::Sender<T>);

/// The receiving half of the channel. It yields `None` if the promise was dropped without a value.
#[derive(Debug)]
pub struct Pending<T>(oneshot::Receiver<T>);

/// Returns a promise and the future of its value.
pub fn pending<T>() -> (Promise<T>, Pending<T>) {
    let (send, receive) = oneshot::channel();
    (Promise(send), Pending(receive))
}

impl<T> Promise<T> {
    /// Delivers the value, unless nobody waits for it any more. The task that waits resumes on this
    /// thread, before the call returns.
    pub fn keep(self, value: T) {
        let _ = self.0.send(value);
    }
}

impl<T> Future for Pending<T> {
    type Output = Option<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        Pin::new(&mut self.0).poll(context).map(Result::ok)
    }
}

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

struct Task {
    /// The future of the task; `None` after it has completed.
    work: Mutex<Option<Work>>,
    /// The number of wake-ups since the last poll began. The thread that raises it from 0 polls the
    /// task.
    wakeups: AtomicUsize,
}

/// Runs the future `work` on this thread until it waits or completes.
pub fn spawn(work: impl Future<Output = ()> + Send + 'static) {
    let work = Mutex::new(Some(Box::pin(work) as Work));
    Arc::new(Task { work, wakeups: AtomicUsize::new(0) }).run();
}

impl Task {
    /// Polls the future. If a poll is already in progress, on this thread or another, that thread
    /// polls once more instead, so a wake-up from within a poll never recurses.
    fn run(self: &Arc<Self>) {
        if self.wakeups.fetch_add(1, Ordering::AcqRel) > 0 {
            return;
        }
        let waker = Waker::from(Arc::clone(self));
        let mut context = Context::from_waker(&waker);
        loop {
            let seen = self.wakeups.load(Ordering::Acquire);
            let mut work = self.work.lock();
            let Some(polled) = work.as_mut() else { return };
            if polled.as_mut().poll(&mut context).is_ready() {
                // The task has completed. The wake-up count stays above 0, so no later wake-up
                // polls the task again. The future is dropped after the mutex is released.
                let ended = work.take();
                drop(work);
                return drop(ended);
            }
            drop(work);
            let none_since =
                self.wakeups.compare_exchange(seen, 0, Ordering::AcqRel, Ordering::Acquire);
            if none_since.is_ok() {
                return;
            }
        }
    }
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.run();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.run();
    }
}

/// Runs the future `work` to completion on this thread, and returns its output.
pub fn block_on<T>(work: impl Future<Output = T>) -> T {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut work = std::pin::pin!(work);
    loop {
        match work.as_mut().poll(&mut context) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::park(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

#[cfg(test)]
mod task_tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn work_that_never_waits_is_done_before_spawn_returns() {
        let (send, done) = channel();
        spawn(async move { send.send(1).expect("heard") });
        assert_eq!(done.try_recv(), Ok(1));
    }

    #[test]
    fn a_task_resumes_on_the_thread_that_delivers_its_value() {
        let (promise, value) = pending();
        let (send, done) = channel();
        spawn(async move {
            let value: Option<u32> = value.await;
            send.send((value, std::thread::current().id())).expect("heard");
        });
        assert!(done.try_recv().is_err(), "it waits");
        let thread = std::thread::spawn(move || {
            promise.keep(5);
            std::thread::current().id()
        });
        let thread = thread.join().expect("no panic");
        assert_eq!(done.recv(), Ok((Some(5), thread)));
    }

    #[test]
    fn a_wake_up_from_within_does_not_recurse() {
        /// A test future that wakes itself this many times before it completes.
        struct Restless(u32);
        impl Future for Restless {
            type Output = ();
            fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
                if self.0 == 0 {
                    return Poll::Ready(());
                }
                self.0 -= 1;
                context.waker().wake_by_ref();
                Poll::Pending
            }
        }
        let (send, done) = channel();
        spawn(async move {
            Restless(1_000_000).await;
            send.send(()).expect("heard");
        });
        assert_eq!(done.try_recv(), Ok(()), "the stack did not overflow");
    }

    #[test]
    fn values_of_many_threads_are_all_seen() {
        let (promises, values): (Vec<_>, Vec<_>) = (0..1_000).map(|_| pending::<u64>()).unzip();
        let (send, done) = channel();
        spawn(async move {
            let mut sum = 0;
            for value in values {
                sum += value.await.expect("kept");
            }
            send.send(sum).expect("heard");
        });
        let promises = Mutex::new(promises);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while let Some(promise) = promises.lock().pop() {
                        promise.keep(1);
                    }
                });
            }
        });
        assert_eq!(done.recv(), Ok(1_000));
    }
}
