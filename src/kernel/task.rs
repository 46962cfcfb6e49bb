//! Runs operations as futures: each on the thread that read its request until it first waits, and
//! then on the threads that complete the values it waits for. There is no thread pool and no run
//! queue.
//!
//! A one-shot channel: a promise that is fulfilled once, and a future of its value.
//!
//! Makes system calls that may take long, such as fsync, on threads of their own, so that the
//! thread that reads the kernel's requests answers others meanwhile.

use crate::LOG;
use common::shares::{TableShare, UserLimits, UserTable};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

/// The sending half of the channel. Dropping it without a value tells the receiving half that no
/// value will come.
#[derive(Debug)]
pub struct Promise<T>(Arc<Mutex<PromiseSlot<T>>>);

/// The receiving half of the channel. It yields `None` if the promise was dropped without a value.
#[derive(Debug)]
pub struct Pending<T>(Arc<Mutex<PromiseSlot<T>>>);

#[derive(Debug)]
enum PromiseSlot<T> {
    Empty(Option<Waker>),
    Kept(T),
    Over,
}

/// Returns a promise and the future of its value.
pub fn pending<T>() -> (Promise<T>, Pending<T>) {
    let slot = Arc::new(Mutex::new(PromiseSlot::Empty(None)));
    (Promise(Arc::clone(&slot)), Pending(slot))
}

impl<T> Promise<T> {
    /// Delivers the value. The task that waits for it resumes on this thread, before the call
    /// returns.
    pub fn keep(self, value: T) {
        self.settle(PromiseSlot::Kept(value));
    }

    fn settle(&self, settled: PromiseSlot<T>) {
        let mut slot = self.0.lock();
        let PromiseSlot::Empty(waker) = &mut *slot else { return };
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
        self.settle(PromiseSlot::Over);
    }
}

impl<T> Future for Pending<T> {
    type Output = Option<T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        let mut slot = self.0.lock();
        if let PromiseSlot::Empty(waker) = &mut *slot {
            *waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        match std::mem::replace(&mut *slot, PromiseSlot::Over) {
            PromiseSlot::Kept(value) => Poll::Ready(Some(value)),
            PromiseSlot::Empty(_) | PromiseSlot::Over => Poll::Ready(None),
        }
    }
}

/// The maximum number of threads. More calls at once wait for one of them: they share one disk.
const THREADS_MAX: usize = 4;
/// One user has half of the threads at most, and one is kept for root and the user who mounted.
const THREADS_OF_USERS: UserLimits =
    UserLimits { one: THREADS_MAX / 2, users: THREADS_MAX - 1, all: THREADS_MAX };
/// How long a thread waits for a further call before it ends.
const IDLE: Duration = Duration::from_secs(10);

type Call = Box<dyn FnOnce() + Send>;

/// The threads for slow calls of one mount.
pub struct SlowCalls(Arc<CallQueue>);

struct CallQueue {
    /// The threads that make calls, by the users of these.
    at_work: UserTable,
    state: Mutex<TaskQueueState>,
    more: Condvar,
}

#[derive(Default)]
struct TaskQueueState {
    /// The calls that wait for a thread, with their users.
    calls: VecDeque<(u32, Call)>,
    threads: usize,
    /// The threads that wait for a call.
    idle: usize,
    /// Whether the mount has ended.
    is_over: bool,
}

impl SlowCalls {
    /// Returns no threads yet, for a mount made by the user `mounter`.
    pub fn new(mounter: u32) -> Self {
        let at_work = UserTable::new("calls that may take long", THREADS_OF_USERS, mounter);
        let (state, more) = (Mutex::default(), Condvar::new());
        Self(Arc::new(CallQueue { at_work, state, more }))
    }

    /// Makes a call for a user on a thread of its own, and returns its result; `None` if the mount
    /// has ended.
    pub async fn make<T: Send + 'static>(
        &self,
        uid: u32,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let (promise, result) = pending();
        self.add(uid, Box::new(move || promise.keep(call())));
        result.await
    }

    fn add(&self, uid: u32, call: Call) {
        let mut state = self.0.state.lock();
        state.calls.push_back((uid, call));
        let ready = state.calls.iter().filter(|(uid, _)| self.0.may_begin(*uid)).count();
        if state.idle >= ready || state.threads >= THREADS_MAX {
            self.0.more.notify_one();
            return;
        }
        let queue = Arc::clone(&self.0);
        let thread = std::thread::Builder::new().name("slow-calls".to_owned());
        match thread.spawn(move || queue.serve()) {
            Ok(_) => state.threads += 1,
            Err(error) if state.threads == 0 => {
                log::warn!(target: LOG, "no thread for slow calls can be started: {error}");
                let call = state.calls.pop_back();
                drop(state);
                if let Some((_, call)) = call {
                    call();
                }
            }
            Err(_) => {}
        }
    }
}

impl Drop for SlowCalls {
    fn drop(&mut self) {
        self.0.state.lock().is_over = true;
        self.0.more.notify_all();
    }
}

impl CallQueue {
    /// Whether a user has not yet as many threads as one user may have.
    fn may_begin(&self, uid: u32) -> bool {
        self.at_work.room(uid, 1).is_ok()
    }

    /// Returns the oldest call of a user who may have one more thread. Others wait: the thread that
    /// ends a call makes the next one.
    fn next_call(&self, state: &mut TaskQueueState) -> Option<(TableShare, Call)> {
        let ready = state.calls.iter().position(|(uid, _)| self.may_begin(*uid))?;
        let (uid, call) = state.calls.remove(ready)?;
        Some((self.at_work.take_always(uid, 1), call))
    }

    fn serve(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some((share, call)) = self.next_call(&mut state) {
                drop(state);
                call();
                state = self.state.lock();
                drop(share);
                continue;
            }
            if state.is_over {
                break;
            }
            state.idle += 1;
            let waited = self.more.wait_for(&mut state, IDLE);
            state.idle -= 1;
            if waited.timed_out() && state.calls.is_empty() {
                break;
            }
        }
        state.threads -= 1;
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
    use crate::task::block_on;

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
mod slow_calls_tests {
    use super::*;
    use crate::task::{block_on, spawn};
    use std::sync::mpsc::channel;

    /// A call that takes long delays no other one, and further calls wait for a thread.
    #[test]
    fn calls_run_beside_each_other() {
        let calls = Arc::new(SlowCalls::new(0));
        let (done, results) = channel();
        let mut ends = Vec::new();
        for number in 0..=THREADS_MAX {
            let (end, ended) = channel::<()>();
            ends.push(end);
            let (calls, done) = (Arc::clone(&calls), done.clone());
            spawn(async move {
                let result = calls.make(0, move || ended.recv().map(|()| number)).await;
                let _ = done.send(result);
            });
        }
        for number in (1..THREADS_MAX).rev() {
            ends[number].send(()).expect("the call waits");
            assert_eq!(results.recv(), Ok(Some(Ok(number))));
        }
        ends[THREADS_MAX].send(()).expect("the call waits");
        assert_eq!(results.recv(), Ok(Some(Ok(THREADS_MAX))));
        ends[0].send(()).expect("the call waits");
        assert_eq!(results.recv(), Ok(Some(Ok(0))));
        assert_eq!(block_on(calls.make(0, || 7)), Some(7));
    }

    /// One user has half of the threads, all users leave one to root, and what waits for a thread
    /// gets the next one that its user may have.
    #[test]
    fn one_user_leaves_half_of_the_threads_to_others() {
        let calls = Arc::new(SlowCalls::new(0));
        let (begun, begins) = channel();
        let (done, results) = channel();
        let start = |uid: u32| {
            let (end, ended) = channel::<()>();
            let (calls, begun, done) = (Arc::clone(&calls), begun.clone(), done.clone());
            spawn(async move {
                let call = move || {
                    let _ = begun.send(uid);
                    let _ = ended.recv();
                };
                calls.make(uid, call).await;
                let _ = done.send(uid);
            });
            end
        };
        let (eve, ann, root) = (1_000, 1_001, 0);
        let mut eves: Vec<_> = (0..5).map(|_| start(eve)).collect();
        assert_eq!([begins.recv(), begins.recv()], [Ok(eve), Ok(eve)]);
        let anns: Vec<_> = (0..2).map(|_| start(ann)).collect();
        assert_eq!(begins.recv(), Ok(ann));
        let roots = start(root);
        assert_eq!(begins.recv(), Ok(root), "one thread is kept for root");
        drop(roots);
        assert_eq!(results.recv(), Ok(root));
        drop(eves.remove(0));
        assert_eq!((results.recv(), begins.recv()), (Ok(eve), Ok(eve)));
        drop(eves);
        drop(anns);
        let mut rest: Vec<_> = (0..6).map(|_| results.recv().expect("it ends")).collect();
        rest.sort_unstable();
        assert_eq!(rest, [eve, eve, eve, eve, ann, ann]);
    }
}

#[cfg(test)]
mod task_tests {
    use super::*;
    use crate::task::pending;
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
